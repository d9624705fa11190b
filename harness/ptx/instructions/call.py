"""call, of the functions that come with the device (PTX ISA §9.7.12): an assertion's end, and printf."""

from __future__ import annotations

from harness.ptx.builder import Builder, Run
from harness.ptx.hazards import Site, Trap
from harness.ptx.instructions.common import Known
from harness.ptx.lanes import Mask
from harness.ptx.syntax import Instruction, Name, PtxError


def _call(b: Builder, i: Instruction, site: Site) -> Run:
    name = next(operand.text for operand in i.operands if isinstance(operand, Name))
    if name == "vprintf":  # what a kernel prints is no part of its result
        return lambda mask: None
    if name != "__assertfail":
        raise PtxError(f"{name} is a function that is not inlined")

    def end(mask: Mask | None) -> None:
        raise Trap("trap", "fails an assertion", site, 0 if mask is None else int(mask.index[0]))

    return end


TABLE: dict[str, Known] = {"call": Known(_call, "9.7.12.5", writes=0)}
