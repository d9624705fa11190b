"""Registers that may be read before anything is written to them, over all paths through a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """What an instruction reads, and what it writes for certain, by slot."""

    reads: frozenset[int]
    writes: frozenset[int]


def unset(blocks: Sequence[Sequence[Step]], following: Sequence[Sequence[int]]) -> frozenset[int]:
    """The registers live at the start of the first block. ``following``: by block the numbers of those that
    may come next; a number past the last one is the end (Aho et al., "Compilers", §9.2.5)."""
    reads: list[set[int]] = []
    writes: list[set[int]] = []
    for steps in blocks:
        read: set[int] = set()
        written: set[int] = set()
        for step in steps:
            read |= step.reads - written
            written |= step.writes
        reads.append(read)
        writes.append(written)
    live: list[set[int]] = [set() for _ in [*blocks, None]]
    changed = True
    while changed:
        changed = False
        for at in reversed(range(len(blocks))):
            after: set[int] = set().union(*(live[n] for n in following[at]))
            now = reads[at] | (after - writes[at])
            if now != live[at]:
                live[at], changed = now, True
    return frozenset(live[0])
