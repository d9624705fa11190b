"""What a run judged: the ladder of the timed cases, the table of a run without a GPU, and both as the summary
of a CI job.

Tests record their results with `gemm_record`, which also works across processes: ``variant`` always;
``problem``, ``verdict`` (kind and reason), ``findings`` (check names), each ``note``, and ``waived`` (a line
each) from the correctness tests; ``arch``, ``registers``, ``occupancy`` and ``change`` from the compiler
metrics; ``sectors_per_request`` and ``conflicts`` from the counters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gemm_regression.judge.vocabulary import (
    DEFAULT_MARGIN,
    FASTER,
    LIBRARY,
    NO_BASELINE_FILE,
    NOT_IN_BASELINE,
    SAME_BINARY,
    Policy,
    Verdict,
    VerdictKind,
)
from gemm_regression.model import Case, CaseId, Finding, Kernel, Waiver, variant_name
from gemm_regression.report.figures import Table, count_text, gflops_text, percent_text, safe, share_text

# Reasons that need no explanation; any other reason is shown with the verdict.
_PLAIN: tuple[str, ...] = ("", SAME_BINARY.reason, LIBRARY.reason, FASTER.reason)
_PLAIN += (NOT_IN_BASELINE, NO_BASELINE_FILE)
_STYLES = {"IMPROVED": "green", "NO_BASELINE": "yellow"}
_LADDER = ("stage", "dtype", "config", "GFLOPS", "% cuBLAS", "% DRAM", "change", "bound, %", "GPU", "verdict")


@dataclass(frozen=True)
class Row:
    """One timed case.

    Attributes:
        stage, config, dtype, problem: its names; of a choice, ``config`` is what was chosen.
        gflops: GFLOPS at the median; None if unknown, as are the next ones.
        cublas_ratio: speed relative to cuBLAS's.
        change: relative change of the GFLOPS: of a changed case side by side, else from the stored figure.
        verdict, reason: kind and reason code.
        failed: whether the case fails; where the GPU has no baseline at all, that is one failure of the run.
        dram: of a case that DRAM bounds, the share of its bandwidth, measured in the same run.
        bound: what bounds the case, as `bounds.bound_text`; empty if unknown.
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
        said = self.verdict if self.reason in _PLAIN else f"{self.verdict} {self.reason}"
        return said if self.margin in (None, DEFAULT_MARGIN) else f"{said} margin={100 * self.margin:.3g}%"

    @property
    def cells(self) -> tuple[str, ...]:
        return (
            *(("! " if self.failed else "  ") + self.stage, self.dtype, self.config),
            *(gflops_text(self.gflops), share_text(self.cublas_ratio)),
            *(share_text(self.dram) if self.dram else "", percent_text(self.change)),
            *(self.bound, self.gpu, self.outcome),
        )


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


def _by_problem(rows: Sequence[Row], kernels: Sequence[Kernel]) -> Table:
    """Rows under their problem, in order of appearance; of a problem by dtype, then as the kernels are."""
    stages = [kernel.name for kernel in kernels]
    dtypes = list(dict.fromkeys(dtype.name for kernel in kernels for dtype in kernel.dtypes))

    def place(one: Row) -> tuple[int, int]:
        return _place(dtypes, one.dtype), _place(stages, one.stage)

    cells: list[tuple[str, ...]] = []
    styles = []
    for problem in dict.fromkeys(one.problem for one in rows):
        cells.append((problem,))
        styles.append("bold")
        for one in sorted((one for one in rows if one.problem == problem), key=place):
            cells.append(one.cells)
            styles.append("red" if one.failed else _STYLES.get(one.verdict, ""))
    heads = ("  stage", *_LADDER[1:])
    return Table(heads, "lllrrrrrll", cells, styles, ("bound, %", "% DRAM", "GPU"))


def _place(names: Sequence[str], name: str) -> int:
    return names.index(name) if name in names else len(names)


def ladder_table(rows: Sequence[Row], width: int, color: bool, kernels: Sequence[Kernel] = ()) -> str:
    """The table as text: grouped by problem, all rows, failed ones marked with ``!``."""
    return _by_problem(rows, kernels).text(color, width)


_CHECKED: tuple[str, ...] = ("stage", "dtype", "config", "correct", "races", "sectors/request", "conflicts")
_CHECKED += ("registers", "occupancy", "changed", "found", "verdict")
_OPTIONAL = ("occupancy", "conflicts", "sectors/request", "registers", "races", "changed", "found", "correct")
_METRICS = ("sectors_per_request", "conflicts", "registers", "occupancy")
INTERRUPTED = "interrupted"
_WORST = [VerdictKind.CRASHED, VerdictKind.WRONG, VerdictKind.NOT_EMULATED, VerdictKind.REFUSED]


