"""The ladder: the one list of kernel declarations. Imports nothing of CUDA."""

from __future__ import annotations

from harness.model import F32, KERNELS_DIR, BlockShape, Config, DType, Kernel

__all__ = ["LADDER"]


def _one_element(config: Config, dtype: DType) -> BlockShape:
    """One thread per element of C."""
    x, y = config["BLOCK_X"], config["BLOCK_Y"]
    return BlockShape(threads=(x, y), tile=(y, x), thread_tile=(1, 1))


LADDER: tuple[Kernel, ...] = (
    Kernel(
        name="naive",
        idea="one element of C a thread, coalesced",
        source=KERNELS_DIR / "s01_naive.cu",
        entry="gemm_naive",
        dtypes=(F32,),
        configs=(Config(BLOCK_X=32, BLOCK_Y=32), Config(BLOCK_X=16, BLOCK_Y=16)),
        shape=_one_element,
    ),
)
