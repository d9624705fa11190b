"""Whether a kernel multiplies on tensor cores, by its own PTX."""

from __future__ import annotations

import re
from functools import lru_cache

from gemm_regression.compiler.errors import CompileError
from gemm_regression.compiler.nvcc import compile_ptx
from gemm_regression.model import Config, DType, Kernel

CUDA_CORES, TENSOR_CORES = "cuda", "tensor"
_PRODUCT = re.compile(r"^\s*(?:@!?%\w+\s+)?(?:mma|wmma\.mma|wgmma\.mma_async|tcgen05\.mma)\b", re.MULTILINE)


@lru_cache(maxsize=1024)
def core_of(kernel: Kernel, config: Config, dtype: DType, arch: str) -> str:
    """The kind of core, "cuda" or "tensor". Of a library, FP32 is asked for without TF32. One that does not
    compile has none: "cuda"."""
    if kernel.library:
        return CUDA_CORES if dtype.name == "f32" else TENSOR_CORES
    try:
        ptx = compile_ptx(kernel, config, dtype, arch)
    except CompileError:
        return CUDA_CORES
    return TENSOR_CORES if _PRODUCT.search(ptx) else CUDA_CORES
