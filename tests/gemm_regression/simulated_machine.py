"""A simulated GPU for the judge of the machine: healthy boards of its model, and runs of unchanged cases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from math import log
from random import Random
from statistics import median

from gemm_regression.judge.machine import Health, Shift

# Microseconds on an H200 of cases from 256³ to 8192³, and what bounds them.
_CUDA = [(24, "latency"), (40, "latency"), (68, "latency"), (110, "compute"), (480, "compute")]
_CUDA += [
    (420, "compute"),
    (3000, "compute"),
    (3050, "compute"),
    (23_000, "compute"),
    (350, "l2"),
    (900, "dram"),
]
_TENSOR = [(9, "latency"), (15, "latency"), (28, "latency"), (60, "l2"), (69, "l2"), (110, "compute")]
_TENSOR += [(180, "compute"), (190, "compute"), (1300, "compute"), (1350, "compute"), (350, "dram")]
_KERNELS = [
    *(
        (name, "f32", "cuda")
        for name in ("naive", "tiled", "register", "vectorized", "prefetch", "warp_tiled")
    ),
    *((name, "f32", "cuda") for name in ("stream_k", "lean_loop", "batched_small", "cublas")),
    *(
        (name, dtype, "tensor")
        for name in ("wmma", "wgmma", "mma_tma", "cublas")
        for dtype in ("f16", "bf16")
    ),
    *(("wgmma_tf32", "tf32", "tensor"), ("mma_tma", "tf32", "tensor"), ("tf32x3", "f32", "tensor")),
]
PROBES = {
    "f32": {"gflops": 65970.0, "mhz": 1980.0, "arithmetic": 66905.0},
    "f16": {"gflops": 965000.0, "mhz": 1802.0, "arithmetic": 974000.0},
    "bf16": {"gflops": 965000.0, "mhz": 1802.0, "arithmetic": 974000.0},
    "tf32": {"gflops": 482500.0, "mhz": 1802.0, "arithmetic": 487000.0},
    "l2": {"gbps": 8600.0, "mhz": 1979.5},
    "dram": {"gbps": 4100.0, "mhz": 1979.6, "arithmetic": 4814.0},
}
SETTINGS = {"power_limit_w": 700.0, "default_power_limit_w": 700.0, "ecc": True, "mig": False}
HERE = Health("here", PROBES, SETTINGS)


def changed(health: Health, probe: str, factor: float, *fields: str) -> Health:
    values = health.probes[probe]
    changed = {name: value * factor if name in fields else value for name, value in values.items()}
    return replace(health, probes={**health.probes, probe: changed})


# Boards of the model as measured: DRAM of two kinds, L2 more or less, clocks a step apart.
KNOWN = (
    replace(changed(changed(HERE, "dram", 1.025, "gbps"), "l2", 0.975, "gbps"), board="there"),
    replace(changed(changed(HERE, "f16", 1.008, "gflops", "mhz"), "l2", 1.03, "gbps"), board="elsewhere"),
    HERE,
)


def run(
    seed: int, own: bool = True, slower: Callable[[Shift], float] | None = None, step: float = 0.0
) -> list[Shift]:
    """A run of a simulated GPU, with the noise of the H200s stored: processes share a clock and how launches
    start, and a case has noise of its own, with heavy tails. ``slower``: by how much each case is.
    ``step``: of the clock, relative, which a process has by chance."""
    shifts = _run(seed, own, step)
    if slower is None:
        return list(shifts)
    return [replace(case, log_ratio=case.log_ratio + log(1 + slower(case))) for case in shifts]


@cache
def _run(seed: int, own: bool, step: float) -> tuple[Shift, ...]:
    random = Random(seed)

    def process() -> dict[str, float]:
        return {
            "start": random.gauss(0, 0.10e-6),
            "cuda": random.gauss(0, 0.0003) + random.choice([0.0, step]),
            "tensor": random.gauss(0, 0.0005),
        }

    def seen(shared: dict[str, float], core: str, seconds: float, noise: float) -> float:
        tail = random.choice([1, 1, 1, 1, 1, 1, 1, 1, 1, 4])
        return seconds * (1 + shared[core] + random.gauss(0, tail * noise)) + shared["start"]

    then, now = [process() for _ in range(5)], process()
    shifts = []
    for kernel, dtype, core in _KERNELS:
        for number, (us, bound) in enumerate(_CUDA if core == "cuda" else _TENSOR):
            seconds = us * 1e-6
            noise = (0.0004 if core == "cuda" else 0.0007) + 0.02e-6 / seconds
            medians = [seen(shared, core, seconds, noise) for shared in then]
            case = Shift(
                *(f"{kernel}-{dtype}-{number}", kernel, dtype, core, bound, median(medians)),
                log_ratio=log(seen(now, core, seconds, noise) / median(medians)),
                noise=(max(medians) - min(medians)) / median(medians),
                own=own,
            )
            shifts.append(case)
    return tuple(shifts)
