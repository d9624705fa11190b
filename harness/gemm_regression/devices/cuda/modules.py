"""What can be launched: a kernel of a binary, its arguments packed for PyCUDA, tensor maps included; or what
`library` has, with the same interface."""

from __future__ import annotations

import contextlib
import hashlib
import struct
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from gemm_regression.compiler.cubin import parameters
from gemm_regression.compiler.units import source_of
from gemm_regression.devices import DeviceError
from gemm_regression.devices.cuda.backend import cuda
from gemm_regression.devices.cuda.library import CublasGemm
from gemm_regression.devices.cuda.source_module import compile_source, source_module
from gemm_regression.devices.cuda.timing import Enqueue
from gemm_regression.devices.work import CompiledBinary, StoredBinary, Work
from gemm_regression.model import F32, Argument, BlockShape, Config, DType, Kernel, Resources, Storage

_ELEMENTS = {name: name.upper() for name in ("float32", "float64", "float16", "bfloat16", "int32")}
_ELEMENTS |= {"int8": "UINT8", "int16": "UINT16", "float8_e4m3fn": "UINT8", "float8_e5m2": "UINT8"}


def pack(
    work: Work, at: Mapping[str, int], offsets: Callable[[], Sequence[int]]
) -> tuple[list[str], list[Any]]:
    """The formats of the parameters, for PyCUDA's ``prepare``, and their values. ``offsets`` gives where each
    lies, in bytes; asked only where struct's own alignment does not tell, for tensor maps and structs.

    Raises DeviceError for a matrix that no tensor map can describe.
    """
    values = [_value(argument, work, at) for argument in work.arguments]
    letters = [argument.letters for argument in work.arguments]
    if not any(argument.map or argument.members for argument in work.arguments):
        return letters, values
    formats, end = [], 0
    for letter, start in zip(letters, offsets(), strict=True):
        formats.append(f"{start - end}x{letter}" if start > end else letter)
        end = start + struct.calcsize(letter)
    return formats, values


def _value(argument: Argument, work: Work, at: Mapping[str, int]) -> float | bytes:
    if argument.map:
        return _tensor_map(argument, work.storages[argument.buffer], at[argument.buffer])
    return argument.handed(at.__getitem__)


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
        return tuple(place.offset for place in parameters(self._cubin, self._symbol))

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
