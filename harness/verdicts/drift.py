"""What is not as it was when a baseline was measured: the machine's settings, software and state. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median
from typing import TYPE_CHECKING, Any

from harness.timing.measurement import Measurement
from harness.verdicts.judge import CLOCK_TOLERANCE, percent_text

if TYPE_CHECKING:
    from harness.baselines import Baseline, BaselineEntry

_SETTINGS = {
    "board": "board",
    "vbios": "VBIOS",
    "driver": "driver",
    "cuda_driver": "CUDA of the driver",
    "nvcc": "nvcc",
    "cublas": "cuBLAS",
    "pycuda": "PyCUDA",
    "power_limit_w": "power limit in W",
    "applications_sm_clock_mhz": "application SM clock in MHz",
    "max_sm_clock_mhz": "maximal SM clock in MHz",
    "max_memory_clock_mhz": "maximal memory clock in MHz",
    "memory_mib": "memory in MiB",
    "ecc": "ECC",
    "mig": "MIG",
}
# Of those, what may change how many cycles a kernel takes; the others change the clock alone, which is seen.
_DECISIVE = ("board", "driver", "cuda_driver", "nvcc", "max_memory_clock_mhz", "ecc", "mig")
_OF_A_CASE = ("board", "driver", "nvcc", "power_limit_w", "ecc", "mig")  # told by a case's own provenance
_DEGREES = 10.0


def settings(
    then: Mapping[str, Any], now: Mapping[str, Any], names: Iterable[str] = _SETTINGS
) -> tuple[str, ...]:
    """Which of these differ between two ``machine_info``; what either does not tell is no difference."""
    return tuple(
        f"{_SETTINGS[name]} {then[name]} → {now[name]}"
        for name in names
        if None not in (then.get(name), now.get(name)) and then[name] != now[name]
    )


def decisive(baseline: Baseline, entry: BaselineEntry, now: Mapping[str, Any]) -> tuple[str, ...]:
    """Settings and software that differ and may by themselves change how many cycles a kernel takes."""
    return settings(_then(baseline, entry), now, _DECISIVE)


def _then(baseline: Baseline, entry: BaselineEntry) -> dict[str, Any]:
    return {**baseline.machine_info, **{n: entry.info[n] for n in _OF_A_CASE if n in entry.info}}


def differences(
    baseline: Baseline, entry: BaselineEntry, now: Mapping[str, Any], m: Measurement
) -> tuple[str, ...]:
    """What differs between the baseline and this run, a few words each, the likeliest causes first.

    ``now`` is this run's ``machine_info``. A setting that either does not tell is no difference.
    """
    found = list(settings(_then(baseline, entry), now))
    clock = entry.sm_clock_mhz
    if clock and m.sm_clock_mhz and abs(m.sm_clock_mhz / clock - 1) > CLOCK_TOLERANCE:
        found.append(f"SM clock {clock:.0f} → {m.sm_clock_mhz:.0f} MHz ({m.slowed_by})")
    warmth = entry.info.get("temperature_c")
    if warmth and abs(m.temperature_c - warmth) > _DEGREES:
        found.append(f"temperature {warmth:.0f} → {m.temperature_c:.0f} °C")
    if entry.cublas_ratio and m.reference_seconds:
        change = entry.median_s * entry.cublas_ratio / median(m.reference_seconds) - 1
        found.append(f"cuBLAS on the same problem {percent_text(change)}")
    return tuple(found)
