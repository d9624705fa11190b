"""The names of the package, `ptxsan.load` and the others."""

from ptxsan.api import Kernel, Launch, LaunchResult, Module, load, run
from ptxsan.arguments import (
    DeviceArray,
    Empty,
    Im2col,
    Multicast,
    Surface,
    Texture,
    Tiled,
    device_array,
    to_device,
)
from ptxsan.checks import GlobalAccess, Hazard, Report, SharedAccess
from ptxsan.frontend import Entry, Instruction, PtxError
from ptxsan.frontend.parser import parse
from ptxsan.isa.tensormap import TensorMapDescriptor
from ptxsan.kernel import PreparedKernel
from ptxsan.machine.counters import Counters, Tally, flop, mnemonic
from ptxsan.machine.memory.buffer import Buffer
from ptxsan.machine.memory.global_memory import GlobalMemory
from ptxsan.machine.state import STATIC_SHARED, LaunchError
from ptxsan.streams import Event, Stream, synchronize

__all__ = [
    "STATIC_SHARED",
    "Buffer",
    "Counters",
    "DeviceArray",
    "Empty",
    "Entry",
    "Event",
    "GlobalAccess",
    "GlobalMemory",
    "Hazard",
    "Im2col",
    "Instruction",
    "Kernel",
    "Launch",
    "LaunchError",
    "LaunchResult",
    "Module",
    "Multicast",
    "PreparedKernel",
    "PtxError",
    "Report",
    "SharedAccess",
    "Stream",
    "Surface",
    "Tally",
    "TensorMapDescriptor",
    "Texture",
    "Tiled",
    "device_array",
    "flop",
    "load",
    "mnemonic",
    "parse",
    "run",
    "synchronize",
    "to_device",
]
