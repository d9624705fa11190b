"""What the interpreter needs to know of an instruction beside what it computes: one row each.

A row is found by the most of the instruction's first words that have one: cp.async.bulk before cp. It says
what undefined values do in it, what it reads, and which lanes take part; all else is told by its modifiers
and by the type that it ends in.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from ptxsan.machine import FLOATS, NARROW, SEEN

# How undefined bits pass through: "move" to the bits where they are moved, "logic" to those that they decide,
# "left" to those above the lowest, as carries do; without any of these to all bits of a result.
# "compares" and "atomic" have rules of their own; "once" may be executed only once, since what it does is not
# in registers and memory alone.
# "memory": reads what nobody may have written. "warp": a lane's result depends on others of the warp; of
# "whole" ones all lanes of the warp execute it. "members": with .sync, its last operand names the lanes that
# take part.
_ROWS: dict[str, str] = {
    **dict.fromkeys(("mov", "st", "cvta"), "move"),
    **dict.fromkeys(("ld", "ldu", "cp"), "move memory"),
    **dict.fromkeys(("cp.async.bulk", "cp.async.commit_group", "cp.async.wait_group"), "move memory once"),
    **dict.fromkeys(("cp.async.wait_all", "cp.async.mbarrier", "cp.reduce"), "move memory once"),
    "ldmatrix": "move memory warp",
    **dict.fromkeys(("stmatrix", "movmatrix"), "move warp"),
    "wmma.load": "move memory warp whole",
    "wmma.store": "move warp whole",
    **dict.fromkeys(("wmma", "mma"), "warp whole"),
    "wgmma": "memory warp whole",
    **dict.fromkeys(("wgmma.fence", "wgmma.commit_group", "wgmma.wait_group"), "memory warp whole once"),
    "shfl": "move warp members",
    "vote": "logic warp members",
    **dict.fromkeys(("match", "redux", "elect"), "warp members"),
    **dict.fromkeys(("and", "or", "xor", "not", "lop3", "shl", "shr", "shf", "prmt"), "logic"),
    **dict.fromkeys(("bfe", "bfi", "brev", "selp"), "logic"),
    **dict.fromkeys(("add", "addc", "sub", "subc", "mul", "mul24", "mad", "mad24", "madc"), "left"),
    **dict.fromkeys(("sad", "neg", "dp4a", "dp2a"), "left"),
    **dict.fromkeys(("set", "setp", "testp"), "compares"),
    **dict.fromkeys(("atom", "red"), "memory atomic"),
    "call": "memory once",
    "bar.warp": "members once",
    **dict.fromkeys(
        ("bar", "barrier", "mbarrier", "setmaxnreg", "griddepcontrol", "nanosleep", "trap"), "once"
    ),
}
_SUMS = ("add", "sub", "mul", "fma", "mad")  # of floats: NaN where an operand is NaN
_PRODUCTS = ("mma", "wmma", "wgmma")
_OF_TENSOR_CORES = {"f16", "f32", "f64", "tf32", "e4m3", "e5m2"}
_COLLECTIVE = ("shfl", "vote", "match", "redux", "elect")
_WAITS = {
    ("mbarrier", "test_wait"),
    ("mbarrier", "try_wait"),
    ("barrier", "cluster", "wait"),
    ("wgmma", "fence"),
}


@dataclass(frozen=True)
class Traits:
    """Of an instruction by its name. ``words`` are its opcode and modifiers. ``how`` it is sampled where
    values are undefined, and how its results' undefined bits are ``smeared``. ``ends``: lanes may part, wait
    or end after it; ``waits``: others have to come, or something has to be complete. ``collective``: it waits
    for lanes of its warp."""

    words: tuple[str, ...]
    row: frozenset[str]
    how: str
    smeared: str

    @property
    def base(self) -> str:
        return self.words[0]

    @property
    def members(self) -> bool:
        return "members" in self.row and "sync" in self.words

    @property
    def collective(self) -> bool:
        return self.members and (self.base in _COLLECTIVE or self.words == ("bar", "warp", "sync"))

    @property
    def leaves(self) -> bool:
        return self.words in (("ret",), ("exit",))

    @property
    def waits(self) -> bool:
        return bool({self.words[:2], self.words[:3]} & _WAITS)

    @property
    def copies_to_global(self) -> bool:
        """A bulk copy from shared to global memory."""
        words = tuple(word for word in self.words if word != "reduce")
        after = words[5:] if words[3:4] == ("tensor",) else words[3:]
        return words[:3] == ("cp", "async", "bulk") and after[:1] == ("global",)

    @property
    def barrier(self) -> str:
        """sync, arrive or red of a barrier of the block; "" for any other instruction."""
        if self.base not in ("bar", "barrier"):
            return ""
        action = self.words[2:3] if self.words[1:2] == ("cta",) else self.words[1:2]
        return action[0] if action and action[0] in ("sync", "arrive", "red") else ""

    @property
    def ends(self) -> bool:
        return self.base == "bra" or self.leaves or self.waits or bool(self.barrier)


@cache
def traits(op: str) -> Traits:
    words = tuple(op.split("."))
    keys = (".".join(words[:n]) for n in range(min(3, len(words)), 0, -1))
    row = frozenset(next((_ROWS[key] for key in keys if key in _ROWS), "").split())
    return Traits(words, row, *_manner(words, row))


def _manner(words: tuple[str, ...], row: frozenset[str]) -> tuple[str, str]:
    """How an instruction is sampled, and how its results are smeared."""
    base, kind = words[0], words[-1]
    if base == "cvt":
        to, of = words[-2:]
        if to not in FLOATS | NARROW and of not in FLOATS and to in SEEN and "sat" not in words:
            return "move", "bits"
        return "any", "half" if to.endswith("x2") else "whole"
    if "move" in row:
        return "move", "bits"
    if "logic" in row:
        return "logic", "bits"
    product = base in _PRODUCTS and not _OF_TENSOR_CORES.isdisjoint(words)
    if product or (base in _SUMS and kind in FLOATS | NARROW | {"f32x2"}):
        sums = next((word for word in words if word in ("f16", "f32", "f64", "s32")), "")
        narrow = kind.endswith("x2") or (base in ("mma", "wmma") and sums == "f16")
        return "float", "half" if narrow else "whole"
    if kind.endswith("x2"):
        return "any", "half"
    return "any", "left" if "left" in row and kind not in FLOATS else "whole"
