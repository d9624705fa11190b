"""What is stored of a measurement, as models that every file is checked against when it is read or written.

The kinds of lines of ``figures.jsonl``:

    run      once a measurement: the machine, the commit, the date
    timed    what was timed, and how: problem, binary, launch, resources; many figures share one
    figure   one case of one run, with the ids of both

A `BaselineEntry` is the three of them. Values are kept as they are in the file, digit for digit.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetPydanticSchema,
    StrictBool,
    StrictInt,
    StrictStr,
    TypeAdapter,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from gemm_regression.files import fault, no_key_twice, read_whole
from gemm_regression.hints import typed
from gemm_regression.judge.machine import Machine
from gemm_regression.judge.vocabulary import Reference
from gemm_regression.model import CaseId

MIN_RUNS = 5  # Fresh processes: their medians give the noise floor.
# pytest-benchmark's statistics that are stored; the others follow from these and the median.
STATS = ("min", "max", "mean", "stddev", "q1", "q3", "ld15iqr", "hd15iqr", "rounds", "iterations", "outliers")
_TIMES = len(STATS) - 3
TEST = "tests/test_performance.py::test_performance"  # of most cases; a line names another
RESTORE = f"restore it from git, or remove it and measure again with `{typed('baseline')}`"


class BaselineError(Exception):
    """A file or a set of runs cannot be trusted; one line with the file, the reason, and what to do."""


class CommitInfo(BaseModel):
    """What was measured: no branch, no project."""

    id: StrictStr
    dirty: StrictBool
    time: StrictStr | None = None


def moment(text: str) -> datetime:
    """A date; one without a zone is UTC's. Raises ValueError."""
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _date(text: str) -> str:
    moment(text)  # its date becomes part of a file name
    return text


def _as_given(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    handler(value)
    return value


def _object(model: type[BaseModel]) -> GetPydanticSchema:
    return GetPydanticSchema(lambda _, handler: handler.generate_schema(model))


_GIVEN = WrapValidator(_as_given)
Positive = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False), _GIVEN]
NotNegative = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False), _GIVEN]
_P = Positive
Numbers = tuple[_P, _P, _P, NotNegative, _P, _P, _P, _P, _P, _P, StrictStr]  # as in STATS
Moment = Annotated[StrictStr, AfterValidator(_date)]
Id = Annotated[str, Field(strict=True, pattern=r"^[0-9a-f]{16}$")]
Sha256 = Annotated[str, Field(strict=True, pattern=r"^[0-9a-f]{64}$")]


@cache
def _adapter(model: Any) -> TypeAdapter[Any]:
    return TypeAdapter(model)


def checked(document: Any, model: Any) -> Any:
    """A document as a model. Raises ValueError, in one line, if it does not match."""
    try:
        return _adapter(model).validate_python(document)
    except ValidationError as error:
        raise ValueError(fault(error)) from None


def read_json(path: Path, remedy: str) -> dict[str, Any]:
    """The object in a file. Raises BaselineError, which ends with the remedy."""
    try:
        text = read_whole(path)
    except OSError as error:
        raise BaselineError(f"{path}: cannot be read ({error.strerror})") from None
    return parsed(path, text, remedy)


def parsed(where: object, text: str | bytes, remedy: str = RESTORE) -> dict[str, Any]:
    """The object in a text. Raises BaselineError."""
    try:
        document = json.loads(text, object_pairs_hook=no_key_twice)
    except (ValueError, RecursionError) as error:
        raise BaselineError(f"{where}: not valid JSON: truncated or damaged ({error}); {remedy}") from None
    if not isinstance(document, dict):
        raise BaselineError(f"{where}: contains no JSON object; {remedy}")
    return document


