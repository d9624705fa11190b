"""What a claim of the notes is, what it is judged by, and how the judgements of several GPUs become one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from gemm_regression.compiler import tools
from gemm_regression.compiler.static import ARCHES, StaticFigures, store
from gemm_regression.counters import check as counts
from gemm_regression.counters.traffic import Known, Seen
from gemm_regression.model import Kernel
from gemm_regression.project.loader import Project
from gemm_regression.tune import figures
from gemm_regression.tune.figures import Surveyed


class Status(StrEnum):
    """The result for a claim. DEPENDS: it holds for some GPUs, shapes, kernels or widths, not for others."""

    HOLDS = "HOLDS"
    CONTRADICTED = "CONTRADICTED"
    DEPENDS = "DEPENDS"
    NOT_MEASURED = "NOT MEASURED HERE"


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
    """

    gpus: Sequence[Surveyed] = ()
    static: Mapping[str, Mapping[str, StaticFigures]] = field(default_factory=dict)
    counters: Mapping[str, counts.ByProblem] = field(default_factory=dict)
    kernels: Sequence[Kernel] = ()
    planted: Mapping[str, str] = field(default_factory=dict)
    seen: Mapping[str, Mapping[str, Seen]] = field(default_factory=dict)

    @classmethod
    def of(cls, project: Project) -> Facts:
        """What a project has stored. Raises BaselineError or StoreError for a file that cannot be trusted,
        ValueError for a results file of planted bugs that is damaged."""
        nvcc, nvdisasm = tools.pins()
        file = project.tests / "mutants" / "gpu.json"
        planted = json.loads(file.read_text(encoding="utf-8"))["values"] if file.is_file() else {}
        return cls(
            figures.every_survey(project.baselines),
            {arch: store.load(arch, nvcc, nvdisasm, project.static) for arch in ARCHES},
            counts.load_counters(nvcc, project.static),
            project.kernels,
            planted,
            Known.of(project.baselines).seen,
        )


@dataclass(frozen=True)
class Judged:
    """A verdict, and the measurements that it is based on, as phrases."""

    verdict: Status
    figures: tuple[str, ...] = ()


Predicate = Callable[[Facts], Judged]
UNEXPLAINED = "the figures say so; why is not known"


@dataclass(frozen=True)
class Claim:
    """A statement of the notes.

    Attributes:
        note, section: its source.
        gist: the statement.
        gpu: the GPU that the statement is about; empty for any.
        judge: computes the verdict from the stored measurements.
        holds, contradicted, depends, unmeasured: the explanation, for each verdict.
    """

    note: str
    section: str
    gist: str
    judge: Predicate
    gpu: str = ""
    holds: str = ""
    contradicted: str = ""
    depends: str = ""
    unmeasured: str = ""

    def why(self, verdict: Status) -> str:
        """The explanation of a verdict, or a default if the claim has none."""
        return {
            Status.HOLDS: self.holds or "as the figures show",
            Status.CONTRADICTED: self.contradicted or UNEXPLAINED,
            Status.DEPENDS: self.depends or "GPUs, shapes or kernels differ, as the figures show",
            Status.NOT_MEASURED: self.unmeasured or "nothing stored says",
        }[verdict]


def together(found: Iterable[tuple[bool, str]]) -> Judged:
    """Combines several results into one. Each is: whether the claim holds, and the measurements."""
    known = list(found)
    if not known:
        return Judged(Status.NOT_MEASURED)
    held = {holds for holds, _ in known}
    verdict = Status.DEPENDS if len(held) > 1 else Status.HOLDS if held == {True} else Status.CONTRADICTED
    return Judged(verdict, tuple(said for _, said in known))
