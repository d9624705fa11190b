"""What each instruction does: from its first word to a function that makes it ready to run.

Meanings are those of the PTX ISA, version 9.0, §9.7. One more instruction is one more function in the module
of its kind, entered in the TABLE at that module's end with its section; the longest key that an instruction
starts with is its own: wmma.store before wmma.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ptxsan.isa import (
    async_copy,
    atomic,
    bits,
    bulk,
    call,
    cluster,
    conversion,
    extended,
    floating,
    functions,
    integer,
    matrices,
    mbarrier,
    memory,
    mma,
    move,
    narrow,
    packed,
    pairs,
    predicates,
    video,
    warp,
    wgmma,
    wmma,
)
from ptxsan.isa.refused import refused
from ptxsan.machine.common import FLOATS, NARROW, Known, Make

# By the type that the instruction ends in, and then for any type.
_NARROW: dict[str, Known] = {**narrow.TABLE}
_PAIRS: dict[str, Known] = {**pairs.TABLE}
_FLOATING: dict[str, Known] = {**floating.TABLE, **functions.TABLE}
_INTEGER: dict[str, Known] = {**integer.TABLE, **extended.TABLE, **bits.TABLE}
_ANY: dict[str, Known] = {
    **predicates.TABLE,
    **move.TABLE,
    **conversion.TABLE,
    **packed.TABLE,
    **video.TABLE,
    **memory.TABLE,
    **async_copy.TABLE,
    **atomic.TABLE,
    **call.TABLE,
    **warp.TABLE,
    **wmma.TABLE,
    **mma.TABLE,
    **matrices.TABLE,
    **mbarrier.TABLE,
    **bulk.TABLE,
    **cluster.TABLE,
    **wgmma.TABLE,
}
_WAITS: dict[str, Any] = {
    "mbarrier.test_wait": mbarrier.Test,
    "mbarrier.try_wait": mbarrier.Test,
    "barrier.cluster.wait": cluster.ClusterWait,
    "wgmma.fence": wgmma.Fence,
}
_ASYNCHRONOUS = (
    "mbarrier.",
    "cp.async.bulk",
    "cp.reduce",
    "cp.async.mbarrier",
    "wgmma.",
    "barrier.cluster",
    "mapa",
    "setmaxnreg",
)


_BY_KIND = {
    **dict.fromkeys(FLOATS, _FLOATING),
    **dict.fromkeys(NARROW, _NARROW),
    "f32x2": _PAIRS,
}
TABLES = (_INTEGER, _FLOATING, _PAIRS, _NARROW, _ANY)
_LONGEST = 3  # words of a key of the tables


@cache
@cache
def known(op: str) -> Known | None:
    """The entry of an instruction such as "add.rn.f32" in the table, by the most of its first words that have
    one; None for one that is not known."""
    if refused(op):  # st.async is no st
        return None
    words = op.split(".")
    kind = words[-1]
    of_kind = _BY_KIND.get(kind, _INTEGER)
    keys = [".".join(words[:n]) for n in range(min(_LONGEST, len(words)), 0, -1)]
    return next((table[key] for key in keys for table in (of_kind, _ANY) if key in table), None)


def find(op: str) -> Make | None:
    """What makes an instruction ready to run."""
    found = known(op)
    return found.make if found else None


def wait_of(op: str) -> Any:
    """What makes an instruction ready at which a thread waits for others; None for any other."""
    return _WAITS.get(".".join(op.split(".")[:2])) or _WAITS.get(".".join(op.split(".")[:3]))


def is_asynchronous(op: str) -> bool:
    """Whether a kernel with it needs clocks (memory/asynchronous.py)."""
    return op.startswith(_ASYNCHRONOUS) or "shared::cluster" in op
