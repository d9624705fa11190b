"""What can be launched: a kernel of a binary, its arguments packed for PyCUDA, tensor maps included; and with
the same interface, NVIDIA's libraries, the reference for every operation they support.

cuBLAS is column-major. A row-major C = A·B is its Cᵀ = Bᵀ·Aᵀ, so the operands change places; a column-major C
leaves them where they are.
"""

from __future__ import annotations

import contextlib
import hashlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pycuda.driver as cuda

from gemm_regression.compiler import objects
from gemm_regression.compiler.units import source_of
from gemm_regression.devices import DeviceError
from gemm_regression.devices.cuda.source_module import compile_source, source_module
from gemm_regression.devices.cuda.timing import Enqueue
from gemm_regression.devices.work import CompiledBinary, StoredBinary, Work
from gemm_regression.model import (
    F32,
    Argument,
    BlockShape,
    Config,
    DType,
    Kernel,
    Problem,
    Resources,
    Storage,
)

# struct's letters for the kinds of arguments, and their bytes; a half is handed over by its bits.
_PACKED = {
    "i32": ("i", 4),
    "i64": ("q", 8),
    "f32": ("f", 4),
    "f64": ("d", 8),
    "f16": ("H", 2),
    "bf16": ("H", 2),
    "p64": ("P", 8),
    "bytes[128]": ("128s", 128),
}
_ELEMENTS = {name: name.upper() for name in ("float32", "float64", "float16", "bfloat16", "int32")}
_ELEMENTS |= {"int8": "UINT8", "int16": "UINT16"}


def pack(
    work: Work, at: Mapping[str, int], offsets: Callable[[], Sequence[int]]
) -> tuple[list[str], list[Any]]:
    """The formats of the parameters, for PyCUDA's ``prepare``, and their values. ``offsets`` gives where each
    lies, in bytes; asked only where struct's own alignment does not tell, for tensor maps.

    Raises DeviceError for a matrix that no tensor map can describe.
    """
    values = [_value(argument, work, at) for argument in work.arguments]
    if not any(argument.map for argument in work.arguments):
        return [_PACKED[argument.kind][0] for argument in work.arguments], values
    formats, end = [], 0
    for argument, start in zip(work.arguments, offsets(), strict=True):
        letter, size = _PACKED[argument.kind]
        formats.append(f"{start - end}x{letter}" if start > end else letter)
        end = start + size
    return formats, values


def _value(argument: Argument, work: Work, at: Mapping[str, int]) -> Any:
    if argument.map:
        return _tensor_map(argument, work.storages[argument.buffer], at[argument.buffer])
    if argument.kind == "p64":
        return at[argument.buffer] if argument.buffer else 0
    if argument.kind == "f16":
        return int(np.float16(argument.value).view(np.uint16))
    if argument.kind == "bf16":
        return int(ml_dtypes.bfloat16(argument.value).view(np.uint16))
    return argument.value


