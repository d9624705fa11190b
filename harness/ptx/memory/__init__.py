"""The state spaces of the PTX ISA (§5.1), each with its checks."""

from harness.ptx.memory.asynchronous import Asynchronous
from harness.ptx.memory.buffer import Buffer
from harness.ptx.memory.clocks import Clocks
from harness.ptx.memory.global_memory import GlobalMemory, Strength
from harness.ptx.memory.private import ConstantMemory, LocalMemory
from harness.ptx.memory.shared_memory import SharedMemory
from harness.ptx.memory.spaces import (
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
