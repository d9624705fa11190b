"""Executes the PTX that nvcc makes of a kernel, on a machine without a GPU, and checks what a GPU hides.

Knows nothing of any kernel: PTX and NumPy arrays in, values, hazards and counts out. ``parse`` reads,
``Machine`` makes an entry ready and runs it on ``Buffer``s in a ``GlobalMemory``, ``Counters`` count along;
``Report`` has the ``Hazard``s.
"""

from harness.ptx.accesses import GlobalAccess, SharedAccess
from harness.ptx.counters import Counters, Tally, flop, mnemonic
from harness.ptx.hazards import Hazard, Report
from harness.ptx.machine import Machine
from harness.ptx.memory import Buffer, GlobalMemory
from harness.ptx.parser import parse
from harness.ptx.syntax import Entry, Instruction, PtxError

__all__ = [
    "Buffer",
    "Counters",
    "Entry",
    "GlobalAccess",
    "GlobalMemory",
    "Hazard",
    "Instruction",
    "Machine",
    "PtxError",
    "Report",
    "SharedAccess",
    "Tally",
    "flop",
    "mnemonic",
    "parse",
]
