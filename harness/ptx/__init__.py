"""Executes the PTX that nvcc generates for a kernel, without a GPU, and checks what a GPU hides.

Independent of any particular kernel: PTX and NumPy arrays in, values, hazards and counts out. ``parse`` reads
PTX, ``Machine`` prepares an entry and runs it on ``Buffer``s in a ``GlobalMemory``, ``Counters`` collect
counts, ``Report`` contains the ``Hazard``s. ``run`` does all of it in one call:

    result = ptx.run("saxpy.cu", grid=4, block=256, arguments=[np.int32(1000), np.float32(2), x, y])
    result.arrays[3]  # y after the launch; the caller's array is unchanged
    result.hazards  # races, undefined values, out of bounds ..., with the line in saxpy.cu
    result.counts.loads.sectors  # memory counters

The same on the command line: ``python -m harness.ptx --help``.
"""

from harness.ptx.accesses import GlobalAccess, SharedAccess
from harness.ptx.api import Empty, Result, Tiled, run
from harness.ptx.counters import Counters, Tally, flop, mnemonic
from harness.ptx.hazards import Hazard, Report
from harness.ptx.launch import STATIC_SHARED, LaunchError
from harness.ptx.machine import Machine
from harness.ptx.memory import Buffer, GlobalMemory
from harness.ptx.parser import parse
from harness.ptx.syntax import Entry, Instruction, PtxError
from harness.ptx.tensor_map import TensorMap

__all__ = [
    "STATIC_SHARED",
    "Buffer",
    "Counters",
    "Empty",
    "Entry",
    "GlobalAccess",
    "GlobalMemory",
    "Hazard",
    "Instruction",
    "LaunchError",
    "Machine",
    "PtxError",
    "Report",
    "Result",
    "SharedAccess",
    "Tally",
    "TensorMap",
    "Tiled",
    "flop",
    "mnemonic",
    "parse",
    "run",
]
