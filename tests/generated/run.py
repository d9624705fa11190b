"""Examines the mutants of PTX, and keeps what shows each in record.jsonl: a line of what it depends on, and
one for each target."""

from __future__ import annotations

import hashlib
import json
import random
import re
import tempfile
import zlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from gemm_regression.compiler.tools import pinned_nvcc, pins, said
from gemm_regression.files import write_whole
from tests.generated import rules
from tests.generated.reasons import reason
from tests.generated.rules import Mutation, mutations, statements
from tests.generated.targets import REFUSED, SAME, Outcome, Target, digest, targets
from tests.mutants.examine import ARCH

FILE = Path(__file__).with_name("record.jsonl")
SEED, EACH = 1, 12
SAME_CODE = "ptxas makes the same code of it"
NO_CODE = "ptxas refuses it"


@dataclass(frozen=True)
class Mutant:
    """A mutation of a target, the ``number``-th of its rule there."""

    target: Target
    mutation: Mutation
    number: int


@dataclass(frozen=True)
class Survivor:
    """A mutant that nothing shows: the ``old`` instruction, what it becomes, ``why`` as far as a probe says
    it, and what is noted of it."""

    rule: str
    number: int
    line: int
    old: str
    about: str
    why: str
    notes: tuple[str, ...]


@dataclass
class Record:
    """Of a target: its instructions, how many of them problems reach, what shows its mutants by rule, in
    their order, and those that nothing shows. A check that begins with + shows it on a problem beyond those
    that the check runs."""

    target: str
    sources: str
    ptx: str
    instructions: int
    reached: int
    outcomes: dict[str, list[str]] = field(default_factory=dict)
    survivors: list[Survivor] = field(default_factory=list)


def mutants(target: Target) -> list[Mutant]:
    """Of each rule all whose instruction some problem reaches, or as many as EACH of them drawn by lot."""
    found: dict[str, list[Mutation]] = defaultdict(list)
    for mutation in mutations(target.ptx, target.entry):
        if mutation.of.line in target.reached:
            found[mutation.rule].append(mutation)
    chosen = []
    for rule, of in found.items():
        rng = random.Random(zlib.crc32(f"{SEED}/{target.name}/{rule}".encode()))
        places = sorted(rng.sample(range(len(of)), min(EACH, len(of))))
        chosen += [Mutant(target, of[place], place) for place in places]
    return chosen


def without_lines(text: str) -> str:
    """A module without what it says of lines of its source."""
    return re.sub(r"^\s*\.(?:loc|file)[^\n]*", "", text, flags=re.MULTILINE)


def assembled(text: str) -> bytes:
    """What ptxas makes of a module, b"" where it refuses. Lines of the source are left out."""
    text = without_lines(text)
    with tempfile.TemporaryDirectory() as folder:
        source, cubin = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(text, encoding="utf-8")
        ptxas = pinned_nvcc().path.with_name("ptxas")
        done = said([str(ptxas), f"-arch={ARCH}", str(source), "-o", str(cubin)])
        return b"" if done.returncode else cubin.read_bytes()


_own = lru_cache(maxsize=1)(assembled)


def examine(mutant: Mutant) -> tuple[Outcome, str]:
    """What shows a mutant; of one that nothing shows, why, as far as ptxas or a probe says it."""
    target, mutation = mutant.target, mutant.mutation
    text = mutation.made(target.ptx)
    outcome = target.examine(text, mutation.of.line)
    if outcome.by not in (SAME, REFUSED):
        return outcome, ""
    made = assembled(text)
    if not made:
        return Outcome(NO_CODE), ""
    if outcome.by == REFUSED:
        return outcome, ""
    return outcome, SAME_CODE if made == _own(target.ptx) else reason(target, mutation)


def ptx_digest(target: Target) -> str:
    """Of what mutants are made of. Sources may change, and leave it as it is."""
    return hashlib.sha256(without_lines(target.ptx).encode()).hexdigest()[:12]


def record(target: Target) -> Record:
    """Examines all mutants of a target."""
    there = len(statements(target.ptx, target.entry))
    made = Record(target.name, digest(target), ptx_digest(target), there, len(target.reached))
    for mutant in mutants(target):
        (outcome, why), mutation = examine(mutant), mutant.mutation
        by = f"+{outcome.by}" if outcome.beyond else outcome.by
        made.outcomes.setdefault(mutation.rule, []).append(by)
        if outcome.by == SAME:
            texts = mutation.of.text()[:160], mutation.about[:160]
            place = mutation.rule, mutant.number, mutation.of.line
            made.survivors.append(Survivor(*place, *texts, why, outcome.notes))
    return made


def provenance() -> dict[str, Any]:
    """What the outcomes depend on besides the kernels."""
    made = hashlib.sha256(Path(rules.__file__).read_bytes()).hexdigest()[:12]
    return {"seed": SEED, "each": EACH, "arch": ARCH, "compiler": list(pins()), "rules": made}


def load() -> tuple[dict[str, Any], dict[str, Record]]:
    """What is stored: the provenance, and the records by target."""
    if not FILE.exists():
        return {}, {}
    first, *lines = map(json.loads, FILE.read_text(encoding="utf-8").splitlines())
    for line in lines:
        line["survivors"] = [Survivor(**{**s, "notes": tuple(s["notes"])}) for s in line["survivors"]]
    return first, {line["target"]: Record(**line) for line in lines}


def store(records: dict[str, Record]) -> None:
    """Writes the file, in the order of the targets."""
    lines = [provenance(), *(asdict(records[t.name]) for t in targets() if t.name in records)]
    write_whole(FILE, "".join(json.dumps(line) + "\n" for line in lines))


def stale() -> Iterator[str]:
    """Why the file is not that of today's rules and kernels."""
    made, records = load()
    if made != provenance():
        yield f"made with {made}, not {provenance()}"
    for target in targets():
        if target.name not in records:
            yield f"lacks {target.name}"
        elif records.pop(target.name).sources != digest(target):
            yield f"{target.name} has changed since"
    yield from (f"has {name}, which is no target" for name in records)
