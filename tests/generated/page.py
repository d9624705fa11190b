"""docs/results/generated-mutants.md, of what is stored and what was argued of the survivors."""

from __future__ import annotations

import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gemm_regression.compiler.tools import pins
from lab.pages import table
from tests.generated.rules import RULES
from tests.generated.run import EACH, NO_CODE, SAME_CODE, SEED, Record, Survivor
from tests.generated.targets import LOTS, REFUSED, SAME, Ladder, targets
from tests.mutants.examine import HAZARDS

FILE = Path(__file__).parents[2] / "docs" / "results" / "generated-mutants.md"
RENEW = "python -m tests.generated"
FINDINGS = {*HAZARDS, "trap", "state"}
STOPPED = {REFUSED, "LAUNCH_FAILED", "SIGNATURE"}
MISSED, NOTED, EQUIVALENT = KINDS = ("missed", "noted", "equivalent")
_HEAD = Path(__file__).with_name("head.md").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Argument:
    """``why`` nothing shows some survivors, by patterns of what they are; of which ``kind`` it is."""

    why: str
    kind: str
    rule: str = ""
    target: str = ""
    old: str = ""
    about: str = ""
    note: str = ""

    def is_of(self, target: str, survivor: Survivor) -> bool:
        said = (
            (self.rule, survivor.rule),
            (self.target, target),
            (self.old, survivor.old),
            (self.about, survivor.about),
            (self.note, " ".join(survivor.notes)),
        )
        return all(re.search(pattern, text) for pattern, text in said)


def _arguments() -> tuple[Argument, ...]:
    file = tomllib.loads(Path(__file__).with_name("survivors.toml").read_text(encoding="utf-8"))
    return tuple(Argument(kind=kind, **each) for kind in KINDS for each in file[kind])


ARGUMENTS = _arguments()


def argument(target: str, survivor: Survivor) -> Argument | None:
    """That of a survivor: a probe's or ptxas's, else the first that is of it."""
    if survivor.why:
        return Argument(survivor.why, EQUIVALENT)
    return next((each for each in ARGUMENTS if each.is_of(target, survivor)), None)


def unexplained(records: Mapping[str, Record]) -> Iterator[str]:
    """Survivors that nobody explained, and arguments of no survivor."""
    used = set()
    for name, record in records.items():
        for s in record.survivors:
            if (found := argument(name, s)) is None:
                yield f"{name}, PTX line {s.line}: {s.rule}: nothing shows `{s.old}`, {s.about}"
            used.add(found)
    yield from (f"argued of no survivor: {each.why}" for each in ARGUMENTS if each not in used)


@dataclass
class Row:
    """The mutants of a rule, by what came of them."""

    finding: int = 0
    value: int = 0
    stopped: int = 0
    noted: int = 0
    beyond: int = 0
    proved: int = 0
    argued: int = 0
    missed: int = 0

    @property
    def caught(self) -> int:
        return self.finding + self.value + self.stopped + self.noted

    @property
    def made(self) -> int:
        return self.caught + self.proved + self.argued + self.missed

    @property
    def cells(self) -> list[str]:
        of = self.caught + self.missed
        share = f"{100 * self.caught / of:.1f} %" if of else ""
        counts = (
            self.made,
            self.finding,
            self.value,
            self.stopped,
            self.noted,
            self.beyond,
            self.proved,
            self.argued,
            self.missed,
        )
        return [*(f"{count:,}" if count else "" for count in counts), share]


def rows(records: Mapping[str, Record]) -> dict[str, Row]:
    """By rule."""
    found: dict[str, Row] = defaultdict(Row)
    for name, record in records.items():
        for rule, outcomes in record.outcomes.items():
            for outcome in outcomes:
                by, row = outcome.removeprefix("+"), found[rule]
                row.beyond += outcome.startswith("+")
                row.finding += by in FINDINGS
                row.stopped += by in STOPPED
                row.value += by not in (SAME, NO_CODE, *FINDINGS, *STOPPED)
        for s in record.survivors:
            said, row = argument(name, s), found[s.rule]
            row.proved += bool(s.why)
            kind = MISSED if said is None else said.kind
            row.missed += kind == MISSED
            row.noted += kind == NOTED
            row.argued += kind == EQUIVALENT and not s.why
    return found


def total(some: Sequence[Row]) -> Row:
    return Row(*(sum(getattr(row, name) for row in some) for name in Row.__dataclass_fields__))


def render(records: Mapping[str, Record]) -> str:
    """The whole page."""
    by_rule = rows(records)
    every = total(list(by_rule.values()))
    refused = sum(of.count(NO_CODE) for r in records.values() for of in r.outcomes.values())
    ladder = sum(isinstance(t, Ladder) for t in targets())
    given = {
        "renew": RENEW,
        "each": EACH,
        "seed": SEED,
        "compiler": pins()[0],
        "refused": refused,
        "lots": LOTS,
    }
    share = f"{100 * every.caught / max(1, every.caught + every.missed):.2f} %"
    counts = {"ladder": ladder, "others": len(targets()) - ladder, "share": share, "made": f"{every.made:,}"}
    heads = [
        "rule",
        "mutants",
        "finding",
        "value",
        "refused",
        "note",
        "beyond",
        "proved",
        "argued",
        "missed",
        "caught",
    ]
    lines = [[rule.name, *by_rule[rule.name].cells] for rule in RULES if rule.name in by_rule]
    parts = [_HEAD.format(**given, **counts), "## By rule\n"]
    parts += [
        table(heads, [*lines, ["all", *every.cells]], "lrrrrrrrrrr"),
        "\n## What nothing shows\n",
        *_survivors(records),
    ]
    parts += ["\n## By kernel\n", _kernels(records)]
    return "\n".join(parts) + "\n"


def _survivors(records: Mapping[str, Record]) -> Iterator[str]:
    """A table of those that are missed, and one of those that are the same kernel."""
    found: dict[Argument, list[tuple[str, Survivor]]] = defaultdict(list)
    for name, record in records.items():
        for s in record.survivors:
            if said := argument(name, s):
                found[said].append((name, s))
    for kind, title in zip(KINDS, ("missed:", "told by a note:", "the same kernel:"), strict=True):
        lines = []
        for said, of in sorted(found.items(), key=lambda each: -len(each[1])):
            if said.kind == kind:
                (name, s), kinds = of[0], Counter(s.rule for _, s in of)
                old = s.old if len(s.old) < 70 else f"{s.old[:66]} ..."
                example = f"{name}: `{old.replace('|', chr(92) + '|')}`"
                lines.append([said.why, str(len(of)), ", ".join(kinds), example])
        if lines:
            yield table([title, "mutants", "rules", "for example"], lines, "lrll") + "\n"


def _kernels(records: Mapping[str, Record]) -> str:
    lines = []
    for name, r in records.items():
        made = [by for of in r.outcomes.values() for by in of if by != NO_CODE]
        counts = (r.instructions, r.reached, len(made), len(made) - len(r.survivors))
        missed = sum((said := argument(name, s)) is None or said.kind == MISSED for s in r.survivors)
        lines.append([name, *map(str, counts), str(missed or "")])
    heads = ["kernel", "instructions", "lines that a problem reaches", "mutants", "caught", "missed"]
    return table(heads, lines, "lrrrrr")


__all__ = ["SAME_CODE", "render", "unexplained"]
