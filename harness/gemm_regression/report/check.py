"""The table of a run without a GPU: one row per variant, from what its tests recorded.

Tests record their results with `gemm_record`, which also works across processes: ``variant`` always;
``problem``, ``verdict`` (kind and reason), ``findings`` (check names), ``notes`` and ``waived`` (a line each)
from the correctness tests;
``arch``, ``registers``, ``occupancy``, ``limited_by`` and ``change`` from the compiler metrics;
``sectors_per_request`` and ``conflicts`` from the counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table

from gemm_regression.judge.vocabulary import VerdictKind
from gemm_regression.model import CaseId, Kernel, Waiver, variant_name
from gemm_regression.report.terminal import render

HEADS = [*("stage", "dtype", "config", "correct", "races", "sectors/request", "conflicts")]
HEADS += ["registers", "occupancy", "changed", "found", "verdict"]
ALIGN = "lllrrrrrrlll"
_LEFT_OUT = ("occupancy", "conflicts", "sectors/request", "registers", "races", "changed")
INTERRUPTED = "interrupted"
_WORST = [VerdictKind.CRASHED, VerdictKind.WRONG, VerdictKind.NOT_EMULATED, VerdictKind.REFUSED]


@dataclass
class CheckRow:
    """A variant.

    Attributes:
        stage, dtype, config: its names.
        problems: the number of problems it was run on.
        wrong: the number of these on which it was not correct.
        found: how often each check of the oracle and the interpreter failed.
        verdicts: how many problems had each verdict.
        sectors_per_request, conflicts: from the counters, as text.
        registers, occupancy: from the compiler, as text.
        changed: architectures whose metrics differ from the stored ones.
        notes: what was remarked on, on how many problems.
        waived: what was accepted by a waiver, on how many problems.
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
    sectors_per_request: str = ""
    conflicts: str = ""
    registers: str = ""
    occupancy: str = ""
    changed: list[str] = field(default_factory=list)
    verdicts: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
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
    def shown_verdict(self) -> str:
        """The verdict; with how many problems it is of, where that is not all."""
        if not self.interrupted:
            return self.verdict
        far = f"{self.problems} of {self.problems + self.left}, {INTERRUPTED}"
        return far if self.verdict == INTERRUPTED else f"{far}, {self.verdict}"

    def cells(self) -> tuple[str, ...]:
        correct = f"{self.problems - self.wrong}/{self.problems}" if self.problems else ""
        return (
            ("! " if self.failed else "") + self.stage,
            self.dtype,
            self.config,
            correct,
            str(self.found["race"]) if self.problems else "",
            self.sectors_per_request,
            self.conflicts,
            self.registers,
            self.occupancy,
            ", ".join(self.changed) or ("none" if self.compared else ""),
            ", ".join(f"{name} {n}" for name, n in self.found.most_common()),
            self.shown_verdict,
        )


def check_rows(
    reports: Iterable[Any], arch: str, kernels: Sequence[Kernel] = (), left: Iterable[str] = ()
) -> list[CheckRow]:
    """Rows of the variants in pytest's reports, in the order of the kernels; compiler metrics are those of
    ``arch``. ``left``: the ids of the tests that the run ended before."""
    rows: dict[str, CheckRow] = {}
    for report in reports:
        said: Mapping[str, Any] = dict(report.user_properties)
        if report.when == "???":
            said = killed(report.nodeid, kernels)
        if "variant" not in said:
            continue
        name = str(said["variant"])
        of = CaseId.parse(name)
        row = rows.setdefault(name, CheckRow(of.kernel, of.dtype, of.config))
        row.failed |= report.failed
        verdict = str(said.get("verdict", "")).partition(" ")[0]
        if verdict:
            row.verdicts[verdict] += 1
        if "problem" in said and not report.skipped:
            row.problems += 1
            row.wrong += report.failed
            row.found.update(str(said.get("findings", "")).split())
            row.notes.update(str(said.get("notes", "")).splitlines())
            row.waived.update(str(said.get("waived", "")).splitlines())
            row.done.add(f"{name}-{said['problem']}")
        if said.get("arch") == arch:
            row.registers, row.occupancy = str(said["registers"]), str(said["occupancy"])
        row.compared |= "change" in said
        if said.get("change"):
            row.changed.append(str(said["arch"]))
        if "sectors_per_request" in said:
            row.sectors_per_request, row.conflicts = str(said["sectors_per_request"]), str(said["conflicts"])
    ladder = _variants(kernels)
    for test in left:
        if (name := _variant(test, ladder)) in rows:
            rows[name].interrupted = True
            rows[name].left += "::test_kernel[" in test
    place = {name: i for i, name in enumerate(ladder)}
    return [rows[name] for name in sorted(rows, key=lambda name: place.get(name, len(place)))]


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


