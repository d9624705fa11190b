"""The ladder: the list of kernel declarations. Imports nothing of CUDA."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gemm_regression.model import (
    BF16,
    E4M3,
    E4M3_BF16,
    F16,
    F32,
    GEMM_BATCHED,
    S8,
    TF32,
    Array,
    BlockShape,
    Config,
    Constraints,
    DType,
    Kernel,
    Operand,
    Operation,
    Problem,
    TensorMap,
    Workspace,
    gemm,
    variant_name,
)
from gemm_regression.project.suites import ADVICE, FULL, SMOKE, TIMED_BATCHED, TIMED_GIBIBYTE, Timed

from . import spaces
from .advised import ADVISED

__all__ = ["KERNELS", "SUITES"]

FLOP_4096 = 2.0 * 4096**3
TENSOR_DUTY = 0.25  # tensor cores kept busy would reach the board's power cap


def _column_of_threads(config: Config, dtype: DType) -> BlockShape:
    """One element of C per thread, x along a column."""
    x, y = config["BLOCK_X"], config["BLOCK_Y"]
    return BlockShape(threads=(x, y), tile=(x, y), thread_tile=(1, 1), shared_bytes=0)


def _row_of_threads(config: Config, dtype: DType) -> BlockShape:
    """One element of C per thread, x along a row."""
    x, y = config["BLOCK_X"], config["BLOCK_Y"]
    return BlockShape(threads=(x, y), tile=(y, x), thread_tile=(1, 1), shared_bytes=0)


def _square_tile(config: Config, dtype: DType) -> BlockShape:
    """One element of a square tile of C per thread; a padded tile of A and of B in shared memory."""
    size, padding = config["TILE_SIZE"], config["PADDING"]
    shared = 2 * size * (size + padding) * 4
    return BlockShape(threads=(size, size), tile=(size, size), thread_tile=(1, 1), shared_bytes=shared)


def _column_tile(config: Config, dtype: DType) -> BlockShape:
    """A column of THREAD_TILE_M elements per thread."""
    m, n, k = config["TILE_M"], config["TILE_N"], config["TILE_K"]
    thread_m = config["THREAD_TILE_M"]
    return BlockShape(
        threads=(n, m // thread_m), tile=(m, n), thread_tile=(thread_m, 1), shared_bytes=4 * k * (m + n)
    )


def _register_tile(config: Config, dtype: DType) -> BlockShape:
    """THREAD_TILE_M × THREAD_TILE_N elements per thread; scalar access to both tiles, rows padded."""
    m, n, k = config["TILE_M"], config["TILE_N"], config["TILE_K"]
    thread_m, thread_n, padding = config["THREAD_TILE_M"], config["THREAD_TILE_N"], config["PADDING"]
    return BlockShape(
        threads=(n // thread_n, m // thread_m),
        tile=(m, n),
        thread_tile=(thread_m, thread_n),
        whole_warps=True,
        shared_bytes=4 * (m * (k + padding) + k * (n + padding)),
    )


def _float4_tile(config: Config, dtype: DType) -> BlockShape:
    """The same with float4: As (k, m + padding) holds A transposed, Bs (k, n); STAGES of each, or one."""
    m, n, k = config["TILE_M"], config["TILE_N"], config["TILE_K"]
    thread_m, thread_n, padding = config["THREAD_TILE_M"], config["THREAD_TILE_N"], config["PADDING"]
    return BlockShape(
        threads=(n // thread_n, m // thread_m),
        tile=(m, n),
        thread_tile=(thread_m, thread_n),
        whole_warps=True,
        shared_bytes=4 * k * (m + padding + n) * config.get("STAGES", 1),
        vectors=(("As", m + padding, 4), ("Bs", n, 4)),
    )


def _async_tile(config: Config, dtype: DType) -> BlockShape:
    """STAGES of As (m, k), not transposed, and of Bs (k, n), in dynamic shared memory."""
    m, n, k = config["TILE_M"], config["TILE_N"], config["TILE_K"]
    thread_m, thread_n = config["THREAD_TILE_M"], config["THREAD_TILE_N"]
    return BlockShape(
        threads=(n // thread_n, m // thread_m),
        tile=(m, n),
        thread_tile=(thread_m, thread_n),
        whole_warps=True,
        shared_bytes=4 * k * (m + n) * config["STAGES"],
        dynamic=True,
        vectors=(("As", k, 4), ("Bs", n, 4)),
    )


def _warp_tile(config: Config, dtype: DType) -> BlockShape:
    """One warp tile per warp; STAGES of As (k, m + 4), transposed, and Bs (k, n), in dynamic shared
    memory."""
    m, n, k = config["TILE_M"], config["TILE_N"], config["TILE_K"]
    warps = (m // config["WARP_TILE_M"]) * (n // config["WARP_TILE_N"])
    return BlockShape(
        threads=(32 * warps, 1),
        tile=(m, n),
        thread_tile=(config["THREAD_TILE_M"], config["THREAD_TILE_N"]),
        shared_bytes=4 * k * (m + 4 + n) * config["STAGES"],
        dynamic=True,
        vectors=(("As", m + 4, 4), ("Bs", n, 4)),
    )


def _lean_tile(config: Config, dtype: DType) -> BlockShape:
    """One warp tile per warp and slice; STAGES of As (k, m + 4), transposed, and Bs (k, n), in dynamic shared
    memory, which afterwards holds the sums of all slices but one."""
    m, n, k, slices = config["TILE_M"], config["TILE_N"], config["TILE_K"], config["SLICES"]
    warps = (m // config["WARP_TILE_M"]) * (n // config["WARP_TILE_N"]) * slices
    return BlockShape(
        threads=(32 * warps, 1),
        tile=(m, n),
        shared_bytes=4 * max(k * (m + 4 + n) * config["STAGES"], (slices - 1) * m * n),
        dynamic=True,
        vectors=(("As", m + 4, 4), ("Bs", n, 4)),
    )


def _stream_tile(config: Config, dtype: DType) -> BlockShape:
    """The same, with a word for the number of earlier blocks; BLOCKS of them share what there is."""
    lean = _lean_tile(config, dtype)
    return replace(lean, shared_bytes=(lean.shared_bytes or 0) + 16, static_bytes=16, split=config["BLOCKS"])


def _as_many_blocks(shape: BlockShape, problem: Problem) -> tuple[int, int, int]:
    """BLOCKS, or fewer where there are fewer steps along K than blocks."""
    rows, columns = shape.tile
    tiles = -(-problem.m // rows) * -(-problem.n // columns)
    return min(shape.split, tiles * max(1, problem.k)), 1, 1


def _sharing(config: Config, problem: Problem) -> int:
    """Blocks that could share a tile with others, at most: with 4 steps along K each."""
    steps = _tiles(config, problem) * max(1, -(-problem.k // config["TILE_K"]))
    return min(config["BLOCKS"], -(-steps // 4))


def _group_counters(config: Config, dtype: DType, problem: Problem) -> int:
    """Bytes: a counter per tile, and two per block."""
    return 4 * (_tiles(config, problem) + 2 * _sharing(config, problem))


def _group_counters_and_slabs(config: Config, dtype: DType, problem: Problem) -> int:
    """Bytes: the counters, rounded up to 16, and two slabs per block."""
    counters = -(-_group_counters(config, dtype, problem) // 16) * 16
    return counters + 2 * _sharing(config, problem) * 4 * config["TILE_M"] * config["TILE_N"]


def _fragments(config: Config, dtype: DType) -> BlockShape:
    """One warp tile of tensor-core fragments per warp; As (m, k) and Bs (k, n) with rows padded by 16 bytes,
    and a fragment of C (16, 16 + 4) per warp."""
    m, n, k = config["TILE_M"], config["TILE_N"], config["TILE_K"]
    warps = (m // config["WARP_TILE_M"]) * (n // config["WARP_TILE_N"])
    size = dtype.storage.itemsize
    vector = 16 // size
    return BlockShape(
        threads=(32 * warps, 1),
        tile=(m, n),
        shared_bytes=size * (m * (k + vector) + k * (n + vector)) + warps * 16 * (16 + 4) * 4,
        vectors=(("As", k + vector, vector), ("Bs", n + vector, vector)),
    )


def _swizzled_tiles(config: Config, dtype: DType) -> BlockShape:
    """One warp tile of tensor-core fragments per warp; STAGES of As (m, k) and Bs (k, n), swizzled in chunks
    of 16 bytes, in dynamic shared memory."""
    m, n, k = config["TILE_M"], config["TILE_N"], config["TILE_K"]
    warps = (m // config["WARP_TILE_M"]) * (n // config["WARP_TILE_N"])
    size = dtype.storage.itemsize
    return BlockShape(
        threads=(32 * warps, 1),
        tile=(m, n),
        shared_bytes=size * k * (m + n) * config["STAGES"],
        dynamic=True,
        vectors=(("As", k, 16 // size), ("Bs", n, 16 // size)),
    )


def _boxes(config: Config, dtype: DType) -> BlockShape:
    """The same with rows of 128 bytes of As (m, k), and of Bs in panels (k, k); two mbarriers per stage."""
    m, n, size = config["TILE_M"], config["TILE_N"], dtype.storage.itemsize
    warps = (m // config["WARP_TILE_M"]) * (n // config["WARP_TILE_N"])
    return BlockShape(
        threads=(32 * warps, 1),
        tile=(m, n),
        shared_bytes=(128 * (m + n) + 16) * config["STAGES"],
        dynamic=True,
        vectors=(("As", 128 // size, 16 // size), ("Bs", 128 // size, 16 // size)),
    )


def _swizzled_boxes(config: Config, dtype: DType) -> dict[str, TensorMap]:
    row, tf32 = 128 // dtype.storage.itemsize, dtype is TF32
    return {
        "A": TensorMap((config["TILE_M"], row), 128, tf32=tf32),
        "B": TensorMap((row, row), 128, tf32=tf32),
    }


def _rows_of_c(config: Config) -> int:
    """Rows of C in a box."""
    return next(rows for rows in (16, 24, 8) if config["TILE_M"] % rows == 0)


def _swizzled_boxes_of_c(config: Config, dtype: DType) -> dict[str, TensorMap]:
    """The same, and of C what a warp, or in the transposed product a warpgroup, stages at once."""
    return {**_swizzled_boxes(config, dtype), "C": TensorMap((_rows_of_c(config), 32), 128)}


def _rows_of_bytes(config: Config, dtype: DType) -> dict[str, TensorMap]:
    """Both operands with K along their rows; of B the columns that one block of a cluster copies."""
    rows = {"A": config["TILE_M"], "B": config["TILE_N"] // config.get("CLUSTER", 1)}
    return {name: TensorMap((count, 128), 128) for name, count in rows.items()}


_STRIP_BOX = 32  # columns of B that are copied at once, and for a strip, where a tile has 8 of one


def _rows_and_boxes_of_c(config: Config, dtype: DType) -> dict[str, TensorMap]:
    """As `_rows_of_bytes`, of B smaller boxes where a tile has columns of a strip; of C what a warp stores at
    once."""
    maps = {**_rows_of_bytes(config, dtype), "C": TensorMap((16, 128 // dtype.output.itemsize), 128)}
    return {**maps, "B": TensorMap((_STRIP_BOX, 128), 128)} if config["TILE_N"] % 128 else maps


def _rows_of_k(config: Config, dtype: DType) -> dict[str, TensorMap]:
    """Both operands with K along their rows, 128 bytes of it at once: of A 16 rows, of B those of a tile."""
    rows, row = {"A": 16, "B": config["TILE_N"]}, 128 // dtype.storage.itemsize
    return {name: TensorMap((count, row), 128) for name, count in rows.items()}


def _groups(config: Config, dtype: DType) -> BlockShape:
    """The same tiles for GROUPS warpgroups that multiply and one of which a warp copies; for each warp that
    multiplies 16 rows of 32 sums, padded by 8. BLOCKS blocks share the tiles."""
    m, n, warps = config["TILE_M"], config["TILE_N"], config["GROUPS"] * 4
    size = dtype.storage.itemsize
    return BlockShape(
        threads=(32 * (warps + 4), 1),
        tile=(m, n),
        shared_bytes=(128 * (m + n) + 16) * config["STAGES"] + warps * 16 * (32 + 8) * 4,
        dynamic=True,
        vectors=(("As", 128 // size, 16 // size), ("Bs", 128 // size, 16 // size)),
        split=config["BLOCKS"],
        cluster=(config.get("CLUSTER", 1), 1),
    )


def _pairs_of_groups(config: Config, dtype: DType) -> BlockShape:
    """The same; clusters of two tiles beside one another."""
    return replace(_groups(config, dtype), cluster=(1, 2))


def _groups_and_boxes(config: Config, dtype: DType) -> BlockShape:
    """The same; for each warp that multiplies two boxes of C, or one where the tile leaves no room."""
    stage, boxes = 128 * (config["TILE_M"] + config["TILE_N"]) + 16, 1 if config["TILE_N"] == 192 else 2
    shared = stage * config["STAGES"] + config["GROUPS"] * 4 * boxes * 2048
    return replace(_groups(config, dtype), shared_bytes=shared)


def _swapped(config: Config, dtype: DType) -> BlockShape:
    """The same; for each warpgroup that multiplies three slots of two boxes of C. Clusters of tiles in both
    directions."""
    stage, slots = 128 * (config["TILE_M"] + config["TILE_N"]) + 16, config["GROUPS"] * 3
    shared = stage * config["STAGES"] + slots * 256 * _rows_of_c(config)
    cluster = (config["CLUSTER_M"], config["CLUSTER_N"])
    return replace(_groups(config, dtype), shared_bytes=shared, cluster=cluster)


def _clustered(config: Config, dtype: DType) -> BlockShape:
    """The same boxes; a warpgroup for each 64 columns of B, and one of which a warp copies. Where the boxes
    were, the sums are afterwards, rows padded by 4. SPLIT blocks of a cluster share the K of a tile."""
    m, n, stages, size = config["TILE_M"], config["TILE_N"], config["STAGES"], dtype.storage.itemsize
    return BlockShape(
        threads=(2 * n + 128, 1),
        tile=(m, n),
        shared_bytes=max(128 * (m + n) * stages, 4 * m * (n + 4)) + 16 * stages,
        dynamic=True,
        vectors=(("As", 128 // size, 16 // size), ("Bs", 128 // size, 16 // size)),
        split=config["SPLIT"],
    )


def _counter(config: Config, dtype: DType, problem: Problem) -> int:
    """Bytes: of the counter of tiles."""
    return 4


def _packing_counters(config: Config, dtype: DType, problem: Problem) -> int:
    """Bytes: of what is handed out, is packed, and has finished."""
    return 12


def _counters_and_packed(config: Config, dtype: DType, problem: Problem) -> int:
    """Bytes: the counters in 256, and whole tiles of A and B in rows of 128 bytes."""
    m, n = config["TILE_M"], config["TILE_N"]
    rows = -(-problem.m // m) * m + -(-problem.n // n) * n
    return 256 + 128 * rows * -(-problem.k * dtype.storage.itemsize // 128)


def _transposed(config: Config, dtype: DType) -> BlockShape:
    """The same boxes; a warpgroup for each 64 columns of B, or each 128 of more than that, with three slots
    of two boxes of C, and one of which a warp copies."""
    m, n = config["TILE_M"], config["TILE_N"]
    groups = n // 64 if n <= 128 else n // 128
    return BlockShape(
        threads=(128 * groups + 128, 1),
        tile=(m, n),
        shared_bytes=(128 * (m + n) + 16) * config["STAGES"] + groups * 3 * 256 * _rows_of_c(config),
        dynamic=True,
        vectors=(("As", 32, 4), ("Bs", 32, 4)),
        split=config["BLOCKS"],
    )


def _by_block(values: Mapping[str, Array]) -> Array:
    """A·Bᵀ, of which a row of A has a factor for each 128 of K, and 128 columns of B one."""
    a, b = values["A"], values["B"]
    a_scales = np.repeat(values["a_scales"], 128, axis=2)
    b_scales = np.repeat(np.repeat(values["b_scales"], 128, axis=1), 128, axis=2)
    return np.asarray((a * a_scales) @ (b * b_scales[:, : b.shape[2]].swapaxes(1, 2)))


SCALED = Operation(
    name="fp8_blocks",
    operands=(
        Operand("A", "m", "k", "multiplied", like="A"),
        Operand("B", "k", "n", "multiplied", like="B"),
        Operand("a_scales", "m", "k/128", "multiplied", dtype="float32", values="scale"),
        Operand("b_scales", "(n+127)/128", "k/128", "multiplied", dtype="float32", values="scale"),
        Operand("C", "m", "n", "result", like="C"),
    ),
    product=_by_block,
    layout="NT",
    depth="128",
    promotes=True,
    flops="2*m*n*k",
)


def _group_of_rows(values: Mapping[str, Any]) -> np.ndarray:
    """The group of each row, in order: few rows for the last groups, none for each fourth."""
    groups = int(values["groups"])
    found = np.sort((groups * (values["ticket"][0, :, 0] / 65536) ** 2).astype(int))
    return np.where(found % 4 == 3, found & ~1, found)  # no difference: in bounds it would be a sum


def _first_rows(values: Mapping[str, Any]) -> np.ndarray:
    """The first row of each group, and how many there are."""
    return np.searchsorted(_group_of_rows(values), np.arange(int(values["groups"]) + 1))[None, :, None]


def _by_group(values: Mapping[str, Any]) -> np.ndarray:
    of_row = _group_of_rows(values)
    parts = [values["A"][0, of_row == g] @ values["B"][g].T for g in np.unique(of_row)]
    return np.concatenate(parts)[None]


# C = A·B[g]ᵀ for the rows of A of each group g, as the experts of a mixture take them.
GROUPED = Operation(
    name="grouped",
    sizes=("m", "n", "k", "groups"),
    operands=(
        Operand("A", "m", "k", "multiplied", batched=False),
        Operand("B", "n", "k", "multiplied"),
        Operand("ticket", "m", "", "multiplied", "", False, "int32", (0, 65535), hidden=True),
        Operand("offsets", "groups+1", "", "multiplied", batched=False, dtype="int32", made=_first_rows),
        Operand("C", "m", "n", "result", batched=False),
    ),
    product=_by_group,
    depth="k",
    flops="2*m*n*k",
    problems=(
        *((1, 3, 16, 2), (150, 70, 48, 3), (300, 264, 272, 6), (40, 130, 1040, 12), (70, 9, 16, 1)),
        # More groups than a warp has lanes, with rows for whole tiles in the last of them.
        *((270, 70, 64, 1), (5400, 8, 16, 36)),
    ),
)


def _scaled(config: Config, dtype: DType) -> BlockShape:
    """As `_groups`, with two boxes of C for each warp; where a tile has columns of a strip, with one, and a
    stage has a box of B for them."""
    m, n, warps = config["TILE_M"], config["TILE_N"], config["GROUPS"] * 4
    columns, boxes = (n - n % 128 + _STRIP_BOX, 1) if n % 128 else (n, 2)
    shared = (128 * (m + columns) + 16) * config["STAGES"] + warps * boxes * 2048
    return replace(_groups(config, dtype), shared_bytes=shared)


def _tiles_at_most(shape: BlockShape, problem: Problem) -> tuple[int, int, int]:
    """BLOCKS, or one per tile where that is fewer even if each group has a part of one, in whole clusters."""
    (rows, columns), (_, across) = shape.tile, shape.cluster
    clusters = (-(-problem.m // rows) + problem.batch) * -(-problem.n // (columns * across))
    return min(shape.split, clusters * across), 1, 1


def _blocks_at_most(shape: BlockShape, problem: Problem) -> tuple[int, int, int]:
    """BLOCKS, or one per tile where that is fewer, in whole clusters."""
    (rows, columns), (down, across) = shape.tile, shape.cluster
    clusters = -(-problem.m // (rows * down)) * -(-problem.n // (columns * across))
    return min(shape.split, clusters * down * across), 1, 1


def _small_matrices(config: Config, dtype: DType) -> BlockShape:
    """MATRICES matrices per block, one element of C per thread; a tile of A and of B for each matrix."""
    tile, matrices = config["TILE"], config["MATRICES"]
    return BlockShape(
        threads=(tile, tile * matrices),
        tile=(tile, tile),
        thread_tile=(1, 1),
        shared_bytes=2 * tile * tile * matrices * 4,
        batch=matrices,
    )


def _batched_tile(config: Config, dtype: DType) -> BlockShape:
    """MATRICES matrices per block; rows and matrices in shared memory are padded against bank conflicts."""
    tile, matrices = config["TILE"], config["MATRICES"]
    thread_m, thread_n = config["THREAD_TILE_M"], config["THREAD_TILE_N"]
    stride = tile + 4 if tile > 8 else tile
    floats = tile * (stride + tile) + (32 if tile > 8 else 12)
    return BlockShape(
        threads=((tile // thread_m) * (tile // thread_n) * matrices, 1),
        tile=(tile, tile),
        shared_bytes=4 * floats * matrices,
        vectors=(("As", stride, 4), ("Bs", tile, 4)),
        batch=matrices,
    )


def _matrices_first(shape: BlockShape, problem: Problem) -> tuple[int, int, int]:
    """x: the matrices, which may be many; y and z: the tiles along N and M."""
    rows, columns = shape.tile
    return -(-problem.batch // shape.batch), -(-problem.n // columns), -(-problem.m // rows)


def _split_tile(config: Config, dtype: DType) -> BlockShape:
    """A tile as in the stage prefetch, with rows of As padded by 4, computed by SPLIT blocks; and a word for
    the number of earlier blocks."""
    m, n, k = config["TILE_M"], config["TILE_N"], config["TILE_K"]
    thread_m, thread_n = config["THREAD_TILE_M"], config["THREAD_TILE_N"]
    return BlockShape(
        threads=(n // thread_n, m // thread_m),
        tile=(m, n),
        thread_tile=(thread_m, thread_n),
        whole_warps=True,
        shared_bytes=4 * k * (m + 4 + n) + 4,
        vectors=(("As", m + 4, 4), ("Bs", n, 4)),
        split=config["SPLIT"],
    )


def _tiles(config: Config, problem: Problem) -> int:
    """The number of tiles of C; one for an empty C, since a launch needs a block."""
    return max(1, -(-problem.m // config["TILE_M"]) * -(-problem.n // config["TILE_N"]))


def _counters(config: Config, dtype: DType, problem: Problem) -> int:
    """Bytes: one counter per tile of C."""
    return 4 * _tiles(config, problem)


def _counters_and_slabs(config: Config, dtype: DType, problem: Problem) -> int:
    """Bytes: the counters, and SPLIT slabs per tile."""
    slab = 4 * config["TILE_M"] * config["TILE_N"]
    return _counters(config, dtype, problem) + _tiles(config, problem) * config["SPLIT"] * slab


def _library(config: Config, dtype: DType) -> BlockShape:
    return BlockShape((1, 1), (1, 1), shared_bytes=0)


def _tile(tile: int, tile_k: int, thread_m: int, thread_n: int) -> Config:
    """A square tile of C, and the part of it each thread computes."""
    return Config(TILE_M=tile, TILE_N=tile, TILE_K=tile_k, THREAD_TILE_M=thread_m, THREAD_TILE_N=thread_n)


def _register(tile: int, tile_k: int, thread_m: int, thread_n: int, padding: int = 0) -> Config:
    return Config(**_tile(tile, tile_k, thread_m, thread_n), PADDING=padding)


def _warp(tile: tuple[int, int, int], warp: tuple[int, int], thread: tuple[int, int], stages: int) -> Config:
    return Config(
        TILE_M=tile[0],
        TILE_N=tile[1],
        TILE_K=tile[2],
        WARP_TILE_M=warp[0],
        WARP_TILE_N=warp[1],
        THREAD_TILE_M=thread[0],
        THREAD_TILE_N=thread[1],
        STAGES=stages,
    )


def _mma(tile: tuple[int, int, int], warp: tuple[int, int], stages: int) -> Config:
    return Config(
        TILE_M=tile[0],
        TILE_N=tile[1],
        TILE_K=tile[2],
        WARP_TILE_M=warp[0],
        WARP_TILE_N=warp[1],
        STAGES=stages,
    )


def _boxed(tile: tuple[int, int], warp: tuple[int, int], stages: int) -> Config:
    return Config(TILE_M=tile[0], TILE_N=tile[1], WARP_TILE_M=warp[0], WARP_TILE_N=warp[1], STAGES=stages)


def _grouped(tile: tuple[int, int], groups: int, stages: int, blocks: int = 132) -> Config:
    return Config(TILE_M=tile[0], TILE_N=tile[1], GROUPS=groups, STAGES=stages, BLOCKS=blocks)


def _split(tile: tuple[int, int], split: int, stages: int) -> Config:
    return Config(TILE_M=tile[0], TILE_N=tile[1], SPLIT=split, STAGES=stages)


# Of stages whose A and B are boxes of tensor maps.
MAPPED = (
    "const CUtensorMap mapA, const CUtensorMap mapB, int M, int N, int K, float alpha, "
    "float beta, float* C, int ldc"
)

# Of those whose C is, too.
ALL_MAPPED = MAPPED.replace("mapB, ", "mapB, const CUtensorMap mapC, ")

# Measured best at the shapes of _AT, on an H200.
SPLIT_TALL = Config(TILE_M=128, TILE_N=64, TILE_K=16, THREAD_TILE_M=8, THREAD_TILE_N=4, SPLIT=8)
SPLIT_FLAT = Config(TILE_M=16, TILE_N=64, TILE_K=16, THREAD_TILE_M=4, THREAD_TILE_N=4, SPLIT=8)
LEAN_THOUSAND = Config(**_warp((64, 128, 32), (64, 64), (16, 8), stages=2), SLICES=4)
LEAN_NARROW = Config(**_warp((32, 64, 32), (32, 64), (8, 8), stages=4), SLICES=4)
LEAN_SMALL = Config(**_warp((32, 32, 32), (32, 32), (8, 4), stages=3), SLICES=4)
STREAM_WIDE = Config(**_warp((128, 256, 8), (64, 64), (16, 8), stages=3), SLICES=1, BLOCKS=132)
STREAM_PAIRS = Config(**_warp((128, 128, 8), (64, 64), (16, 8), stages=4), SLICES=1, BLOCKS=264)
STREAM_NARROW = Config(**_warp((32, 64, 32), (32, 32), (8, 4), stages=3), SLICES=4, BLOCKS=264)
WMMA = Config(TILE_M=128, TILE_N=128, TILE_K=32, WARP_TILE_M=64, WARP_TILE_N=32)
MMA_TALL = _mma((256, 128, 32), (64, 64), stages=4)
MMA_SMALL = _mma((64, 64, 32), (32, 32), stages=3)
MMA_WIDE = _mma((128, 256, 32), (64, 64), stages=4)
TMA_WIDE = _boxed((128, 256), (64, 64), stages=4)
TMA_SMALL = _boxed((128, 64), (32, 32), stages=4)
WGMMA_WIDE = _grouped((128, 256), groups=2, stages=4)
WGMMA_PAIRS = Config(**WGMMA_WIDE, CLUSTER=2)
WGMMA_FEW_PAIRS = Config(**_grouped((64, 128), groups=1, stages=3, blocks=2), CLUSTER=2)
WGMMA_MIDDLE = _grouped((128, 128), groups=2, stages=6)
WGMMA_SMALL = _grouped((128, 64), groups=2, stages=8)
WGMMA_FEW = _grouped((128, 64), groups=1, stages=3, blocks=2)
WGMMA_FLAT = _grouped((64, 64), groups=1, stages=12)
WGMMA_NARROW = _grouped((64, 128), groups=1, stages=8)
WGMMA_NARROW_PAIRS = Config(**WGMMA_NARROW, CLUSTER=2)
WGMMA_PINGPONG = Config(**_grouped((128, 128), groups=2, stages=6), PINGPONG=1, BAND_ROWS=12)
WGMMA_PINGPONG_PAIRS = Config(**_grouped((128, 192), groups=2, stages=5), PINGPONG=1, BAND_ROWS=3, CLUSTER=2)
WGMMA_FEW_PINGPONG = Config(**_grouped((64, 128), groups=2, stages=3, blocks=2), CLUSTER=2, PINGPONG=1)
PACK_WIDE = _grouped((128, 256), groups=2, stages=4)
PACK_MIDDLE = _grouped((128, 128), groups=2, stages=6)
PACK_PINGPONG = Config(**_grouped((128, 128), groups=2, stages=5), PINGPONG=1)
PACK_FEW_PINGPONG = Config(**_grouped((64, 64), groups=2, stages=3, blocks=2), PINGPONG=1)
PACK_FEW = _grouped((64, 64), groups=1, stages=3, blocks=2)
PAIRS_SMALL = _split((64, 64), split=2, stages=6)
PAIRS_LARGE = _split((128, 128), split=2, stages=6)
PAIRS_FLAT = _split((64, 128), split=2, stages=8)
PAIRS_TALL = _split((32, 64), split=2, stages=8)
# C of at most 8 and 16 rows: how many blocks K is split over follows from the number of columns.
FOURS_8 = _split((8, 64), split=4, stages=6)
PAIRS_8 = _split((8, 64), split=2, stages=6)
WHOLE_8 = _split((8, 64), split=1, stages=6)
FOURS_16 = _split((16, 64), split=4, stages=6)
PAIRS_16 = _split((16, 64), split=2, stages=6)
WHOLE_16 = _split((16, 64), split=1, stages=6)
WHOLE_SMALL = _split((32, 64), split=1, stages=6)
PAIRS_DEEP = _split((64, 64), split=2, stages=12)
PAIRS_NARROW = _split((128, 64), split=2, stages=8)
BYTES_PAIRS = Config(**_grouped((128, 256), groups=2, stages=4), CLUSTER=2)
BYTES_WIDE = Config(**_grouped((128, 256), groups=2, stages=4), CLUSTER=1)
BYTES_THREE = Config(**_grouped((192, 176), groups=3, stages=4), CLUSTER=1)
BYTES_PINGPONG = Config(**_grouped((128, 128), groups=2, stages=6), CLUSTER=1, PINGPONG=1)
BYTES_PINGPONG_WIDE = Config(**_grouped((128, 192), groups=2, stages=5), CLUSTER=1, PINGPONG=1)
BYTES_FEW_PINGPONG = Config(**_grouped((64, 128), groups=2, stages=3, blocks=2), CLUSTER=2, PINGPONG=1)
BYTES_MIDDLE = Config(**_grouped((128, 128), groups=2, stages=6), CLUSTER=1)
SCALED_WIDE = Config(**_grouped((128, 256), groups=2, stages=4))
SCALED_STRIP = Config(**_grouped((128, 264), groups=2, stages=4))
SCALED_FEW = Config(**_grouped((64, 128), groups=1, stages=3, blocks=2))
SCALED_FEW_STRIP = Config(**_grouped((64, 136), groups=1, stages=3, blocks=2))
BYTES_FEW = Config(**_grouped((128, 64), groups=1, stages=3, blocks=2), CLUSTER=2)
SWAPPED_SMALL = Config(**_grouped((72, 128), groups=2, stages=7, blocks=112), CLUSTER_M=2, CLUSTER_N=4)
SWAPPED_THREE = Config(**_grouped((176, 192), groups=3, stages=4), CLUSTER_M=2, CLUSTER_N=1)
SWAPPED_WIDE = Config(**_grouped((200, 256), groups=2, stages=3), CLUSTER_M=1, CLUSTER_N=1, BAND_ROWS=12)
SWAPPED_FEW = Config(**_grouped((72, 128), groups=1, stages=3, blocks=4), CLUSTER_M=2, CLUSTER_N=2)
GROUPED_PINGPONG = Config(**_grouped((192, 128), groups=2, stages=5), PINGPONG=1)
GROUPED_FEW = Config(**_grouped((64, 64), groups=2, stages=3, blocks=2), PINGPONG=1)
WGMMA_TF32 = Config(TILE_M=256, TILE_N=128, STAGES=4, BLOCKS=132)
WGMMA_TF32_SMALL = Config(TILE_M=64, TILE_N=64, STAGES=6, BLOCKS=264)
WGMMA_TF32_WIDE = Config(TILE_M=200, TILE_N=256, STAGES=3, BLOCKS=132, BAND_ROWS=8)
WGMMA_TF32_FEW = Config(TILE_M=64, TILE_N=64, STAGES=3, BLOCKS=2)
WGMMA_TF32_FEW_WIDE = Config(TILE_M=64, TILE_N=256, STAGES=3, BLOCKS=2)
X3_WIDE = Config(**_mma((128, 128, 32), (64, 32), stages=4), PROMOTE=8)

LADDER: tuple[Kernel, ...] = (
    Kernel(
        name="strided",
        idea="one element of C per thread, uncoalesced: a bad example",
        source=Path("s00_strided.cu"),
        entry="gemm_strided",
        dtypes=(F32,),
        configs=(Config(BLOCK_X=16, BLOCK_Y=16), Config(BLOCK_X=32, BLOCK_Y=8)),
        shape=_column_of_threads,
        largest_timed=FLOP_4096,
    ),
    Kernel(
        name="naive",
        idea="one element of C per thread, coalesced",
        source=Path("s01_naive.cu"),
        entry="gemm_naive",
        dtypes=(F32,),
        configs=(Config(BLOCK_X=32, BLOCK_Y=32), Config(BLOCK_X=16, BLOCK_Y=16)),
        shape=_row_of_threads,
        largest_timed=FLOP_4096,
    ),
    Kernel(
        name="tiled",
        idea="tiles of A and B in shared memory",
        source=Path("s02_tiled.cu"),
        entry="gemm_tiled",
        dtypes=(F32,),
        # 64 would be best for data reuse, but needs 4 096 threads per block.
        configs=tuple(
            Config(TILE_SIZE=size, PADDING=padding) for size in (32, 16, 8, 64) for padding in (0, 1)
        ),
        shape=_square_tile,
    ),
    Kernel(
        name="tiled_unrolled",
        idea="tiled, with everything known at compile time and unrolled",
        source=Path("s03_tiled_unrolled.cu"),
        entry="gemm_tiled_unrolled",
        dtypes=(F32,),
        configs=tuple(
            Config(TILE_SIZE=size, PADDING=padding) for size in (32, 16, 8) for padding in (0, 1, 4)
        ),
        shape=_square_tile,
    ),
    Kernel(
        name="rectangular",
        idea="thin slices of K, a column of C per thread",
        source=Path("s04_rectangular.cu"),
        entry="gemm_rectangular",
        dtypes=(F32,),
        configs=(
            Config(TILE_M=128, TILE_N=64, TILE_K=8, THREAD_TILE_M=16),
            Config(TILE_M=128, TILE_N=64, TILE_K=16, THREAD_TILE_M=16),
            Config(TILE_M=64, TILE_N=64, TILE_K=8, THREAD_TILE_M=8),
            Config(TILE_M=64, TILE_N=128, TILE_K=8, THREAD_TILE_M=8),
            Config(TILE_M=128, TILE_N=128, TILE_K=8, THREAD_TILE_M=8),  # 2 048 threads
        ),
        shape=_column_tile,
    ),
    Kernel(
        name="register",
        idea="a tile of C per thread, in registers",
        source=Path("s05_register.cu"),
        entry="gemm_register",
        dtypes=(F32,),
        configs=(
            *(_register(128, 8, 8, 8, padding) for padding in (0, 1, 4)),
            *(_register(64, 16, 4, 4, padding) for padding in (0, 1, 4)),
            *(_register(128, 8, m, n) for m, n in ((4, 4), (4, 8), (4, 16))),
            *(_register(64, 16, m, n) for m, n in ((4, 8), (4, 16), (8, 8))),
            *(_register(32, 32, m, n) for m, n in ((4, 4), (4, 8))),
            # Half a warp per block, and more accumulators than registers per thread.
            *(_register(32, 32, m, n) for m, n in ((4, 16), (8, 8))),
            _register(128, 8, 16, 16),
        ),
        shape=_register_tile,
        space=spaces.REGISTER,
    ),
    Kernel(
        name="vectorized",
        idea="float4 loads and stores, A transposed in shared memory",
        source=Path("s06_vectorized.cu"),
        entry="gemm_vectorized",
        dtypes=(F32,),
        configs=(
            _register(128, 8, 8, 8, 4),
            _register(128, 8, 8, 8, 0),
            _register(64, 8, 8, 8, 4),
            _register(64, 8, 8, 8, 1),  # float4 into rows of 65 floats
        ),
        shape=_float4_tile,
    ),
    Kernel(
        name="prefetch",
        idea="the next tiles prefetched into registers",
        source=Path("s07_prefetch.cu"),
        entry="gemm_prefetch",
        dtypes=(F32,),
        configs=(
            _register(128, 8, 8, 8, 4),
            _register(128, 16, 8, 8, 4),
            _register(64, 8, 8, 8, 4),
            # Tuned at 1000x1000x1000 and 16x8192x8192 on an H200.
            Config(TILE_M=128, TILE_N=64, TILE_K=16, THREAD_TILE_M=8, THREAD_TILE_N=4, PADDING=4),
            Config(TILE_M=32, TILE_N=64, TILE_K=32, THREAD_TILE_M=4, THREAD_TILE_N=4, PADDING=4),
        ),
        shape=_float4_tile,
        space=spaces.PREFETCH,
    ),
    Kernel(
        name="double_buffered",
        idea="two tiles in shared memory, one barrier per tile",
        source=Path("s08_double_buffered.cu"),
        entry="gemm_double_buffered",
        dtypes=(F32,),
        configs=(
            Config(**_register(128, 16, 8, 8, 4), STAGES=2),
            Config(**_register(128, 8, 8, 8, 4), STAGES=2),
            Config(**_register(64, 16, 4, 4, 4), STAGES=2),
        ),
        shape=_float4_tile,
    ),
    Kernel(
        name="async_copy",
        idea="cp.async: copies that bypass registers, several tiles ahead",
        source=Path("s09_async_copy.cu"),
        entry="gemm_async_copy",
        dtypes=(F32,),
        configs=tuple(
            Config(TILE_M=128, TILE_N=128, TILE_K=8, THREAD_TILE_M=8, THREAD_TILE_N=8, STAGES=stages)
            for stages in (3, 2, 4)
        ),
        shape=_async_tile,
        min_capability=(8, 0),
    ),
    Kernel(
        name="warp_tiled",
        idea="block, warp and thread tiles; block order optimised for L2 reuse",
        source=Path("s10_warp_tiled.cu"),
        entry="gemm_warp_tiled",
        dtypes=(F32,),
        configs=(
            _warp((256, 128, 8), (64, 64), (16, 8), stages=4),
            _warp((256, 128, 8), (64, 64), (16, 8), stages=3),
            _warp((128, 256, 8), (64, 64), (16, 8), stages=3),
            _warp((128, 128, 8), (64, 32), (8, 8), stages=3),
            _warp((64, 64, 16), (32, 32), (8, 4), stages=3),
            _warp((128, 64, 16), (32, 32), (8, 4), stages=2),  # tuned at 1000x1000x1000 on an H200
            _warp((256, 128, 16), (32, 128), (16, 8), stages=2),  # tuned at 4096x4096x4096 on an H200
            _warp((256, 256, 8), (64, 64), (16, 16), stages=3),  # too large for a warp's lanes
        ),
        shape=_warp_tile,
        space=spaces.WARP_TILED,
        min_capability=(8, 0),
    ),
    Kernel(
        name="wmma",
        idea="tensor cores, with nvcuda::wmma",
        source=Path("s11_wmma.cu"),
        entry="gemm_wmma",
        dtypes=(F16, BF16, TF32),
        configs=(
            WMMA,
            Config(TILE_M=128, TILE_N=128, TILE_K=32, WARP_TILE_M=64, WARP_TILE_N=64),
            Config(TILE_M=64, TILE_N=64, TILE_K=32, WARP_TILE_M=32, WARP_TILE_N=32),
        ),
        shape=_fragments,
        duty=TENSOR_DUTY,
    ),
    Kernel(
        name="batched_small",
        idea="small matrices, several per block",
        source=Path("s12_batched_small.cu"),
        entry="gemm_batched_small",
        operation=GEMM_BATCHED,
        dtypes=(F32,),
        configs=tuple(
            Config(TILE=tile, MATRICES=matrices) for tile, matrices in ((8, 8), (8, 4), (16, 4), (32, 1))
        ),
        shape=_small_matrices,
        grid=_matrices_first,
    ),
    Kernel(
        name="split_k",
        idea="K split over several blocks, partial sums added in a fixed order",
        source=Path("s13_split_k.cu"),
        entry="gemm_split_k",
        dtypes=(F32,),
        configs=(
            *(Config(**_tile(64, 16, 4, 4), SPLIT=split) for split in (4, 2)),
            Config(**_tile(32, 32, 4, 4), SPLIT=8),
            SPLIT_TALL,
            SPLIT_FLAT,
        ),
        shape=_split_tile,
        space=spaces.SPLIT_K,
        workspace=Workspace(_counters_and_slabs, _counters),
    ),
    Kernel(
        name="lean_loop",
        idea="no guard, branch or spare instruction in the loop; K shared by the warps of a block",
        source=Path("s14_lean_loop.cu"),
        entry="gemm_lean_loop",
        dtypes=(F32,),
        configs=(
            Config(**_warp((128, 256, 8), (64, 64), (16, 8), stages=3), SLICES=1),
            LEAN_THOUSAND,
            LEAN_NARROW,
            LEAN_SMALL,
        ),
        shape=_lean_tile,
        space=spaces.LEAN_LOOP,
        min_capability=(8, 0),
    ),
    Kernel(
        name="stream_k",
        idea="as many blocks as SMs, each with the same share of the work",
        source=Path("s15_stream_k.cu"),
        entry="gemm_stream_k",
        dtypes=(F32,),
        configs=(STREAM_WIDE, STREAM_PAIRS, STREAM_NARROW),
        shape=_stream_tile,
        space=spaces.STREAM_K,
        grid=_as_many_blocks,
        workspace=Workspace(_group_counters_and_slabs, _group_counters),
        min_capability=(8, 0),
    ),
    Kernel(
        name="batched_vectors",
        idea="small matrices by float4, with a thread tile",
        source=Path("s16_batched_vectors.cu"),
        entry="gemm_batched_vectors",
        operation=GEMM_BATCHED,
        dtypes=(F32,),
        configs=tuple(
            Config(TILE=tile, MATRICES=matrices, THREAD_TILE_M=m, THREAD_TILE_N=n)
            for tile, matrices, m, n in ((8, 32, 4, 4), (16, 8, 4, 4), (32, 1, 4, 4), (64, 1, 8, 8))
        ),
        shape=_batched_tile,
        space=spaces.BATCHED_VECTORS,
        grid=_matrices_first,
        min_capability=(8, 0),
    ),
    Kernel(
        name="mma_sync",
        idea="ldmatrix and mma.sync on swizzled tiles, copies several tiles ahead",
        source=Path("s17_mma_sync.cu"),
        entry="gemm_mma_sync",
        dtypes=(F16, BF16, TF32),
        configs=(
            MMA_TALL,
            MMA_WIDE,
            MMA_SMALL,
        ),
        shape=_swizzled_tiles,
        space=spaces.MMA_SYNC,
        min_capability=(8, 0),
        duty=TENSOR_DUTY,
    ),
    Kernel(
        name="tf32x3",
        idea="FP32 from three products of TF32",
        source=Path("s18_tf32x3.cu"),
        entry="gemm_tf32x3",
        dtypes=(F32,),
        configs=(
            Config(**_mma((128, 64, 32), (64, 32), stages=4), PROMOTE=8),
            X3_WIDE,
            Config(**_mma((64, 64, 32), (32, 32), stages=3), PROMOTE=2),
        ),
        shape=_swizzled_tiles,
        space=spaces.TF32X3,
        min_capability=(8, 0),
        duty=TENSOR_DUTY,
    ),
    Kernel(
        name="mma_tma",
        idea="mma.sync on boxes that the tensor memory accelerator copies, swizzles and rounds",
        source=Path("s19_mma_tma.cu"),
        entry="gemm_mma_tma",
        parameters=MAPPED,
        dtypes=(F16, BF16, TF32),
        configs=(
            TMA_WIDE,
            TMA_SMALL,
        ),
        shape=_boxes,
        space=spaces.MMA_TMA,
        constraints=Constraints(
            # 16 bytes of FP16; of FP32 every fourth element would do.
            multiples={"lda": 8, "ldb": 8},
            at_least={"m": 1, "n": 1, "k": 1},
        ),
        maps=_swizzled_boxes,
        min_capability=(9, 0),
        duty=TENSOR_DUTY,
    ),
    Kernel(
        name="wgmma",
        idea="warpgroups that multiply from shared memory, a warp that only copies, several tiles per block",
        source=Path("s20_wgmma.cu"),
        entry="gemm_wgmma",
        parameters=ALL_MAPPED,
        dtypes=(F16, BF16),
        configs=(
            WGMMA_WIDE,
            WGMMA_MIDDLE,
            WGMMA_SMALL,
            WGMMA_FEW,  # several tiles per block on small problems, too
            WGMMA_FLAT,
            WGMMA_NARROW,
            WGMMA_NARROW_PAIRS,
            WGMMA_PAIRS,
            WGMMA_FEW_PAIRS,
            WGMMA_PINGPONG,
            WGMMA_PINGPONG_PAIRS,
            WGMMA_FEW_PINGPONG,
        ),
        shape=_groups_and_boxes,
        space=spaces.WGMMA,
        grid=_blocks_at_most,
        constraints=Constraints(
            multiples={"lda": 8, "ldb": 8, "ldc": 4, "n": 4}, at_least={"m": 1, "n": 1, "k": 1}
        ),
        maps=_swizzled_boxes_of_c,
        min_capability=(9, 0),
        max_capability=(9, 0),
        duty=TENSOR_DUTY,
    ),
    Kernel(
        name="wgmma_tf32",
        idea="warpgroups in TF32: the transposed product, columns of B from registers",
        source=Path("s21_wgmma_tf32.cu"),
        entry="gemm_wgmma_tf32",
        parameters=ALL_MAPPED,
        dtypes=(TF32,),
        configs=(
            WGMMA_TF32,
            WGMMA_TF32_SMALL,
            WGMMA_TF32_WIDE,
            WGMMA_TF32_FEW,  # several tiles per block on small problems, too
            WGMMA_TF32_FEW_WIDE,
        ),
        shape=_transposed,
        space=spaces.WGMMA_TF32,
        grid=_blocks_at_most,
        constraints=Constraints(
            multiples={"lda": 4, "ldb": 4, "ldc": 4, "n": 4}, at_least={"m": 1, "n": 1, "k": 1}
        ),
        maps=_swizzled_boxes_of_c,
        min_capability=(9, 0),
        max_capability=(9, 0),
        duty=TENSOR_DUTY,
    ),
    Kernel(
        name="pack",
        idea="rows that TMA cannot take, first packed into tiles; then as wgmma, also in TF32",
        source=Path("s22_pack.cu"),
        entry="gemm_pack",
        dtypes=(F16, BF16, TF32),
        configs=(
            PACK_WIDE,
            PACK_MIDDLE,
            PACK_PINGPONG,
            PACK_FEW,  # several tiles per block on small problems, too
            PACK_FEW_PINGPONG,
        ),
        shape=_groups,
        space=spaces.PACK,
        grid=_blocks_at_most,
        constraints=Constraints(at_least={"m": 1, "n": 1, "k": 1}),
        workspace=Workspace(_counters_and_packed, _packing_counters),
        min_capability=(9, 0),
        max_capability=(9, 0),
        duty=TENSOR_DUTY,
    ),
    Kernel(
        name="wgmma_split_k",
        idea="K split over a cluster, whose sums meet in distributed shared memory; tiles of 8 rows and more",
        source=Path("s23_wgmma_split_k.cu"),
        entry="gemm_wgmma_split_k",
        parameters=MAPPED,
        dtypes=(F16, BF16, TF32),
        configs=(
            PAIRS_SMALL,
            PAIRS_LARGE,
            PAIRS_FLAT,
            PAIRS_TALL,
            FOURS_8,
            PAIRS_8,
            WHOLE_8,
            FOURS_16,
            PAIRS_16,
            WHOLE_16,
            WHOLE_SMALL,
            PAIRS_DEEP,
            PAIRS_NARROW,
        ),
        shape=_clustered,
        space=spaces.WGMMA_SPLIT_K,
        constraints=Constraints(multiples={"lda": 8, "ldb": 8}, at_least={"m": 1, "n": 1, "k": 1}),
        maps=_swizzled_boxes,
        min_capability=(9, 0),
        max_capability=(9, 0),
        duty=TENSOR_DUTY,
    ),
    Kernel(
        name="wgmma_bytes",
        idea="FP8 and INT8: a row of a box is 128 elements of K, and a wgmma multiplies 32 of them",
        source=Path("s24_wgmma_bytes.cu"),
        entry="gemm_wgmma_bytes",
        operation=gemm("NT"),
        parameters="const CUtensorMap mapA, const CUtensorMap mapB, M, N, K, alpha, beta, C, ldc",
        dtypes=(E4M3, E4M3_BF16, S8),
        configs=(
            BYTES_PAIRS,
            BYTES_WIDE,
            BYTES_THREE,
            BYTES_MIDDLE,
            BYTES_FEW,  # several tiles per block on small problems, too
            BYTES_PINGPONG,
            BYTES_PINGPONG_WIDE,
            BYTES_FEW_PINGPONG,
        ),
        shape=_groups,
        space=spaces.WGMMA_BYTES,
        grid=_blocks_at_most,
        constraints=Constraints(multiples={"lda": 16, "ldb": 16}, at_least={"m": 1, "n": 1, "k": 1}),
        maps=_rows_of_bytes,
        min_capability=(9, 0),
        max_capability=(9, 0),
        duty=TENSOR_DUTY,
    ),
    Kernel(
        name="wgmma_scaled",
        idea="FP8 with factors for 1 × 128 of A and 128 × 128 of B: sums are promoted to FP32",
        source=Path("s25_wgmma_scaled.cu"),
        entry="gemm_wgmma_scaled",
        operation=SCALED,
        parameters="const CUtensorMap mapA, const CUtensorMap mapB, const CUtensorMap mapC, M, N, K, "
        "const float *a_scales, const float *b_scales, C, ldc",
        dtypes=(E4M3, E4M3_BF16),
        configs=(
            SCALED_WIDE,
            SCALED_STRIP,
            SCALED_FEW,  # several tiles per block on small problems, too
            SCALED_FEW_STRIP,
        ),
        shape=_scaled,
        grid=_blocks_at_most,
        constraints=Constraints(
            multiples={"lda": 16, "ldb": 16, "ldc": 8, "n": 8, "k": 128}, at_least={"m": 1, "n": 1, "k": 1}
        ),
        maps=_rows_and_boxes_of_c,
        min_capability=(9, 0),
        max_capability=(9, 0),
        duty=TENSOR_DUTY,
    ),
    Kernel(
        name="wgmma_grouped",
        idea="a product for each group of rows, by a B of its own: the tiles of all groups are one list",
        source=Path("s26_wgmma_grouped.cu"),
        entry="gemm_wgmma_grouped",
        operation=GROUPED,
        parameters="const CUtensorMap mapA, const CUtensorMap mapB, const int *offsets, int groups, int n, "
        "int k, C, unsigned *workspace",
        dtypes=(E4M3_BF16, BF16),
        configs=(
            GROUPED_PINGPONG,
            GROUPED_FEW,  # several tiles per block on small problems, too
        ),
        shape=_pairs_of_groups,
        grid=_tiles_at_most,
        workspace=Workspace(_counter, _counter),
        constraints=Constraints(multiples={"k": 16}, at_least={"m": 1, "n": 1, "k": 1}),
        maps=_rows_of_k,
        min_capability=(9, 0),
        max_capability=(9, 0),
        duty=TENSOR_DUTY,
    ),
    Kernel(
        name="wgmma_swapped",
        idea="the transposed product: tiles of any multiple of 8 rows, clusters in both directions",
        source=Path("s27_wgmma_swapped.cu"),
        entry="gemm_wgmma_swapped",
        parameters=ALL_MAPPED,
        dtypes=(F16, BF16),
        configs=(
            SWAPPED_SMALL,
            SWAPPED_THREE,
            SWAPPED_WIDE,
            SWAPPED_FEW,  # several tiles per block on small problems, too
        ),
        shape=_swapped,
        grid=_blocks_at_most,
        constraints=Constraints(
            multiples={"lda": 8, "ldb": 8, "ldc": 4, "n": 4}, at_least={"m": 1, "n": 1, "k": 1}
        ),
        maps=_swizzled_boxes_of_c,
        min_capability=(9, 0),
        max_capability=(9, 0),
        duty=TENSOR_DUTY,
    ),
    Kernel(
        name="select",
        idea="for each problem the stage and config that were measured fastest near it",
        source=None,
        entry="",
        is_dispatcher=True,
        operation=GEMM_BATCHED,
        dtypes=(F32, F16, BF16, TF32),
        shape=_library,
    ),
    Kernel(
        name="cublas",
        idea="the reference: NVIDIA's library, measured in the same run",
        source=None,
        entry="",
        dtypes=(F32, F16, BF16, TF32),
        configs=(Config(),),
        shape=_library,
        duty=TENSOR_DUTY,
    ),
)

KERNELS = tuple(replace(kernel, advised=ADVISED.get(kernel.name, ())) for kernel in LADDER)

_SMALL, _MIDDLE, _SQUARE, _RAGGED = (Problem(n, n, n) for n in (1024, 2048, 4096, 4095))
_FEW = (_SMALL, _MIDDLE, _SQUARE, _RAGGED)
_SKINNY = Problem(4096, 64, 4096)
_LARGE_RAGGED = Problem(8205, 5921, 2949)
# Of stages that later ones outdo. A slower loop, copy or guard shows with few tiles, with many, and at ragged
# edges; other sizes repeat that. Metrics and memory counters of all configs are compared without a GPU.
_ALL_BUT_LARGEST = ("prefetch", "warp_tiled", "split_k")
TIMED_FEW = {
    **{
        name: Timed(tuple(p for p in FULL.timed if p != Problem(8192, 8192, 8192)), FULL.timed_others)
        for name in _ALL_BUT_LARGEST
    },
    # Their configs are in the same order at any size: one that is slower is so at the smallest.
    **{name: Timed(_FEW, (_SMALL,)) for name in ("strided", "naive", "tiled_unrolled", "rectangular")},
    "tiled": Timed(_FEW, (_SMALL,)),
    **{
        name: Timed((*_FEW, _SKINNY), (_SMALL,))
        for name in ("register", "vectorized", "double_buffered", "async_copy")
    },
    **{name: Timed((*_FEW, _SKINNY), (_SQUARE,)) for name in ("wmma", "mma_sync", "mma_tma")},
    # Its copies of ragged and narrow tiles are those of mma_sync; at 1000³ `select` takes it.
    "tf32x3": Timed((*_FEW, Problem(1000, 1000, 1000)), (_SMALL, _SQUARE)),
    # Its configs differ by the tile alone, which matrices of 32 fill or do not.
    "batched_small": Timed((*TIMED_BATCHED, *TIMED_GIBIBYTE), TIMED_BATCHED[2:4]),
    # The tile of the default config is that of matrices of 8, which the others do not fill.
    "batched_vectors": Timed((*TIMED_BATCHED, *TIMED_GIBIBYTE), (*TIMED_BATCHED[2:4], *TIMED_GIBIBYTE[1:])),
}

# Shapes beside the suite's where a kernel of FP32 is hard pressed: a last wave, edges, long K.
LONG = (Problem(64, 64, 65536), Problem(256, 256, 65536))
UNEVEN = (Problem(4096, 8192, 2048), Problem(2049, 4097, 1023))
SKINNY = (_SKINNY, Problem(16, 8192, 8192))
# The layers of language models, by N and K; passed by so many words at once.
LAYERS = ((4096, 4096), (8192, 8192), (2112, 7168), (7168, 16384), (24576, 1536))
FEW = (1, 8, 16, 64, 128)


def _words(m: int) -> tuple[Problem, ...]:
    return tuple(Problem(m, n, k) for n, k in LAYERS)


MODEL = _words(4096)[1:]
# Experts of a mixture, which share the rows of A.
EXPERTS = (
    *(Problem(8192, 4096, 4096, batch=8), Problem(16384, 2048, 2048, batch=64)),
    Problem(65536, 1024, 1024, batch=256),
)
ONE_EXPERT = tuple(replace(problem, batch=1) for problem in EXPERTS)
DECODED = (_words(8)[0], _words(64)[0])
# Aligned rows, and sizes that are no multiples of tiles; the largest of those that are.
CUT = (Problem(3000, 5000, 1000), Problem(4104, 4104, 4104))
LARGEST = (Problem(8192, 4096, 16384),)


def _square(*sizes: int) -> tuple[Problem, ...]:
    return tuple(Problem(n, n, n) for n in sizes)


_BF16 = _square(128, 256, 384, 512, 768, 1024, 2048, 4096, 4095, 8192)
# What a config is for, of which the suite would time more.
_AT: tuple[tuple[str, DType, Config, tuple[Problem, ...]], ...] = (
    ("cublas", F32, Config(), (*FULL.timed, *UNEVEN, *LONG)),
    ("select", F32, Config(), (*FULL.timed, *UNEVEN, *LONG, *TIMED_BATCHED, *TIMED_GIBIBYTE)),
    ("split_k", F32, SPLIT_TALL, (_SQUARE, SKINNY[0])),
    ("split_k", F32, SPLIT_FLAT, (_SMALL, SKINNY[1])),
    ("lean_loop", F32, LEAN_THOUSAND, _square(1000, 1024)),
    ("lean_loop", F32, LEAN_NARROW, (*_square(512), *SKINNY)),
    ("lean_loop", F32, LEAN_SMALL, _square(256)),
    ("stream_k", F32, STREAM_WIDE, (*FULL.timed, *UNEVEN, LONG[1])),
    ("stream_k", F32, STREAM_PAIRS, (*_square(4095, 4097), _LARGE_RAGGED, UNEVEN[1])),
    ("stream_k", F32, STREAM_NARROW, LONG[:1]),
    ("mma_sync", TF32, MMA_WIDE, ()),
    ("tf32x3", F32, X3_WIDE, _square(4096)),
    # BF16 differs from FP16 by a word of its mma: what slows one down, slows down the other.
    *((name, BF16, Config(), _BF16) for name in ("cublas", "select")),
    ("mma_sync", BF16, MMA_TALL, _square(1024)),
    ("mma_tma", BF16, TMA_WIDE, _square(1024, 4096)),
    *(("mma_sync", BF16, config, ()) for config in (MMA_WIDE, MMA_SMALL)),
    ("wmma", BF16, WMMA, _square(1024, 4096)),
    *(("mma_tma", dtype, TMA_SMALL, _square(512, 1024)) for dtype in (F16, TF32)),
    ("mma_tma", BF16, TMA_SMALL, ()),
    ("wgmma", BF16, WGMMA_WIDE, _square(1024, 4096)),
    ("wgmma", F16, WGMMA_WIDE, _square(1024, 2048, 4096)),
    ("wgmma_tf32", TF32, WGMMA_TF32, _square(1000, 1024, 2048, 4096)),
    ("wgmma", F16, WGMMA_MIDDLE, _square(2048)),
    ("wgmma", F16, WGMMA_SMALL, _square(512, 1024)),
    # Of a kernel of whose other configs some are timed everywhere.
    *(
        ("wgmma", dtype, config, ())
        for dtype in (F16, BF16)
        for config in (WGMMA_FEW, WGMMA_FEW_PAIRS, WGMMA_FEW_PINGPONG)
    ),
    *(("wgmma", BF16, config, ()) for config in (WGMMA_MIDDLE, WGMMA_SMALL, WGMMA_FLAT)),
    *(("wgmma", dtype, WGMMA_PINGPONG, _square(2048, 4096)) for dtype in (F16, BF16)),
    ("wgmma", BF16, WGMMA_NARROW_PAIRS, ()),
    ("wgmma_tf32", TF32, WGMMA_TF32_SMALL, _square(512, 1024)),
    ("wgmma_tf32", TF32, WGMMA_TF32_WIDE, _square(8192)),
    *(("wgmma_tf32", TF32, config, ()) for config in (WGMMA_TF32_FEW, WGMMA_TF32_FEW_WIDE)),
    # Rows that no tensor map takes; where they are aligned, wgmma is faster.
    *(
        ("pack", dtype, PACK_PINGPONG, (_RAGGED, *_square(4097), _LARGE_RAGGED, UNEVEN[1]))
        for dtype in (F16, TF32)
    ),
    ("pack", BF16, PACK_PINGPONG, (_RAGGED,)),
    *(("pack", dtype, PACK_WIDE, (_RAGGED,)) for dtype in (F16, BF16, TF32)),
    # C of few tiles; rows or columns of A or B as many as of a tile.
    *(("wgmma_split_k", dtype, PAIRS_SMALL, _square(512)) for dtype in (F16, TF32)),
    *(("wgmma_split_k", dtype, WHOLE_SMALL, _square(128, 256, 384, 512)) for dtype in (F16, BF16)),
    ("wgmma_split_k", TF32, PAIRS_LARGE, _square(1000, 1024)),
    ("wgmma_split_k", F16, PAIRS_FLAT, (_words(64)[1], _words(64)[3])),
    *(("wgmma_split_k", dtype, PAIRS_TALL, SKINNY[:1]) for dtype in (F16, TF32)),
    *(("wgmma_split_k", F16, FOURS_8, (_words(m)[0], _words(m)[2])) for m in (1, 8)),
    *(("wgmma_split_k", F16, PAIRS_8, (_words(m)[1], _words(m)[3])) for m in (1, 8)),
    *(("wgmma_split_k", F16, WHOLE_8, _words(m)[4:]) for m in (1, 8)),
    ("wgmma_split_k", F16, FOURS_16, (_words(16)[0], _words(16)[2])),
    *(("wgmma_split_k", dtype, PAIRS_16, SKINNY[1:]) for dtype in (F16, TF32)),
    ("wgmma_split_k", F16, PAIRS_16, _words(16)[3:4]),
    ("wgmma_split_k", F16, WHOLE_16, _words(16)[4:]),
    *(("wgmma_split_k", dtype, PAIRS_DEEP, _words(64)[:1]) for dtype in (F16, TF32)),
    ("wgmma_split_k", F16, PAIRS_DEEP, _words(64)[2:3]),
    ("wgmma", F16, WGMMA_FLAT, _words(64)[4:]),
    ("wgmma_split_k", F16, PAIRS_NARROW, (_words(128)[0], _words(128)[2])),
    ("select", F16, Config(), (*FULL.timed, UNEVEN[1], *_square(128, 384, 768), *CUT, *TIMED_BATCHED)),
    ("select", TF32, Config(), (*FULL.timed, UNEVEN[1], *TIMED_BATCHED)),
    *(("wgmma_bytes", dtype, BYTES_PAIRS, _square(2048, 4096)) for dtype in (E4M3_BF16, S8)),
    *(
        ("wgmma_bytes", dtype, BYTES_WIDE, (*_square(2048, 4096), MODEL[0], MODEL[2]))
        for dtype in (E4M3_BF16, S8)
    ),
    ("wgmma_bytes", S8, BYTES_MIDDLE, _square(2048)),
    ("wgmma_bytes", E4M3, BYTES_PAIRS, _square(2048)),
    ("wgmma_bytes", E4M3, BYTES_WIDE, _square(2048, 4096)),
    *(("wgmma_bytes", dtype, BYTES_PINGPONG, _square(2048, 4096)) for dtype in (E4M3, E4M3_BF16, S8)),
    *(("wgmma_bytes", dtype, BYTES_PINGPONG_WIDE, (*_square(8192), *MODEL[3:])) for dtype in (E4M3_BF16, S8)),
    *(("wgmma", dtype, WGMMA_PINGPONG_PAIRS, p) for dtype, p in ((F16, CUT[:1]), (BF16, ()))),
    ("wgmma_scaled", E4M3_BF16, SCALED_WIDE, (*_square(2048, 4096, 8192), *MODEL)),
    ("wgmma_scaled", E4M3_BF16, SCALED_STRIP, MODEL[1:2]),
    # In BF16 as fast as by turns: which one `select` takes would be left to chance.
    ("wgmma", F16, WGMMA_PAIRS, _square(4096)),
    ("wgmma", BF16, WGMMA_PAIRS, ()),
    # The first config at a size of the suite `smoke`, too.
    *(("wgmma_split_k", dtype, PAIRS_SMALL, _square(1024)) for dtype in (F16, BF16)),
    ("wgmma_split_k", TF32, PAIRS_SMALL, _square(256, 1024)),
    ("wgmma_split_k", F16, PAIRS_LARGE, _square(1000)),
    ("wgmma_split_k", TF32, FOURS_8, DECODED[:1]),
    ("cublas", F16, Config(), (*FULL.timed, UNEVEN[1], *_square(128, 384, 768), *CUT)),
    *(("cublas", F16, Config(), _words(m)) for m in FEW),
    ("cublas", TF32, Config(), (*FULL.timed, UNEVEN[1], *DECODED)),
    *(("wgmma_grouped", dtype, GROUPED_PINGPONG, EXPERTS) for dtype in (E4M3_BF16, BF16)),
    ("wgmma_scaled", E4M3, SCALED_WIDE, _square(2048, 4096)),
    # 2112 columns are 12 of its tiles, 4096 rows 22: two rounds of 132 blocks.
    *(("wgmma_bytes", dtype, BYTES_THREE, MODEL[1:2]) for dtype in (E4M3_BF16, S8)),
    *(("wgmma", dtype, WGMMA_NARROW, _square(768, 1024)) for dtype in (F16, BF16)),
    ("wgmma", F16, WGMMA_NARROW_PAIRS, (_words(128)[1], *_words(128)[3:])),
    ("wgmma_swapped", F16, SWAPPED_SMALL, _square(1000, 1024)),
    ("wgmma_swapped", BF16, SWAPPED_SMALL, _square(1024)),
    *(("wgmma_swapped", dtype, SWAPPED_WIDE, _square(8192)) for dtype in (F16, BF16)),
    *(("wgmma_swapped", dtype, SWAPPED_FEW, ()) for dtype in (F16, BF16)),
    *(("wgmma_swapped", dtype, SWAPPED_THREE, p) for dtype, p in ((F16, CUT[1:]), (BF16, ()))),
    # The work of those groups in one product.
    ("wgmma_bytes", E4M3_BF16, BYTES_WIDE, ONE_EXPERT),
    ("cublas", BF16, Config(), ONE_EXPERT),
)
# What a regression would show in the rest, too: timed by the suite `nightly`.
_NIGHTLY: tuple[tuple[str, DType, Config, tuple[Problem, ...]], ...] = (
    ("wgmma", F16, WGMMA_WIDE, FULL.timed),
    *(("wgmma_bytes", dtype, BYTES_WIDE, _square(8192)) for dtype in (E4M3_BF16, S8)),
    *(
        ("wgmma_bytes", dtype, BYTES_PAIRS, (*_square(8192), MODEL[0], *MODEL[2:]))
        for dtype in (E4M3_BF16, S8)
    ),
    *((name, dtype, Config(), LARGEST) for name in ("cublas", "select") for dtype in (F16, BF16, TF32)),
    *((name, dtype, Config(), CUT) for name in ("cublas", "select") for dtype in (BF16, TF32)),
    # What the kernels that it takes there are timed for, too.
    *(("select", F16, Config(), _words(m)) for m in FEW),
    ("select", TF32, Config(), DECODED),
    ("wgmma", BF16, WGMMA_PINGPONG_PAIRS, CUT[:1]),
    ("wgmma_swapped", BF16, SWAPPED_THREE, CUT[1:]),
    *(("wgmma", dtype, WGMMA_PAIRS, (*_square(8192), *LARGEST)) for dtype in (F16, BF16)),
    *(("wgmma_swapped", dtype, SWAPPED_WIDE, LARGEST) for dtype in (F16, BF16)),
    ("wgmma_tf32", TF32, WGMMA_TF32_WIDE, LARGEST),
    ("wgmma_tf32", TF32, WGMMA_TF32, (*FULL.timed, *CUT, *LARGEST)),
    ("wgmma_bytes", E4M3_BF16, BYTES_MIDDLE, _square(2048)),
    ("wgmma_bytes", E4M3, BYTES_PAIRS, _square(4096)),
    *(("pack", dtype, PACK_WIDE, (_LARGE_RAGGED,)) for dtype in (F16, TF32)),
    *(("pack", dtype, PACK_MIDDLE, (*_square(4097), UNEVEN[1])) for dtype in (F16, TF32)),
    ("mma_sync", TF32, MMA_WIDE, _square(8192)),
    ("mma_sync", BF16, MMA_TALL, _square(4096, 8192)),
    ("mma_sync", BF16, MMA_WIDE, _square(4096)),
    ("mma_sync", BF16, MMA_SMALL, _square(1024)),
    ("mma_tma", BF16, TMA_WIDE, _square(2048, 8192)),
    ("mma_tma", BF16, TMA_SMALL, _square(1024)),
    ("wmma", BF16, WMMA, _square(4095)),
    ("wgmma", BF16, WGMMA_WIDE, _square(2048, 8192)),
    ("wgmma", BF16, WGMMA_MIDDLE, _square(2048)),
    ("wgmma", BF16, WGMMA_SMALL, _square(1024)),
)
# Two shapes of stages that later ones outdo, and the slowest stages elsewhere, have no figure yet.
_NIGHTLY_FEW = {
    name: few
    if name in ("strided", "naive", "batched_small", "batched_vectors")
    else Timed(tuple(p for p in FULL.timed if p not in (SKINNY[1], _LARGE_RAGGED)), FULL.timed_others)
    for name, few in TIMED_FEW.items()
    if name not in _ALL_BUT_LARGEST
}
# Without a figure in the baselines yet: timed by the suite `unmeasured`, and by `full` or `nightly` from the
# commit on that stores them.
_UNMEASURED: tuple[tuple[str, DType, Config, tuple[Problem, ...]], ...] = ()


# All whose variants are timed at the shapes above alone.
_ONLY_THERE = ("pack", "wgmma_split_k", "wgmma_bytes", "wgmma_scaled", "wgmma_grouped")


def _timed_at(
    rows: tuple[tuple[str, DType, Config, tuple[Problem, ...]], ...],
) -> dict[str, tuple[Problem, ...]]:
    """By the variants' names; of one in several rows, the problems of all."""
    of = {kernel.name: kernel for kernel in KERNELS}
    found: dict[str, tuple[Problem, ...]] = {
        variant_name(of[name], config, dtype): ()
        for name in _ONLY_THERE
        for config in of[name].configs
        for dtype in of[name].dtypes
    }
    for name, dtype, config, problems in rows:
        variant = variant_name(of[name], config, dtype)
        found[variant] = (*found.get(variant, ()), *problems)
    return found