def gpu_slug(name: str) -> str:
    """The folder of a GPU model: ``NVIDIA H200`` reads ``nvidia-h200``."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "unnamed-gpu"


# A measurement of a case

# The keys of a line that are not named as here.
_KEYS = {"commit_info": "commit", "group": "problem", "cubin_sha256": "cubin", "case_id": "case"}
_KEYS |= {"shared_bytes": "shared", "local_bytes": "local", "clocks_mhz": "mhz", "cublas_ratio": "ratio"}
_KEYS |= {"numbers": "stats"}


class _Line:
    __pydantic_config__: ClassVar = ConfigDict(
        extra="forbid", alias_generator=lambda name: _KEYS.get(name, name)
    )


@dataclass(frozen=True, kw_only=True)
class RunLine(_Line):
    """The ``machine``, the commit (``commit_info``) and the ``datetime``, as in pytest-benchmark's JSON."""

    machine: Annotated[Mapping[str, Any], _object(Machine), _GIVEN]
    commit_info: Annotated[Mapping[str, Any], _object(CommitInfo), _GIVEN]
    datetime: Moment


@dataclass(frozen=True, kw_only=True)
class TimedLine(_Line):
    """What was timed, and how.

    Attributes:
        group: its problem.
        flops: of a launch.
        test: the name of its test, without the case.
        l2, duty: as in Plan.
        chosen: what a kernel that chooses had chosen, as `Case.choice`.
        cubin_sha256: None for a library.
        launch: grid, block and dynamic shared memory as text; None if unknown.
        launch_id: of the kept launch; None for a library, and where its binary was not kept.
        shared_bytes, local_bytes, registers: as in Resources.
    """

    group: StrictStr
    flops: Positive
    test: StrictStr = TEST
    l2: StrictStr = "cold"
    duty: Positive = 1.0
    chosen: StrictStr = ""
    cubin_sha256: Sha256 | None = None
    launch: StrictStr | None = None
    launch_id: Id | None = None
    shared_bytes: NotNegative | None = None
    local_bytes: NotNegative | None = None
    registers: NotNegative | None = None


@dataclass(frozen=True, kw_only=True)
class _Figure(_Line):
    """What was measured.

    Attributes:
        case_id: the case.
        us: median device microseconds of each run, which is a process.
        clocks_mhz: the SM clock of each; empty if unknown.
        numbers: STATS, in microseconds, of the run with the middle median.
        cublas_ratio: speed relative to cuBLAS's in the same run.
        seen: around it, SM clock in MHz, W and °C, None where unknown, and NVML's clock reasons.
        margin: the smallest change that counted when it was stored, relative; None: the policy's.
        best: cubin and launch id of the best binary ever accepted, if not its own.
        accepted: why it was stored although slower than that one; else empty.
    """

    case_id: StrictStr
    us: tuple[Positive, ...]
    clocks_mhz: tuple[Positive, ...] = ()
    numbers: Numbers
    cublas_ratio: NotNegative | None = None
    seen: tuple[NotNegative | None, NotNegative | None, NotNegative | None, StrictInt]
    margin: Positive | None = None
    best: tuple[Sha256, Id] | None = None
    accepted: StrictStr = ""


@dataclass(frozen=True, kw_only=True)
class FigureLine(_Figure):
    """With the ids of the lines of its ``run`` and of what was ``timed``. Raises ValueError for numbers that
    do not fit."""

    run: Id
    timed: Id

    def __post_init__(self) -> None:
        if len(self.us) < MIN_RUNS:
            raise ValueError(f"us has {len(self.us)} medians, at least {MIN_RUNS} are needed")
        if len(self.clocks_mhz) not in (0, len(self.us)):
            raise ValueError(f"{len(self.clocks_mhz)} clocks, but {len(self.us)} medians")
        low, high = self.numbers[:2]
        if not low * (1 - 1e-3) <= statistics.median_low(self.us) <= high * (1 + 1e-3):
            raise ValueError(
                f"the middle median of {self.us} is not between {low:g} and {high:g}, its samples'"
            )


