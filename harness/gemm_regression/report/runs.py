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

from gemm_regression.judge import vocabulary
from gemm_regression.judge.vocabulary import NO_BASELINE_FILE, NOT_IN_BASELINE, VerdictKind
from gemm_regression.model import CaseId, Finding, Kernel, Waiver, variant_name
from gemm_regression.report.failures import placed
from gemm_regression.report.figures import (
    TextTable,
    count_text,
    counted_text,
    percent_text,
    render,
    share_text,
    speed_text,
)
from gemm_regression.run.timed import TimedCase

_SAME = (vocabulary.SAME_BINARY.reason, vocabulary.LIBRARY.reason, vocabulary.FASTER.reason)
_PLAIN = ("", *_SAME, NOT_IN_BASELINE, NO_BASELINE_FILE)  # reasons that need no explanation
_STYLES = {VerdictKind.IMPROVED: "green", VerdictKind.NO_BASELINE: "yellow"}
_LADDER = ("  stage", "dtype", "config", "GFLOPS", "% cuBLAS", "% DRAM", "change", "bound, %", "GPU")


@dataclass(frozen=True)
class RunRow:
    """One timed case.

    Attributes:
        result: what was judged; of a choice, the config is what was chosen.
        dram: of a case that DRAM bounds, the share of its bandwidth, measured in the same run.
        bound: what bounds the case, as `figures.bound_text`; empty if unknown.
        gpu: the number of the GPU that judged it, in a run of several.
    """

    result: TimedCase
    dram: float | None = None
    bound: str = ""
    gpu: str = ""

    @property
    def stage(self) -> str:
        return self.result.case.listed.kernel.name

    @property
    def failed(self) -> bool:
        """Where the GPU has no baseline at all, that is one failure of the run."""
        verdict = self.result.verdict
        return verdict.failed(self.result.policy) and verdict.reason != NO_BASELINE_FILE

    @property
    def outcome(self) -> str:
        """The verdict, with its reason if that adds information, and a margin other than the default."""
        verdict = self.result.verdict
        said = verdict.kind.value if verdict.reason in _PLAIN else str(verdict.outcome)
        if verdict.margin in (None, vocabulary.DEFAULT_MARGIN):
            return said
        return f"{said} margin={100 * verdict.margin:.3g}%"

    @property
    def cells(self) -> tuple[str, ...]:
        case, verdict = self.result.case, self.result.verdict
        mark, dram = "! " if self.failed else "  ", "" if self.dram is None else share_text(self.dram)
        rate = speed_text(verdict.gflops, case.kernel.operation.unit)
        speed = rate, share_text(self.result.cublas_ratio), dram
        names = mark + self.stage, case.dtype.name, case.choice or case.config.label
        return *names, *speed, percent_text(verdict.change), self.bound, self.gpu, self.outcome


def ladder(rows: Sequence[RunRow], kernels: Sequence[Kernel] = ()) -> TextTable:
    """All rows under their problem, in order of appearance; of a problem by dtype, then as the kernels are.
    Failed ones are marked with ``!``."""
    stages = [kernel.name for kernel in kernels]
    dtypes = list(dict.fromkeys(dtype.name for kernel in kernels for dtype in kernel.dtypes))

    def place(one: RunRow) -> tuple[int, int]:
        return _place(dtypes, one.result.case.dtype.name), _place(stages, one.stage)

    groups: dict[str, list[RunRow]] = {}
    for one in sorted(rows, key=place):
        groups.setdefault(one.result.case.problem.id, []).append(one)
    cells, styles = list[tuple[str, ...]](), []
    for problem in dict.fromkeys(one.result.case.problem.id for one in rows):
        cells += [(problem,), *(one.cells for one in groups[problem])]
        usual = [_STYLES.get(one.result.verdict.kind, "") for one in groups[problem]]
        red = [one.failed for one in groups[problem]]
        styles += ["bold", *("red" if fails else style for fails, style in zip(red, usual, strict=True))]
    return TextTable((*_LADDER, "verdict"), "lllrrrrrll", cells, styles, ("bound, %", "% DRAM", "GPU"))


def _place(names: Sequence[str], name: str) -> int:
    return names.index(name) if name in names else len(names)


