"""What is checked of any pytest-benchmark file, a run's or a baseline's: JSON, types, numbers that can be."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

# What is kept of machine_info: a list of what may be told, so that nothing else ever is.
_MACHINE = (
    *("name", "memory_mib", "capability", "driver", "cuda_driver", "nvcc", "power_limit_w", "ecc", "mig"),
    *("max_sm_clock_mhz", "max_memory_clock_mhz", "applications_sm_clock_mhz", "board", "vbios"),
    *("python", "pycuda", "numpy", "pytest", "pytest_benchmark", "nvmath_python", "cublas"),
)
_MACHINE_NEEDED = ("name", "capability", "driver", "cuda_driver", "nvcc")
STATS_POSITIVE = ("min", "max", "mean", "median", "q1", "q3", "ld15iqr", "hd15iqr", "ops", "total")
STATS_OTHER = ("stddev", "iqr")


class BaselineError(Exception):
    """A file or a set of runs that cannot be trusted; one line with the file, the reason, what to do."""


def read_json(path: Path, remedy: str) -> dict[str, Any]:
    """The object in a file. Raises BaselineError, which ends with the remedy."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BaselineError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise BaselineError(f"{path}: not JSON, cut short or damaged ({error}); {remedy}") from None
    if not isinstance(document, dict):
        raise BaselineError(f"{path}: holds no JSON object; {remedy}")
    return document


def parts_of(record: Any) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Case id, ``extra_info`` and ``stats`` of one benchmark of this suite."""
    fullname, info = need(record, "fullname", str), need(record, "extra_info", dict)
    case = info.get("case")
    if not isinstance(case, str) or not fullname.endswith(f"[{case}]"):
        raise ValueError(f"{fullname} is not a timed case of this suite")
    need(record, "group", str)
    return case, info, need(record, "stats", dict)


def check_binary(info: Mapping[str, Any]) -> None:
    """Raises ValueError where what was timed is not told: the cubin (none of a library), the L2 policy."""
    need(info, "l2", str)
    cubin = info.get("cubin_sha256")
    if cubin is not None and not (isinstance(cubin, str) and re.fullmatch(r"[0-9a-f]{64}", cubin)):
        raise ValueError(f"cubin_sha256 is {cubin!r}, no SHA-256")


def check_stats(stats: Mapping[str, Any]) -> None:
    """Raises ValueError where pytest-benchmark's ``stats`` are not those of durations."""
    for name in (*STATS_POSITIVE, "rounds", "iterations"):
        positive(stats, name)
    for name in STATS_OTHER:
        positive(stats, name, zero=True)
    need(stats, "outliers", str)


def machine_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """GPU, settings and software versions; no host, no user."""
    told = need(document, "machine_info", dict)
    for name in _MACHINE_NEEDED:
        need(told, name, str)
    return {name: told[name] for name in _MACHINE if name in told}


def commit_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """Commit id, whether the tree had changes, and the commit's time; no branch, no project."""
    told = need(document, "commit_info", dict)
    need(told, "id", str)
    need(told, "dirty", bool)
    return {name: told.get(name) for name in ("id", "dirty", "time")}


def moment(document: Mapping[str, Any]) -> str:
    """When it was written, ISO 8601; its date becomes part of a file name."""
    text: str = need(document, "datetime", str)
    datetime.fromisoformat(text)
    return text


def need(mapping: Any, name: str, kind: type) -> Any:
    """A member of this type, or ValueError."""
    value = mapping.get(name) if isinstance(mapping, dict) else None
    if not isinstance(value, kind):
        raise ValueError(f"{name} is missing or not a {kind.__name__}")
    return value


def positive(mapping: Mapping[str, Any], name: str, zero: bool = False) -> float:
    """A member that is a finite number above zero (or zero), or ValueError."""
    value = mapping.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e300:
        raise ValueError(f"{name} is {value!r}, not a number")
    if value < 0 or (value == 0 and not zero):
        raise ValueError(f"{name} is {value!r}, which is impossible")
    return float(value)


def agree(name: str, value: float, expected: float) -> None:
    """Raises ValueError where a figure is more than 0.1 % off what others make it."""
    if abs(value - expected) > 1e-3 * expected:
        raise ValueError(f"{name} is {value:.6g}, its other figures make it {expected:.6g}")
