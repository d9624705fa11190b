"""Executes the PTX that nvcc generates for a kernel, without a GPU, and checks what a GPU hides.

Independent of any particular kernel: PTX and NumPy arrays in, values, hazards and counts out. ``parse`` reads
PTX, ``Machine`` prepares an entry and runs it on ``Buffer``s in a ``GlobalMemory``, ``Counters`` collect
counts, ``Report`` contains the ``Hazard``s. ``run`` does all of it in one call:

    result = ptxsan.run("saxpy.cu", grid=4, block=256, arguments=[np.int32(1000), np.float32(2), x, y])
    result.arrays[3]  # y after the launch; the caller's array is unchanged
    result.hazards  # races, undefined values, out of bounds ..., with the line in saxpy.cu
    result.counts.loads.sectors  # memory counters

The same on the command line: ``ptxsan --help``, or ``python -m ptxsan --help``.
"""

from ptxsan.api import Empty, Result, Tiled, run
from ptxsan.checks import GlobalAccess, Hazard, Report, SharedAccess
from ptxsan.frontend import Entry, Instruction, PtxError
from ptxsan.frontend.parser import parse
from ptxsan.isa.bulk import TensorMap
from ptxsan.kernel import Machine
from ptxsan.machine.counters import Counters, Tally, flop, mnemonic
from ptxsan.machine.memory.buffer import Buffer
from ptxsan.machine.memory.global_memory import GlobalMemory
from ptxsan.machine.state import STATIC_SHARED, LaunchError

__version__ = "0.1.0"

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
