"""NVIDIA's libraries, launched as a kernel is: the reference for every operation they support.

cuBLAS is column-major. A row-major C = A·B is its Cᵀ = Bᵀ·Aᵀ, so the operands change places; a column-major C
leaves them where they are.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from gemm_regression.devices.cuda.backend import cuda
from gemm_regression.devices.cuda.timing import Enqueue
from gemm_regression.devices.work import Work
from gemm_regression.model import DType, Problem, Resources

# cudaDataType_t
_DATA_TYPES = {"float32": 0, "float64": 1, "float16": 2, "int8": 3, "int32": 10, "bfloat16": 14}
_DATA_TYPES |= {"float8_e4m3fn": 28}
# Input and output types of cublasGemmEx (the table of types in its documentation).
_INTO = {
    "float64": ("float64",),
    "float32": ("float32",),
    "float16": ("float32", "float16"),
    "bfloat16": ("float32", "bfloat16"),
    "int8": ("int32",),
    "float8_e4m3fn": ("float32", "bfloat16"),
}
_FP8 = "float8_e4m3fn"
_FP8_MULTIPLES = 16  # of all sizes of a product of FP8, which cublasLt has, and cuBLAS has not
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
    if work.dtype.storage.name == _FP8 and not _has_fp8(work):
        return False
    return work.dtype.output.name in _INTO.get(work.dtype.storage.name, ())


def _has_fp8(work: Work) -> bool:
    """Whether K is along the rows of both operands, and every row begins at a multiple of 16 bytes."""
    p = work.problem
    whole = not any(size % _FP8_MULTIPLES for size in (p.m, p.n, p.k, p.lda, p.ldb, p.ldc))
    return p.layout == "NT" and whole and p.batch == 1 and not work.library and not any(p.starts)


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
        if work.library or work.dtype.storage.name == _FP8:
            return _Matmul(work, at, self._compute).enqueue
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


class _Matmul:
    """A product with bias and activation, or of FP8, computed by cublasLt with its first proposed algorithm;
    sums of FP8 stay in the tensor cores, as in kernels that do not promote them."""

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
        given: list[tuple[Any, int, Any]] = [(of.TRANSA, turn1, np.int32), (of.TRANSB, turn2, np.int32)]
        if work.library:
            given += [
                (of.EPILOGUE, int(lt.Epilogue[work.library]), np.uint32),
                (of.BIAS_POINTER, at["bias"], np.uint64),
                (of.BIAS_DATA_TYPE, written, np.int32),
            ]
        else:
            given += [(of.FAST_ACCUM, 1, np.int8)]
        for attribute, value, kind in given:
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
