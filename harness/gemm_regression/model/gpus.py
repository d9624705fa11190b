"""What is known of GPUs from documents, in one place: what each architecture allows and how much it computes
per cycle, and the models whose datasheets are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

KB = 1024


@dataclass(frozen=True)
class GpuLimits:
    """What a compute capability allows; memory in bytes, registers of 32 bits.

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


_ARCHITECTURES: dict[tuple[int, int], Architecture] = {
    one.limits.capability: one
    for one in (
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
}


def architecture(capability: tuple[int, int]) -> Architecture:
    """What is known of a compute capability; of one that is not in the table, that of the next one below it
    of the same major version, else of the first. Raises ValueError for another major version."""
    major, minor = capability
    alike = [known for known in sorted(_ARCHITECTURES) if known[0] == major]
    if not alike:
        known = ", ".join(f"{major}.{minor}" for major, minor in _ARCHITECTURES)
        raise ValueError(f"unknown compute capability {major}.{minor}; known: {known}")
    nearest = max((known for known in alike if known[1] <= minor), default=alike[0])
    found = _ARCHITECTURES[nearest]
    return found._replace(limits=replace(found.limits, capability=(major, minor)))


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
