"""Made-up cases, measurements and runs of a GPU that does not exist, for tests that need no recording."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_benchmark.stats import Stats

from gemm_regression.baselines import Baseline, BaselineEntry, load_run, merge_runs
from gemm_regression.baselines.records import numbers_of, short
from gemm_regression.model import Case, Problem, Resources
from gemm_regression.timing.plan import Measurement
from tests.gemm_regression.samples import find_kernel

GPU = "Test GPU 1000"
SLUG = "test-gpu-1000"
CUBE = Problem(4096, 4096, 4096)
OLD, NEW = "a" * 64, "b" * 64  # Cubin hashes.
OFFSETS = (0.5, 0.0, -0.5, 0.25, -0.25)  # of the medians of five runs, the second being the middle one
MACHINE: dict[str, Any] = {
    "name": GPU,
    "memory_mib": 1024,
    "capability": "9.0",
    "driver": "999.1",
    "cuda_driver": "13.0",
    "nvcc": "13.0.88",
    "power_limit_w": 700.0,
    "max_sm_clock_mhz": 1000,
    "ecc": True,
    "mig": False,
    "python": "3.11.2",
    "pytest_benchmark": "5.3.1",
}
COMMIT = {
    "id": "0123456789abcdef0123456789abcdef01234567",
    "dirty": False,
    "time": "2026-11-01T10:00:00+00:00",
}
SECRETS = ("build-host-17", "jane.doe", "/home/jane.doe/gemm")


def case(name: str = "tiled", config: int = 0, problem: Problem = CUBE) -> Case:
    k = find_kernel(name)
    return Case(k, k.dtypes[0], k.configs[config], problem)


def measurement(median: float = 0.01, rounds: int = 9, cubin: str | None = NEW, **more: Any) -> Measurement:
    """Samples symmetric about the median."""
    seconds = tuple(median * (1 + 0.0001 * (i - rounds // 2)) for i in range(rounds))
    fields: dict[str, Any] = {
        "seconds": seconds,
        "reference_seconds": tuple(s / 2 for s in seconds),
        "resources": Resources(32, 8192, 0, cubin) if cubin else None,
        "sm_clock_mhz": 1000.0,
        "power_w": 100.0,
        "temperature_c": 40.0,
        "clock_event_reasons": 0,
        "discarded": 0,
        "throttled": False,
    }
    return Measurement(**(fields | more))


def stats(seconds: Sequence[float]) -> dict[str, Any]:
    made = Stats()  # type: ignore[no-untyped-call]
    made.data = list(seconds)
    computed: dict[str, Any] = made.as_dict()  # type: ignore[no-untyped-call]
    return computed | {"data": list(seconds), "iterations": 1, "ops": 1 / computed["mean"]}


def entry(of: Case, median: float = 0.01, noise: float = 0.0, cubin: str | None = OLD) -> BaselineEntry:
    """As a measurement of five processes stores it, whose medians differ by ``noise`` in all."""
    return BaselineEntry(
        case_id=of.id,
        group=of.problem.id,
        flops=of.problem.flops,
        us=tuple(1e6 * median * (1 + noise * offset) for offset in OFFSETS),
        numbers=numbers_of(stats(measurement(median).seconds)),
        seen=(None, None, None, 0),
        cubin_sha256=cubin,
        machine=MACHINE,
        commit_info=COMMIT,
        datetime="2026-11-02T10:04:00+00:00",
    )


def scaled(entry: BaselineEntry, factor: float) -> BaselineEntry:
    """An entry whose times are this many times as long."""
    us = tuple(short(factor * value, 6) for value in entry.us)
    times = {name: factor * value for name, value in entry.stats.items() if isinstance(value, float)}
    return replace(entry, us=us, numbers=numbers_of({**entry.stats, **times}))


def baseline(*entries: BaselineEntry, slug: str = SLUG) -> Baseline:
    """A measurement of them."""
    one = entries[0]
    every = {each.case_id: each for each in entries}
    return Baseline(slug, one.machine, one.commit_info, one.datetime, every)


def record(of: Case, m: Measurement) -> dict[str, Any]:
    """One benchmark as ``--benchmark-json`` has it, with everything that it should not tell."""
    resources = {} if m.resources is None else vars(m.resources)
    return {
        "group": of.problem.id,
        "name": f"test_performance[{of.id}]",
        "fullname": f"tests/test_performance.py::test_performance[{of.id}]",
        "params": {"timed_case": f"UNSERIALIZABLE[PosixPath('{SECRETS[2]}/kernels/s02_tiled.cu')]"},
        "param": of.id,
        "extra_info": {
            "case": of.id,
            "variant": of.variant,
            "flops": of.problem.flops,
            "gflops": of.problem.gflops(m.median),
            "median_s": m.median,
            "spread": m.spread,
            "cublas_ratio": m.cublas_ratio,
            "sm_clock_mhz": m.sm_clock_mhz,
            "power_w": m.power_w,
            "temperature_c": m.temperature_c,
            "clock_event_reasons": m.clock_event_reasons,
            "discarded": m.discarded,
            "throttled": m.throttled,
            "l2": m.l2,
            "verdict": "NO_BASELINE",
            "verdict_reason": "NOT_IN_BASELINE",
            **resources,
        },
        "options": {"timer": "perf_counter"},
        "stats": stats(m.seconds),
    }


def run(number: int, measured: Mapping[Case, Measurement]) -> dict[str, Any]:
    """What ``--benchmark-json`` writes in fresh run ``number``."""
    return {
        "machine_info": {"node": SECRETS[0], "cpu": {"brand_raw": "Some CPU"}, **MACHINE},
        "commit_info": {**COMMIT, "branch": SECRETS[1], "project": SECRETS[2]},
        "benchmarks": [record(of, m) for of, m in measured.items()],
        "datetime": f"2026-11-02T10:0{number}:00+00:00",
        "version": "5.3.1",
        "gemm_machines": {"0": {"kind": "PASS", "reason": "NOTHING_KNOWN"}},
    }


def five_runs(
    cases: Sequence[Case], median: float = 0.01, noise: float = 0.0004, cubin: str = NEW, day: int = 2
) -> list[dict[str, Any]]:
    """Five runs of a day whose medians differ by ``noise`` in all, the second being the middle one."""
    return [
        run(number, {of: measurement(median * (1 + noise * offset), cubin=cubin) for of in cases})
        | {"datetime": f"2026-11-{day:02}T10:0{number}:00+00:00"}
        for number, offset in enumerate(OFFSETS)
    ]


def saved(folder: Path, documents: Sequence[Any]) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"run_{number}.json" for number in range(1, len(documents) + 1)]
    for path, document in zip(paths, documents, strict=True):
        path.write_text(json.dumps(document))
    return paths


def merged(folder: Path, documents: Sequence[Any]) -> Baseline:
    """The measurement that these runs make, by way of files."""
    return merge_runs([load_run(path) for path in saved(folder / "runs", documents)])