def check_table(rows: Sequence[CheckRow], color: bool, width: int = 0) -> str:
    """The table as text; failed rows are marked with ``!``. Where ``width`` characters are not enough, it
    leaves out columns that say least; 0 for any width."""
    cells = [row.cells() for row in rows]
    shown = [i for i in range(len(HEADS)) if any(row[i] for row in cells)]
    longest = {i: max(len(HEADS[i]), *(len(row[i]) for row in cells)) for i in shown}
    for name in _LEFT_OUT:
        if not width or sum(longest[i] + 2 for i in shown) - 2 <= width:
            break
        shown = [i for i in shown if HEADS[i] != name]
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for i in shown:
        table.add_column(HEADS[i], justify="right" if ALIGN[i] == "r" else "left", no_wrap=True)
    for row, texts in zip(rows, cells, strict=True):
        table.add_row(*(texts[i] for i in shown), style="red" if row.failed else "")
    return render(table, color)


def counts_text(rows: Sequence[CheckRow]) -> str:
    """``63 variants checked without a GPU: 62 PASS, 1 NOT_EMULATED``."""
    counts = Counter(row.verdict for row in rows if row.verdict).most_common()
    said = ", ".join(f"{n} {kind}" for kind, n in counts)
    variants = "1 variant" if len(rows) == 1 else f"{len(rows)} variants"
    return f"{variants} checked without a GPU" + (f": {said}" if said else "")


def answered_text(answered: int, tests: int) -> str:
    """``1,900 of 1,988 tests answered from the cache …``."""
    return (
        f"{answered:,} of {tests:,} tests answered from the cache (they passed, and nothing they depend on "
        "has changed); --no-cache runs all"
    )


def notes_lines(rows: Sequence[CheckRow]) -> list[str]:
    """What is noted and no error: one line per kernel, check and line of the .cu file."""
    groups: dict[tuple[str, str, str], tuple[str, int, set[str]]] = {}
    for row in rows:
        for note, problems in row.notes.items():
            said, _, where = note.rpartition(" at ")
            key = (row.stage, said.partition(":")[0], where.partition(" (PTX")[0])
            first, seen, variants = groups.get(key, (said.partition(": ")[2], 0, set()))
            groups[key] = first, seen + problems, variants | {f"{row.dtype}-{row.config}"}
    if not groups:
        return []
    lines = [
        f"{stage}: {check} at {where}: {said} (variants: {len(variants)}, problems: {seen})"
        for (stage, check, where), (said, seen, variants) in groups.items()
    ]
    count = "1 note" if len(lines) == 1 else f"{len(lines)} notes"
    return [f"{count}, no errors without --strict-notes:", *lines]


def waived_lines(rows: Sequence[CheckRow], unused: Sequence[tuple[str, Waiver]]) -> list[str]:
    """What the declarations accept, one line per kernel and waiver, and waivers that matched nothing."""
    groups: dict[tuple[str, str], tuple[int, int]] = {}
    for row in rows:
        for waiver, problems in row.waived.items():
            variants, seen = groups.get((row.stage, waiver), (0, 0))
            groups[row.stage, waiver] = variants + 1, seen + problems
    lines = [
        f"waived: {stage}: {waiver} (variants: {variants}, problems: {seen})"
        for (stage, waiver), (variants, seen) in groups.items()
    ]
    return lines + [f"matches no finding any more, remove it: {stage}: waiver of {w}" for stage, w in unused]