_METRICS = ("sectors_per_request", "conflicts", "registers", "occupancy")
_CHECKED = ("stage", "dtype", "config", "correct", "races", "sectors/request", *_METRICS[1:], "changed")
_OPTIONAL = ("occupancy", "conflicts", "sectors/request", "registers", "races", "changed", "found", "correct")
INTERRUPTED = "interrupted"
METRICS = "METRICS"  # they differ from the stored ones, or none are stored
_WORST = [
    *(VerdictKind.NOT_COMPILED, VerdictKind.NOT_LAUNCHED, VerdictKind.CRASHED, VerdictKind.WRONG),
    *(VerdictKind.NOT_EMULATED, VerdictKind.REFUSED),
]


@dataclass
class CheckRow:
    """A variant of a run without a GPU.

    Attributes:
        of: its names.
        wrong: the number of problems on which it was not correct.
        found: how often each check of the oracle and the interpreter failed.
        verdicts: how many problems had each verdict.
        metrics: of the compiler and the counters, as text.
        changed: architectures whose metrics differ from the stored ones; None where there are none stored.
        notes, waived: what was remarked on, and accepted by a waiver, on how many problems.
        done: the ids of the cases that were run.
        left: the ids of the tests that the run ended before.
        failed: whether any of its tests failed.
    """

    of: CaseId
    wrong: int = 0
    found: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    metrics: dict[str, str] = field(default_factory=dict)
    changed: list[str] | None = None
    notes: Counter[Finding] = field(default_factory=Counter)
    waived: Counter[str] = field(default_factory=Counter)
    done: set[str] = field(default_factory=set)
    left: list[str] = field(default_factory=list)
    failed: bool = False

    @property
    def verdict(self) -> str:
        """The worst verdict of its problems, by kind; empty if it was not run. It passes only if all did, and
        if its metrics are those that are stored."""
        if worst := next((kind for kind in _WORST if self.verdicts[kind]), None):
            return worst
        done = VerdictKind.PASS if self.verdicts else ""
        return INTERRUPTED if self.left else METRICS if self.changed else done

    @property
    def cells(self) -> tuple[str, ...]:
        verdict, problems = self.verdict, len(self.done)
        if self.left:
            every = problems + sum("::test_kernel[" in test for test in self.left)
            worse = f", {verdict}" if verdict != INTERRUPTED else ""
            verdict = f"{problems} of {every}, {INTERRUPTED}{worse}"
        return (
            *(("! " if self.failed else "") + self.of.kernel, self.of.dtype, self.of.config),
            *((f"{problems - self.wrong}/{problems}", str(self.found["race"])) if problems else ("", "")),
            *(self.metrics.get(name, "") for name in _METRICS),
            "" if self.changed is None else ", ".join(self.changed) or "none",
            ", ".join(f"{name} {n}" for name, n in self.found.most_common()),
            verdict,
        )

    def add(self, report: Any, said: Mapping[str, Any], arch: str) -> None:
        """What one of its tests recorded."""
        self.failed |= report.failed
        if "verdict" in said:
            self.verdicts[str(said["verdict"]).partition(" ")[0]] += 1
        if "problem" in said and not report.skipped:
            self.done |= {f"{said['variant']}-{problem}" for problem in str(said["problem"]).split()}
            self.wrong += int(said.get("wrong", report.failed))
            self.found.update(str(said.get("findings", "")).split())
            self.notes.update(Finding.from_json(v) for name, v in report.user_properties if name == "note")
            self.waived.update(str(said.get("waived", "")).splitlines())
        if said.get("arch", arch) in (arch, "counters"):
            self.metrics |= {name: str(said[name]) for name in _METRICS if name in said}
        if "change" in said:
            self.changed = [*(self.changed or ()), *([str(said["arch"])] if said["change"] else [])]


def check_rows(
    reports: Iterable[Any], arch: str, kernels: Sequence[Kernel] = (), left: Iterable[str] = ()
) -> list[CheckRow]:
    """Rows of the variants in pytest's reports, in the order of the kernels; compiler metrics are those of
    ``arch``. ``left``: the ids of the tests that the run ended before."""
    rows: dict[str, CheckRow] = {}
    for report in reports:
        said = killed(report.nodeid, kernels) if report.when == "???" else dict(report.user_properties)
        if name := str(said.get("variant", "")):
            rows.setdefault(name, CheckRow(CaseId.parse(name))).add(report, said, arch)
    declared = _variants(kernels)
    for test in left:
        if (name := _variant(test, declared)) in rows:
            rows[name].left.append(test)
    return [rows[name] for name in sorted(rows, key=lambda name: _place(declared, name))]


