"""A launch in one call, or a module whose kernels are launched one after another: CUDA or PTX and NumPy
values in; arrays, hazards and counts out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from ptxsan import nvcc
from ptxsan.arguments import Bound, DeviceArray, bind, extents
from ptxsan.checks import Hazard
from ptxsan.checks.dependent import Dependence
from ptxsan.frontend import Entry, PtxError, Variable
from ptxsan.frontend.parser import parse
from ptxsan.kernel import PreparedKernel
from ptxsan.lanes import Array
from ptxsan.machine.counters import Counters, Tally
from ptxsan.machine.memory import readable
from ptxsan.machine.memory.global_memory import GlobalMemory
from ptxsan.machine.memory.heap import Heap
from ptxsan.nvcc import Compiled
from ptxsan.streams import Stream, Use, WatchedMemory, synchronize

STEPS = 1_000_000  # basic blocks that a chunk of lanes may execute before the kernel counts as hanging


@dataclass(frozen=True)
class LaunchResult:
    """What a launch did.

    ``names``: the names of all parameters, those of the .cu file where they are known. ``arrays``: each array
    argument after the launch, by its position; a member of a struct by (position, number of the member). They
    are copies: the caller's arrays do not change.

    ``hazards``: in the order of detection, at most one for each instruction. ``stopped``: the launch could
    not continue after the last hazard. ``notes``: code that is undefined in CUDA C++ but defined in PTX, and
    undefined values on which no result depends. ``clean``: there are no hazards; notes do not count.

    ``printed``: the output of printf, in order. ``counts``: the memory counters of the whole launch.
    ``counters``: the same for each instruction (``tallies()``) and each buffer. ``lane_instructions``: thread
    instructions, that is, instructions × active threads. ``compiled``: the PTX, and the source where there is
    one.
    """

    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    names: tuple[str, ...]
    arrays: dict[Any, Array]
    hazards: tuple[Hazard, ...]
    notes: tuple[Hazard, ...]
    printed: tuple[str, ...]
    stopped: bool
    counts: Tally
    counters: Counters
    lane_instructions: int
    compiled: Compiled

    @property
    def clean(self) -> bool:
        return not self.hazards


Judge = Callable[[LaunchResult], None]  # what is done with each result


class Module:
    """CUDA or PTX whose kernels are launched on one memory: its ``__device__`` variables and each
    ``DeviceArray`` keep what a launch has written. They run in the order of the calls. Made by ``load``."""

    def __init__(
        self, source: str | Path, arch: str, defines: Sequence[str], flags: Sequence[str], judge: Judge
    ) -> None:
        self.judge = judge
        self._read: Callable[[str], Compiled] = partial(nvcc.read, source, arch, defines, flags)
        self.written: dict[str, bytes] = {}  # variables that the host or a launch has written
        self.heap: Heap | None = None  # what malloc gave in a launch and nobody has freed
        # Of each DeviceArray the elements that launches wrote which a dependent one need not see.
        self.pending: list[tuple[DeviceArray, Array]] = []
        self.uses: dict[str, list[Use]] = {}  # of variables, by launches on streams
        self._kernels: dict[str, Kernel] = {}

    @cached_property
    def _compiled(self) -> Compiled:
        return self._read("")

    @property
    def entries(self) -> tuple[str, ...]:
        """The names of the kernels in the PTX."""
        return tuple(nvcc.entries(self._compiled.ptx))

    def kernel(self, name: str | None = None) -> Kernel:
        """A kernel by its name in C++, with the arguments of a template (``gemm<128, 8>``, which is then
        instantiated), or by its mangled name; the only one if no name is given. Raises PtxError."""
        compiled = self._read(name) if name and "<" in name else self._compiled
        entry = nvcc.entry_name(compiled.ptx, name)
        if entry not in self._kernels:
            found = parse(compiled.ptx, entry, compiled.name)
            self._kernels[entry] = Kernel(self, compiled, found, name or nvcc.plain(entry))
        return self._kernels[entry]

    def set(self, name: str, value: Any) -> None:
        """Writes a ``__device__`` or ``__constant__`` variable, as cudaMemcpyToSymbol does: the bytes of an
        array or of a NumPy scalar. Raises PtxError for an unknown name or too many bytes."""
        variable, data = self._variable(name), np.asarray(value).tobytes()
        if len(data) > variable.size:
            raise PtxError(f"{name} has {variable.size} bytes, {len(data)} given")
        self.written[variable.name] = data + self._bytes(variable)[len(data) :]

    def get(self, name: str, dtype: Any = np.uint8) -> Array:
        """What a variable holds, as a vector of a NumPy dtype. Raises PtxError for an unknown name."""
        return np.frombuffer(self._bytes(self._variable(name)), dtype).copy()

    def _variable(self, name: str) -> Variable:
        there = parse(self._compiled.ptx, self.entries[0], "").variables if self.entries else []
        found = [v for v in there if v.space in ("global", "const") and name in (v.name, readable(v.name))]
        if len(found) != 1:
            names = ", ".join(readable(v.name) for v in there if v.space in ("global", "const")) or "none"
            raise PtxError(f"{len(found) or 'no'} variables {name}; the module has: {names}")
        return found[0]

    def _bytes(self, variable: Variable) -> bytes:
        held = self.written.get(variable.name, variable.data)
        return held + bytes(variable.size - len(held))


@dataclass(frozen=True)
class Launch:
    """A kernel and its launch configuration; called with the kernel's arguments."""

    kernel: Kernel
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int = 0

    def __call__(
        self,
        *arguments: Any,
        cluster: int | Sequence[int] | None = None,
        cooperative: bool = False,
        schedule: int | None = None,
        inexact: int | None = None,
        steps: int = STEPS,
        stream: Stream | None = None,
        dependent: bool = False,
    ) -> LaunchResult:
        """Launches it. ``arguments`` and the options are those of ``run``. An array argument may also be a
        DeviceArray, which keeps what the launch writes. ``stream``: without one the launch comes after all
        before it and before all after it. ``dependent``: a programmatic dependent launch
        (cudaLaunchAttributeProgrammaticStreamSerialization): it may begin before the launch before it has
        ended, so that accesses to what that wrote are races before griddepcontrol.wait
        (cudaGridDependencySynchronize). Raises PtxError and LaunchError as ``run`` does."""
        kernel, module = self.kernel, self.kernel.module
        bound = bind(kernel.entry, kernel.name, kernel.names, arguments)
        memory = self._memory(bound, stream)
        memory.objects, memory.multicast = bound.objects, bound.multicast
        held = {id(bound.given[at]): buffer for at, buffer in bound.buffers.items()}
        before = [each for each in module.pending if id(each[0]) in held]
        if dependent:
            memory.dependence = Dependence([(held[id(array)].number, mask) for array, mask in before])
        counters = Counters()
        report = kernel.prepare(cluster).run(
            *(self.grid, self.block, self.shared, [bound.values], memory, steps, counters),
            cooperative=cooperative,
            schedule=schedule,
            inexact=inexact,
        )
        module.written |= memory.changed()
        module.heap = memory.kept
        wrote = [
            (array, held[id(array)].written(0).ravel())
            for array in bound.given.values()
            if isinstance(array, DeviceArray)
        ]
        module.pending = wrote + (module.pending if dependent else [])
        if isinstance(memory, WatchedMemory):
            memory.record()
        result = LaunchResult(
            kernel.name,
            self.grid,
            self.block,
            kernel.names,
            bound.arrays(),
            tuple(report.hazards),
            tuple(report.notes),
            tuple(text for _, text in report.printed),
            report.stopped,
            Tally.of_all([tally for _, tally in counters.tallies()]),
            counters,
            report.lane_instructions,
            kernel.compiled,
        )
        module.judge(result)
        return result

    def _memory(self, bound: Bound, stream: Stream | None) -> GlobalMemory:
        """The memory of a launch, which on a stream looks for other launches' accesses."""
        module = self.kernel.module
        if stream is None:
            synchronize()
            return GlobalMemory(bound.distinct, module.written, module.heap)
        arrays = [(bound.buffers[place].number, given) for place, given in bound.given.items()]
        uses = {number: given.uses for number, given in arrays if isinstance(given, DeviceArray)}
        name, heap = self.kernel.name, module.heap
        return WatchedMemory(bound.distinct, module.written, heap, name, stream, uses, module.uses)


