"""Validation of any pytest-benchmark file, a run's or a baseline's: JSON, types, plausible numbers.

The models are for validation only; the file's own values are kept, digit for digit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    Field,
    StrictBool,
    StrictStr,
    ValidationError,
    field_validator,
    model_validator,
)

from gemm_regression.files import fault, no_key_twice

# The parts of machine_info to keep: an allow-list, so that nothing else is ever stored.
_MACHINE = (
    *("name", "memory_mib", "capability", "driver", "cuda_driver", "nvcc", "power_limit_w", "ecc", "mig"),
    *("max_sm_clock_mhz", "max_memory_clock_mhz", "applications_sm_clock_mhz", "board", "vbios"),
    *(
        "python",
        "pycuda",
        "numpy",
        "pytest",
        "pytest_benchmark",
        "nvmath_python",
        "cublas",
        "roofs",
        "timing",
    ),
)
_COMMIT = ("id", "dirty", "time")

Positive = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]


class BaselineError(Exception):
    """A file or a set of runs cannot be trusted; one line with the file, the reason, and what to do."""


def read_json(path: Path, remedy: str) -> dict[str, Any]:
    """The object in a file. Raises BaselineError, which ends with the remedy."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=no_key_twice)
    except OSError as error:
        raise BaselineError(f"{path}: cannot be read ({error.strerror})") from None
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BaselineError(f"{path}: not valid JSON: truncated or damaged ({error}); {remedy}") from None
    except ValueError as error:
        raise BaselineError(f"{path}: {error}; {remedy}") from None
    if not isinstance(document, dict):
        raise BaselineError(f"{path}: contains no JSON object; {remedy}")
    return document


class Stats(BaseModel):
    """pytest-benchmark's ``stats``, if plausible for durations: seconds, except ``ops``, their inverse, and
    counts."""

    min: Positive
    max: Positive
    mean: Positive
    median: Positive
    q1: Positive
    q3: Positive
    ld15iqr: Positive
    hd15iqr: Positive
    ops: Positive
    total: Positive
    rounds: Positive
    iterations: Positive
    stddev: NotNegative
    iqr: NotNegative
    outliers: StrictStr


class Info(BaseModel):
    """What any ``extra_info`` contains for a timed case: what was run (a library has no cubin), and how fast
    it was."""

    case: StrictStr
    l2: StrictStr
    cubin_sha256: Annotated[str, Field(strict=True, pattern=r"^[0-9a-f]{64}$")] | None = None
    flops: Positive
    gflops: Positive


class Record(BaseModel):
    """One benchmark of this suite."""

    fullname: StrictStr
    group: StrictStr
    extra_info: Info
    stats: Stats

    @model_validator(mode="after")
    def _agree(self) -> Record:
        agree("gflops", self.extra_info.gflops, self.extra_info.flops / self.stats.median / 1e9)
        return self


class MachineFields(BaseModel):
    """What any ``machine_info`` must contain."""

    name: StrictStr
    capability: StrictStr
    driver: StrictStr
    cuda_driver: StrictStr
    nvcc: StrictStr


class CommitFields(BaseModel):
    id: StrictStr
    dirty: StrictBool


class File(BaseModel):
    """The file of a run or a baseline."""

    machine_info: MachineFields
    commit_info: CommitFields
    datetime: StrictStr
    benchmarks: list[Any]

    @field_validator("datetime")
    @classmethod
    def _moment(cls, text: str) -> str:
        datetime.fromisoformat(text)  # its date becomes part of a file name
        return text


def checked(document: Any, model: type[BaseModel]) -> None:
    """Raises ValueError, in one line, if a document does not match this model."""
    try:
        model.model_validate(document)
    except ValidationError as error:
        raise ValueError(fault(error)) from None


def checked_record(record: Any, model: type[Record]) -> str:
    """The case id of a benchmark of this model. Raises ValueError, which names the case."""
    known = record if isinstance(record, dict) else {}
    fullname, info = known.get("fullname"), known.get("extra_info")
    case = info.get("case") if isinstance(info, dict) else None
    if isinstance(fullname, str) and not (isinstance(case, str) and fullname.endswith(f"[{case}]")):
        raise ValueError(f"{fullname} is not a timed case of this suite")
    try:
        checked(record, model)
    except ValueError as error:
        raise ValueError(f"{case}: {error}" if case else str(error)) from None
    return str(case)


def machine_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """GPU, settings and software versions; no host name, no user name."""
    return {name: document["machine_info"][name] for name in _MACHINE if name in document["machine_info"]}


def commit_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """Commit id, whether the tree had changes, and the commit's time; no branch, no project."""
    return {name: document["commit_info"].get(name) for name in _COMMIT}


def agree(name: str, value: float, expected: float) -> None:
    """Raises ValueError if a value differs by more than 0.1 % from the one computed from others."""
    if abs(value - expected) > 1e-3 * expected:
        raise ValueError(f"{name} is {value:.6g}, but {expected:.6g} follows from the other values")
