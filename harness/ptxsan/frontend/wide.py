"""Registers of 128 bits, each of which is two of 64 here."""

from __future__ import annotations

import re
from dataclasses import replace

from ptxsan.frontend import Instruction, Operand, PtxError, Vector


def of_halves(op: str, operands: tuple[Operand, ...]) -> tuple[str, tuple[Operand, ...]]:
    """A load or store of registers of 128 bits, as one of vectors of 64."""
    flat = tuple(Vector(_flat(o)) if isinstance(o, Vector) else o for o in operands)
    count = max((len(o.items) for o in flat if isinstance(o, Vector)), default=2)
    return re.sub(r"(\.v2)?\.b128$", f".v{count}.b64", op), flat


def _flat(vector: Vector) -> tuple[Operand, ...]:
    return tuple(item for o in vector.items for item in (_flat(o) if isinstance(o, Vector) else (o,)))


def halves(i: Instruction) -> list[Instruction]:
    """mov.b128 as two of 64 bits."""
    pairs = [_flat(o) if isinstance(o, Vector) else () for o in i.operands]
    if [len(pair) for pair in pairs] != [2, 2]:
        raise PtxError(f"PTX line {i.line}: {i.text}: 128 bits that are not two registers of 64")
    return [replace(i, op="mov.b64", operands=both) for both in zip(*pairs, strict=True)]