def _tensor_map(argument: Argument, storage: Storage, address: int) -> bytes:
    """The 128 bytes of a CUtensorMap over the rows of storage (the driver's cuTensorMapEncodeTiled)."""
    from cuda.bindings import driver

    assert argument.map is not None
    remedy = "declare what it takes: constraints=Constraints(multiples=...)"
    try:
        extents, strides, box = argument.map.dimensions(storage)
    except ValueError as error:
        raise DeviceError("LAUNCH_FAILED", f"no tensor map of {argument.buffer}: {error}; {remedy}") from None
    swizzle = f"{argument.map.swizzle}B" if argument.map.swizzle else "NONE"
    if storage.dtype.name not in _ELEMENTS:
        text = f"no tensor map of {argument.buffer}: its elements are {storage.dtype.name}"
        raise DeviceError("LAUNCH_FAILED", f"{text}, and known are {', '.join(_ELEMENTS)}")
    element = "TFLOAT32" if argument.map.tf32 else _ELEMENTS[storage.dtype.name]
    status, made = driver.cuTensorMapEncodeTiled(
        getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{element}"),
        len(extents),
        address,
        [driver.cuuint64_t(n) for n in extents],
        [driver.cuuint64_t(n) for n in strides],
        [driver.cuuint32_t(n) for n in box],
        [driver.cuuint32_t(1)] * len(extents),
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(driver.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{swizzle}"),
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_NONE,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if status != driver.CUresult.CUDA_SUCCESS:
        text = f"leading dimension {storage.ld} and boxes of {argument.map.box} ({status.name})"
        raise DeviceError("LAUNCH_FAILED", f"no tensor map of {argument.buffer} with {text}; {remedy}")
    return np.array([int(word) for word in made.opaque], np.uint64).tobytes()


class Loaded:
    """A kernel in this context, ready to be launched for any problem: what SourceModule makes of its source,
    or else a cubin. Raises DeviceError if that cannot be loaded."""

    def __init__(self, binary: StoredBinary) -> None:
        self._binary, self._cubin, self._symbol = binary, binary.cubin, binary.symbol
        try:
            if isinstance(binary, CompiledBinary):
                module = source_module(binary.source)
            else:
                module = cuda.module_from_buffer(binary.cubin)
            self.function = module.get_function(binary.symbol)
        except cuda.LogicError as error:  # of another architecture, say
            raise DeviceError("LAUNCH_FAILED", f"{binary.name}: its binary does not load: {error}") from None
        self._dynamic = 0

    def another(self) -> Loaded:
        """The same binary, loaded once more: its code lies elsewhere."""
        return Loaded(StoredBinary(self._binary.name, self._cubin, self._symbol, self._binary.work))

    @cached_property
    def resources(self) -> Resources:
        f = self.function
        return Resources(
            registers=int(f.num_regs),
            shared_bytes=int(f.shared_size_bytes) + self._dynamic,
            local_bytes=int(f.local_size_bytes),
            cubin_sha256=hashlib.sha256(self._cubin).hexdigest(),
        )

    @cached_property
    def _offsets(self) -> tuple[int, ...]:
        return objects.parameter_offsets(self._cubin, self._symbol)

    def bind(self, work: Work, at: Mapping[str, int]) -> Enqueue:
        """A function that enqueues the launch on a stream, with the operands at these addresses."""
        launch = work.launch
        if launch.dynamic_shared != self._dynamic:
            self._dynamic = launch.dynamic_shared
            self.function.set_attribute(cuda.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES, self._dynamic)
        format, args = pack(work, at, lambda: self._offsets)
        self.function.prepare(format)
        call, shared = self.function.prepared_async_call, launch.dynamic_shared
        grid, block = launch.grid, launch.block
        return lambda stream: call(grid, block, stream, *args, shared_size=shared)


def load_probe(arch: str, file: str = "probe.cu", entry: str = "gate") -> Any:
    """The harness's own device code as a module: probe.cu, or another file beside it."""
    kernel = Kernel(file, Path(__file__).with_name(file), entry, BlockShape((1, 1), (1, 1)))
    return source_module(source_of(kernel, Config(), F32, arch))


def compile_probe(arch: str, file: str, entry: str) -> None:
    """Into the cache, ahead of `load_probe`, which says what is wrong."""
    kernel = Kernel(file, Path(__file__).with_name(file), entry, BlockShape((1, 1), (1, 1)))
    with warnings.catch_warnings(), contextlib.suppress(DeviceError):
        warnings.simplefilter("ignore")
        compile_source(source_of(kernel, Config(), F32, arch))


# The library

# cudaDataType_t
_DATA_TYPES = {"float32": 0, "float64": 1, "float16": 2, "int8": 3, "int32": 10, "bfloat16": 14}
# Input and output types of cublasGemmEx (the table of types in its documentation).
_INTO = {
    "float64": ("float64",),
    "float32": ("float32",),
    "float16": ("float32", "float16"),
    "bfloat16": ("float32", "bfloat16"),
    "int8": ("int32",),
}
_WORKSPACE = 32 << 20  # bytes, what cuBLAS itself takes on Hopper
_EPILOGUES = ("", "BIAS", "RELU_BIAS", "GELU_BIAS")  # all but the plain product by cublasLt


def library_has(work: Work) -> bool:
    """Whether a library computes this operation on this dtype."""
    if work.library is None or work.library not in _EPILOGUES:
        return False
    if work.library and work.problem.transposed("C"):
        return False  # cublasLt adds its bias to rows of what it sees as columns
    if work.dtype.storage.name == "float64" and (work.library or work.dtype.scalar != work.dtype.storage):
        return False
    return work.dtype.output.name in _INTO.get(work.dtype.storage.name, ())


def library_launches(problem: Problem) -> int:
    """Launches of a call: cuBLAS counts the matrices of a batch by z of the grid, which is limited."""
    return -(-problem.batch // 65535)


class CublasGemm:
    """cuBLAS GEMM of one dtype, with sums in FP32 (INT32 of integers, FP64 of FP64); FP32 itself in pedantic
    mode (no TF32).
    """

    resources: Resources | None = None

    def __init__(self, dtype: DType) -> None:
        from nvmath.bindings import cublas

        self._api, self._handle, self._dtype = cublas, _cublas(), dtype
        kinds = cublas.ComputeType
        compute = {"f32": kinds.COMPUTE_32F_PEDANTIC, "tf32": kinds.COMPUTE_32F_FAST_TF32}
        exact = kinds.COMPUTE_32I if dtype.integer else kinds.COMPUTE_32F
        if dtype.storage == np.float64:
            exact = kinds.COMPUTE_64F
        self._compute = int(compute.get(dtype.name, exact))

    def bind(self, work: Work, at: dict[str, int]) -> Enqueue:
        """A function that enqueues the operation on a stream. Raises ValueError if no library supports it."""
        p = work.problem
        if not library_has(work):
            raise ValueError(f"no library computes {work.operation} on {work.dtype}")
        if p.m == 0 or p.n == 0:
            return lambda stream: None
        if work.library:
            return _Epilogue(work, at, self._compute).enqueue
        return self._gemm(work, at)

    def _gemm(self, work: Work, at: dict[str, int]) -> Enqueue:
        p, scalar = work.problem, work.dtype.scalar
        alpha, beta = np.array([p.alpha], scalar), np.array([p.beta], scalar)
        (turn1, first), (turn2, second) = _operands(p)
        rows, columns = (p.m, p.n) if p.transposed("C") else (p.n, p.m)
        storages = work.storages
        multiplied, written = _DATA_TYPES[work.dtype.storage.name], _DATA_TYPES[work.dtype.output.name]

        def enqueue(stream: Any) -> None:
            self._api.set_stream(self._handle, stream.handle)
            if p.batch == 1:
                self._api.gemm_ex(
                    self._handle, turn1, turn2, rows, columns, p.k,
                    alpha.ctypes.data, at[first], multiplied, storages[first].ld,
                    at[second], multiplied, storages[second].ld,
                    beta.ctypes.data, at["C"], written, p.ldc, self._compute, -1,
                )  # fmt: skip
            else:
                self._api.gemm_strided_batched_ex(
                    self._handle, turn1, turn2, rows, columns, p.k,
                    alpha.ctypes.data, at[first], multiplied, storages[first].ld, storages[first].stride,
                    at[second], multiplied, storages[second].ld, storages[second].stride,
                    beta.ctypes.data, at["C"], written, p.ldc, storages["C"].stride, p.batch, self._compute,
                    -1, )  # fmt: skip

        return enqueue


def _operands(p: Problem) -> tuple[tuple[int, str], tuple[int, str]]:
    """The operands for cuBLAS, in its order, each with whether it has to transpose them."""
    if p.transposed("C"):
        return (int(not p.transposed("A")), "A"), (int(not p.transposed("B")), "B")
    return (int(p.transposed("B")), "B"), (int(p.transposed("A")), "A")


class _Epilogue:
    """A product with bias and activation, computed by cublasLt with its first proposed algorithm."""

    def __init__(self, work: Work, at: dict[str, int], compute: int) -> None:
        from nvmath.bindings import cublasLt as lt

        self._lt, self._handle = lt, _cublas_lt()
        p, storages = work.problem, work.storages
        self._scales = np.array([p.alpha], work.dtype.scalar), np.array([p.beta], work.dtype.scalar)
        multiplied, written = _DATA_TYPES[work.dtype.storage.name], _DATA_TYPES[work.dtype.output.name]
        (turn1, first), (turn2, second) = _operands(p)
        self._at = at[first], at[second], at["C"]
        self._what = lt.matmul_desc_create(compute, _DATA_TYPES[work.dtype.scalar.name])
        of = lt.MatmulDescAttribute
        for attribute, value, kind in (
            (of.TRANSA, turn1, np.int32),
            (of.TRANSB, turn2, np.int32),
            (of.EPILOGUE, int(lt.Epilogue[work.library]), np.uint32),
            (of.BIAS_POINTER, at["bias"], np.uint64),
            (of.BIAS_DATA_TYPE, written, np.int32),
        ):
            held = np.array([value], kind)
            lt.matmul_desc_set_attribute(self._what, int(attribute), held.ctypes.data, held.nbytes)
        # As cuBLAS sees them: the rows of storage are its columns.
        self._layouts = [
            lt.matrix_layout_create(kind, storages[name].columns, storages[name].rows, storages[name].ld)
            for name, kind in ((first, multiplied), (second, multiplied), ("C", written))
        ]
        self._workspace = _workspace()
        preference = lt.matmul_preference_create()
        most = np.array([_WORKSPACE], np.uint64)
        limit = int(lt.MatmulPreferenceAttribute.MAX_WORKSPACE_BYTES)
        lt.matmul_preference_set_attribute(preference, limit, most.ctypes.data, most.nbytes)
        self._algorithm, found = lt.MatmulHeuristicResult(1), np.zeros(1, np.int32)
        a, b, c = self._layouts
        lt.matmul_algo_get_heuristic(
            self._handle, self._what, a, b, c, c, preference, 1, self._algorithm.ptr, found.ctypes.data
        )
        lt.matmul_preference_destroy(preference)
        if not found[0]:
            raise ValueError(f"cublasLt has no algorithm for {work.operation} on {work.dtype}, {p.id}")

    def enqueue(self, stream: Any) -> None:
        (alpha, beta), (a, b, c) = self._scales, self._layouts
        self._lt.matmul(
            self._handle, self._what, alpha.ctypes.data, self._at[0], a, self._at[1], b, beta.ctypes.data,
            self._at[2], c, self._at[2], c, self._algorithm.ptr, int(self._workspace), _WORKSPACE,
            stream.handle, )  # fmt: skip


@cache
def _cublas() -> int:
    from nvmath.bindings import cublas

    return int(cublas.create())


@cache
def _cublas_lt() -> int:
    from nvmath.bindings import cublasLt

    return int(cublasLt.create())


@cache
def _workspace() -> Any:
    return cuda.mem_alloc(_WORKSPACE)


def library_version() -> str:
    """cuBLAS's, such as ``13.0.2``."""
    from nvmath.bindings import cublas

    number = cublas.get_version(_cublas())
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


class Kernels:
    """By binary. Raises DeviceError for what cannot be loaded."""

    def __init__(self) -> None:
        self._loaded: dict[tuple[str, ...], Loaded] = {}
        self._libraries: dict[DType, CublasGemm] = {}

    def get(self, binary: StoredBinary, slot: str = "") -> Loaded | CublasGemm:
        """What to launch: a kernel, in another slot a copy of its own, or the library."""
        if not binary.cubin:
            return self.library(binary.work.dtype)
        key = binary.name, binary.sha256, binary.symbol, slot
        if key not in self._loaded:
            self._loaded[key] = Loaded(binary)
        return self._loaded[key]

    def library(self, dtype: DType) -> CublasGemm:
        if dtype not in self._libraries:
            self._libraries[dtype] = CublasGemm(dtype)
        return self._libraries[dtype]
