"""What is not as it was when a baseline was measured: the machine's settings, software and state. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import TYPE_CHECKING, Any

from harness.judge import percent_text
from harness.model import Measurement

if TYPE_CHECKING:
    from harness.baselines import Baseline, BaselineEntry

_SETTINGS = {
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
_CLOCK = 0.01  # relative
_DEGREES = 10.0


def differences(
    baseline: Baseline, entry: BaselineEntry, now: Mapping[str, Any], m: Measurement
) -> tuple[str, ...]:
    """What differs between the baseline and this run, a few words each, the likeliest causes first.

    ``now`` is this run's ``machine_info``. A setting that either does not tell is no difference.
    """
    then = {**baseline.machine_info, **{n: entry.info[n] for n in ("driver", "nvcc") if n in entry.info}}
    found = [
        f"{words} {then[name]} → {now[name]}"
        for name, words in _SETTINGS.items()
        if None not in (then.get(name), now.get(name)) and then[name] != now[name]
    ]
    clock = entry.info.get("sm_clock_mhz")
    if clock and m.sm_clock_mhz and abs(m.sm_clock_mhz / clock - 1) > _CLOCK:
        found.append(f"SM clock {clock:.0f} → {m.sm_clock_mhz:.0f} MHz ({m.slowed_by})")
    warmth = entry.info.get("temperature_c")
    if warmth and abs(m.temperature_c - warmth) > _DEGREES:
        found.append(f"temperature {warmth:.0f} → {m.temperature_c:.0f} °C")
    if entry.cublas_ratio and m.reference_seconds:
        change = entry.median_s * entry.cublas_ratio / median(m.reference_seconds) - 1
        found.append(f"cuBLAS on the same problem {percent_text(change)}")
    return tuple(found)
