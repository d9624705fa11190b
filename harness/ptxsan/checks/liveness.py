"""Registers that may be read before anything is written to them, over all paths through a kernel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """What an instruction reads, and what it writes for certain, by slot."""

    reads: frozenset[int]
    writes: frozenset[int]


def unset(blocks: Sequence[Sequence[Step]], following: Sequence[Sequence[int]]) -> frozenset[int]:
    """The registers live at the start of the first block. ``following``: by block the numbers of those that
    may come next; a number past the last one is the end (Aho et al., "Compilers", §9.2.5)."""
    reads: list[int] = []  # a bit for each slot
    writes: list[int] = []
    for steps in blocks:
        read = written = 0
        for step in steps:
            read |= bits(step.reads) & ~written
            written |= bits(step.writes)
        reads.append(read)
        writes.append(written)
    start = before(reads, writes, following)[0]
    return frozenset(slot for slot, bit in enumerate(reversed(f"{start:b}")) if bit == "1")


def bits(slots: Iterable[int]) -> int:
    """A number with a bit for each of the slots."""
    found = 0
    for slot in slots:
        found |= 1 << slot
    return found


def before(reads: Sequence[int], writes: Sequence[int], following: Sequence[Sequence[int]]) -> list[int]:
    """The registers that are live before each block and, last, at the end, as bits. Of each block are given
    those that it reads before it writes them, and those that it writes."""
    live = [0] * (len(reads) + 1)
    changed = True
    while changed:
        changed = False
        for at in reversed(range(len(reads))):
            after = 0
            for n in following[at]:
                after |= live[n]
            now = reads[at] | (after & ~writes[at])
            if now != live[at]:
                live[at], changed = now, True
    return live
