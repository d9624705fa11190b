"""A comparison as compact JSON, with everything the verdicts are based on; and stored comparisons and runs,
their cases and their machines, judged again from their JSON alone.

And one run of one commit in several parts, on several machines. A test belongs to a part by a hash of its
case's id: whatever else is selected, added or removed, it stays there. Each part records all tests of the
whole, as a digest, and what became of its own; so that whoever adds them up misses a part that is lost, and a
test that no part ran."""

from __future__ import annotations

import hashlib
import math
import re
import statistics
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from gemm_regression.baselines import gpu_slug
from gemm_regression.baselines.merge import commit_of, machine_of
from gemm_regression.baselines.records import BaselineError, read_json
from gemm_regression.files import fault
from gemm_regression.judge.evidence import MACHINES, UNUSABLE, again
from gemm_regression.judge.machine import again as machine_again
from gemm_regression.judge.vocabulary import CONTROL_FAILED, SAME_BINARY, Outcome, Paired, VerdictKind
from gemm_regression.project.commit import Tree
from gemm_regression.run.compare import Comparison, Side
from gemm_regression.run.pairing import ComparedCase, Control
from gemm_regression.timing.looks import MIN_BLOCKS, Estimate
from gemm_regression.timing.samples import PairedSamples

SCHEMA = 3
_PAIRED = TypeAdapter(Paired)
_OF_PAIRED = [field.name for field in fields(Paired)]


def document(
    comparison: Comparison, side: Side, tree: Tree, machine: Mapping[str, Any], when: str
) -> dict[str, Any]:
    """The document that ``--json`` writes. No host name, no paths; durations in seconds."""
    rule = comparison.rule
    return {
        "gemm_comparison": SCHEMA,
        "datetime": when,
        "base": {
            "name": side.commit.name,
            "id": side.commit.sha,
            "nvcc": side.nvcc.version if side.nvcc else "",
        },
        "new": {"id": tree.sha, "dirty": tree.dirty},
        "machine_info": dict(machine),
        "rule": {"error": rule.error, "looks": rule.looks, "blocks": rule.blocks},
        "margin": comparison.margin,
        "seed": comparison.seed,
        "exit_status": comparison.exit_status,
        "controls": [_control(control) for control in comparison.controls],
        "cases": [_case(row) for row in comparison.rows],
    }


def _case(row: ComparedCase) -> dict[str, Any]:
    return {"case": row.case.id, "red": row.failed, **asdict(row.paired), **_timed(row.samples)}


def _control(control: Control) -> dict[str, Any]:
    f, samples, (core, size) = control.finding, control.samples, control.group
    record: dict[str, Any] = {"case": control.case.id, "core": core, "size": size, "why": control.why}
    if f:
        record |= {"change": f.change, "interval": f.interval, "margin": control.margin, "miss": f.miss}
        record |= {"log_ratios": samples.log_ratios, "resolution": samples.resolution}
    return record | _timed(samples)


def _timed(samples: PairedSamples) -> dict[str, Any]:
    """What the first process timed."""
    if not samples.blocks:
        return {}
    return {
        "base_s": _round(samples.median("a")),
        "new_s": _round(samples.median("b")),
        "cycles_change": cycles_change(samples),
        "discarded": samples.discarded,
        "clock_event_reasons": samples.reasons,
        "gpu_seconds": _round(samples.gpu_seconds),
    }


def cycles_change(samples: PairedSamples) -> float | None:
    """Relative change in SM cycles, the mean over blocks; None if the clock is unknown."""
    known = [c for block in samples.blocks if math.isfinite(c := block.log_cycles)]
    return _round(math.expm1(statistics.fmean(known))) if known else None


def _round(value: float) -> float:
    return float(f"{value:.6g}")


def verdicts(recorded: Mapping[str, Any]) -> tuple[list[Outcome], dict[str, Outcome]]:
    """The verdicts on the controls, in their order, and on the cases, by id, from the document alone.

    Raises ValueError for a document of another version, or one that is not as it was written.
    """
    if recorded.get("gemm_comparison") != SCHEMA:
        version = recorded.get("gemm_comparison")
        raise ValueError(f"comparison of schema {version!r}, but this version reads {SCHEMA}; compare again")
    return (
        [outcome_of(control) for control in recorded["controls"]],
        {record["case"]: _case_again(record) for record in recorded["cases"]},
    )


def _case_again(record: Mapping[str, Any]) -> Outcome:
    paired = _PAIRED.validate_python({name: record[name] for name in _OF_PAIRED})
    return paired.again().outcome


