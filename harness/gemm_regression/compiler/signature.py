"""Whether a compiled kernel takes the parameters that a launch passes. Pure.

A launch passes bytes, not types: a kernel of another signature would run on nonsense, and perhaps be fast.
PTX tells the size of a parameter and whether it is a float: two of one kind exchanged look alike here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol


class Expected(Protocol):
    """A parameter that is handed over; ``kind`` is i8, i16, i32 or i64, signed or not, f16, bf16, f32, f64,
    p64 for a pointer, or bytes[n] for a struct of n bytes by value."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...


_SMALL_FLOATS = ("f16", "bf16")  # structs to nvcc
# What a parameter of a type in PTX can be. nvcc writes .u64 for pointers, newer ones .u64 .ptr.
_TAKES = {
    **{f"{sign}{bits}": (f"i{bits}",) for sign in "us" for bits in (8, 16, 32)},
    "b8": ("i8",),
    "b16": ("i16", *_SMALL_FLOATS),
    "b32": ("i32",),
    **dict.fromkeys(("u64", "s64", "b64"), ("i64", "p64")),
    "f32": ("f32",),
    "f64": ("f64",),
    "ptr": ("p64",),
    "b8[2]": ("bytes[2]", *_SMALL_FLOATS),
}


def parameters(ptx: str, symbol: str) -> tuple[str, ...] | None:
    """The types of an entry's parameters as PTX has them, ``u32``, ``f32``, ``ptr`` for a pointer that is
    marked as one, ``b8[128]`` for bytes passed by value; None without the entry."""
    found = re.search(rf"\.entry\s+{re.escape(symbol)}\s*\((.*?)\)", ptx, re.DOTALL)
    if found is None:
        return None
    types = []
    for text in filter(None, (part.strip() for part in found[1].split(","))):
        words = re.match(
            r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)(\s+\.ptr\b)?.*?(\[\d+\])?$", text, re.DOTALL
        )
        types.append(("ptr" if words[2] else words[1] + (words[3] or "")) if words else text)
    return tuple(types)


def mismatch(ptx: str, symbol: str, expected: Sequence[Expected]) -> str | None:
    """One line on the first parameter that differs from what would be passed, else None."""
    taken = parameters(ptx, symbol)
    if taken is None:
        return f"there is no kernel {symbol}"
    for position, (parameter, type_) in enumerate(zip(expected, taken, strict=False), 1):
        if parameter.kind not in _kinds(type_):
            handed = f"{parameter.kind} {parameter.name}"
            return f"parameter {position} is {handed}, but the kernel takes {_shown(type_)}"
    if len(taken) != len(expected):
        names = ", ".join(parameter.name for parameter in expected)
        return f"the kernel takes {len(taken)} parameters, not {len(expected)} ({names})"
    return None


def _kinds(type_: str) -> tuple[str, ...]:
    return _TAKES.get(type_, (type_.replace("b8[", "bytes["),))


def _shown(type_: str) -> str:
    kinds = _kinds(type_)
    if kinds == ("i64", "p64"):
        return f"{type_} (a pointer?)"
    return "a pointer" if kinds == ("p64",) else kinds[0]
