"""Judges a stored run again, its cases and its machines, from its JSON alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from gemm_regression.baselines.fields import BaselineError, read_json
from gemm_regression.files import fault
from gemm_regression.judge.evidence import again
from gemm_regression.judge.machine import again as machine_again
from gemm_regression.judge.vocabulary import VerdictKind

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
