"""The table of instructions: one row each, entered by ``instruction`` where its meaning is (isa/).

The row of an instruction is that of the most of its first words that have one: cp.async.bulk before cp. All
that it does not say is told by the modifiers and by the type that the instruction ends in.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, TypeVar

from ptxsan.checks import Site
from ptxsan.frontend import Instruction, PtxError
from ptxsan.machine import FLOATS, NARROW, SEEN, Builder

M = TypeVar("M", bound=Callable[..., Any])


@dataclass(frozen=True)
class Opcode:
    """An instruction: what makes it ready to run, of (builder, instruction, site); its section of the PTX
    ISA 9.0; how many of its first operands it writes (a vector is one operand); what is not known of it.

    ``traits``, how undefined bits pass through: "move" to the bits where they are moved, "logic" to those
    that they decide, "left" to those above the lowest, as carries do, "sum" and "product" of floats, which
    are NaN where an operand is; without any of these to all bits of a result. "compares" and "atomic" have
    rules of their own; "once" may be executed only once, since what it does is not in registers and memory
    alone. What it reads: "memory", which nobody may have written. Which lanes take part: "warp", a lane's
    result depends on others of the warp; of "whole" ones all lanes of the warp execute it; "members", with
    .sync its last operand names them. "waits": others have to come, or something has to be complete.
    "clocks": vector clocks order what it does (checks/clocks.py). "pairs": it is also of f32x2.
    """

    make: Callable[[Builder, Instruction, Site], Any]
    section: str
    writes: int
    traits: frozenset[str]
    note: str


# By the type that an instruction ends in: chapters of the ISA with forms of their own for floats. Then all.
_FAMILIES = {"9.7.1": "integer", "9.7.2": "integer", "9.7.8": "integer", "9.7.3": "float", "9.7.4": "narrow"}
TABLES: dict[str, dict[str, Opcode]] = {"integer": {}, "float": {}, "narrow": {}, "": {}}


_ENTRY = re.compile(r"(.+?)(?::([\d.]*))?")  # a name, which may have :: in it, and its section


def instruction(
    chapter: str, names: str, traits: str = "", writes: int = 1, note: str = ""
) -> Callable[[M], M]:
    """Enters what makes instructions ready: ``names`` with their sections of a chapter, "abs:10 neg:11"."""

    def enter(make: M) -> M:
        for each in names.split():
            name, section = _ENTRY.fullmatch(each).groups("")  # type: ignore[union-attr]
            row = Opcode(make, f"{chapter}.{section}".rstrip("."), writes, frozenset(traits.split()), note)
            TABLES[_FAMILIES.get(chapter, "")][name] = row
        return make

    return enter


@instruction("9.7.12", "bra:3 ret:6 exit:7", writes=0)
@instruction("9.7.12", "brx.idx:4", writes=0)
@instruction("9.7.13", "bar:1 barrier:1", "once", writes=0)
def _at_end(b: Builder, i: Instruction, site: Site) -> Any:
    """In the flow of a kernel, which flow.py and barrier.py know."""
    raise PtxError("not supported")


# Of instructions that are not known: section, and what they are.
_VIDEO = "vadd vsub vabsdiff vmin vmax vshl vshr vmad vset vset2 vset4"
REFUSED: dict[str, tuple[str, str]] = {
    "istypep": ("9.7.10.6", "the type of an opaque variable"),
    "clusterlaunchcontrol": ("9.7.13.17", "work taken from clusters that have not started"),
    "tcgen05.ld.red": ("9.7.16.8.3", "loads from tensor memory with a reduction"),
    "tcgen05.shift": ("9.7.16.9.2", "rows of tensor memory moved down"),
    "tcgen05.mma.sp": ("9.7.16.10.9.2", "products of sparse matrices"),
    "tcgen05.mma.ws": ("9.7.16.10.9.3", "products of sm_100 with one matrix that stays"),
    **dict.fromkeys(("stacksave", "stackrestore", "alloca"), ("9.7.17", "the stack pointer")),
    **dict.fromkeys(_VIDEO.split(), ("9.7.18", "video instructions")),
    "brkpt": ("9.7.19.1", "breakpoints"),
}


def refused(op: str) -> str:
    """Of an instruction of the ISA that is not known: " (PTX ISA §9.7.10, textures)"; "" for any other."""
    found = next((REFUSED[key] for key in _keys(op) if key in REFUSED), None)
    return f" (PTX ISA §{found[0]}, {found[1]})" if found else ""


def _keys(op: str) -> list[str]:
    """By which an instruction is looked up, its first three words or fewer."""
    words = op.split(".")
    return [".".join(words[:n]) for n in range(min(3, len(words)), 0, -1)]


@cache
def known(op: str) -> Opcode | None:
    """The row of an instruction such as "add.rn.f32"; None for one that is not known."""
    if refused(op):  # tcgen05.mma.sp is no tcgen05.mma
        return None
    kind = op.rsplit(".", 1)[-1]
    family = "narrow" if kind in NARROW else "float" if kind in FLOATS | {"f32x2"} else "integer"
    tables = TABLES[family], TABLES[""]
    found = next((table[key] for key in _keys(op) for table in tables if key in table), None)
    return None if found and kind == "f32x2" and "pairs" not in found.traits else found


def shape(op: str) -> tuple[int, int, int]:
    """m, n and k of a product of matrices, such as m16n8k16. Raises PtxError where there is none."""
    found = re.search(r"\.m(\d+)n(\d+)k(\d+)(?:\.|$)", op)
    if not found:
        raise PtxError("has no shape")
    m, n, k = map(int, found.groups())
    return m, n, k


_OF_TENSOR_CORES = {"f16", "f32", "f64", "tf32", "e4m3", "e5m2", "e3m2", "e2m3", "e2m1"}
_COLLECTIVE = ("shfl", "vote", "match", "redux", "elect")


@dataclass(frozen=True)
class Traits:
    """Of an instruction by its name. ``words`` are its opcode and modifiers. ``how`` it is sampled where
    values are undefined, and how its results' undefined bits are ``smeared``. ``ends``: lanes may part, wait
    or end after it. ``collective``: it waits for lanes of its warp."""

    words: tuple[str, ...]
    row: frozenset[str]
    how: str
    smeared: str

    @cached_property
    def base(self) -> str:
        return self.words[0]

    @cached_property
    def members(self) -> bool:
        return "members" in self.row and "sync" in self.words

    @cached_property
    def collective(self) -> bool:
        if self.base == "tcgen05":
            return "aligned" in self.words and not self.waits
        return self.members and (self.base in _COLLECTIVE or self.words == ("bar", "warp", "sync"))

    @cached_property
    def leaves(self) -> bool:
        return self.words in (("ret",), ("exit",))

    @cached_property
    def waits(self) -> bool:
        return "waits" in self.row

    @cached_property
    def barrier(self) -> str:
        """sync, arrive or red of a barrier of the block; "" for any other instruction."""
        if self.base not in ("bar", "barrier"):
            return ""
        action = self.words[2:3] if self.words[1:2] == ("cta",) else self.words[1:2]
        return action[0] if action and action[0] in ("sync", "arrive", "red") else ""

    @cached_property
    def ends(self) -> bool:
        return self.base == "bra" or self.leaves or self.waits or bool(self.barrier)


@cache
def traits(op: str) -> Traits:
    words, found = tuple(op.split(".")), known(op)
    row = found.traits if found else frozenset[str]()
    return Traits(words, row, *_manner(words, row))


def _manner(words: tuple[str, ...], row: frozenset[str]) -> tuple[str, str]:
    """How an instruction is sampled, and how its results are smeared."""
    base, kind = words[0], words[-1]
    if base == "cvt":
        to, of = words[-2:]
        if to not in FLOATS | NARROW and of not in FLOATS and to in SEEN and "sat" not in words:
            return "move", "bits"
        return "any", "half" if to.endswith("x2") else "whole"
    if "move" in row or "logic" in row:
        return "move" if "move" in row else "logic", "bits"
    if "sum" in row or ("product" in row and not _OF_TENSOR_CORES.isdisjoint(words)):
        sums = next((word for word in words if word in ("f16", "f32", "f64", "s32")), "")
        narrow = kind.endswith("x2") or (base in ("mma", "wmma") and sums == "f16")
        return "float", "half" if narrow else "whole"
    if kind.endswith("x2"):
        return "any", "half"
    return "any", "left" if "left" in row else "whole"
