"""What a GPU refuses, why, and how many blocks an SM holds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gemm_regression.model import BF16, F16, F32, TF32, BlockShape, Config, Kernel, Problem
from gemm_regression.model.gpus import GpuLimits, legal_variants, occupancy, refusals
from tests.ladder import LADDER

H200 = GpuLimits.of((9, 0))
GOOD = BlockShape(threads=(16, 16), tile=(128, 128), thread_tile=(8, 8), shared_bytes=8192)


def kernel_of(shape: BlockShape, **fields: object) -> Kernel:
    kernel = Kernel("k", LADDER[0].source, "gemm_k", shape)
    return replace(kernel, **fields)  # type: ignore[arg-type]


def refused(shape: BlockShape, limits: GpuLimits = H200) -> tuple[str, ...]:
    return refusals(kernel_of(shape), Config(), F32, limits)


FAULTS = {
    "4096 threads per block (64×64), at most 1024 allowed": {"threads": (64, 64), "thread_tile": (2, 2)},
    "2048 threads per block (32×8×8), at most 1024 allowed": {"threads": (32, 8, 8), "thread_tile": None},
    "16 threads per block (4×4) are not a multiple of the warp size 32": {
        **{"threads": (4, 4), "tile": (32, 32), "whole_warps": True}
    },
    "49156 bytes of static shared memory per block, at most 49152 allowed": {"shared_bytes": 48 * 1024 + 4},
    "232452 bytes of dynamic shared memory per block, at most 232448 allowed": {
        **{"shared_bytes": 227 * 1024 + 4, "dynamic": True}
    },
    "rows of As are 65 elements apart, so vectors of 4 would be misaligned": {
        "vectors": (("Bs", 128, 4), ("As", 65, 4))
    },
    "a tile of 128×128 is not divisible into thread tiles of 8×12": {"thread_tile": (8, 12)},
    # The notes' own example: 256 threads where 64 have work.
    "256 threads with 8×8 elements each do not make a tile of 64×64": {"tile": (64, 64)},
    "16×16 sums a thread do not fit the 255 registers it can have": {
        **{"threads": (8, 8), "thread_tile": (16, 16)}
    },
    "8×8 sums a thread do not fit the 64 registers it can have": {"threads": (32, 32), "tile": (256, 256)},
}


@pytest.mark.parametrize("reason", FAULTS)
def test_a_fault_is_the_one_reason(reason: str) -> None:
    assert refused(replace(GOOD, **FAULTS[reason])) == (reason,)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [{}, {"threads": (4, 4), "tile": (32, 32)}, {"thread_tile": None}, {"threads": (32, 2, 4)}],
    ids=["sound", "no whole warps", "a warp-wide kernel", "three dimensions"],
)
def test_what_can_run_is_not_refused(change: dict[str, object]) -> None:
    shape = replace(GOOD, **change)  # type: ignore[arg-type]
    assert refused(shape) == ()
    assert kernel_of(shape).launch(Config(), F32, Problem(8, 8, 8)).block == (*shape.threads, 1)[:3]


def test_several_faults_are_all_told() -> None:
    assert len(refused(replace(GOOD, threads=(48, 43), shared_bytes=50000))) == 4


def test_dynamic_shared_memory_depends_on_the_gpu() -> None:
    big = replace(GOOD, shared_bytes=100 * 1024, dynamic=True)
    known = ((7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0))
    assert {c for c in known if not refused(big, GpuLimits.of(c))} == {(8, 0), (9, 0), (10, 0)}


def test_capabilities_bound_a_kernel_from_below_and_from_above() -> None:
    hopper = kernel_of(GOOD, min_capability=(9, 0), max_capability=(9, 0))
    said = {c: refusals(hopper, Config(), F32, GpuLimits.of(c)) for c in ((8, 9), (9, 0), (10, 0))}
    assert said == {
        (8, 9): ("k f32 needs compute capability 9.0, this GPU has 8.9",),
        (9, 0): (),
        (10, 0): ("k is for compute capabilities up to 9.0, this GPU has 10.0",),
    }
    (cublas,) = [kernel for kernel in LADDER if kernel.library]
    assert {F32, F16, BF16, TF32} == {*cublas.dtypes}
    assert {dtype for _, dtype in legal_variants(cublas, GpuLimits.of((7, 5)))} == {F32, F16}


def test_a_launch_requests_what_is_not_static_and_has_a_block() -> None:
    both = replace(GOOD, shared_bytes=100 * 1024, dynamic=True, static_bytes=128)
    for shape, requested in ((both, 102272), (replace(both, static_bytes=0), 102400), (GOOD, 0)):
        assert kernel_of(shape).launch(Config(), F32, Problem(8, 8, 8)).dynamic_shared == requested
    kernel = kernel_of(GOOD, grid=lambda shape, problem: (problem.m, problem.n, problem.batch))
    assert kernel.launch(Config(), F32, Problem(0, 0, 5)).grid == (1, 1, 1)  # CUDA refuses a grid of none


@pytest.mark.parametrize("kernel", LADDER, ids=lambda kernel: kernel.name)
def test_the_default_config_runs_on_hopper_in_every_dtype(kernel: Kernel) -> None:
    legal = legal_variants(kernel, H200)
    assert {dtype for config, dtype in legal if config == kernel.configs[0]} == set(kernel.dtypes)


def test_a_gpu_of_a_known_architecture_is_known_and_another_is_one_clear_line() -> None:
    for near, like in {(8, 8): (8, 7), (9, 1): (9, 0), (10, 1): (10, 0), (12, 7): (12, 1)}.items():
        assert GpuLimits.of(near) == replace(GpuLimits.of(like), capability=near)
    with pytest.raises(ValueError, match=r"^unknown compute capability 6\.1; known: 7\.5, 8\.0[^\n]*$"):
        GpuLimits.of((6, 1))


@pytest.mark.parametrize(
    ("capability", "threads", "registers", "shared", "barriers", "blocks", "limiter"),
    [
        # Blocks computed by cuda_occupancy.h of CUDA 13.0 (block barriers 1, shared memory opted in).
        ((9, 0), 256, 64, 0, 1, 4, "registers"),
        ((8, 0), 256, 32, 0, 1, 8, "threads and registers"),
        ((8, 0), 256, 64, 0, 1, 4, "registers"),
        ((9, 0), 256, 128, 8320, 1, 2, "registers"),
        ((9, 0), 256, 129, 8320, 1, 1, "registers"),
        ((9, 0), 256, 255, 37248, 1, 1, "registers"),
        ((9, 0), 1024, 65, 0, 1, 0, "registers"),
        ((9, 0), 96, 168, 0, 1, 4, "registers"),  # 12 warps fit, 3 to each sub-partition
        ((9, 0), 32, 16, 512, 1, 32, "blocks"),
        ((8, 9), 32, 16, 512, 1, 24, "blocks"),
        ((12, 0), 32, 16, 512, 1, 24, "blocks"),
        ((7, 5), 32, 16, 0, 1, 16, "blocks"),
        ((9, 0), 128, 32, 45568, 1, 5, "shared memory"),
        ((9, 0), 128, 32, 232448, 1, 1, "shared memory"),
        ((8, 6), 128, 32, 49152, 1, 2, "shared memory"),  # 1 KB of each is the driver's
        ((7, 5), 128, 32, 32768, 1, 2, "shared memory"),  # and here none is
        ((8, 6), 512, 32, 0, 1, 3, "threads"),
        # By hand, from "Technical Specifications per Compute Capability" of the CUDA C++ Programming Guide.
        # 8 warps of 32 slots; 64·32 = 2048 registers a warp, 8 of them in 16384, 32 in all: 4 blocks of 8.
        ((7, 5), 256, 64, 0, 1, 4, "threads and registers"),
        # 24 576 bytes in units of 256 into 65 536: 2 blocks of 4 warps.
        ((7, 5), 128, 32, 24576, 1, 2, "shared memory"),
        # 33 registers are handed out as 40: 1280 a warp, 12 in 16 384, 48 in all, 6 blocks of 8.
        ((8, 0), 256, 33, 0, 1, 6, "registers"),
        # 167 936 / (40 960 + 1024) is 4 to the byte.
        ((8, 0), 128, 32, 40960, 1, 4, "shared memory"),
        ((8, 0), 128, 32, 40961, 1, 3, "shared memory"),
        # 48 warps: 1 block of 1024 threads leaves 16 of them idle.
        ((8, 6), 1024, 32, 0, 1, 1, "threads"),
        # 233 472 / (115 712 + 1024) is 2 to the byte, and so are the registers.
        ((9, 0), 256, 128, 115712, 1, 2, "registers and shared memory"),
        ((9, 0), 256, 128, 115713, 1, 1, "shared memory"),
        # 64 barriers an SM, 16 a block; before 9.0 they do not count.
        ((9, 0), 32, 16, 0, 16, 4, "barriers"),
        ((8, 0), 32, 16, 0, 16, 32, "blocks"),
        # As Hopper: 168·32 = 5376 registers a warp, 3 in 16 384: 12 warps, 3 blocks of 4.
        ((10, 0), 128, 168, 49152, 1, 3, "registers"),
        # 48 warps, 24 blocks, 24 barriers: 12 blocks of two barriers.
        ((12, 0), 64, 32, 0, 1, 24, "threads and blocks"),
        ((12, 0), 64, 32, 0, 2, 12, "barriers"),
        # What cannot be launched has no blocks.
        ((9, 0), 1056, 16, 0, 1, 0, "threads"),
        ((9, 0), 32, 256, 0, 1, 0, "registers"),
        ((9, 0), 32, 16, 227 * 1024 + 1, 1, 0, "shared memory"),
    ],
)
def test_occupancy(
    capability: tuple[int, int],
    threads: int,
    registers: int,
    shared: int,
    barriers: int,
    blocks: int,
    limiter: str,
) -> None:
    limits = GpuLimits.of(capability)
    found = occupancy(threads, registers, shared, limits, barriers)
    assert (found.blocks, found.warps, found.limiter) == (blocks, blocks * threads // 32, limiter)
    assert found.fraction == pytest.approx(blocks * threads / limits.threads_per_sm)
