"""The ladder: the one list of kernel declarations. Imports nothing of CUDA."""

from __future__ import annotations

from harness.model import BF16, F16, F32, KERNELS_DIR, TF32, BlockShape, Config, DType, Kernel

__all__ = ["LADDER"]

FLOP_4096 = 2.0 * 4096**3


def _column_of_threads(config: Config, dtype: DType) -> BlockShape:
    """One thread an element of C, x down a column."""
    x, y = config["BLOCK_X"], config["BLOCK_Y"]
    return BlockShape(threads=(x, y), tile=(x, y), thread_tile=(1, 1))


def _row_of_threads(config: Config, dtype: DType) -> BlockShape:
    """One thread an element of C, x along a row."""
    x, y = config["BLOCK_X"], config["BLOCK_Y"]
    return BlockShape(threads=(x, y), tile=(y, x), thread_tile=(1, 1))


def _square_tile(config: Config, dtype: DType) -> BlockShape:
    """One thread an element of a square tile of C; a padded tile of A and of B in shared memory."""
    size, padding = config["TILE_SIZE"], config["PADDING"]
    shared = 2 * size * (size + padding) * 4
    return BlockShape(threads=(size, size), tile=(size, size), thread_tile=(1, 1), shared_bytes=shared)


def _library(config: Config, dtype: DType) -> BlockShape:
    return BlockShape((1, 1), (1, 1))


LADDER: tuple[Kernel, ...] = (
    Kernel(
        name="strided",
        idea="one element of C a thread, uncoalesced: the bad example",
        source=KERNELS_DIR / "s00_strided.cu",
        entry="gemm_strided",
        dtypes=(F32,),
        configs=(Config(BLOCK_X=16, BLOCK_Y=16), Config(BLOCK_X=32, BLOCK_Y=8)),
        shape=_column_of_threads,
        largest_timed=FLOP_4096,
    ),
    Kernel(
        name="naive",
        idea="one element of C a thread, coalesced",
        source=KERNELS_DIR / "s01_naive.cu",
        entry="gemm_naive",
        dtypes=(F32,),
        configs=(Config(BLOCK_X=32, BLOCK_Y=32), Config(BLOCK_X=16, BLOCK_Y=16)),
        shape=_row_of_threads,
        largest_timed=FLOP_4096,
    ),
    Kernel(
        name="tiled",
        idea="tiles of A and B shared by a block",
        source=KERNELS_DIR / "s02_tiled.cu",
        entry="gemm_tiled",
        dtypes=(F32,),
        # 64 is what the arithmetic of reuse asks for, and 4 096 threads.
        configs=tuple(
            Config(TILE_SIZE=size, PADDING=padding) for size in (32, 16, 8, 64) for padding in (0, 1)
        ),
        shape=_square_tile,
    ),
    Kernel(
        name="cublas",
        idea="the reference: NVIDIA's library, measured in the same run",
        source=None,
        entry="",
        dtypes=(F32, F16, BF16, TF32),
        configs=(Config(),),
        shape=_library,
    ),
)
