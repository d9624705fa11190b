"""What a claim of the notes is, the facts that it is judged by, and how what was seen becomes a verdict."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from gemm_regression.baselines import current, load_run
from gemm_regression.compiler import tools
from gemm_regression.compiler.static import ARCHES, StaticFigures, store
from gemm_regression.counters import check as counts
from gemm_regression.counters.traffic import NcuCounts, TrafficData
from gemm_regression.model import Kernel
from gemm_regression.project.loader import Project
from gemm_regression.tune import figures
from gemm_regression.tune.figures import SURVEY, Surveyed
from gemm_regression.tune.table import Speed
from lab.advice.policies import NOTES


class Status(StrEnum):
    """The verdict. HOLDS_IF: it holds for some cases and not for others, or under a condition that the note
    does not state."""

    HOLDS = "HOLDS"
    HOLDS_IF = "HOLDS IF"
    CONTRADICTED = "CONTRADICTED"
    NOT_MEASURED = "NOT MEASURED"


@dataclass(frozen=True)
class Facts:
    """The stored measurements.

    Attributes:
        gpus: speeds, of each GPU model with a baseline or a survey.
        static: compiler metrics by architecture and variant name.
        counters: memory counters by variant name and problem id, for sm_90a.
        kernels: the declarations.
        seen: ncu's counts, by the folder of the GPU and case id.
        planted: the wrong values that each planted bug caused on an H200, by the bug's name; empty if none.
        searched: all speeds of a GPU by its folder, those of tuned spaces among them.
        commits: by the folder of a GPU and case id, the commit that was measured.
    """

    gpus: Sequence[Surveyed] = ()
    static: Mapping[str, Mapping[str, StaticFigures]] = field(default_factory=dict)
    counters: Mapping[str, counts.ByProblem] = field(default_factory=dict)
    kernels: Sequence[Kernel] = ()
    planted: Mapping[str, str] = field(default_factory=dict)
    seen: Mapping[str, Mapping[str, NcuCounts]] = field(default_factory=dict)
    searched: Mapping[str, Sequence[Speed]] = field(default_factory=dict)
    commits: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @classmethod
    def of(cls, project: Project) -> Facts:
        """What a project has stored. Raises BaselineError or StoreError for a file that cannot be trusted,
        ValueError for a results file of planted bugs that is damaged."""
        nvcc, nvdisasm = tools.pins()
        file = project.tests / "mutants" / "gpu.json"
        planted = json.loads(file.read_text(encoding="utf-8"))["values"] if file.is_file() else {}
        gpus = figures.every_survey(project.baselines)
        return cls(
            gpus,
            {arch: store.load(arch, nvcc, nvdisasm, project.static) for arch in ARCHES},
            counts.load_counters(nvcc, project.static),
            project.kernels,
            planted,
            TrafficData.of(project.baselines).seen,
            {gpu.slug: figures.measured(project, gpu.slug)[0] for gpu in gpus},
            {gpu.slug: _commits(project.baselines, gpu.slug) for gpu in gpus},
        )


def _commits(root: Path, slug: str) -> dict[str, str]:
    """The commit of each case: of its baseline, or of the survey, whose speeds come first."""
    survey, stored = root / slug / SURVEY, current(root, slug)
    found = {case: str(of.info["commit"]) for case, of in stored.entries.items()} if stored else {}
    if survey.is_file():
        run = load_run(survey)
        found |= dict.fromkeys(run.entries, str(run.commit_info["id"]))
    return found


@dataclass(frozen=True)
class Seen:
    """One thing that was seen.

    Attributes:
        holds: whether the claim holds by it; None if it only stands beside it, for comparison.
        said: the figure, in words.
        gpu: the folder of the GPU that it was measured on; empty if no GPU was.
        cases: the ids of the cases that were measured there.
        commit: that was measured; empty if it is that of the cases' speeds.
    """

    holds: bool | None
    said: str
    gpu: str = ""
    cases: tuple[str, ...] = ()
    commit: str = ""


@dataclass(frozen=True)
class Judged:
    """A verdict, and what it is based on."""

    verdict: Status
    seen: tuple[Seen, ...] = ()


@dataclass(frozen=True)
class Claim:
    """A statement of the notes, a record of claims.toml.

    Attributes:
        note, at: its source: a key of ``NOTES``, and the section.
        says: the statement, in at most twelve words.
        when: the condition under which the note says it.
        judge: what is asked of the stored facts: the name of a rule (rules.py, own.py) with its arguments.
        holds, holds_if, contradicted, unmeasured: why, for each verdict.
        only_if: where it holds, it does so under the condition that ``holds_if`` has.
    """

    note: str
    at: str
    says: str
    when: str
    judge: Mapping[str, Any]
    holds: str = ""
    holds_if: str = ""
    contradicted: str = ""
    unmeasured: str = ""
    only_if: bool = False

    @property
    def title(self) -> str:
        """The title of its note."""
        return NOTES[self.note]

    def why(self, verdict: Status) -> str:
        """The reason of a verdict; empty if the claim has none for this one."""
        return str(
            getattr(self, verdict.name.lower() if verdict is not Status.NOT_MEASURED else "unmeasured")
        )


def together(found: Iterable[Seen], only_if: bool = False) -> Judged:
    """The verdict of all that was seen."""
    known = tuple(found)
    held = {one.holds for one in known} - {None}
    if not held:
        return Judged(Status.NOT_MEASURED, known)
    if len(held) > 1 or (held == {True} and only_if):
        return Judged(Status.HOLDS_IF, known)
    return Judged(Status.HOLDS if held == {True} else Status.CONTRADICTED, known)


def read(text: str) -> tuple[Claim, ...]:
    """The claims of a file; ``{name}`` in it stands for the variant that the table ``variants`` has. Raises
    TypeError for a field that a claim does not have."""
    for name, variant in tomllib.loads(text).get("variants", {}).items():
        text = text.replace(f"{{{name}}}", variant)
    return tuple(Claim(**one) for one in tomllib.loads(text)["claim"])


CLAIMS = read(Path(__file__).with_suffix(".toml").with_stem("claims").read_text(encoding="utf-8"))