def killed(nodeid: str, kernels: Sequence[Kernel]) -> Mapping[str, Any]:
    """What a correctness test would have recorded that its worker's death kept from saying so; empty for
    another test."""
    found = _variant(nodeid, _variants(kernels)) if "::test_kernel[" in nodeid else ""
    case = nodeid.partition("[")[2].removesuffix("]")
    return {"variant": found, "problem": case, "verdict": VerdictKind.CRASHED} if found else {}


def _variants(kernels: Sequence[Kernel]) -> list[str]:
    return [variant_name(k, c, d) for k in kernels for d in k.dtypes for c in k.declared]


def _variant(nodeid: str, names: Iterable[str]) -> str:
    """Which of these variants a test is of; empty if of none."""
    case = nodeid.partition("[")[2]
    return max((name for name in names if case.startswith(f"{name}-")), key=len, default="")


def checks(rows: Sequence[CheckRow]) -> TextTable:
    """Failed rows are marked with ``!``."""
    styles = ["red" if row.failed else "" for row in rows]
    heads = (*_CHECKED, "found", "verdict")
    return TextTable(heads, "lllrrrrrrlll", [row.cells for row in rows], styles, _OPTIONAL)


def counts_text(rows: Sequence[CheckRow]) -> str:
    """``63 variants checked without a GPU: 62 PASS, 1 NOT_EMULATED``."""
    said = counted_text(row.verdict for row in rows if row.verdict)
    return f"{count_text(len(rows), 'variant')} checked without a GPU" + (f": {said}" if said else "")


def judged_text(rows: Sequence[RunRow]) -> str:
    """``63 cases: 62 PASS, 1 REGRESSED``."""
    return f"{count_text(len(rows), 'case')}: {counted_text(row.result.verdict.kind for row in rows)}"


def answered_text(answered: int, tests: int) -> str:
    """``1,900 of 1,988 tests answered from the cache …``."""
    why = "they passed, and nothing they depend on has changed"
    return f"{answered:,} of {tests:,} tests answered from the cache ({why}); --no-cache runs all"


def notes_lines(rows: Sequence[CheckRow], kernels: Sequence[Kernel] = ()) -> list[str]:
    """What is noted and no error: one line per kernel, check and line of the .cu file."""
    groups: dict[str, list[tuple[CheckRow, Finding]]] = {}
    sources = {kernel.name: kernel.source for kernel in kernels}
    for row in rows:
        for note in row.notes:
            title = placed(note, sources.get(row.of.kernel)).title
            groups.setdefault(f"{row.of.kernel}: {title}", []).append((row, note))
    lines = []
    for title, found in groups.items():
        note, variants = found[0][1], {row.of for row, _ in found}
        said = f"{note.thread} {note.problem}".strip() or note.message
        problems = sum(row.notes[note] for row, note in found)
        lines.append(f"{title}: {said} (variants: {len(variants)}, problems: {problems})")
    return [f"{count_text(len(lines), 'note')}, no errors without --strict-notes:", *lines] if lines else []


def waived_lines(rows: Sequence[CheckRow], unused: Sequence[tuple[str, Waiver]]) -> list[str]:
    """What the declarations accept, one line per kernel and waiver, and waivers that matched nothing."""
    seen: dict[str, list[int]] = {}
    for row in rows:
        for waiver, problems in row.waived.items():
            seen.setdefault(f"{row.of.kernel}: {waiver}", []).append(problems)
    lines = [f"waived: {what} (variants: {len(n)}, problems: {sum(n)})" for what, n in seen.items()]
    return lines + [f"matches no finding any more, remove it: {stage}: waiver of {w}" for stage, w in unused]


def job_summary(
    rows: Sequence[RunRow],
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
    said = [counted_text(row.result.verdict.kind for row in rows), counts_text(checked) if checked else ""]
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
    tables = {
        "failed": ladder(failed, kernels).markdown() if failed else "",
        "cases": ladder(rows, kernels).markdown() if rows else "",
        "checked": checks(checked).markdown() if checked else "",
    }
    lines = {"header": header, "what_failed": what_failed, "other_failures": other_failures}
    made = render("summary.md.jinja", green=green, red=red, said=said, number=len(rows), **tables, **lines)
    return f"{made}\n"
