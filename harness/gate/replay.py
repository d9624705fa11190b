"""Judges the cases of a stored run again, from its JSON alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from harness.baselines.fields import BaselineError, read_json
from harness.files import fault
from harness.verdicts.evidence import again

_REMEDY = "only files written by `pytest --benchmark-json` of this suite can be judged again"


class _Stats(BaseModel):
    data: list[float]


class _Benchmark(BaseModel):
    extra_info: dict[str, Any]
    stats: _Stats


class _Said(BaseModel):
    """What a run recorded of a case besides its evidence. Older runs do not contain ``red``."""

    case: str
    verdict: str
    verdict_reason: str
    red: bool | None = None


class _Unusable(BaseModel, extra="allow"):
    seconds: list[float]


class _Run(BaseModel):
    benchmarks: list[_Benchmark]
    gemm_unusable: list[_Unusable] = []


@dataclass(frozen=True)
class Replayed:
    """A ``case`` judged again; ``said`` and ``now`` are kind, reason and colour, as recorded and as judged
    now; ``red`` whether it fails now."""

    case: str
    said: str
    now: str
    red: bool


def replay(path: Path) -> list[Replayed]:
    """Every case of a run, judged again. Raises BaselineError for a file without the necessary evidence."""
    document = read_json(path, _REMEDY)
    found, case = [], ""
    try:
        run = _Run.model_validate(document)
        judged = [(record.extra_info, record.stats.data) for record in run.benchmarks]
        judged += [(info.model_extra or {}, info.seconds) for info in run.gemm_unusable]
        for info, seconds in judged:
            case = f"{info.get('case', '?')}: "
            verdict, policy = again(info, seconds)
            said, red = _Said.model_validate(info), verdict.failed(policy)
            then = f"{said.verdict} {said.verdict_reason}, {_colour(red if said.red is None else said.red)}"
            found.append(Replayed(said.case, then, f"{verdict.outcome}, {_colour(red)}", red))
    except ValidationError as error:
        raise BaselineError(f"{path}: {case}{fault(error)}; {_REMEDY}") from None
    except (ValueError, KeyError) as error:
        raise BaselineError(f"{path}: {case}{error}; {_REMEDY}") from None
    if not found:
        raise BaselineError(f"{path}: contains no judged case; {_REMEDY}")
    return found


def _colour(red: bool) -> str:
    return "red" if red else "green"
