"""The lines of ``figures.jsonl``, ``{"id": …, KIND: {…}}``, sealed by the id, which is derived from the rest.

    run      once a measurement: the machine, the commit, the date
    timed    what was timed, and how: problem, binary, launch, resources; many figures share one
    figure   one case of one run

Short keys of a figure: ``us`` median device microseconds of each process, ``mhz`` the SM clock of each,
``stats`` pytest-benchmark's (STATS, in microseconds) of the process with the middle median, ``ratio`` the
speed relative to cuBLAS's, ``seen`` SM clock in MHz, W, °C and NVML's clock reasons.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr, field_validator, model_validator

from gemm_regression.baselines.entries import BaselineEntry, noise_floor
from gemm_regression.baselines.fields import BaselineError, Commit, Machine, NotNegative, Positive, checked
from gemm_regression.files import no_key_twice
from gemm_regression.model import CaseId

MIN_RUNS = 5  # Fresh processes: their medians give the noise floor.
STATS = ("min", "max", "mean", "stddev", "q1", "q3", "ld15iqr", "hd15iqr", "rounds", "iterations", "outliers")
_TIMES = len(STATS) - 3
TEST = "tests/test_performance.py::test_performance"  # of most cases; a line names another
RESTORE = "restore it from git, or remove it and measure again with `nox -s baseline`"
_CONFLICT = ("<<<<<<<", "|||||||", "=======", ">>>>>>>")
_DIGITS = 16  # of an id

Id = Annotated[str, Field(strict=True, pattern=r"^[0-9a-f]{16}$")]
Sha256 = Annotated[str, Field(strict=True, pattern=r"^[0-9a-f]{64}$")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class RunLine(_Strict):
    machine: Machine
    commit: Commit
    datetime: StrictStr

    @field_validator("datetime")
    @classmethod
    def _moment(cls, text: str) -> str:
        moment(text)
        return text


class TimedLine(_Strict):
    """``launch`` as text, ``launch_id`` of the kept one; a library has neither these nor a cubin."""

    problem: StrictStr
    flops: Positive
    test: StrictStr = TEST
    l2: StrictStr = "cold"
    duty: Positive = 1.0
    chosen: StrictStr | None = None
    cubin: Sha256 | None = None
    launch: StrictStr | None = None
    launch_id: Id | None = None
    registers: NotNegative | None = None
    shared: NotNegative | None = None
    local: NotNegative | None = None


class FigureLine(_Strict):
    case: StrictStr
    run: Id
    timed: Id
    us: Annotated[list[Positive], Field(min_length=MIN_RUNS)]
    stats: Annotated[list[NotNegative | StrictStr], Field(min_length=len(STATS), max_length=len(STATS))]
    seen: tuple[NotNegative | None, NotNegative | None, NotNegative | None, StrictInt]
    mhz: list[Positive] | None = None
    ratio: NotNegative | None = None
    margin: Positive | None = None
    best: tuple[Sha256, Id] | None = None
    accepted: StrictStr = ""

    @model_validator(mode="after")
    def _agree(self) -> FigureLine:
        if self.mhz is not None and len(self.mhz) != len(self.us):
            raise ValueError(f"{len(self.mhz)} clocks, but {len(self.us)} medians")
        *numbers, outliers = self.stats
        named = dict(zip(STATS, numbers, strict=False))
        if not isinstance(outliers, str) or any(isinstance(number, str) for number in numbers):
            raise ValueError(f"stats are {self.stats}: not {', '.join(STATS)}")
        if zero := [name for name, number in named.items() if not number and name != "stddev"]:
            raise ValueError(f"{zero[0]} is 0: it should be greater")
        low, high = float(named["min"]), float(named["max"])
        if not low * (1 - 1e-3) <= statistics.median_low(self.us) <= high * (1 + 1e-3):
            raise ValueError(
                f"the middle median of {self.us} is not between {low:g} and {high:g}, its samples'"
            )
        return self


_KINDS: Mapping[str, type[_Strict]] = {"run": RunLine, "timed": TimedLine, "figure": FigureLine}


@dataclass(frozen=True)
class Line:
    """One of a file: its ``kind``, its ``id``, what it says, and its ``text``."""

    kind: str
    id: str
    says: Mapping[str, Any]
    text: str


def line(kind: str, says: Mapping[str, Any]) -> Line:
    """Raises BaselineError for what would be refused when read."""
    body = f'"{kind}":{json.dumps(says, separators=(",", ":"), ensure_ascii=False, allow_nan=False)}}}'
    made = Line(kind, _digest(body), says, f'{{"id":"{_digest(body)}",{body}')
    try:
        checked(dict(says), _KINDS[kind])
    except ValueError as error:
        raise BaselineError(f"not written: {says.get('case', kind)}: {error}") from None
    return made


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def raw_lines(path: Path) -> Iterator[tuple[str, str]]:
    """Where and what each different line of a file is, if it exists; a merge can double lines, which are one.
    Raises BaselineError."""
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise BaselineError(f"{path}: cannot be read ({error}); {RESTORE}") from None
    seen = set()
    for number, each in enumerate(text.split("\n"), 1):
        if each.startswith(_CONFLICT):
            raise BaselineError(
                f"{path}:{number}: a conflict of git; keep the lines of both sides, once each"
            )
        each = each.strip()
        if each and each not in seen:
            seen.add(each)
            yield f"{path}:{number}", each


def parsed(where: str, text: str) -> dict[str, Any]:
    """The object of a line. Raises BaselineError."""
    try:
        document = json.loads(text, object_pairs_hook=no_key_twice)
    except (ValueError, RecursionError) as error:
        raise BaselineError(f"{where}: not valid JSON: truncated or damaged ({error}); {RESTORE}") from None
    if not isinstance(document, dict):
        raise BaselineError(f"{where}: contains no JSON object; {RESTORE}")
    return document


def read(path: Path) -> list[Line]:
    """The lines of a file, validated one by one. Raises BaselineError."""
    return [validated(where, text) for where, text in raw_lines(path)]


def validated(where: str, text: str) -> Line:
    """Raises BaselineError."""
    document = parsed(where, text)
    kind = next((kind for kind in _KINDS if kind in document), None)
    if kind is None or set(document) != {"id", kind}:
        raise BaselineError(f"{where}: neither a run, nor what was timed, nor a figure; {RESTORE}")
    id_, says = document["id"], document[kind]
    if _digest(text[len('{"id":"",') + _DIGITS :]) != id_:
        raise BaselineError(f"{where}: its id does not match: edited by hand or damaged; {RESTORE}")
    try:
        checked(says, _KINDS[kind])
    except ValueError as error:
        raise BaselineError(f"{where}: {says.get('case', kind)}: {error}; {RESTORE}") from None
    return Line(kind, id_, says, text)


def entries(lines: Sequence[Line], where: object) -> list[dict[str, BaselineEntry]]:
    """The figures of each run, by case, oldest first. Raises BaselineError for one whose run, or what it
    timed, is in no line."""
    of = {kind: {each.id: each.says for each in lines if each.kind == kind} for kind in _KINDS}
    found: dict[str, dict[str, BaselineEntry]] = {}
    for says in of["figure"].values():
        case, run = says["case"], says["run"]
        for name in ("run", "timed"):
            if says[name] not in of[name]:
                raise BaselineError(f"{where}: {case}: its {name} {says[name]} is in no line; {RESTORE}")
        if case in found.setdefault(run, {}):
            raise BaselineError(f"{where}: {case} twice in run {run}; {RESTORE}")
        found[run][case] = _entry(says, of["run"][run], of["timed"][says["timed"]])
    order = sorted(found, key=lambda run: (moment(of["run"][run]["datetime"]), run))
    return [found[run] for run in order]


def written(entries: Iterable[BaselineEntry]) -> list[Line]:
    """The lines of figures, each once. Raises BaselineError for what would be refused when read."""
    found: dict[str, Line] = {}
    for entry in entries:
        run = line(
            "run",
            {
                "machine": dict(entry.machine),
                "commit": dict(entry.commit_info),
                "datetime": entry.datetime,
            },
        )
        timed = line("timed", _timed(entry))
        figure = line("figure", _figure(entry, run.id, timed.id))
        found |= {each.id: each for each in (run, timed, figure)}
    return list(found.values())


def _timed(entry: BaselineEntry) -> dict[str, Any]:
    info = entry.info
    says = {
        "problem": entry.group,
        "flops": info["flops"],
        "test": entry.fullname.removesuffix(f"[{entry.case_id}]"),
        "l2": entry.l2,
        "duty": entry.duty,
        "chosen": info.get("chosen"),
        "cubin": entry.cubin_sha256,
        "launch": entry.launch,
        "launch_id": entry.launch_id,
        **{name: info.get(f"{name}_bytes") for name in ("shared", "local")},
        "registers": info.get("registers"),
    }
    return _without_defaults(says, TimedLine)


def _figure(entry: BaselineEntry, run: str, timed: str) -> dict[str, Any]:
    info, stats = entry.info, entry.stats
    times = [_short(1e6 * stats[name], 6) for name in STATS[:_TIMES]]
    says = {
        "case": entry.case_id,
        "run": run,
        "timed": timed,
        "us": [_short(1e6 * seconds, 6) for seconds in entry.medians],
        "mhz": [_short(mhz, 5) for mhz in entry.clocks_mhz] or None,
        "stats": [*times, *(_short(stats[name], 9) for name in ("rounds", "iterations")), stats["outliers"]],
        "ratio": entry.cublas_ratio,
        "seen": [
            *(_short(info.get(name), 4) for name in ("sm_clock_mhz", "power_w", "temperature_c")),
            int(info.get("clock_event_reasons", 0)),
        ],
        "margin": entry.margin,
        "best": list(entry.best) if entry.best else None,
        "accepted": entry.accepted,
    }
    return _without_defaults(says, FigureLine)


def _without_defaults(says: Mapping[str, Any], model: type[_Strict]) -> dict[str, Any]:
    fields = model.model_fields
    return {
        name: value
        for name, value in says.items()
        if fields[name].is_required() or value != fields[name].default
    }


def _short(value: float | None, digits: int) -> float | None:
    """Rounded to so many significant digits, and an integer where it is one: fewer characters."""
    if value is None:
        return None
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded.is_integer() else rounded


def _entry(says: Mapping[str, Any], run: Mapping[str, Any], timed: Mapping[str, Any]) -> BaselineEntry:
    case, machine, commit = says["case"], run["machine"], run["commit"]
    medians = [_seconds(us) for us in says["us"]]
    middle = statistics.median_low(medians)
    clock, power, temperature, reasons = says["seen"]
    info: dict[str, Any] = {
        "case": case,
        "variant": CaseId.parse(case).variant,
        "flops": timed["flops"],
        "l2": timed.get("l2", "cold"),
        "duty": timed.get("duty", 1.0),
        "clock_event_reasons": reasons,
        **_named(timed, chosen="chosen", registers="registers", shared="shared_bytes", local="local_bytes"),
        **_named(timed, cubin="cubin_sha256", launch="launch"),
        "gflops": float(f"{timed['flops'] / middle / 1e9:.6g}"),
        "median_s": middle,
        "noise_floor": float(f"{noise_floor(medians):.3g}"),
        "run_medians": medians,
        **_named(says, mhz="run_clocks_mhz"),
        "cublas_ratio": says.get("ratio"),
        "sm_clock_mhz": clock,
        "power_w": power,
        "temperature_c": temperature,
        "commit": commit["id"],
        "dirty": commit["dirty"],
        **{name: machine[name] for name in OF_A_CASE if name in machine},
    }
    best = says.get("best")
    return BaselineEntry(
        fullname=f"{timed.get('test', TEST)}[{case}]",
        group=timed["problem"],
        stats=_stats(says["stats"], middle),
        info=info,
        machine=machine,
        commit_info=commit,
        datetime=run["datetime"],
        launch_id=timed.get("launch_id"),
        margin=says.get("margin"),
        best=(best[0], best[1]) if best else None,
        accepted=says.get("accepted", ""),
    )


# Of the machine, what is said with each case.
OF_A_CASE = ("board", "driver", "nvcc", "power_limit_w", "ecc", "mig")


def _named(says: Mapping[str, Any], **names: str) -> dict[str, Any]:
    """What a line says, under our names; without what it does not say."""
    return {name: says[short] for short, name in names.items() if says.get(short) is not None}


def _seconds(us: float) -> float:
    return float(f"{us / 1e6:.6g}")


def _stats(values: Sequence[Any], median: float) -> dict[str, Any]:
    """pytest-benchmark's statistics, with those that follow from others."""
    found = dict(zip(STATS, values, strict=True))
    found |= {name: _seconds(found[name]) for name in STATS[:_TIMES]}
    return {
        **found,
        "median": median,
        "iqr": _seconds(1e6 * (found["q3"] - found["q1"])),
        "ops": float(f"{1 / found['mean']:.6g}"),
        "total": float(f"{found['mean'] * found['rounds']:.6g}"),
    }


def moment(text: str) -> datetime:
    """A date; one without a zone is UTC's. Raises ValueError."""
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=UTC)