class Kernel:
    """An entry of a module. ``kernel[grid, block]`` or ``kernel[grid, block, shared]`` is its launch: up to
    three extents each, x first, and bytes of dynamic shared memory. ``names``: of its parameters."""

    def __init__(self, module: Module, compiled: Compiled, entry: Entry, name: str) -> None:
        self.module, self.compiled, self.entry, self.name = module, compiled, entry, name
        names = nvcc.parameter_names(compiled.source, nvcc.plain(entry.name)) if compiled.source else []
        if len(names) != len(entry.parameters):
            names = [f"arg{i}" for i in range(len(entry.parameters))]
        self.names = tuple(names)
        self._prepared: dict[Any, PreparedKernel] = {}

    def __getitem__(self, how: Any) -> Launch:
        if not isinstance(how, tuple) or not 2 <= len(how) <= 3:
            raise PtxError(f"{self.name}[grid, block] or {self.name}[grid, block, shared]")
        grid, block, *shared = how
        return Launch(self, extents(grid, "grid"), extents(block, "block"), *shared)

    def prepare(self, cluster: int | Sequence[int] | None = None) -> PreparedKernel:
        """The translated kernel, with the constants that the module has now."""
        constants = [v for v in self.entry.variables if v.space == "const"]
        held = tuple(self.module.written.get(v.name, v.data) for v in constants)
        key = cluster if cluster is None else extents(cluster, "cluster"), held
        if key not in self._prepared:
            data = dict(zip((v.name for v in constants), held, strict=True))
            variables = [replace(v, data=data.get(v.name, v.data)) for v in self.entry.variables]
            limits = self.entry.limits | ({"reqnctapercluster": key[0]} if key[0] else {})
            entry = replace(self.entry, variables=variables, limits=limits)
            self._prepared[key] = PreparedKernel(entry, self.compiled.name)
        return self._prepared[key]


