"""Instructions of the PTX ISA 9.0 that are not known here: name, section, what they are."""

from __future__ import annotations

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
