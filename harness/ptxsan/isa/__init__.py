"""What each instruction does: from its first words to a function that makes it ready to run.

Meanings are those of the PTX ISA, version 9.0, §9.7. One more instruction is one more function in the module
of its kind, entered in the TABLE at that module's end with its section; the longest key that an instruction
starts with is its own: wmma.store before wmma.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ptxsan.isa import (
    bits,
    bulk,
    conversion,
    floating,
    fragments,
    integer,
    mbarrier,
    memory,
    narrow,
    predicates,
    warp,
    wgmma,
    wmma,
)
from ptxsan.machine import FLOATS, NARROW, Known, Make

_VIDEO = "vadd vsub vabsdiff vmin vmax vshl vshr vmad vset vset2 vset4"

REFUSED: dict[str, tuple[str, str]] = {
    "st.async": ("9.7.9.12", "asynchronous stores to shared memory of a cluster"),
    "st.bulk": ("9.7.9.13", "shared memory set in bulk"),
    "multimem": ("9.7.9.14", "memory of several GPUs"),
    "tensormap": ("9.7.9.27", "tensor maps that a kernel changes"),
    **dict.fromkeys(("tex", "tld4", "txq", "istypep"), ("9.7.10", "textures")),
    **dict.fromkeys(("suld", "sust", "sured", "suq"), ("9.7.11", "surfaces")),
    "red.async": ("9.7.13.7", "asynchronous reductions in shared memory of a cluster"),
    "clusterlaunchcontrol": ("9.7.13.17", "work taken from clusters that have not started"),
    "mma.sp": ("9.7.14.6", "products of sparse matrices"),
    "mma.sp::ordered_metadata": ("9.7.14.6", "products of sparse matrices"),
    "wgmma.mma_async.sp": ("9.7.15.6", "products of sparse matrices"),
    "tcgen05": ("9.7.16", "tensor cores of sm_100"),
    **dict.fromkeys(("stacksave", "stackrestore", "alloca"), ("9.7.17", "the stack pointer")),
    **dict.fromkeys(_VIDEO.split(), ("9.7.18", "video instructions")),
    "brkpt": ("9.7.19.1", "breakpoints"),
}
# Of instructions that are known, what is not.
LIMITS: dict[str, str] = {
    "atom": "not on local memory",
    "red": "not on local memory",
    "call": "functions of the same PTX, some calls deep within themselves; `vprintf`; no pointers, no heap",
    "cvt": "not `.rs` (random bits), no scaled formats but `ue8m0x2`",
    "cvta": "not of parameters but tensor maps",
    "mma": "no `.sp`, no `.block_scale`; of `.kind::f8f6f4` e4m3 and e5m2",
    "ldmatrix": "`.m8n8` of `.b16`",
    "stmatrix": "`.m8n8` of `.b16`",
    "redux": "no floats",
    **{
        f"{name}{count}": "no masks, no selectors"
        for name in ("vadd", "vsub", "vavrg", "vabsdiff", "vmin", "vmax")
        for count in (2, 4)
    },
    "cp.async.bulk": "see [Hopper](../emulation.md)",
    "prefetch": "a hint: does nothing",
    "prefetchu": "a hint: does nothing",
    "applypriority": "a hint: does nothing",
    "discard": "a hint: does nothing",
    "createpolicy": "a hint: does nothing",
    "nanosleep": "a hint: does nothing",
    "griddepcontrol": "one launch at a time: does nothing",
    "pmevent": "does nothing",
}


def refused(op: str) -> tuple[str, str] | None:
    """Section, and what it is, of an instruction of the ISA that is not known."""
    words = op.split(".")
    keys = (".".join(words[:n]) for n in (3, 2, 1))
    return next((REFUSED[key] for key in keys if key in REFUSED), None)


def reason(op: str) -> str:
    """Of an instruction that is not known: " (PTX ISA §9.7.10, textures)"; "" for one that is nowhere."""
    found = refused(op)
    return f" (PTX ISA §{found[0]}, {found[1]})" if found else ""


# By the type that an instruction ends in, and then for any type.
_INTEGER: dict[str, Known] = {**integer.TABLE, **bits.TABLE}
_ANY: dict[str, Known] = {
    **predicates.TABLE,
    **conversion.TABLE,
    **memory.TABLE,
    **warp.TABLE,
    **wmma.TABLE,
    **fragments.TABLE,
    **mbarrier.TABLE,
    **bulk.TABLE,
    **wgmma.TABLE,
}
_WAITS: dict[str, Any] = {
    "mbarrier.test_wait": mbarrier.Test,
    "mbarrier.try_wait": mbarrier.Test,
    "barrier.cluster.wait": mbarrier.ClusterWait,
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
    **dict.fromkeys(FLOATS, floating.TABLE),
    **dict.fromkeys(NARROW, narrow.TABLE),
    "f32x2": floating.PAIRS,
}
TABLES = (_INTEGER, floating.TABLE, floating.PAIRS, narrow.TABLE, _ANY)
_LONGEST = 3  # words of a key of the tables


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