def load(
    source: str | Path,
    *,
    arch: str = "sm_90a",
    defines: Sequence[str] = (),
    flags: Sequence[str] = (),
) -> Module:
    """A module: ``load("scan.cu").kernel("scan")[4, 256](x, y)``.

    ``source``: the path of a .cu or .ptx file, or the text of one. nvcc compiles CUDA for ``arch``, with
    ``defines`` (NAME or NAME=VALUE) and ``flags``. Raises PtxError with a message of one line: a file that
    cannot be read, source that does not compile.
    """
    return Module(source, arch, defines, flags, lambda result: None)


def run(
    source: str | Path,
    *,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    arguments: Sequence[Any] = (),
    entry: str | None = None,
    shared: int = 0,
    arch: str = "sm_90a",
    defines: Sequence[str] = (),
    flags: Sequence[str] = (),
    steps: int = STEPS,
    cluster: int | Sequence[int] | None = None,
    cooperative: bool = False,
    schedule: int | None = None,
    inexact: int | None = None,
) -> LaunchResult:
    """Launches a kernel: ``entry<<<grid, block, shared>>>(arguments...)``.

    ``source``: the path of a .cu or .ptx file, or the text of one. nvcc compiles CUDA for ``arch``, with
    ``defines`` (NAME or NAME=VALUE) and ``flags``. ``entry``: the kernel's name in the .cu file, with the
    arguments of a template (``gemm<128, 8>``, which is then instantiated), or the mangled name; it may be
    left out if there is only one kernel. ``grid`` and ``block``: up to three extents, x first. ``shared``:
    bytes of dynamic shared memory; more than 48 KiB are allowed, as if the host had called
    cudaFuncSetAttribute. ``cluster``: blocks in a cluster, if the kernel has no __cluster_dims__. ``steps``:
    basic blocks that a group of thread blocks may execute before the launch counts as hanging.
    ``cooperative``: a cooperative launch (cudaLaunchCooperativeKernel), whose blocks may meet as a grid. Of
    other launches, so many blocks are there to wait for one another as a GPU of the target holds at once.
    ``schedule``: a seed, by which warps are late at random, mostly before they write or arrive somewhere; by
    default the warps of a group run in step. ``inexact``: a seed, by which FP32 results of .approx
    instructions (and __expf, __sinf, ...) are off by the error bounds of the PTX ISA, up or down.

    ``arguments``: a pointer takes a NumPy array of any shape, ``Empty(shape, dtype)``, or None for a null
    pointer. A tensor map takes a ``Tiled`` or an ``Im2col``, a texture or surface object a
    ``Texture`` or a ``Surface``. A number takes a NumPy scalar of exactly its
    type (np.int32(5)), a bool, or a Python number that fits. A struct by value takes its bytes, an np.void,
    or a tuple of its members: arrays and NumPy scalars, each aligned to its size. Arrays of other libraries
    are welcome if they have __array_interface__ or DLPack, and are on the host.

    Raises PtxError with a message of one line: the source does not compile, an instruction is not supported
    (with its line), or the arguments do not match the parameters. Raises LaunchError, a PtxError, for a
    launch that a GPU rejects. Errors of the kernel itself are in the result.
    """
    module = load(source, arch=arch, defines=defines, flags=flags)
    return module.kernel(entry)[grid, block, shared](
        *arguments,
        cluster=cluster,
        cooperative=cooperative,
        schedule=schedule,
        inexact=inexact,
        steps=steps,
    )
