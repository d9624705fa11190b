"""What the modules of instructions share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ptxsan.checks.hazards import Site
from ptxsan.frontend.syntax import Instruction, PtxError
from ptxsan.machine.builder import Builder, Run

Make = Callable[[Builder, Instruction, Site], Run]


@dataclass(frozen=True)
class Known:
    """An instruction of the table: what makes it ready to run, its section of the PTX ISA 9.0, and how many
    of its first operands it writes (a vector is one operand)."""

    make: Make
    section: str
    writes: int = 1


NARROW = frozenset({"f16", "bf16", "f16x2", "bf16x2"})
FLOATS = frozenset({"f32", "f64", "f16", "bf16"})


def parts(i: Instruction) -> tuple[list[str], str]:
    """Modifiers between the first word and the type, and the type."""
    words = i.op.replace("::", "_").split(".")
    return words[1:-1], words[-1]


def simple(b: Builder, i: Instruction, kind: str, operation: Any) -> Run:
    """d = operation(sources), all of one type."""
    put, reads = b.write(i.operands[0]), [b.read(o, kind) for o in i.operands[1:]]
    if len(reads) == 1:
        (one,) = reads
        return lambda mask: put(operation(one()), mask)
    if len(reads) == 2:
        one, two = reads
        return lambda mask: put(operation(one(), two()), mask)
    return lambda mask: put(operation(*(read() for read in reads)), mask)


def only(modifiers: list[str], allowed: set[str]) -> None:
    """Raises PtxError for a modifier that is not one of these."""
    if set(modifiers) - allowed:
        raise PtxError(f"modifiers {modifiers} are not supported")


def quiet(operation: Any) -> Any:
    """The operation of NumPy without its warnings and traps."""

    def run(*operands: Any) -> Any:
        with np.errstate(all="ignore"):
            return operation(*operands)

    return run
