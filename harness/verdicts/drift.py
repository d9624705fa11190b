"""What has changed since a baseline was measured: the machine's settings, software and state. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from harness.verdicts.judge import CLOCK_TOLERANCE
from harness.verdicts.vocabulary import Observation, Reference

# Names in ``machine_info``, the most likely causes first.
SETTINGS = (
    *("board", "vbios", "driver", "cuda_driver", "nvcc", "cublas", "pycuda", "power_limit_w"),
    *("applications_sm_clock_mhz", "max_sm_clock_mhz", "max_memory_clock_mhz", "memory_mib", "ecc", "mig"),
)
# Those that may change how many cycles a kernel takes; the others only change the clock, which is measured.
_DECISIVE = ("board", "driver", "cuda_driver", "nvcc", "max_memory_clock_mhz", "ecc", "mig")
_DEGREES = 10.0


@dataclass(frozen=True)
class Difference:
    """``what`` was ``then`` and is ``now``: a name in SETTINGS, or ``sm_clock_mhz``, ``temperature_c`` (°C)
    or ``cublas_speed``, whose relative change is ``now``. ``decisive``: it may by itself change how many
    cycles a kernel takes; ``reasons``: for a clock, NVML's clock-event bits."""

    what: str
    then: Any = None
    now: Any = None
    decisive: bool = False
    reasons: int = 0


def settings(
    then: Mapping[str, Any], now: Mapping[str, Any], names: Iterable[str] = SETTINGS
) -> tuple[Difference, ...]:
    """Which of these differ between two ``machine_info``; a value missing from either is not a difference."""
    return tuple(
        Difference(name, then[name], now[name], name in _DECISIVE)
        for name in names
        if None not in (then.get(name), now.get(name)) and then[name] != now[name]
    )


def differences(
    then: Mapping[str, Any], reference: Reference, now: Mapping[str, Any], o: Observation
) -> tuple[Difference, ...]:
    """What differs between the reference, measured on the machine ``then``, and this run; the most likely
    causes first. ``then`` and ``now`` are ``machine_info``."""
    found = list(settings(then, now))
    clock = reference.sm_clock_mhz
    if clock and o.sm_clock_mhz and abs(o.sm_clock_mhz / clock - 1) > CLOCK_TOLERANCE:
        found.append(Difference("sm_clock_mhz", clock, o.sm_clock_mhz, reasons=o.clock_event_reasons))
    warmth = reference.temperature_c
    if warmth and abs(o.temperature_c - warmth) > _DEGREES:
        found.append(Difference("temperature_c", warmth, o.temperature_c))
    if reference.cublas_ratio and o.reference_seconds:
        change = reference.median_s * reference.cublas_ratio / median(o.reference_seconds) - 1
        found.append(Difference("cublas_speed", None, change))
    return tuple(found)
