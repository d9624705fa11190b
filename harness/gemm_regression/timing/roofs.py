"""How much work the probes of roofs.cu do, and what a GPU could do by its datasheet. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gemm_regression.model.gpus import MODELS, architecture

THREADS = 256  # of a block of the probes of arithmetic and of shared memory

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
    known = architecture(capability)
    found = {
        "f32": known.fma * sms * hz,
        "shared": SHARED_BYTES * sms * hz,
        "dram": bus,
    }
    if known.tensor:
        rate = known.tensor * sms * hz
        found |= {"f16": rate, "bf16": rate, "tf32": rate / 2}
    return found


def sms_of(machine: Mapping[str, Any]) -> int | None:
    """The number of SMs by the roof of FP32 in a run's machine_info, else of a known model."""
    model = MODELS.get(str(machine.get("name")))
    roof = (machine.get("roofs") or {}).get("f32", {})
    if not (roof.get("arithmetic") and roof.get("mhz")):
        return model.sms if model else None
    major, minor = map(int, str(machine["capability"]).split("."))
    rate = architecture((major, minor)).fma * float(roof["mhz"])
    return round(1e3 * float(roof["arithmetic"]) / rate)
