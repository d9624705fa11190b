"""Other tools' decisions on the same samples, by their own code or their published rule.

Each function takes the samples of the old build and of the new one, in seconds, and returns its decision.
"""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pytest_benchmark import utils
from scipy import stats

Samples = Sequence[float]
ASV_P, ASV_FACTOR = 0.002, 1.1  # asv's statistics.is_different and `asv compare --factor`


def pytest_benchmark(rule: str) -> Callable[[Samples, Samples], str]:
    """pytest-benchmark's ``--benchmark-compare-fail=rule``, such as ``median:1%``, by its own check."""
    parse: Any = utils.parse_compare_fail
    check = parse(rule)

    def method(old: Samples, new: Samples) -> str:
        failed = check.fails({"median": float(np.median(new))}, {"median": float(np.median(old))})
        return "SLOW" if failed else "SAME"

    return method


def mann_whitney(factor: float) -> Callable[[Samples, Samples], str]:
    """asv's rule: different distributions by the Mann-Whitney test at p < 0.002, and a median above
    ``factor`` times the old one."""

    def method(old: Samples, new: Samples) -> str:
        differs = stats.mannwhitneyu(old, new, alternative="two-sided").pvalue < ASV_P
        return "SLOW" if differs and np.median(new) > factor * np.median(old) else "SAME"

    return method


def nvbench(old: Samples, new: Samples, old_mhz: Samples, new_mhz: Samples) -> str:
    """NVBench's robust comparison with its default thresholds: SLOW, FAST, SAME, UNDECIDED or UNKNOWN.

    Computed by the code of ``cuda-bench``, on samples and clocks in files of its own format. Raises
    ImportError if that is not installed.
    """
    robust: Any = importlib.import_module("cuda.bench.scripts.nvbench_compare_robust")
    robust.load_nvbench_compare_tooling(load_color=False)
    with tempfile.TemporaryDirectory(prefix="gemm-nvbench-") as folder:
        sides = [
            robust.extract_gpu_timing_data(_summaries(robust, Path(folder, name), seconds, mhz), folder)
            for name, seconds, mhz in (("old", old, old_mhz), ("new", new, new_mhz))
        ]
        return str(robust.compare_gpu_timings(*sides).status.name)


def _summaries(robust: Any, path: Path, seconds: Samples, mhz: Samples) -> list[dict[str, Any]]:
    """A state's summaries as NVBench writes them, with its samples in separate binary files."""
    times, clocks = np.array(seconds), np.array(mhz, dtype=float)
    clocks[np.isnan(clocks)] = np.nanmedian(clocks)
    times.astype("<f4").tofile(path.with_suffix(".bin"))
    (clocks * 1e6).astype("<f4").tofile(path.with_suffix(".freqs"))
    ordered = np.sort(times)
    q1, median, q3 = (ordered[robust.percentile_rank(p, len(ordered))] for p in (25, 50, 75))
    numbers = {
        robust.GPU_TIME_MIN_TAG: ordered[0],
        robust.GPU_TIME_MAX_TAG: ordered[-1],
        robust.GPU_TIME_MEAN_TAG: times.mean(),
        robust.GPU_TIME_STDEV_TAG: times.std(ddof=1),
        robust.GPU_TIME_Q1_TAG: q1,
        robust.GPU_TIME_MEDIAN_TAG: median,
        robust.GPU_TIME_Q3_TAG: q3,
        robust.GPU_TIME_IQR_TAG: q3 - q1,
        robust.GPU_SM_CLOCK_RATE_MEAN_TAG: clocks.mean() * 1e6,
    }
    files = {robust.SAMPLE_TIMES_TAG: ".bin", robust.SAMPLE_FREQUENCIES_TAG: ".freqs"}
    return [
        *({"tag": tag, "data": [_value("value", "float64", repr(float(n)))]} for tag, n in numbers.items()),
        *(
            {
                "tag": tag,
                "data": [
                    _value("filename", "string", path.with_suffix(end).name),
                    _value("size", "int64", str(len(times))),
                ],
            }
            for tag, end in files.items()
        ),
    ]


def _value(name: str, kind: str, value: str) -> dict[str, str]:
    return {"name": name, "type": kind, "value": value}


BY_SAMPLES: dict[str, Callable[[Samples, Samples], str]] = {
    "pytest-benchmark median:1%": pytest_benchmark("median:1%"),
    "pytest-benchmark median:5%": pytest_benchmark("median:5%"),
    "Mann–Whitney p < 0.002, factor 1.1 (asv)": mann_whitney(ASV_FACTOR),
    "Mann–Whitney p < 0.002 alone": mann_whitney(1.0),
}
NVBENCH = "NVBench robust"


def others(old: Samples, new: Samples, old_mhz: Samples, new_mhz: Samples) -> dict[str, str]:
    """The decision of each of them."""
    said = {name: method(old, new) for name, method in BY_SAMPLES.items()}
    return said | {NVBENCH: nvbench(old, new, old_mhz, new_mhz)}
