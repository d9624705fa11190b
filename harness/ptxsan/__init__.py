"""Executes the PTX that nvcc generates for a kernel, without a GPU, and reports errors that a GPU hides.

It works for any kernel. The inputs are PTX and NumPy arrays. The results are values, hazards and memory
counters. ``run`` does everything in one call:

    result = ptxsan.run("saxpy.cu", grid=4, block=256, arguments=[np.int32(1000), np.float32(2), x, y])
    result.arrays[3]  # y after the launch; the caller's array is unchanged
    result.hazards  # races, undefined values, out of bounds ..., with the line in saxpy.cu
    result.counts.loads.sectors  # memory counters

The parts that ``run`` uses: ``parse`` reads PTX and returns an ``Entry``. ``PreparedKernel`` translates an
entry and launches it on ``Buffer``s in a ``GlobalMemory``. ``Counters`` collect the counts. ``Report``
contains the ``Hazard``s.

The same on the command line: ``ptxsan --help``, or ``python -m ptxsan --help``.
"""

from ptxsan.api import Kernel, Launch, LaunchResult, Module, load, run
from ptxsan.arguments import DeviceArray, Empty, Tiled, device_array, to_device
from ptxsan.checks import GlobalAccess, Hazard, Report, SharedAccess
from ptxsan.frontend import Entry, Instruction, PtxError
from ptxsan.frontend.parser import parse
from ptxsan.isa.bulk import TensorMapDescriptor
from ptxsan.kernel import PreparedKernel
from ptxsan.machine.counters import Counters, Tally, flop, mnemonic
from ptxsan.machine.memory.buffer import Buffer
from ptxsan.machine.memory.global_memory import GlobalMemory
from ptxsan.machine.state import STATIC_SHARED, LaunchError

__version__ = "0.1.0"


__all__ = [
    "STATIC_SHARED",
    "Buffer",
    "Counters",
    "DeviceArray",
    "Empty",
    "Entry",
    "GlobalAccess",
    "GlobalMemory",
    "Hazard",
    "Instruction",
    "Kernel",
    "Launch",
    "LaunchError",
    "LaunchResult",
    "Module",
    "PreparedKernel",
    "PtxError",
    "Report",
    "SharedAccess",
    "Tally",
    "TensorMapDescriptor",
    "Tiled",
    "device_array",
    "flop",
    "load",
    "mnemonic",
    "parse",
    "run",
    "to_device",
]