def outcome_of(record: Mapping[str, Any]) -> Outcome:
    """The verdict on a control, from its blocks if it has enough: identical builds are one binary."""
    failed = bool(record["why"])
    if len(record.get("log_ratios", ())) >= MIN_BLOCKS:
        estimate = Estimate.of(record["log_ratios"], record["resolution"])
        failed = estimate.differs(record["margin"], record["miss"])
    return CONTROL_FAILED if failed else SAME_BINARY


_REMEDY = "only files written by `pytest --benchmark-json` of this suite can be judged again"


class _Stats(BaseModel):
    data: list[float]


class _Benchmark(BaseModel):
    extra_info: dict[str, Any]
    stats: _Stats


class _Verdict(BaseModel):
    """What a run recorded of a case besides its evidence."""

    case: str
    verdict: str
    verdict_reason: str
    red: bool


class _Unusable(BaseModel, extra="allow"):
    seconds: list[float]


class _Machine(BaseModel, extra="allow"):
    kind: VerdictKind
    reason: str


class _Run(BaseModel):
    benchmarks: list[_Benchmark]
    gemm_unusable: list[_Unusable]
    gemm_machines: dict[str, _Machine]


@dataclass(frozen=True)
class JudgedAgain:
    """A ``case``, or the machine of a GPU, judged again; ``said`` and ``now`` are kind, reason and colour, as
    recorded and as judged now; ``red`` whether it fails now."""

    case: str
    said: str
    now: str
    red: bool


def replay(path: Path) -> list[JudgedAgain]:
    """Every case of a run and its machines, judged again. Raises BaselineError for a file without the
    necessary evidence."""
    document = read_json(path, _REMEDY)
    found, what = [], ""
    try:
        run = _Run.model_validate(document)
        judged = [(record.extra_info, record.stats.data) for record in run.benchmarks]
        judged += [(info.model_extra or {}, info.seconds) for info in run.gemm_unusable]
        for info, seconds in judged:
            what = f"{info.get('case', '?')}: "
            verdict, policy = again(info, seconds)
            said, red = _Verdict.model_validate(info), verdict.failed(policy)
            then = f"{said.verdict} {said.verdict_reason}, {_colour(said.red)}"
            found.append(JudgedAgain(said.case, then, f"{verdict.outcome}, {_colour(red)}", red))
        for number, machine in run.gemm_machines.items():
            what = f"machine of GPU {number}"
            now = machine_again(machine.model_extra or {})
            then = f"{machine.kind} {machine.reason}, {_colour(machine.kind is not VerdictKind.PASS)}"
            again_ = f"{now.kind} {now.reason}, {_colour(now.failed)}"
            found.append(JudgedAgain(what, then, again_, now.failed))
    except ValidationError as error:
        raise BaselineError(f"{path}: {what}{fault(error)}; {_REMEDY}") from None
    except (TypeError, ValueError, KeyError) as error:
        raise BaselineError(f"{path}: {what}{error}; {_REMEDY}") from None
    if not found:
        raise BaselineError(f"{path}: contains no judged case; {_REMEDY}")
    return found


def _colour(red: bool) -> str:
    return "red" if red else "green"


# Parts

KEY = "shard"
NOT_RUN = "not run"
GREEN = ("passed", "skipped")
_AGAIN = "run this shard again"


@dataclass(frozen=True)
class Shard:
    """Part ``number``, from 1, ``of`` so many."""

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """``2/4``. Raises ValueError, one line."""
        found = re.fullmatch(r"(\d+)/(\d+)", text)
        number, of = map(int, found.groups()) if found else (0, 0)
        if not 1 <= number <= of:
            raise ValueError(f"--shard {text}: must be a part of a number of parts, such as 1/4 or 4/4")
        return cls(number, of)

    def has(self, name: str) -> bool:
        """Whether a test, by the id of its case, is in this part."""
        return int(hashlib.sha256(name.encode()).hexdigest()[:12], 16) % self.of == self.number - 1

    def record(self, whole: Collection[str], outcomes: Mapping[str, str]) -> dict[str, Any]:
        """As the part's JSON has it: of the ``whole`` its digest, and what became of the own tests."""
        count, sum_ = len(whole), digest(whole)
        return {"number": self.number, "of": self.of, "count": count, "whole": sum_, "tests": dict(outcomes)}


def digest(names: Collection[str]) -> str:
    """Of a set of tests, in any order."""
    return hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()


class _ShardRecord(BaseModel):
    number: int
    of: int
    count: int
    whole: str
    tests: dict[str, str]


