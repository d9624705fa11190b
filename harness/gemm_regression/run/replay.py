"""A comparison as compact JSON, with everything the verdicts are based on; and stored comparisons and runs,
their cases and their machines, judged again from their JSON alone."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from gemm_regression.baselines.fields import BaselineError, read_json
from gemm_regression.files import fault
from gemm_regression.judge.evidence import again
from gemm_regression.judge.machine import again as machine_again
from gemm_regression.judge.paired import CONTROL_FAILED, SAME_BINARY, Paired
from gemm_regression.judge.vocabulary import Outcome, VerdictKind
from gemm_regression.project.commit import Tree
from gemm_regression.run.compare import Comparison, Row, Side
from gemm_regression.run.pairing import Control
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


def _case(row: Row) -> dict[str, Any]:
    return {"case": row.case.id, "red": row.failed, **asdict(row.paired), **_timed(row.samples)}


def _control(control: Control) -> dict[str, Any]:
    record: dict[str, Any] = {
        "case": control.case.id,
        "core": control.group[0],
        "size": control.group[1],
        "why": control.why,
    }
    if f := control.finding:
        record |= {
            "change": f.change,
            "interval": f.interval,
            "margin": control.margin,
            "miss": f.miss,
            "log_ratios": control.samples.log_ratios,
            "resolution": control.samples.resolution,
        }
    return record | _timed(control.samples)


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
class Replayed:
    """A ``case``, or the machine of a GPU, judged again; ``said`` and ``now`` are kind, reason and colour, as
    recorded and as judged now; ``red`` whether it fails now."""

    case: str
    said: str
    now: str
    red: bool


def replay(path: Path) -> list[Replayed]:
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
            found.append(Replayed(said.case, then, f"{verdict.outcome}, {_colour(red)}", red))
        for number, machine in run.gemm_machines.items():
            what = f"machine of GPU {number}"
            now = machine_again(machine.model_extra or {})
            then = f"{machine.kind} {machine.reason}, {_colour(machine.kind is not VerdictKind.PASS)}"
            again_ = f"{now.kind} {now.reason}, {_colour(now.failed)}"
            found.append(Replayed(what, then, again_, now.failed))
    except ValidationError as error:
        raise BaselineError(f"{path}: {what}{fault(error)}; {_REMEDY}") from None
    except (TypeError, ValueError, KeyError) as error:
        raise BaselineError(f"{path}: {what}{error}; {_REMEDY}") from None
    if not found:
        raise BaselineError(f"{path}: contains no judged case; {_REMEDY}")
    return found


def _colour(red: bool) -> str:
    return "red" if red else "green"
