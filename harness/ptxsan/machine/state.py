"""What a GPU refuses to launch, by the limits of its compute capability and of the kernel itself.

Sources: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"; PTX ISA §11.4,
"Performance-Tuning Directives". Registers are ptxas's to assign, and so are not known here. .minnctapersm
refuses nothing: ptxas keeps it, or says that it cannot.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from ptxsan.checks import Tell
from ptxsan.checks.clocks import Clocks, Handed, merge
from ptxsan.checks.order import Order
from ptxsan.checks.proxy import InFlight
from ptxsan.checks.tensor import LoadedRegisters
from ptxsan.checks.undefined import Undefined
from ptxsan.frontend import Entry, PtxError, Variable, parameter_bytes
from ptxsan.lanes import CLOCKS, SHARED_SIZES, WARP, WORKSPACE, Array, Geometry, Mask
from ptxsan.machine.memory import SLOT, ConstantMemory, LocalMemory, layout
from ptxsan.machine.memory.asynchronous import Asynchronous
from ptxsan.machine.memory.global_memory import GlobalMemory
from ptxsan.machine.memory.shared_memory import SharedMemory
from ptxsan.machine.memory.tensor_memory import SHARED_OF_PROCESSOR, TensorMemory

THREADS = 1024  # a block
CLUSTER = 8  # blocks; a host may ask for more, which not every GPU has
BLOCK, GRID = (1024, 1024, 64), (2**31 - 1, 65535, 65535)
STATIC_SHARED = 48 * 1024  # bytes a block; more only as dynamic shared memory, for which a host has to ask
# KiB of shared memory that a block may have if the host asks for it.
_SHARED = {75: 64, 80: 163, 86: 99, 87: 163, 88: 99, 89: 99, 90: 227, 100: 227, 103: 227, 110: 227}
_SHARED |= {120: 99, 121: 99}
Extents = tuple[int, int, int]


class LaunchError(PtxError):
    """A launch that a GPU refuses: the limit and the value, in one line."""


def refuse(entry: Entry, grid: Extents, block: Extents, static: int, dynamic: int) -> None:
    """Raises LaunchError for a launch that fails on a GPU of the entry's target. ``static`` and ``dynamic``
    bytes of shared memory a block."""
    if reason := next(_reasons(entry, grid, block, static, dynamic), ""):
        raise LaunchError(f"a GPU refuses to launch {entry.name}: {reason}")


def refuse_cooperative(entry: Entry, grid: Extents, most: int) -> None:
    """Raises LaunchError where the blocks of a cooperative launch are not all on the GPU at once."""
    if prod(grid) > most:
        what = f"a cooperative launch of {prod(grid)} blocks, of which {most} fit at once on {entry.target}"
        raise LaunchError(f"a GPU refuses to launch {entry.name}: {what}")


def _reasons(entry: Entry, grid: Extents, block: Extents, static: int, dynamic: int) -> Iterator[str]:
    for name, extents, most in (("grid", grid, GRID), ("block", block, BLOCK)):
        for axis, extent, limit in zip("xyz", extents, most, strict=True):
            if not 1 <= extent <= limit:
                yield f"{name}.{axis} is {extent}, from 1 to {limit} allowed"
    cluster = "x".join(map(str, entry.cluster))
    if prod(entry.cluster) > CLUSTER:
        yield f"a cluster of {cluster} is {prod(entry.cluster)} blocks, {CLUSTER} at most on every GPU"
    if any(n % c for n, c in zip(grid, entry.cluster, strict=True)):
        yield f"a grid of {'x'.join(map(str, grid))} blocks, which is not of whole clusters of {cluster}"
    threads, shape = prod(block), "x".join(map(str, block))
    if threads > THREADS:
        yield f"a block of {shape} is {threads} threads, {THREADS} at most"
    limits = entry.limits
    if threads > (bound := prod(limits.get("maxntid", (THREADS,)))):
        yield f"a block of {shape} is {threads} threads, {bound} at most by .maxntid (__launch_bounds__)"
    if "reqntid" in limits and block != (asked := (*limits["reqntid"], 1, 1)[:3]):
        yield f"a block of {shape}, where .reqntid (__block_size__) asks for {'x'.join(map(str, asked))}"
    if static > STATIC_SHARED:
        yield f"{static} bytes of static shared memory a block, {STATIC_SHARED} at most"
    most_shared = 1024 * _SHARED.get(entry.capability, max(_SHARED.values()))
    if dynamic < 0 or static + dynamic > most_shared:
        both = f"{static} bytes of static and {dynamic} of dynamic shared memory a block"
        yield f"{both}, {most_shared} together at most on {entry.target or 'any GPU'}"


# What a kernel has while it runs: registers, memories, parameters, the threads that run together.


# Of blocks that are suspended: registers, fields by object, undefined values.
Context = tuple[list[Any], list[tuple[Any, dict[str, Any]]], Any]
_OF_BLOCKS = ("geometry", "lanes", "clocks", "shared", "asynchronous", "local", "parameters")
_TICK = 1000  # by which a look at a clock puts it on
_PRINTED = 200  # texts of printf that are kept
_WORKSPACE = Variable("the workspace of the grid", "global", 64, 16, b"")  # where its blocks meet
_PROBE = Geometry(np.zeros((1, 3), np.int32), np.zeros(1, np.int64), (WARP, 1, 1), (1, 1, 1))


class KernelState:
    """The state of one kernel. A register holds an array over all lanes, or a scalar where all lanes agree.

    ``tell`` notes a hazard; ``undefined`` are the registers and the memory without a value.
    ``is_partial``: some barriers order a part of a block or of a warp; ``has_tensor``: it has tensor memory.
    Before the variables in shared memory are ``reserved`` bytes.
    """

    def __init__(
        self,
        variables: Sequence[Variable],
        parameters: Sequence[tuple[str, str]],
        tell: Tell,
        undefined: Undefined,
        reserved: int = 0,
        is_asynchronous: bool = False,
        is_partial: bool = False,
        has_tensor: bool = False,
    ) -> None:
        self.undefined = undefined
        self.registers: list[Any] = []
        self.lanes = 0
        self.printed: list[tuple[int, str]] = []
        self._ticks = self._dynamic = 0
        self._workspace: int | None = None  # of a cooperative launch: its number among the variables
        self.parameters: dict[str, Any] = {}
        # Each launch makes its own.
        self.geometry: Geometry = _PROBE
        self.memory = GlobalMemory([])
        self.shared: SharedMemory = None  # type: ignore[assignment]
        self.is_asynchronous, self._has_clocks = is_asynchronous, is_asynchronous or is_partial
        self._has_flags, self._has_tensor = False, has_tensor
        self.inexact: int | None = None  # a seed, by which approximate results are off by their bounds
        self.clocks: Clocks | None = None
        self.inflight, self.loads = InFlight([]), LoadedRegisters([])
        self.asynchronous: Asynchronous | None = None
        self.local = LocalMemory(0, 0)
        self.tell, self._declared = tell, list(parameters)
        of: dict[str, list[Variable]] = {space: [] for space in ("shared", "const", "local", "global")}
        for variable in variables:
            of[variable.space].append(variable)
        self.constant = ConstantMemory(of["const"])
        self._shared_variables, self._global_variables = of["shared"], of["global"]
        self._symbols = {
            v.name: (i + 1 << SLOT) + before
            for each, before in (("shared", reserved), ("const", 0))
            for i, v in enumerate(of[each])
        }
        self._reserved = reserved
        if is_asynchronous and of["shared"]:  # matrix descriptors hold the low bits of an address alone
            for v, start in zip(of["shared"], layout(of["shared"], 0)[0], strict=True):
                self._symbols[v.name] += int(start)
        at = 0
        for v in of["local"]:
            at = -(-at // v.align) * v.align
            self._symbols[v.name] = at
            at += v.size
        self._local_size = at
        self._globals = {v.name: i for i, v in enumerate(self._global_variables)}
        # Of parameters, too: a struct's is indexed by them.
        self._symbols |= {name: i + 1 << SLOT for i, (name, _) in enumerate(self._declared)}
        self.static_shared = sum(v.size for v in self._shared_variables)

    # Names

    def symbol(self, name: str) -> int | None:
        """The address of a variable in its state space, or None."""
        return self._symbols.get(name)

    def is_global(self, name: str) -> bool:
        return name in self._globals

    def global_address(self, name: str) -> Any:
        """The address of a variable in global memory, of which each launch has its own."""
        return self.memory.variable(self._globals[name])

    @staticmethod
    def known_special(name: str) -> bool:
        return _PROBE.special(name) is not None

    def special(self, name: str) -> Any:
        """A special register; clocks go on by each look at them, so that to wait for one ends."""
        if name in CLOCKS:
            self._ticks += _TICK
            ticks = np.int64(self._ticks)
            whole = name in ("%clock64", "%globaltimer")
            return ticks if whole else (ticks >> 32 * name.endswith("_hi")).astype(np.int32)
        if name in WORKSPACE:
            if self._workspace is None:
                return np.int32(0)
            address = np.asarray(self.memory.variable(self._workspace))
            return (address >> 32 * (name == WORKSPACE[1])).astype(np.int32)
        if name in SHARED_SIZES:
            total = -(-(self.static_shared + self._dynamic) // 128) * 128
            return np.int32(self._dynamic if name.startswith("%dynamic") else total)
        return self.geometry.special(name)

    # Runs

    def follow_flags(self) -> None:
        """Threads of a block wait for one another by flags in shared memory."""
        self._has_flags = self._has_clocks = True

    def begin(self, memory: GlobalMemory, launches: int, cooperative: bool = False) -> None:
        """A batch of launches on this memory."""
        self.memory, self.printed = memory, []
        self._workspace = len(self._global_variables) if cooperative else None
        memory.declare([*self._global_variables, *([_WORKSPACE] if cooperative else [])], launches)
        memory.report, memory.undefined = self.tell, self.undefined
        self.undefined.begin()

    def enter(
        self,
        geometry: Geometry,
        initial: Sequence[Any],
        granule: int,
        dynamic: int,
        given: Sequence[Sequence[Any]],
    ) -> None:
        """The blocks that run now, with the registers' ``initial`` values, ``dynamic`` bytes of shared
        memory of which ``granule`` bytes are told apart, and the parameters of each launch."""
        self._dynamic = dynamic
        self.geometry, self.lanes = geometry, geometry.lanes
        self.registers[:] = initial
        clocks = None
        if self._has_clocks:
            clocks = Clocks(geometry, self.is_asynchronous, self._has_tensor)
        self.clocks = clocks
        self.memory.enter(geometry, clocks)
        self.shared = SharedMemory(
            self._shared_variables,
            dynamic,
            geometry,
            granule,
            self._reserved,
            clocks,
            self.is_asynchronous,
            self._has_flags,
        )
        self.shared.report, self.shared.undefined = self.tell, self.undefined
        if clocks is not None and self.is_asynchronous:
            self.asynchronous = Asynchronous(self.shared, clocks, geometry, self.tell)
            if self._has_tensor:
                alone = 2 * (self.static_shared + dynamic + self._reserved) > SHARED_OF_PROCESSOR
                tensor = TensorMemory(clocks, geometry, self.tell, self.undefined, alone)
                self.asynchronous.tensor, self.loads.used = tensor, tensor.used
        self.inflight.enter(geometry.lanes)
        self.loads.enter(geometry.lanes)
        self.local = LocalMemory(self._local_size, geometry.lanes if self._local_size else 0)
        self.local.undefined = self.undefined
        self.parameters = {
            name: _parameter(name, kind, [launch[i] for launch in given], geometry)
            for i, (name, kind) in enumerate(self._declared)
        }

    @property
    def changes(self) -> int:
        """How often memory that others may poll has changed, since ever."""
        return self.memory.changes + self.shared.changes

    def suspend(self) -> Context:
        """The blocks that run stop for others: all that they have."""
        self.memory.order.pause()
        held = [(self, _OF_BLOCKS), (self.memory.order, Order.OF_BLOCKS), (self.inflight, InFlight.OF_BLOCKS)]
        held.append((self.loads, ("used", *LoadedRegisters.OF_BLOCKS)))
        fields = [(of, {name: getattr(of, name) for name in names}) for of, names in held]
        return list(self.registers), fields, self.undefined.suspend()

    def resume(self, context: Context) -> None:
        """Blocks that were suspended go on."""
        registers, fields, undefined = context
        self.registers[:] = registers
        for of, values in fields:
            for name, value in values.items():
                setattr(of, name, value)
        self.undefined.resume(self.lanes, undefined)
        self.memory.resume(self.geometry)

    def leave(self, initial: Sequence[Any]) -> None:
        """After the last blocks: nothing of the launch is kept."""
        self.registers[:] = initial
        self.memory, self.local = GlobalMemory([]), LocalMemory(0, 0)
        self.shared, self.asynchronous, self.clocks = None, None, None  # type: ignore[assignment]
        self.parameters = {}

    def prints(self) -> bool:
        """Whether there is still room for what a thread prints."""
        return len(self.printed) < _PRINTED

    def say(self, lane: int, text: str) -> None:
        self.printed.append((int(self.geometry.launch[lane]), text))

    def barrier(self, blocks: Array) -> None:
        """All threads of these blocks, (B,) bool, have met."""
        self.shared.barrier(blocks)
        self.memory.order.barrier(blocks)
        if self.clocks is not None:
            self.clocks.barrier(blocks)

    def fence(self, mask: Mask | None, wide: bool) -> None:
        """A fence; a ``wide`` one is of GPU or system scope."""
        if wide:
            self.memory.order.fence(mask)
        if self._has_flags and self.clocks is not None:
            self.clocks.fence(mask)

    def warp_barrier(self, mask: Mask | None) -> None:
        """__syncwarp: the lanes of a warp have met."""
        self.shared.warp_barrier(mask)
        self.memory.order.warp_barrier(mask)
        if self.clocks is not None:
            self.clocks.warp_barrier(mask)

    def release(self, lanes: Array, before: Handed | None = None) -> Handed:
        """What these lanes (n,) of one block did comes before what those do that it is handed to; with what
        others of them handed on ``before``."""
        assert self.clocks is not None
        handed = merge(self.clocks.released(lanes), before)
        self.memory.order.publish(lanes)
        self.clocks.tick()
        return handed

    def meet(self, lanes: Array, given: Handed | None = None) -> None:
        """These lanes (n,), some of one block, meet, and come after what was handed to them."""
        assert self.clocks is not None
        self.clocks.acquire(lanes, *self.release(lanes, given))


def _parameter(name: str, kind: str, values: Sequence[Any], geometry: Geometry) -> Any:
    """What all lanes have of a parameter; of a struct its bytes, (size,) or (lanes, size)."""
    if size := parameter_bytes(kind):
        held = [value.tobytes() if isinstance(value, np.generic) else bytes(value) for value in values]
        if any(len(each) != size for each in held):
            raise PtxError(f"parameter {name} is a struct of {size} bytes")
        values = [np.frombuffer(each, np.uint8) for each in held]
        same = all(each == held[0] for each in held)
    else:
        same = all(v == values[0] for v in values)
    return values[0] if same else np.array(values)[geometry.launch]