@dataclass
class CheckRow:
    """A variant of a run without a GPU.

    Attributes:
        stage, dtype, config: its names.
        problems, wrong: the number of problems it was run on, and on which it was not correct.
        found: how often each check of the oracle and the interpreter failed.
        verdicts: how many problems had each verdict.
        metrics: of the compiler and the counters, as text.
        changed: architectures whose metrics differ from the stored ones.
        notes, waived: what was remarked on, and accepted by a waiver, on how many problems.
        done: the ids of the cases that were run.
        left: the number of problems that the run ended before.
        interrupted: whether the run ended before any of its tests.
        failed: whether any of its tests failed.
        compared: whether there were stored metrics to compare with.
    """

    stage: str
    dtype: str
    config: str
    problems: int = 0
    wrong: int = 0
    found: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    metrics: dict[str, str] = field(default_factory=dict)
    changed: list[str] = field(default_factory=list)
    notes: Counter[Finding] = field(default_factory=Counter)
    waived: Counter[str] = field(default_factory=Counter)
    done: set[str] = field(default_factory=set)
    left: int = 0
    interrupted: bool = False
    failed: bool = False
    compared: bool = False

    @property
    def verdict(self) -> str:
        """The worst verdict of its problems, by kind; empty if it was not run. It passes only if all were."""
        if worst := next((kind for kind in _WORST if self.verdicts[kind]), None):
            return worst
        return INTERRUPTED if self.interrupted else VerdictKind.PASS if self.verdicts else ""

    @property
    def cells(self) -> tuple[str, ...]:
        verdict = self.verdict
        if self.interrupted:
            worse = f", {verdict}" if verdict != INTERRUPTED else ""
            verdict = f"{self.problems} of {self.problems + self.left}, {INTERRUPTED}{worse}"
        return (
            *(("! " if self.failed else "") + self.stage, self.dtype, self.config),
            f"{self.problems - self.wrong}/{self.problems}" if self.problems else "",
            str(self.found["race"]) if self.problems else "",
            *(self.metrics.get(name, "") for name in _METRICS),
            ", ".join(self.changed) or ("none" if self.compared else ""),
            ", ".join(f"{name} {n}" for name, n in self.found.most_common()),
            verdict,
        )

    def add(self, report: Any, said: Mapping[str, Any], arch: str) -> None:
        """What one of its tests recorded."""
        self.failed |= report.failed
        if "verdict" in said:
            self.verdicts[str(said["verdict"]).partition(" ")[0]] += 1
        if "problem" in said and not report.skipped:
            self.problems += 1
            self.wrong += report.failed
            self.found.update(str(said.get("findings", "")).split())
            self.notes.update(Finding.from_json(v) for name, v in report.user_properties if name == "note")
            self.waived.update(str(said.get("waived", "")).splitlines())
            self.done.add(f"{said['variant']}-{said['problem']}")
        if said.get("arch", arch) in (arch, "counters"):
            self.metrics |= {name: str(said[name]) for name in _METRICS if name in said}
        self.compared |= "change" in said
        if said.get("change"):
            self.changed.append(str(said["arch"]))


def check_rows(
    reports: Iterable[Any], arch: str, kernels: Sequence[Kernel] = (), left: Iterable[str] = ()
) -> list[CheckRow]:
    """Rows of the variants in pytest's reports, in the order of the kernels; compiler metrics are those of
    ``arch``. ``left``: the ids of the tests that the run ended before."""
    rows: dict[str, CheckRow] = {}
    for report in reports:
        said = killed(report.nodeid, kernels) if report.when == "???" else dict(report.user_properties)
        if name := str(said.get("variant", "")):
            of = CaseId.parse(name)
            rows.setdefault(name, CheckRow(of.kernel, of.dtype, of.config)).add(report, said, arch)
    declared = _variants(kernels)
    for test in left:
        if (name := _variant(test, declared)) in rows:
            rows[name].interrupted = True
            rows[name].left += "::test_kernel[" in test
    return [rows[name] for name in sorted(rows, key=lambda name: _place(declared, name))]


def killed(nodeid: str, kernels: Sequence[Kernel]) -> Mapping[str, Any]:
    """What a correctness test would have recorded that its worker's death kept from saying so; empty for
    another test."""
    if "::test_kernel[" not in nodeid:
        return {}
    case, found = nodeid.partition("[")[2].removesuffix("]"), _variant(nodeid, _variants(kernels))
    return {"variant": found, "problem": case, "verdict": VerdictKind.CRASHED} if found else {}


def _variants(kernels: Sequence[Kernel]) -> list[str]:
    return [variant_name(k, c, d) for k in kernels for d in k.dtypes for c in k.declared]


def _variant(nodeid: str, names: Iterable[str]) -> str:
    """Which of these variants a test is of; empty if of none."""
    case = nodeid.partition("[")[2]
    return max((name for name in names if case.startswith(f"{name}-")), key=len, default="")


