"""Mutation operators: small edits that fit any kernel, applied at random places of every stage.

A place is one of the kernel's source, comments, preprocessor and parameter list apart. Of each operator and
kernel so many places as ``EACH`` are drawn, from a seed that depends on both names alone: an edit of one
kernel leaves the mutants of the others as they are.
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

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
_ATOM = r"(?<![\w)] )[\w.]+(?: [-+*%/] [\w.]+)* (?:<=?|>=?|==|!=) \w+(?:\.\w+)?"


def _exchanged(*pairs: str) -> dict[str, str]:
    """Each name of a pair to the other one."""
    both = [(one, other) for one, other in map(str.split, pairs)]
    return {**dict(both), **{other: one for one, other in both}}


_PARTNERS = {
    **_exchanged("tx ty", "m n", "row col", "block_row block_col", "warp_row warp_col", "lane_m lane_n"),
    **_exchanged("a_m a_k", "b_k b_n", "threadIdx.x threadIdx.y", "blockIdx.x blockIdx.y"),
    **_exchanged("gridDim.x gridDim.y"),
    **{"a_row": "a_k", "blockIdx.z": "blockIdx.y"},
}
_EXTENTS = {
    **_exchanged("THREADS_X THREADS_Y", "THREAD_TILE_M THREAD_TILE_N", "WARP_TILE_M WARP_TILE_N"),
    **_exchanged("A_ROW_STEP B_ROW_STEP", "A_STRIDE B_STRIDE", "LANES_M LANES_N", "FRAGMENT FRAGMENT_K"),
    **_exchanged("BLOCK_X BLOCK_Y"),
    **{"TILE_M": "TILE_N", "TILE_N": "TILE_K", "TILE_K": "TILE_M", "MATRICES": "TILE"},
    **{"C_STRIDE": "FRAGMENT", "THREADS": "THREADS_X", "SPLIT": "(SPLIT - 1)"},
    **{name: f"({name} / 2)" for name in ("TILE_SIZE", "TILE", "STAGE_FLOATS", "VECTOR")},
    **{name: f"({name} - 1)" for name in ("A_LOADS", "B_LOADS", "A_COPIES", "B_COPIES")},
}
_BARRIERS = (
    r"__syncthreads\(\);|__syncwarp\(\);|__threadfence\(\);|cp_async_commit\(\);|cp_async_wait<[^>]*>\(\);"
)
# One that declares nothing and has a line of its own.
_STATEMENT = (
    r"(?<=\n)[ ]+(?!const\b|float\b|int\b|for\b|else|return|auto|unsigned|Fragment)"
    r"[\w*][^;{}\n]* [-+]?= [^;{}\n]*;"
)
_LANES = {"lane": "warp", "warp": "lane", "thread": "(thread / 2)", "mine": "0", "index": "(index + 1)"}
_ARITHMETIC = {" += ": " = ", " + ": " - ", " - ": " + ", " * ": " + ", " / ": " % ", " % ": " / "}
_RELAXED = {" < ": " <= ", " >= ": " > ", " <= ": " < "}
_REVERSED = {" == ": " != ", " != ": " == "}
_GUARDS = rf"{_ATOM} && (?=[\w(])| && {_ATOM}|{_ATOM} \|\| (?=\w)| \|\| {_ATOM}"
_STAGES = r"STAGES - [12]|(?<=[=?:+(] )stage(?= [*)])|k0 \+ TILE_K|% 2\b"
_FILLS = r" 0\.0f| = \{\}(?=;)|wmma::fill_fragment[^;]*;"
_FIRST = r"(?<=\w)\[(?=[\w(])|(?<== )0(?=;)"

Choose = Callable[[re.Match[str], random.Random], str]


@dataclass(frozen=True)
class Operator:
    """``kind`` names the class of mistake; ``pattern`` its places, ``other`` what stands there instead."""

    kind: str
    pattern: str
    other: Choose


def _of(table: Mapping[str, str]) -> Choose:
    return lambda match, rng: table[match[0]]


def _one_of(*names: str) -> Choose:
    return lambda match, rng: rng.choice([name for name in names if name != match[0]])


def _words(table: Mapping[str, str]) -> str:
    names = sorted(table, key=len, reverse=True)
    return rf"(?<![\w.&])(?:{'|'.join(map(re.escape, names))})(?![\w(])"


def _number(match: re.Match[str], rng: random.Random) -> str:
    value = int(match[0])
    return str(rng.choice([value * 2, value + 1, value // 2 if value > 2 else value + 2]))


OPERATORS = (
    Operator("guard relaxed", r" (?:<|>=|<=) (?=[A-Za-z])", _of(_RELAXED)),
    Operator("guard dropped", _GUARDS, lambda match, rng: ""),
    Operator("condition reversed", r" (?:==|!=) ", _of(_REVERSED)),
    Operator("size exchanged", r"\b(?:M|N|K|rows|cols)\b", _one_of("M", "N", "K")),
    Operator("leading dimension exchanged", r"\bld[abcABC]\b", lambda match, rng: _other_ld(match[0], rng)),
    Operator("index exchanged", _words(_PARTNERS), _of(_PARTNERS)),
    Operator("stride or extent exchanged", _words(_EXTENTS), _of(_EXTENTS)),
    Operator("index off by one", _FIRST, lambda match, rng: "[1 + " if match[0] == "[" else "1"),
    Operator("constant changed", r"(?<![\w.])(?!0\b|1\b)\d+(?![\w.])", _number),
    Operator("barrier, commit or wait dropped", _BARRIERS, lambda match, rng: ";"),
    Operator("stage off by one", _STAGES, lambda match, rng: _stage(match[0])),
    Operator("fill wrong or missing", _FILLS, lambda match, rng: _fill(match[0])),
    Operator("scale wrong", r"\b(?:alpha|beta)\b(?: \* |(?!,))", lambda match, rng: _scale(match[0], rng)),
    Operator("arithmetic", r" (?:\+=|[-+*/%]) (?=[\w(*])", _of(_ARITHMETIC)),
    Operator(
        "component or layout", r"(?<=[\]va])\.[xyzw]\b|\b\w+_major\b", lambda match, rng: _next(match[0])
    ),
    Operator("index in 32 bits", r"\(size_t\)|\bsize_t(?= a_step)", lambda match, rng: _narrow(match[0])),
    Operator("statement dropped", _STATEMENT, lambda match, rng: ";"),
    Operator("way out dropped", r"\b(?:continue|return);", lambda match, rng: ";"),
    Operator("lane or warp wrong", r"\b(?:lane|warp|thread|mine|index)\b(?! =)", _of(_LANES)),
)


def _other_ld(name: str, rng: random.Random) -> str:
    return rng.choice(
        [name[:2] + letter for letter in ("abc" if name[2].islower() else "ABC") if letter != name[2]]
    )


def _stage(text: str) -> str:
    if text.startswith("STAGES"):
        return {"STAGES - 1": "STAGES - 2", "STAGES - 2": "STAGES - 1"}[text]
    return {"stage": "(stage ^ 1)", "k0 + TILE_K": "k0", "% 2": "% 1"}[text]


def _fill(text: str) -> str:
    return {" 0.0f": " 1.0f", " = {}": ""}.get(text, ";")


def _scale(text: str, rng: random.Random) -> str:
    if text.endswith("* "):
        return ""
    return rng.choice(["1.0f", {"alpha": "beta", "beta": "alpha"}[text]])


def _next(text: str) -> str:
    return {".x": ".y", ".y": ".z", ".z": ".w", ".w": ".x", "row_major": "col_major"}.get(text, "row_major")


def _narrow(text: str) -> str:
    return "(int)" if text.startswith("(") else "int"


def generated(kernel: Kernel) -> Iterator[Mutant]:
    """The mutants of a kernel, by operator; an edit that two operators make is there once."""
    texts = {path.name: path.read_text(encoding="utf-8") for path in closure(kernel)}
    seen: set[Edits] = set()
    for operator in OPERATORS:
        rng = random.Random(zlib.crc32(f"{SEED}/{kernel.name}/{operator.kind}".encode()))
        places = [
            (name, match)
            for name, text in texts.items()
            for match in re.finditer(operator.pattern, _HIDDEN.sub(_blank, text))
        ]
        made = 0
        for name, match in rng.sample(places, len(places)):
            # The operator's pattern sees no comments; the edit is one of the text that has them.
            other = operator.other(match, rng)
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


def everything() -> tuple[Mutant, ...]:
    """The mutants of every stage."""
    return tuple(mutant for kernel in LADDER if kernel.compiled for mutant in generated(kernel))
