"""The condition code of the extended-precision integers as a register like any other (PTX ISA §9.7.2)."""

from __future__ import annotations

from ptxsan.frontend.syntax import Operand, Register, Vector

CARRY = Register("%cc")  # its CC.CF; a name that PTX has no register of


def with_carry(op: str, operands: tuple[Operand, ...]) -> tuple[Operand, ...]:
    """The operands of an instruction, with the carry that it writes as a second result ({d, %cc}) and the one
    that it reads as its last source."""
    if not op.startswith(("add", "sub", "mad")):  # as most are not
        return operands
    base, *words = op.split(".")
    if base in ("addc", "subc", "madc"):
        operands = (*operands, CARRY)
    elif base not in ("add", "sub", "mad"):
        return operands
    if "cc" in words and operands:
        operands = (Vector((operands[0], CARRY)), *operands[1:])
    return operands