_INFO = (
    *("variant", "flops", "l2", "duty", "chosen", "registers", "shared_bytes", "local_bytes", "cubin_sha256"),
    *("launch", "gflops", "median_s", "noise_floor", "cublas_ratio", "board", "commit", "dirty"),
)
SEEN = ("sm_clock_mhz", "power_w", "temperature_c", "clock_event_reasons")


@dataclass(frozen=True, kw_only=True)
class BaselineEntry(_Figure, TimedLine, RunLine):
    """One case as stored. Of a run that is compared without being stored, ``us`` has one median."""

    @property
    def fullname(self) -> str:
        """The name of its test."""
        return f"{self.test}[{self.case_id}]"

    @property
    def binary(self) -> tuple[str | None, str | None]:
        """What was measured: the cubin, and how it is launched."""
        return self.cubin_sha256, self.launch_id or self.launch

    @property
    def variant(self) -> str:
        return CaseId.parse(self.case_id).variant

    @property
    def medians(self) -> tuple[float, ...]:
        """Median device seconds of each run."""
        return tuple(map(_seconds, self.us))

    @property
    def median_s(self) -> float:
        """Median device seconds of the middle run."""
        return statistics.median_low(self.medians)

    @property
    def gflops(self) -> float:
        return significant(self.flops / self.median_s / 1e9, 6)

    @property
    def noise_floor(self) -> float:
        """(max - min) / median of the medians of the runs, dimensionless; of a single run the interquartile
        range of its rounds / their median."""
        medians, stats = self.medians, self.stats
        apart = max(medians) - min(medians) if medians[1:] else stats["iqr"]
        return significant(apart / statistics.median(medians), 3)

    @property
    def stats(self) -> dict[str, Any]:
        """pytest-benchmark's statistics, in seconds."""
        found: dict[str, Any] = dict(zip(STATS, self.numbers, strict=True))
        found |= {name: _seconds(found[name]) for name in STATS[:_TIMES]}
        return {
            **found,
            "median": self.median_s,
            "iqr": _seconds(1e6 * (found["q3"] - found["q1"])),
            "ops": significant(1 / found["mean"], 6),
            "total": significant(found["mean"] * found["rounds"], 6),
        }

    @property
    def info(self) -> dict[str, Any]:
        """The case as a run's ``extra_info`` has it; without what is unknown."""
        known = {name: getattr(self, name) for name in _INFO} | dict(zip(SEEN, self.seen, strict=True))
        kept = {name: value for name, value in known.items() if value not in (None, "")}
        return {"case": self.case_id, "run_medians": list(self.medians), **kept}

    @cached_property
    def reference(self) -> Reference:
        """What an observation of the case is compared with."""
        return Reference(**{field.name: getattr(self, field.name) for field in fields(Reference)})

    @property
    def commit(self) -> str:
        """The commit whose kernel was measured, or ``unknown``."""
        return str(self.commit_info.get("id") or "unknown")

    @property
    def dirty(self) -> bool:
        """Whether the tree had changes on top of that commit."""
        return bool(self.commit_info.get("dirty", True))

    @property
    def board(self) -> str | None:
        """The board it was measured on; None if unknown."""
        return self.machine.get("board")


def entry_of(values: Mapping[str, Any]) -> BaselineEntry:
    """Of values by their names. Raises ValueError for any that is not plausible."""
    entry: BaselineEntry = checked(
        {_KEYS.get(name, name): value for name, value in values.items()}, BaselineEntry
    )
    return entry


def numbers_of(stats: Mapping[str, Any]) -> Any:
    """STATS of pytest-benchmark's ``stats``, as they are stored."""
    times = (short(1e6 * stats[name], 6) for name in STATS[:_TIMES])
    return (*times, short(stats["rounds"], 9), short(stats["iterations"], 9), stats["outliers"])


def significant(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")


def short(value: float, digits: int) -> float:
    """Rounded to so many significant digits, and an integer where it is one: fewer characters."""
    rounded = significant(value, digits)
    return int(rounded) if rounded.is_integer() else rounded


def _seconds(us: float) -> float:
    return significant(us / 1e6, 6)