class _Document(BaseModel):
    machine_info: dict[str, Any]
    commit_info: dict[str, Any]
    benchmarks: list[dict[str, Any]]
    shard: _ShardRecord


@dataclass(frozen=True)
class ShardFile:
    """The file of one part: its ``path`` and whole ``document``, and what it ``recorded`` of itself."""

    path: Path
    document: Mapping[str, Any]
    recorded: _ShardRecord

    @property
    def model(self) -> str:
        """The folder of its GPU model in baselines/."""
        return gpu_slug(str(self.document["machine_info"].get("name", "")))

    @property
    def gpus(self) -> Mapping[str, Any]:
        """What is known of each of its GPUs, by number."""
        return self.document.get("gpus") or {"0": machine_of(self.document)}


def read(path: Path) -> ShardFile:
    """Raises BaselineError for a file that is no part, or not whole."""
    document = read_json(path, _AGAIN)
    if KEY not in document:
        raise BaselineError(f"{path}: not written by a run with --shard")
    try:
        return ShardFile(path, document, _Document.model_validate(document).shard)
    except ValidationError as error:
        raise BaselineError(f"{path}: {fault(error)}; {_AGAIN}") from None


@dataclass
class Whole:
    """All parts of one GPU ``model``, by their numbers: ``parts`` of ``of``; ``faults``: what is missing or
    does not fit, each one line; ``tests`` has what became of each."""

    model: str
    of: int
    parts: dict[int, ShardFile] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    tests: dict[str, str] = field(default_factory=dict)

    @property
    def red(self) -> list[str]:
        """Tests that failed or were not run."""
        return [name for name, outcome in self.tests.items() if outcome not in GREEN]

    @property
    def boards(self) -> list[str]:
        each = (info.get("board") for part in self.parts.values() for info in part.gpus.values())
        return list(dict.fromkeys(str(board or "unknown") for board in each))

    @property
    def timed(self) -> list[Mapping[str, Any]]:
        """What was recorded of each timed case."""
        return [bench["extra_info"] for bench in self._all("benchmarks")] + self._all(UNUSABLE)

    def merged(self) -> dict[str, Any]:
        """One document with all cases, of the form of a run on several GPUs."""
        each = sorted(self.parts.items())
        machines = {f"{n}.{gpu}": info for n, part in each for gpu, info in part.gpus.items()}
        judged = ((n, part.document.get(MACHINES, {})) for n, part in each)
        first = {name: value for name, value in each[0][1].document.items() if name != KEY}
        return first | {
            "gpus": machines,
            "benchmarks": self._all("benchmarks"),
            UNUSABLE: self._all(UNUSABLE),
            MACHINES: {f"{n}.{gpu}": verdict for n, of in judged for gpu, verdict in of.items()},
        }

    def _all(self, key: str) -> list[Any]:
        return [one for _, part in sorted(self.parts.items()) for one in part.document.get(key, [])]


def add_up(parts: Sequence[ShardFile], models: Sequence[str] = ()) -> list[Whole]:
    """The parts of each GPU model, those of ``models`` in any case, with what is wrong with them."""
    names = list(dict.fromkeys([*models, *(part.model for part in parts)]))
    return [_added(name, [part for part in parts if part.model == name]) for name in names]


def _added(model: str, parts: Sequence[ShardFile]) -> Whole:
    if not parts:
        return Whole(model, 0, faults=["no shard at all"])
    of = Counter(part.recorded.of for part in parts).most_common(1)[0][0]
    first = next(part for part in parts if part.recorded.of == of)
    whole = Whole(model, of)
    for part in parts:
        said = f"shard {part.recorded.number} of {part.recorded.of} ({part.path})"
        if part.recorded.of != of:
            whole.faults.append(f"{said}: the others are of {of}")
        elif part.recorded.number in whole.parts:
            whole.faults.append(f"{said}: there twice")
        elif part.recorded.whole != first.recorded.whole:
            whole.faults.append(f"{said}: of another selection of tests than {first.path}")
        elif commit_of(part.document) != commit_of(first.document):
            whole.faults.append(f"{said}: of another commit than {first.path}")
        else:
            whole.parts[part.recorded.number] = part
            whole.tests |= part.recorded.tests
    missing = [number for number in range(1, of + 1) if number not in whole.parts]
    whole.faults += [f"shard {number} of {of} is missing" for number in missing]
    count, sum_ = first.recorded.count, first.recorded.whole
    if not missing and (len(whole.tests), digest(whole.tests)) != (count, sum_):
        whole.faults.append(f"{len(whole.tests)} tests in all shards, but {count} in the whole")
    return whole
