"""What a GPU refuses, why, and how many blocks an SM holds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gemm_regression.model import BF16, F16, F32, TF32, BlockShape, Config, Kernel, Problem
from gemm_regression.model.gpus import GpuLimits
from gemm_regression.model.legality import legal_variants, occupancy, refusals
from tests.ladder import LADDER

H200 = GpuLimits.of((9, 0))
TURING = GpuLimits.of((7, 5))
GOOD = BlockShape(threads=(16, 16), tile=(128, 128), thread_tile=(8, 8), shared_bytes=8192)


def kernel_of(shape: BlockShape, **fields: object) -> Kernel:
    kernel = Kernel("k", LADDER[0].source, "gemm_k", shape)
    return replace(kernel, **fields)  # type: ignore[arg-type]


def refused(shape: BlockShape, limits: GpuLimits = H200) -> tuple[str, ...]:
    return refusals(kernel_of(shape), Config(), F32, limits)


def test_a_sound_block_is_not_refused() -> None:
    assert refused(GOOD) == ()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"threads": (64, 64), "thread_tile": (2, 2)},
            "4096 threads per block (64×64), at most 1024 allowed",
        ),
        (
            {"threads": (4, 4), "tile": (32, 32), "whole_warps": True},
            "16 threads per block (4×4) are not a multiple of the warp size 32",
        ),
        (
            {"shared_bytes": 48 * 1024 + 4},
            "49156 bytes of static shared memory per block, at most 49152 allowed",
        ),
        (
            {"shared_bytes": 227 * 1024 + 4, "dynamic": True},
            "232452 bytes of dynamic shared memory per block, at most 232448 allowed",
        ),
        (
            {"vectors": (("Bs", 128, 4), ("As", 65, 4))},
            "rows of As are 65 elements apart, so vectors of 4 would be misaligned",
        ),
        ({"thread_tile": (8, 12)}, "a tile of 128×128 is not divisible into thread tiles of 8×12"),
        # The notes' own example: 256 threads where 64 have work.
        ({"tile": (64, 64)}, "256 threads with 8×8 elements each do not make a tile of 64×64"),
        (
            {"threads": (8, 8), "thread_tile": (16, 16)},
            "16×16 sums a thread do not fit the 255 registers it can have",
        ),
        (
            {"threads": (32, 32), "tile": (256, 256)},
            "8×8 sums a thread do not fit the 64 registers it can have",
        ),
    ],
)
def test_a_fault_is_the_one_reason(change: dict[str, object], reason: str) -> None:
    assert refused(replace(GOOD, **change)) == (reason,)  # type: ignore[arg-type]


def test_a_block_need_not_be_of_whole_warps() -> None:
    assert refused(replace(GOOD, threads=(4, 4), tile=(32, 32))) == ()


def test_several_faults_are_all_told() -> None:
    assert len(refused(replace(GOOD, threads=(48, 43), shared_bytes=50000))) == 4


def test_dynamic_shared_memory_depends_on_the_gpu() -> None:
    big = replace(GOOD, shared_bytes=100 * 1024, dynamic=True)
    allowed = {
        c
        for c in ((7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0))
        if not refused(big, GpuLimits.of(c))
    }
    assert allowed == {(8, 0), (9, 0), (10, 0)}


def test_a_warp_wide_kernel_has_no_thread_tile_to_check() -> None:
    assert refused(replace(GOOD, thread_tile=None)) == ()


def test_capability() -> None:
    hopper = kernel_of(GOOD, min_capability=(9, 0))
    assert refusals(hopper, Config(), F32, GpuLimits.of((8, 9))) == (
        "k f32 needs compute capability 9.0, this GPU has 8.9",
    )
    assert (
        refusals(hopper, Config(), F32, H200) == refusals(hopper, Config(), F32, GpuLimits.of((10, 0))) == ()
    )


def test_an_instruction_of_one_architecture_bounds_the_capability_from_above() -> None:
    wgmma = kernel_of(GOOD, min_capability=(9, 0), max_capability=(9, 0))
    assert refusals(wgmma, Config(), F32, H200) == ()
    assert refusals(wgmma, Config(), F32, GpuLimits.of((10, 0))) == (
        "k is for compute capabilities up to 9.0, this GPU has 10.0",
    )


def test_a_block_may_have_three_dimensions() -> None:
    cube = replace(GOOD, threads=(32, 2, 4))
    assert refused(cube) == ()
    assert kernel_of(cube).launch(Config(), F32, Problem(8, 8, 8)).block == (32, 2, 4)
    big = replace(cube, threads=(32, 8, 8), thread_tile=None)
    assert refused(big) == ("2048 threads per block (32×8×8), at most 1024 allowed",)


def test_a_launch_requests_what_is_not_static() -> None:
    both = replace(GOOD, shared_bytes=100 * 1024, dynamic=True, static_bytes=128)
    for shape, requested in [
        (both, 100 * 1024 - 128),
        (replace(both, static_bytes=0), 100 * 1024),
        (GOOD, 0),
    ]:
        assert kernel_of(shape).launch(Config(), F32, Problem(8, 8, 8)).dynamic_shared == requested


@pytest.mark.parametrize(("dtype", "legal"), [(F32, True), (F16, True), (BF16, False), (TF32, False)])
def test_turing_has_no_bf16_and_no_tf32(dtype: object, legal: bool) -> None:
    (cublas,) = [kernel for kernel in LADDER if kernel.library]
    assert dtype in cublas.dtypes
    assert (dtype in [d for _, d in legal_variants(cublas, TURING)]) is legal


def test_the_declared_space_shows_what_the_notes_get_wrong() -> None:
    kernels = {kernel.name: kernel for kernel in LADDER}
    tiled = refusals(kernels["tiled"], Config(TILE_SIZE=64, PADDING=0), F32, H200)
    assert tiled == ("4096 threads per block (64×64), at most 1024 allowed",)
    (misaligned,) = [c for c in kernels["vectorized"].configs if c["PADDING"] == 1]
    assert "rows of As are 65 elements apart" in refusals(kernels["vectorized"], misaligned, F32, H200)[0]


@pytest.mark.parametrize("kernel", LADDER, ids=lambda kernel: kernel.name)
def test_the_default_config_runs_on_hopper_in_every_dtype(kernel: Kernel) -> None:
    legal = legal_variants(kernel, H200)
    assert {dtype for config, dtype in legal if config == kernel.configs[0]} == set(kernel.dtypes)


def test_an_unknown_gpu_is_one_clear_line() -> None:
    with pytest.raises(ValueError, match=r"unknown compute capability 6\.1; known: 7\.5, 8\.0") as error:
        GpuLimits.of((6, 1))
    assert "\n" not in str(error.value)


# Blocks computed by cuda_occupancy.h of CUDA 13.0 (block barriers 1, shared memory opted in).
@pytest.mark.parametrize(
    ("capability", "threads", "registers", "shared", "blocks", "limiter"),
    [
        ((9, 0), 256, 64, 0, 4, "registers"),
        ((8, 0), 256, 32, 0, 8, "threads and registers"),
        ((8, 0), 256, 64, 0, 4, "registers"),
        ((9, 0), 256, 128, 8320, 2, "registers"),
        ((9, 0), 256, 129, 8320, 1, "registers"),
        ((9, 0), 256, 255, 37248, 1, "registers"),
        ((9, 0), 1024, 65, 0, 0, "registers"),
        ((9, 0), 96, 168, 0, 4, "registers"),  # 12 warps fit, 3 to each sub-partition
        ((9, 0), 32, 16, 512, 32, "blocks"),
        ((8, 6), 32, 16, 512, 16, "blocks"),
        ((8, 9), 32, 16, 512, 24, "blocks"),
        ((12, 0), 32, 16, 512, 24, "blocks"),
        ((7, 5), 32, 16, 0, 16, "blocks"),
        ((9, 0), 128, 32, 45568, 5, "shared memory"),
        ((9, 0), 128, 32, 232448, 1, "shared memory"),
        ((8, 6), 128, 32, 49152, 2, "shared memory"),  # 1 KB of each is the driver's
        ((7, 5), 128, 32, 32768, 2, "shared memory"),  # and here none is
        ((8, 6), 512, 32, 0, 3, "threads"),
        ((7, 5), 512, 32, 0, 2, "threads"),
    ],
)
def test_occupancy(
    capability: tuple[int, int], threads: int, registers: int, shared: int, blocks: int, limiter: str
) -> None:
    limits = GpuLimits.of(capability)
    found = occupancy(threads, registers, shared, limits)
    assert (found.blocks, found.limiter) == (blocks, limiter)
    assert found.warps == blocks * threads // 32
    assert found.fraction == pytest.approx(blocks * threads / limits.threads_per_sm)


# By hand, from "Technical Specifications per Compute Capability" of the CUDA C++ Programming Guide.
@pytest.mark.parametrize(
    ("capability", "threads", "registers", "shared", "barriers", "blocks", "percent", "limiter"),
    [
        # 8 warps of 32 slots; 64·32 = 2048 registers a warp, 8 of them in 16384, 32 in all: 4 blocks of 8.
        ((7, 5), 256, 64, 0, 1, 4, 100.0, "threads and registers"),
        # 24 576 bytes in units of 256 into 65 536: 2 blocks of 4 warps.
        ((7, 5), 128, 32, 24576, 1, 2, 25.0, "shared memory"),
        # 96·32 = 3072 registers a warp, 5 in 16 384, 20 in all: 2 blocks of 8 warps, of 64.
        ((8, 0), 256, 96, 0, 1, 2, 25.0, "registers"),
        # 33 registers are handed out as 40: 1280 a warp, 12 in 16 384, 48 in all, 6 blocks of 8.
        ((8, 0), 256, 33, 0, 1, 6, 75.0, "registers"),
        # 167 936 / (40 960 + 1024) is 4 to the byte.
        ((8, 0), 128, 32, 40960, 1, 4, 25.0, "shared memory"),
        ((8, 0), 128, 32, 40961, 1, 3, 18.75, "shared memory"),
        # 48 warps: 1 block of 1024 threads leaves 16 of them idle.
        ((8, 6), 1024, 32, 0, 1, 1, 66.6667, "threads"),
        # 102 400 / (8192 + 1024) = 11.1; 48 / 4 = 12 by threads.
        ((8, 6), 128, 40, 8192, 1, 11, 91.6667, "shared memory"),
        # 128·32 = 4096 registers a warp, 4 in 16 384: 16 warps of 64; and 233 472 / (32 768 + 1024) = 6.9.
        ((9, 0), 256, 128, 32768, 1, 2, 25.0, "registers"),
        # 233 472 / (115 712 + 1024) is 2 to the byte, and so are the registers.
        ((9, 0), 256, 128, 115712, 1, 2, 25.0, "registers and shared memory"),
        ((9, 0), 256, 128, 115713, 1, 1, 12.5, "shared memory"),
        # 64 barriers an SM, 16 a block.
        ((9, 0), 32, 16, 0, 16, 4, 6.25, "barriers"),
        ((8, 0), 32, 16, 0, 16, 32, 50.0, "blocks"),
        # As Hopper: 168·32 = 5376 registers a warp, 3 in 16 384: 12 warps, 3 blocks of 4.
        ((10, 0), 128, 168, 49152, 1, 3, 18.75, "registers"),
        ((10, 0), 64, 24, 0, 1, 32, 100.0, "threads and blocks"),
        # 48 warps, 24 blocks, 24 barriers: 12 blocks of two barriers.
        ((12, 0), 64, 32, 0, 1, 24, 100.0, "threads and blocks"),
        ((12, 0), 64, 32, 0, 2, 12, 50.0, "barriers"),
        # 102 400 / (33 792 + 1024) = 2.9; 80·32 = 2560 registers a warp, 6 in 16 384: 24 warps, 3 blocks.
        ((12, 0), 256, 80, 33792, 1, 2, 33.3333, "shared memory"),
    ],
)
def test_occupancy_by_hand(
    capability: tuple[int, int],
    threads: int,
    registers: int,
    shared: int,
    barriers: int,
    blocks: int,
    percent: float,
    limiter: str,
) -> None:
    found = occupancy(threads, registers, shared, GpuLimits.of(capability), barriers)
    assert (found.blocks, found.limiter) == (blocks, limiter)
    assert 100 * found.fraction == pytest.approx(percent, abs=1e-4)


def test_what_cannot_be_launched_has_no_blocks() -> None:
    assert occupancy(1056, 16, 0, H200).blocks == 0
    assert occupancy(32, 256, 0, H200).blocks == 0
    assert occupancy(32, 16, 227 * 1024 + 1, H200).blocks == 0


def test_a_launch_has_a_block_also_of_a_problem_without_elements() -> None:
    """CUDA refuses a grid of none."""
    kernel = kernel_of(GOOD, grid=lambda shape, problem: (problem.m, problem.n, problem.batch))
    assert kernel.launch(Config(), F32, Problem(0, 0, 5)).grid == (1, 1, 1)


@pytest.mark.parametrize(
    ("capability", "like"), [((8, 8), (8, 7)), ((9, 1), (9, 0)), ((10, 1), (10, 0)), ((12, 7), (12, 1))]
)
def test_a_gpu_of_a_known_architecture_is_known(capability: tuple[int, int], like: tuple[int, int]) -> None:
    assert GpuLimits.of(capability) == replace(GpuLimits.of(like), capability=capability)


def test_every_capability_that_nvcc_compiles_for_is_in_the_table() -> None:
    for capability in ((8, 7), (10, 3), (12, 1)):
        assert GpuLimits.of(capability).threads_per_sm in (1536, 2048)
