"""The state spaces of the PTX ISA (§5.1), each with its checks."""

from ptxsan.checks.clocks import Clocks
from ptxsan.machine.memory.asynchronous import Asynchronous
from ptxsan.machine.memory.buffer import Buffer
from ptxsan.machine.memory.global_memory import GlobalMemory, Strength
from ptxsan.machine.memory.private import ConstantMemory, LocalMemory
from ptxsan.machine.memory.shared_memory import SharedMemory
from ptxsan.machine.memory.spaces import (
    CONSTANT,
    LOCAL,
    PARAMETER,
    RESERVED,
    SHARED,
    SLOT,
    Change,
    divide,
    unsigned,
)

__all__ = [
    "CONSTANT",
    "LOCAL",
    "PARAMETER",
    "RESERVED",
    "SHARED",
    "SLOT",
    "Asynchronous",
    "Buffer",
    "Change",
    "Clocks",
    "ConstantMemory",
    "GlobalMemory",
    "LocalMemory",
    "SharedMemory",
    "Strength",
    "divide",
    "unsigned",
]
