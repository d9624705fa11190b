"""How much work the probes of roofs.cu do, and what a GPU could do by its datasheet. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

THREADS = 256  # of a block of the probes of arithmetic and of shared memory

# FLOP per SM and cycle: of FMA in FP32, and dense on tensor cores with FP16 in and sums in FP32 (tables of
# throughput in the CUDA programming guide, whitepapers of the architectures). BF16 has the same, TF32 half.
_FMA = {(7, 5): 128, (8, 0): 128}
_FMA_LATER = 256
_TENSOR = {(8, 0): 2048, (8, 6): 512, (8, 7): 1024, (8, 9): 512, (9, 0): 4096, (10, 0): 8192, (12, 0): 512}
SHARED_BYTES = 128  # per SM and cycle: 32 banks of 4


def work(rounds: int) -> Mapping[str, int]:
    """FLOP, or for "shared" bytes, of one block in so many rounds."""
    tensor = 2 * 128 * 256 * rounds
    return {
        "f32": 2 * 16 * 16 * THREADS * rounds,
        "f16": tensor * 64,
        "bf16": tensor * 64,
        "tf32": tensor * 32,
        "shared": 16 * 16 * THREADS * rounds,
    }


def arithmetic(capability: tuple[int, int], sms: int, bus: float, hz: float) -> Mapping[str, float]:
    """FLOP, and for memories bytes, per second at an SM clock in Hz. ``bus``: bytes per second of the
    memory's pins."""
    found = {
        "f32": _FMA.get(capability, _FMA_LATER) * sms * hz,
        "shared": SHARED_BYTES * sms * hz,
        "dram": bus,
    }
    if capability in _TENSOR:
        rate = _TENSOR[capability] * sms * hz
        found |= {"f16": rate, "bf16": rate, "tf32": rate / 2}
    return found


def sms_of(machine: Mapping[str, Any]) -> int | None:
    """The number of SMs by the roof of FP32 in a run's machine_info; None if none was measured."""
    roof = (machine.get("roofs") or {}).get("f32", {})
    if not (roof.get("arithmetic") and roof.get("mhz")):
        return None
    major, minor = map(int, str(machine["capability"]).split("."))
    rate = _FMA.get((major, minor), _FMA_LATER) * float(roof["mhz"])
    return round(1e3 * float(roof["arithmetic"]) / rate)
