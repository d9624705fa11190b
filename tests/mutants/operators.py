"""Mutation operators: small edits that fit any kernel, applied at random places of every stage.

A place is one of the kernel's source, comments, preprocessor and parameter list apart. Of each operator and
kernel so many places as ``EACH`` are drawn, from a seed that depends on both names alone: an edit of one
kernel leaves the mutants of the others as they are.
"""

from __future__ import annotations

import random
import re
import tomllib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gemm_regression.compiler.sources import closure
from gemm_regression.model import Kernel
from tests.ladder import LADDER
from tests.mutants.mutant import Edits, Mutant

SEED = 10
EACH = 1

_HIDDEN = re.compile(
    r"//[^\n]*|/\*.*?\*/"  # comments
    r"|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*"  # the preprocessor
    r"|^static_assert[^;]*;|^using[^;]*;|^template[^\n]*"
    r"|extern \"C\" __global__.*?\)\n(?=\{)"  # the kernel's signature
    r"|^__device__[^{;]*?\)\n(?=\{)",  # those of its functions
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Operator:
    """An entry of operators.toml: ``kind`` of the mistake, ``pattern`` of its places, and what stands there
    instead: it ``becomes`` that, always or by what stood there; None for another number."""

    kind: str
    pattern: str = ""
    becomes: str | Mapping[str, str | Sequence[str]] | None = None

    def other(self, text: str, rng: random.Random) -> str:
        """What stands in the place of a text."""
        if self.becomes is None:
            value = int(text)
            return str(rng.choice([value * 2, value + 1, value // 2 if value > 2 else value + 2]))
        of = self.becomes
        found = of[text if text in of else "*"] if isinstance(of, Mapping) else of
        return found if isinstance(found, str) else rng.choice(found)


def _operators() -> Iterator[Operator]:
    file = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    for entry in file["operator"]:
        entry["pattern"] = entry.get("pattern", "").replace("<comparison>", file["comparison"])
        if pairs := entry.pop("exchanged", []):
            both = [(one, other) for one, other in map(str.split, pairs)]
            entry["becomes"] |= {**dict(both), **{other: one for one, other in both}}
            names = sorted(entry["becomes"], key=len, reverse=True)
            entry["pattern"] = rf"(?<![\w.&])(?:{'|'.join(map(re.escape, names))})(?![\w(])"
        yield Operator(**entry)


OPERATORS = tuple(_operators())


def generated(kernel: Kernel) -> Iterator[Mutant]:
    """The mutants of a kernel, by operator; an edit that two operators make is there once."""
    texts = {path.name: path.read_text(encoding="utf-8") for path in closure(kernel)}
    bare = {name: _HIDDEN.sub(_blank, text) for name, text in texts.items()}
    seen: set[Edits] = set()
    for operator in OPERATORS:
        rng = random.Random(zlib.crc32(f"{SEED}/{kernel.name}/{operator.kind}".encode()))
        places = [
            (name, match) for name, text in bare.items() for match in re.finditer(operator.pattern, text)
        ]
        made = 0
        for name, match in rng.sample(places, len(places)):
            # The operator's pattern sees no comments; the edit is one of the text that has them.
            other = operator.other(match[0], rng)
            edits = (_edit(texts, name, match.start(), match.end(), other),)
            if made == EACH:
                break
            if edits in seen:
                continue
            seen.add(edits)
            made += 1
            word = re.sub(r"\W+", "_", operator.kind)
            line = texts[name].count("\n", 0, match.start()) + 1
            about = f"line {line} of {name}: `{match[0].strip()}` becomes `{other.strip()}`"
            yield Mutant(f"{kernel.name}-{word}-{made}", kernel.name, operator.kind, edits, about)


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match[0])


def _edit(texts: Mapping[str, str], name: str, start: int, end: int, other: str) -> tuple[str, str]:
    """Whole lines, as many as make the old text unique among the files."""
    text = texts[name]
    first, last = text.rfind("\n", 0, start) + 1, text.find("\n", end)
    while sum(each.count(text[first:last]) for each in texts.values()) > 1:
        first = text.rfind("\n", 0, first - 1) + 1
    return text[first:last], text[first:start] + other + text[end:last]


@cache
def everything() -> tuple[Mutant, ...]:
    """The mutants of every stage."""
    return tuple(mutant for kernel in LADDER if kernel.compiled for mutant in generated(kernel))
