"""Specifications of GPUs: limits and throughput of each architecture, and datasheets of models. Derived from
them: which config can run on which GPU, and the occupancy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

from gemm_regression.model import BlockShape, Config, DType, Kernel

KB = 1024
WARP = 32
SUB_PARTITIONS = 4  # each with a quarter of an SM's registers


@dataclass(frozen=True)
class GpuLimits:
    """The limits of a compute capability. Memory is in bytes; registers have 32 bits.

    Source: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability", and
    cuda_occupancy.h of the CUDA toolkit for the units of allocation.
    """

    capability: tuple[int, int]
    threads_per_sm: int
    blocks_per_sm: int
    shared_per_sm: int
    shared_per_block_optin: int
    shared_reserved: int = 1 * KB  # by the driver, of every block
    shared_unit: int = 128
    threads_per_block: int = 1024
    registers_per_sm: int = 65536
    registers_per_thread: int = 255
    register_unit: int = 256  # of a warp
    warp_unit: int = 4  # a block's registers are checked as if it had a multiple of this many warps
    shared_per_block_static: int = 48 * KB
    barriers_per_sm: int | None = None  # None: as many as its blocks can name

    @classmethod
    def of(cls, capability: tuple[int, int]) -> GpuLimits:
        """The limits of a compute capability (major, minor). Raises ValueError as ``architecture``."""
        return architecture(capability).limits


class Architecture(NamedTuple):
    """``limits`` of a compute capability, and FLOP per SM and cycle: ``fma`` in FP32, ``tensor`` dense on
    tensor cores with FP16 in and sums in FP32, None where not known. BF16 has as many, TF32 half.

    Source: tables of throughput in the CUDA C++ Programming Guide, whitepapers of the architectures.
    """

    limits: GpuLimits
    fma: int = 256
    tensor: int | None = None


_KNOWN = (
    Architecture(GpuLimits((7, 5), 1024, 16, 64 * KB, 64 * KB, shared_reserved=0, shared_unit=256), 128),
    Architecture(GpuLimits((8, 0), 2048, 32, 164 * KB, 163 * KB), 128, 2048),
    Architecture(GpuLimits((8, 6), 1536, 16, 100 * KB, 99 * KB), tensor=512),
    Architecture(GpuLimits((8, 7), 1536, 16, 164 * KB, 163 * KB), tensor=1024),
    Architecture(GpuLimits((8, 9), 1536, 24, 100 * KB, 99 * KB), tensor=512),
    Architecture(GpuLimits((9, 0), 2048, 32, 228 * KB, 227 * KB, barriers_per_sm=64), tensor=4096),
    Architecture(GpuLimits((10, 0), 2048, 32, 228 * KB, 227 * KB, barriers_per_sm=64), tensor=8192),
    Architecture(GpuLimits((10, 3), 2048, 32, 228 * KB, 227 * KB, barriers_per_sm=64), tensor=8192),
    Architecture(GpuLimits((12, 0), 1536, 24, 100 * KB, 99 * KB, barriers_per_sm=24), tensor=512),
    Architecture(GpuLimits((12, 1), 1536, 24, 100 * KB, 99 * KB, barriers_per_sm=24), tensor=512),
)


def architecture(capability: tuple[int, int]) -> Architecture:
    """What is known of a compute capability; of one that is not in the table, that of the next one below it
    of the same major version, else of the first. Raises ValueError for another major version."""
    alike = [one for one in _KNOWN if one.limits.capability[0] == capability[0]]
    if not alike:
        known = ", ".join("{}.{}".format(*one.limits.capability) for one in _KNOWN)
        raise ValueError("unknown compute capability {}.{}; known: {}".format(*capability, known))
    found = [one for one in alike if one.limits.capability <= capability][-1:] or alike
    return found[0]._replace(limits=replace(found[0].limits, capability=capability))


class GpuModel(NamedTuple):
    """A model by NVML's ``name``: how many ``sms`` it has, and what it can do by its datasheet, dense: GFLOPS
    by dtype (``peaks``), and GB/s of its ``dram``."""

    name: str
    capability: tuple[int, int]
    sms: int
    peaks: Mapping[str, float]
    dram: float


# The FP32 peak of Hopper is 132 SMs · 128 FMA · 2 · 1.98 GHz.
_HOPPER = {"f32": 66_900.0, "tf32": 494_700.0, "f16": 989_400.0, "bf16": 989_400.0, "s8": 1_978_900.0}
_AMPERE = {"f32": 19_500.0, "tf32": 156_000.0, "f16": 312_000.0, "bf16": 312_000.0, "s8": 624_000.0}
# NVIDIA's datasheets of the H100 (SXM), H200 and A100 Tensor Core GPUs.
MODELS: Mapping[str, GpuModel] = {
    one.name: one
    for one in (
        GpuModel("NVIDIA H200", (9, 0), 132, _HOPPER, 4800.0),
        GpuModel("NVIDIA H100 80GB HBM3", (9, 0), 132, _HOPPER, 3350.0),
        GpuModel("NVIDIA A100-SXM4-80GB", (8, 0), 108, _AMPERE, 2039.0),
        GpuModel("NVIDIA A100-SXM4-40GB", (8, 0), 108, _AMPERE, 1555.0),
    )
}


def refusals(kernel: Kernel, config: Config, dtype: DType, limits: GpuLimits) -> tuple[str, ...]:
    """Why this variant cannot run on such a GPU, one line per reason; empty if it can."""
    needed, most = max(kernel.min_capability, dtype.min_capability), kernel.max_capability
    have = "this GPU has {}.{}".format(*limits.capability)
    said = []
    if limits.capability < needed:
        said.append("{} {} needs compute capability {}.{}, {}".format(kernel.name, dtype, *needed, have))
    if limits.capability > most:
        said.append("{} is for compute capabilities up to {}.{}, {}".format(kernel.name, *most, have))
    shape = shape_refusals(kernel.shape_of(config, dtype), limits) if kernel.compiled else ()
    return (*said, *shape)


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


def shape_refusals(shape: BlockShape, limits: GpuLimits) -> tuple[str, ...]:
    """Why such a block cannot run, or does not make its tile, one line per reason."""
    return tuple(_shape_refusals(shape, limits))


def _shape_refusals(shape: BlockShape, limits: GpuLimits) -> Iterator[str]:
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
    if shape.thread_tile is None:
        return
    (rows, columns), (m, n) = shape.tile, shape.thread_tile
    if rows % m or columns % n:
        yield f"a tile of {rows}×{columns} is not divisible into thread tiles of {m}×{n}"
    elif threads * m * n != rows * columns * shape.batch:
        tiles = f"{shape.batch} tiles" if shape.batch > 1 else "a tile"
        yield f"{threads} threads with {m}×{n} elements each do not make {tiles} of {rows}×{columns}"
    # The most registers per thread for such a block; they are allocated in units of eight per thread.
    registers = min(limits.registers_per_thread, limits.registers_per_sm // max(WARP, threads) // 8 * 8)
    if m * n >= registers:
        yield f"{m}×{n} sums a thread do not fit the {registers} registers it can have"


class Occupancy(NamedTuple):
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
    most_warps = limits.threads_per_sm // WARP
    of_warp = _up(max(1, registers) * WARP, limits.register_unit)
    of_block = of_warp * _up(warps, limits.warp_unit)
    shared = _up(shared_bytes + limits.shared_reserved, limits.shared_unit)
    by = {
        "threads": most_warps // warps,
        "registers": limits.registers_per_sm // SUB_PARTITIONS // of_warp * SUB_PARTITIONS // warps,
        # A block that asks for none is not limited by it; threads_per_sm is more than anything else allows.
        "shared memory": limits.shared_per_sm // shared if shared else limits.threads_per_sm,
        "blocks": limits.blocks_per_sm,
    }
    if threads > limits.threads_per_block:
        by["threads"] = 0
    if registers > limits.registers_per_thread or of_block > limits.registers_per_sm:
        by["registers"] = 0
    if shared_bytes > limits.shared_per_block_optin:
        by["shared memory"] = 0
    if limits.barriers_per_sm and limits.barriers_per_sm // max(1, barriers) < limits.blocks_per_sm:
        by["barriers"] = limits.barriers_per_sm // barriers
    blocks = min(by.values())
    limiter = " and ".join(name for name, most in by.items() if most == blocks)
    return Occupancy(blocks, blocks * warps, blocks * warps / most_warps, limiter)


def suggested_block(registers: int, shared_bytes: int, limits: GpuLimits) -> int:
    """Threads per block that cudaOccupancyMaxPotentialBlockSize returns for a kernel with so many registers
    per thread and bytes of shared memory per block, whatever its size: whole warps with the most resident
    threads, and of equal ones the largest (cuda_occupancy.h). 0 if no block can run."""

    def resident(threads: int) -> int:
        return occupancy(threads, registers, shared_bytes, limits).blocks * threads

    best = max(range(limits.threads_per_block, 0, -WARP), key=resident)
    return best if resident(best) else 0


def _up(value: int, unit: int) -> int:
    """The next multiple of unit."""
    return -(-value // unit) * unit