TIMED_AT = _timed_at(_AT)
# FULL's baseline serves SMOKE.
_IN_SMOKE = {
    name: tuple(p for p in (*SMOKE.timed, EXPERTS[0]) if p in problems) for name, problems in TIMED_AT.items()
}
# Verified by some: whole tiles, and A and C whose rows are not aligned; the same of B; whole tiles along K,
# more than are filled ahead.
_OFF = Problem(72, 68, 100, alpha=2, beta=1, starts=(1, 0, 1))
_B_OFF = Problem(72, 128, 32, alpha=2, beta=1, ldb=136, ldc=136, starts=(0, 1, 2))
_WHOLE = Problem(68, 68, 96, ldb=72, ldc=80)
# A column and two steps along K more than are whole, in aligned rows.
_WIDE = Problem(2, 129, 130, beta=1, lda=132, ldb=140, ldc=132)
_UNROLLED = Problem(9, 7, 4)  # K is as long as loops are unrolled
_FULL = replace(
    FULL,
    timed_few=TIMED_FEW,
    timed_batched=(*TIMED_BATCHED, *TIMED_GIBIBYTE),
    timed_batched_others=(*FULL.timed_batched_others, *TIMED_GIBIBYTE),
    timed_at=TIMED_AT,
    more="nightly",
    verified_too={
        **dict.fromkeys(("strided", "naive"), (_UNROLLED,)),
        **dict.fromkeys(("prefetch", "wmma"), (_WIDE,)),
        "vectorized": (_B_OFF,),
        "split_k": (Problem(17, 5, 129, beta=2, lda=130),),
        "tf32x3": (_OFF, _WHOLE),
        # A matrix more than a block has, in rows that are not aligned.
        "batched_vectors": (
            *(_UNROLLED, Problem(34, 66, 2, beta=1, lda=10, ldb=67, ldc=67, batch=9)),
            Problem(40, 66, 18, lda=19, ldb=67, ldc=67, batch=9),
        ),
        "stream_k": (
            # Two rows and columns more than its wide tiles: strips by lines; no row of B or C aligned.
            Problem(130, 258, 45, alpha=-1, beta=3, lda=47, ldb=259, ldc=261),
            # A tile that many blocks share, in groups of 8; more tiles than blocks, of one step each.
            *(Problem(31, 30, 2500), Problem(37, 29, 1190, alpha=2, beta=1), Problem(1061, 1090, 1)),
        ),
        # More tiles along K than twice the stages, and a part of one.
        "mma_tma": (Problem(66, 70, 440, alpha=2, beta=1),),
        "pack": (
            # A row more than a group has, a column more than is narrow; a group without a row.
            *(Problem(66, 65, 70, alpha=2, beta=1), Problem(34, 36, 533)),
            # K in whole vectors, and rows of C not.
            Problem(12, 9, 16, alpha=2, beta=2),
            _WIDE,
        ),
        "wgmma_scaled": (
            # Several tiles of several blocks, edges, more steps along K than stages; strips of 8 to 24.
            *(
                Problem(300, 264, 1024, layout="NT"),
                Problem(131, 408, 896, lda=912, ldb=928, ldc=424, layout="NT"),
                Problem(130, 520, 640, layout="NT"),
            ),
            *(Problem(9, 8, 256, ldc=16, layout="NT"), Problem(70, 272, 128, layout="NT")),
        ),
        # More tiles along K in each block, or slice of one, than stages, and a part of one.
        "lean_loop": (Problem(34, 30, 533),),
        # Three tiles, too, for two warpgroups of each block that take turns.
        "wgmma": (Problem(9, 8, 840, ldc=12), Problem(270, 12, 500, ldb=16), _OFF),
        # A band of eight rows of tiles, and one more.
        "wgmma_bytes": (
            *(Problem(9, 7, 1040, ldc=7, layout="NT"), Problem(270, 9, 1000, layout="NT")),
            Problem(2060, 9, 16, layout="NT"),
        ),
        "wgmma_swapped": (Problem(9, 8, 840, ldc=12),),
        "wgmma_split_k": (Problem(9, 7, 2200, ldb=8, ldc=7),),
        # A tile that is whole along M and K, not along N, and no wider than K is long.
        "mma_sync": (Problem(64, 40, 64), _OFF, _WHOLE, _B_OFF, _WIDE),
    },
)
SUITES = (
    # The uncoalesced stage would take most of the time of a smoke run.
    replace(SMOKE, largest_timed={"strided": 2.0 * 1024**3}, timed_at=_IN_SMOKE, more="full"),
    _FULL,
    replace(_FULL, name="nightly", timed_few=_NIGHTLY_FEW, timed_at=_timed_at((*_AT, *_NIGHTLY)), more=""),
    replace(
        _FULL, name="unmeasured", timed_few={}, timed_at=_timed_at((*_AT, *_NIGHTLY, *_UNMEASURED)), more=""
    ),
    ADVICE,
)
