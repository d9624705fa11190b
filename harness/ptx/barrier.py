"""Barriers of a block of threads: bar.sync, bar.arrive and bar.red."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.ptx.builder import Builder, Read, Write
from harness.ptx.lanes import Geometry, Mask, full
from harness.ptx.syntax import Instruction, PtxError


@dataclass(frozen=True)
class Barrier:
    """bar.sync, bar.arrive and bar.red: number, count of threads (None for the whole block), reduction."""

    number: Read
    count: Read | None
    waits: bool
    reduction: str = ""
    put: Write | None = None
    source: Read | None = None

    @classmethod
    def of(cls, b: Builder, i: Instruction) -> Barrier:
        words, operands = (
            i.op.removeprefix("barrier.cta").removeprefix("barrier").split("."),
            list(i.operands),
        )
        action = next(word for word in words if word in ("sync", "arrive", "red"))
        if action != "red":
            count = b.read(operands[1], "u32") if len(operands) > 1 else None
            if action == "arrive" and count is None:
                raise PtxError("bar.arrive needs a count of threads")
            return cls(b.read(operands[0], "u32"), count, action == "sync")
        if len(operands) != 3 or words[-1] not in ("u32", "pred"):
            raise PtxError("bar.red of a part of the block is not supported")
        reduction = next(word for word in words if word in ("popc", "and", "or"))
        source = b.read(operands[2], "pred")
        return cls(b.read(operands[1], "u32"), None, True, reduction, b.write(operands[0]), source)

    def reduce(self, geometry: Geometry, mask: Mask | None) -> None:
        """bar.red: what the predicates of a block come to, for each of its threads."""
        if self.put is None or self.source is None:
            return
        said = full(self.source(), geometry.lanes).reshape(geometry.count, geometry.threads)
        there = np.ones_like(said) if mask is None else mask.bits.reshape(said.shape)
        result = {
            "popc": (said & there).sum(axis=1).astype(np.int32),
            "and": (said | ~there).all(axis=1),
            "or": (said & there).any(axis=1),
        }[self.reduction]
        self.put(np.repeat(result, geometry.threads), mask)
