"""Results as text: a row of the ladder table, and the order of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gemm_regression.judge.paired import FASTER, LIBRARY, SAME_BINARY
from gemm_regression.judge.vocabulary import (
    DEFAULT_MARGIN,
    NO_BASELINE_FILE,
    NOT_IN_BASELINE,
    Policy,
    Verdict,
)
from gemm_regression.model import Case, Kernel

__all__ = ["Row", "in_order", "row"]

# Reasons that need no explanation; any other reason is shown with the verdict.
_PLAIN = (SAME_BINARY.reason, LIBRARY.reason, FASTER.reason, NOT_IN_BASELINE, NO_BASELINE_FILE)


@dataclass(frozen=True)
class Row:
    """One case.

    Attributes:
        stage, config, dtype, problem: its names; of a choice, ``config`` is what was chosen.
        gflops: GFLOPS at the median; None if unknown, as are the next ones.
        cublas_ratio: speed relative to cuBLAS's.
        dram: of a case that DRAM bounds, the share of its bandwidth, measured in the same run.
        bound: what bounds the case, as `bounds.bound_text`; empty if unknown.
        change: relative change of the GFLOPS: of a changed case side by side, else from the stored figure.
        verdict, reason: kind and reason code.
        failed: whether the case fails; where the GPU has no baseline at all, that is one failure of the run.
        gpu: the number of the GPU that judged it, in a run of several.
        margin: the slowdown that counted, of a pair; relative.
    """

    stage: str
    config: str
    dtype: str
    problem: str
    gflops: float | None
    cublas_ratio: float | None
    change: float | None
    verdict: str
    reason: str = ""
    failed: bool = False
    dram: float | None = None
    bound: str = ""
    gpu: str = ""
    margin: float | None = None

    @property
    def outcome(self) -> str:
        """The verdict, with its reason if that adds information, and a margin other than the default."""
        said = self.verdict if self.reason in ("", *_PLAIN) else f"{self.verdict} {self.reason}"
        if self.margin is None or self.margin == DEFAULT_MARGIN:
            return said
        return f"{said} margin={100 * self.margin:.3g}%"


def row(case: Case, verdict: Verdict, cublas_ratio: float | None, policy: Policy) -> Row:
    """The row of a judged case."""
    return Row(
        stage=case.listed.kernel.name,
        config=case.choice or case.config.label,
        dtype=case.dtype.name,
        problem=case.problem.id,
        gflops=verdict.gflops,
        cublas_ratio=cublas_ratio,
        change=verdict.change,
        verdict=verdict.kind.value,
        reason=verdict.reason,
        failed=verdict.failed(policy) and verdict.reason != NO_BASELINE_FILE,
        margin=verdict.margin,
    )


def in_order(rows: Sequence[Row], kernels: Sequence[Kernel]) -> dict[str, list[Row]]:
    """Rows by problem, in order of appearance; within a problem by dtype, then in the order of the
    kernels."""
    stages = {kernel.name: number for number, kernel in enumerate(kernels)}
    dtypes = list(dict.fromkeys(dtype.name for kernel in kernels for dtype in kernel.dtypes))
    groups: dict[str, list[Row]] = {}
    for one in rows:
        groups.setdefault(one.problem, []).append(one)
    for group in groups.values():
        group.sort(
            key=lambda r: (
                dtypes.index(r.dtype) if r.dtype in dtypes else len(dtypes),
                stages.get(r.stage, len(stages)),
            )
        )
    return groups
