"""What each instruction does: from its first word to a function that makes it ready to run.

Meanings are those of the PTX ISA, version 9.0, §9.7. One more instruction is one more function in the module
of its kind, entered in the TABLE at that module's end.
"""

from __future__ import annotations

from harness.ptx.instructions import (
    atomic,
    bits,
    call,
    conversion,
    floating,
    functions,
    integer,
    memory,
    mma,
    move,
    narrow,
    predicates,
    warp,
    wmma,
)
from harness.ptx.instructions.common import FLOATS, NARROW, Make

# By the type that the instruction ends in, and then for any type.
_NARROW: dict[str, Make] = {**narrow.TABLE}
_FLOATING: dict[str, Make] = {**floating.TABLE, **functions.TABLE}
_INTEGER: dict[str, Make] = {**integer.TABLE, **bits.TABLE}
_ANY: dict[str, Make] = {
    **predicates.TABLE,
    **move.TABLE,
    **conversion.TABLE,
    **memory.TABLE,
    **atomic.TABLE,
    **call.TABLE,
    **warp.TABLE,
    **wmma.TABLE,
    **mma.TABLE,
}


def find(op: str) -> Make | None:
    """What makes an instruction such as "add.rn.f32" ready; None for one that is not known."""
    words = op.split(".")
    base, kind = words[0], words[-1]
    of_kind = _NARROW if kind in NARROW else _FLOATING if kind in FLOATS else _INTEGER
    return of_kind.get(base) or _ANY.get(base)
