"""Whether a compiled kernel takes the parameters that the harness hands over. Pure.

A launch passes bytes, not types: a kernel of another signature would run on nonsense, and perhaps be fast.
"""

from __future__ import annotations

import re

# (int M, int N, int K, float alpha, const T* A, int lda, const T* B, int ldb, float beta, U* C, int ldc)
LAUNCHED = ("i32", "i32", "i32", "f32", "p64", "i32", "p64", "i32", "f32", "p64", "i32")
_KINDS = {"u32": "i32", "s32": "i32", "b32": "i32", "u64": "p64", "s64": "p64", "b64": "p64"}


def parameters(ptx: str, entry: str) -> tuple[str, ...] | None:
    """The kinds of an entry's parameters in PTX, ``i32``, ``f32``, ``p64`` …, or None without the entry.

    A parameter passed by value as bytes reads as its PTX declaration does: ``b8[128]``.
    """
    found = re.search(rf"\.entry\s+{re.escape(entry)}\s*\((.*?)\)", ptx, re.DOTALL)
    if found is None:
        return None
    kinds = []
    for text in filter(None, (part.strip() for part in found[1].split(","))):
        words = re.match(r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+).*?(\[\d+\])?$", text, re.DOTALL)
        kinds.append(_KINDS.get(words[1], words[1]) + (words[2] or "") if words else text)
    return tuple(kinds)


def mismatch(ptx: str, entry: str) -> str | None:
    """One line where the harness cannot launch the entry, else None."""
    taken = parameters(ptx, entry)
    if taken is None:
        return f"it has no kernel {entry}"
    if taken == LAUNCHED:
        return None
    return f"{entry} takes ({', '.join(taken)}), the harness hands over ({', '.join(LAUNCHED)})"
