"""Which config can run on which GPU, and why not; how many of its blocks fit on an SM."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from gemm_regression.model import BlockShape, Config, DType, Kernel
from gemm_regression.model.gpus import GpuLimits

WARP = 32
SUB_PARTITIONS = 4  # each with a quarter of an SM's registers


def refusals(kernel: Kernel, config: Config, dtype: DType, limits: GpuLimits) -> tuple[str, ...]:
    """Why this variant cannot run on such a GPU, one line per reason; empty if it can."""
    reasons = list(_capability_refusals(kernel, dtype, limits))
    if kernel.compiled:
        reasons += shape_refusals(kernel.shape_of(config, dtype), limits)
    return tuple(reasons)


def shape_refusals(shape: BlockShape, limits: GpuLimits) -> tuple[str, ...]:
    """Why such a block cannot run, or does not make its tile, one line per reason."""
    return (*_block_refusals(shape, limits), *_tile_refusals(shape, limits))


def legal_variants(
    kernel: Kernel, limits: GpuLimits, configs: Sequence[Config] | None = None
) -> list[tuple[Config, DType]]:
    """The variants of a kernel that can run on such a GPU, in the order of its dtypes, then its configs; with
    these ``configs`` in their place."""
    return [
        (config, dtype)
        for dtype in kernel.dtypes
        for config in (kernel.configs if configs is None else configs)
        if not refusals(kernel, config, dtype, limits)
    ]


def _capability_refusals(kernel: Kernel, dtype: DType, limits: GpuLimits) -> Iterable[str]:
    needed = max(kernel.min_capability, dtype.min_capability)
    if limits.capability < needed:
        have, need = ("{}.{}".format(*version) for version in (limits.capability, needed))
        yield f"{kernel.name} {dtype} needs compute capability {need}, this GPU has {have}"
    if limits.capability > kernel.max_capability:
        have, most = ("{}.{}".format(*version) for version in (limits.capability, kernel.max_capability))
        yield f"{kernel.name} is for compute capabilities up to {most}, this GPU has {have}"


def _block_refusals(shape: BlockShape, limits: GpuLimits) -> Iterable[str]:
    threads, block = prod(shape.threads), "×".join(map(str, shape.threads))
    if threads > limits.threads_per_block:
        yield f"{threads} threads per block ({block}), at most {limits.threads_per_block} allowed"
    if threads < 1 or (shape.whole_warps and threads % WARP):
        yield f"{threads} threads per block ({block}) are not a multiple of the warp size {WARP}"
    allowed = limits.shared_per_block_optin if shape.dynamic else limits.shared_per_block_static
    if shape.shared_bytes is not None and shape.shared_bytes > allowed:
        kind = "dynamic" if shape.dynamic else "static"
        yield f"{shape.shared_bytes} bytes of {kind} shared memory per block, at most {allowed} allowed"
    for what, stride, width in shape.vectors:
        if stride % width:
            yield f"rows of {what} are {stride} elements apart, so vectors of {width} would be misaligned"


def _tile_refusals(shape: BlockShape, limits: GpuLimits) -> Iterable[str]:
    if shape.thread_tile is None:
        return
    (rows, columns), (m, n) = shape.tile, shape.thread_tile
    threads = prod(shape.threads)
    if rows % m or columns % n:
        yield f"a tile of {rows}×{columns} is not divisible into thread tiles of {m}×{n}"
    elif threads * m * n != rows * columns * shape.batch:
        tiles = f"{shape.batch} tiles" if shape.batch > 1 else "a tile"
        yield f"{threads} threads with {m}×{n} elements each do not make {tiles} of {rows}×{columns}"
    # The most registers per thread for such a block; they are allocated in units of eight per thread.
    registers = min(limits.registers_per_thread, limits.registers_per_sm // max(WARP, threads) // 8 * 8)
    if m * n >= registers:
        yield f"{m}×{n} sums a thread do not fit the {registers} registers it can have"


@dataclass(frozen=True)
class Occupancy:
    """Blocks and warps that an SM holds, warps over the most it can hold, and what limits them:
    "threads", "registers", "shared memory", "blocks" or "barriers"; where several do alike, all of them,
    as in "registers and shared memory"."""

    blocks: int
    warps: int
    fraction: float
    limiter: str


def occupancy(
    threads: int, registers: int, shared_bytes: int, limits: GpuLimits, barriers: int = 1
) -> Occupancy:
    """Resident blocks with so many ``threads``, ``registers`` per thread, bytes of shared memory and
    ``barriers`` per block.

    As in cuda_occupancy.h of the CUDA toolkit: registers are allocated per warp in units of 256, within one
    of four sub-partitions; shared memory in units of 128 bytes, plus 1 KB per block from 8.0 on; barriers
    count from 9.0 on. Zero blocks mean that the kernel cannot be launched."""
    warps = _up(threads, WARP) // WARP
    by = {
        "threads": limits.threads_per_sm // WARP // warps if threads <= limits.threads_per_block else 0,
        "registers": _blocks_by_registers(warps, registers, limits),
        "shared memory": _blocks_by_shared(shared_bytes, limits),
        "blocks": limits.blocks_per_sm,
    }
    if limits.barriers_per_sm and limits.barriers_per_sm // max(1, barriers) < limits.blocks_per_sm:
        by["barriers"] = limits.barriers_per_sm // barriers
    blocks = min(by.values())
    limiter = " and ".join(name for name, most in by.items() if most == blocks)
    return Occupancy(blocks, blocks * warps, blocks * warps / (limits.threads_per_sm // WARP), limiter)


def suggested_block(registers: int, shared_bytes: int, limits: GpuLimits) -> int:
    """Threads per block that cudaOccupancyMaxPotentialBlockSize returns for a kernel with so many registers
    per thread and bytes of shared memory per block, whatever its size: whole warps with the most resident
    threads, and of equal ones the largest (cuda_occupancy.h). 0 if no block can run."""

    def resident(threads: int) -> int:
        return occupancy(threads, registers, shared_bytes, limits).blocks * threads

    best = max(range(limits.threads_per_block, 0, -WARP), key=resident)
    return best if resident(best) else 0


def _blocks_by_registers(warps: int, registers: int, limits: GpuLimits) -> int:
    of_warp = _up(max(1, registers) * WARP, limits.register_unit)
    too_many = of_warp * _up(warps, limits.warp_unit) > limits.registers_per_sm
    if registers > limits.registers_per_thread or too_many:
        return 0
    return limits.registers_per_sm // SUB_PARTITIONS // of_warp * SUB_PARTITIONS // warps


def _blocks_by_shared(shared_bytes: int, limits: GpuLimits) -> int:
    if shared_bytes > limits.shared_per_block_optin:
        return 0
    of_block = _up(shared_bytes + limits.shared_reserved, limits.shared_unit)
    # A block that asks for none is not limited by it; threads_per_sm is more than anything else allows.
    return limits.shared_per_sm // of_block if of_block else limits.threads_per_sm


def _up(value: int, unit: int) -> int:
    """The next multiple of unit."""
    return -(-value // unit) * unit