def _of_variants(rows: Sequence[CheckRow]) -> Table:
    styles = ["red" if row.failed else "" for row in rows]
    return Table(_CHECKED, "lllrrrrrrlll", [row.cells for row in rows], styles, _OPTIONAL)


def check_table(rows: Sequence[CheckRow], color: bool, width: int = 0) -> str:
    """The table as text; failed rows are marked with ``!``."""
    return _of_variants(rows).text(color, width)


def counts_text(rows: Sequence[CheckRow]) -> str:
    """``63 variants checked without a GPU: 62 PASS, 1 NOT_EMULATED``."""
    said = _counted(row.verdict for row in rows if row.verdict)
    return f"{count_text(len(rows), 'variant')} checked without a GPU" + (f": {said}" if said else "")


def _counted(verdicts: Iterable[str]) -> str:
    return ", ".join(f"{n} {kind}" for kind, n in Counter(verdicts).most_common())


def answered_text(answered: int, tests: int) -> str:
    """``1,900 of 1,988 tests answered from the cache …``."""
    return (
        f"{answered:,} of {tests:,} tests answered from the cache (they passed, and nothing they depend on "
        "has changed); --no-cache runs all"
    )


def notes_lines(rows: Sequence[CheckRow]) -> list[str]:
    """What is noted and no error: one line per kernel, check and line of the .cu file."""
    groups: dict[tuple[str, str], tuple[str, int, set[str]]] = {}
    for row in rows:
        for note, problems in row.notes.items():
            said = f"{note.thread} {note.problem}".strip() or note.message
            first, seen, variants = groups.get((row.stage, note.title), (said, 0, set()))
            groups[row.stage, note.title] = first, seen + problems, variants | {f"{row.dtype}-{row.config}"}
    lines = [
        f"{stage}: {title}: {said} (variants: {len(variants)}, problems: {seen})"
        for (stage, title), (said, seen, variants) in groups.items()
    ]
    return [f"{count_text(len(lines), 'note')}, no errors without --strict-notes:", *lines] if lines else []


def waived_lines(rows: Sequence[CheckRow], unused: Sequence[tuple[str, Waiver]]) -> list[str]:
    """What the declarations accept, one line per kernel and waiver, and waivers that matched nothing."""
    variants: Counter[tuple[str, str]] = Counter((row.stage, waiver) for row in rows for waiver in row.waived)
    lines = []
    for (stage, waiver), count in variants.items():
        seen = sum(row.waived[waiver] for row in rows if row.stage == stage)
        lines.append(f"waived: {stage}: {waiver} (variants: {count}, problems: {seen})")
    return lines + [f"matches no finding any more, remove it: {stage}: waiver of {w}" for stage, w in unused]


def job_summary(
    rows: Sequence[Row],
    header: Sequence[str],
    exit_status: int = 0,
    other_failures: Sequence[str] = (),
    checked: Sequence[CheckRow] = (),
    kernels: Sequence[Kernel] = (),
    what_failed: Sequence[str] = (),
) -> str:
    """A GitHub job summary: the number of each verdict, the lines of ``header``, failures, then all cases.

    ``other_failures`` are the ids of failed tests that are no kernel's, ``checked`` the rows of a run without
    a GPU, ``what_failed`` the findings of the kernels' failures. Green only if something was judged, nothing
    failed, and pytest's ``exit_status`` is 0.
    """
    failed = [row for row in rows if row.failed]
    said = [_counted(row.verdict for row in rows), counts_text(checked) if checked else ""]
    said = [each for each in said if each] or ["nothing was judged"]
    # What was timed is in the rows.
    timed = ("::test_performance[", f"{VerdictKind.NO_BASELINE}:")
    if any(not any(word in what for word in timed) for what in what_failed):
        said.append("kernels failed")
    if other_failures:
        said.append(f"{count_text(len(other_failures), 'other test')} failed")
    if exit_status not in (0, 1):
        said.append(f"pytest ended with exit status {exit_status}")
    red = failed or other_failures or what_failed
    green = not (red or exit_status) and (rows or checked)
    parts = [f"## {'Green' if green else 'Red'}: {', '.join(said)}", _bullets(header)]
    if red:
        parts += [
            "### Failed",
            _bullets(what_failed),
            _by_problem(failed, kernels).markdown() if failed else "",
        ]
        parts.append(_bullets(other_failures))
    if rows:
        every = _by_problem(rows, kernels).markdown()
        parts.append(f"<details><summary>All {len(rows)} cases</summary>\n\n{every}\n\n</details>")
    if checked:
        parts.append(_of_variants(checked).markdown())
    return "\n\n".join(part for part in parts if part) + "\n"


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {safe(line)}" for line in lines)
