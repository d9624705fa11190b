"""Executes the PTX that nvcc generates for a kernel, without a GPU, and checks what a GPU hides.

The Device protocol over the interpreter; needs nvcc. nvcc tells the line of the .cu file that an instruction
comes from with -lineinfo only, and the code it then makes is not always that without: what runs is the
latter, and its instructions are lined up with those of the former.
"""

from __future__ import annotations

import contextlib
import gc
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any
from weakref import WeakSet

from gemm_regression.compiler import tools
from gemm_regression.compiler.nvcc import compile_cubin, compile_ptx, entry_symbol, refusal
from gemm_regression.compiler.objects import mismatch
from gemm_regression.compiler.tools import CompileError, ToolchainError
from gemm_regression.devices import DeviceError, Inputs, Outputs
from gemm_regression.devices.handed import (
    buffers_of,
    outputs_of,
    parameter_of,
    parameters_alone,
    result_of,
)
from gemm_regression.devices.work import sizes
from gemm_regression.model import Array, Case
from ptxsan import (
    STATIC_SHARED,
    Buffer,
    Counters,
    Entry,
    GlobalMemory,
    Instruction,
    LaunchError,
    PreparedKernel,
    PtxError,
    Report,
    parse,
)
from ptxsan.checks import Hazard
from ptxsan.conditions import Conditions
from ptxsan.frontend import SourceLocation, files_of
from ptxsan.machine.memory import readable


def align(code: Sequence[Instruction], told: Sequence[Instruction]) -> Iterator[tuple[int, SourceLocation]]:
    """(PTX line, place) of each instruction of ``code``; those that ``told`` has not are where
    the one before is."""
    ops, told_ops = [i.op for i in code], [i.op for i in told]
    lines = [SourceLocation()] * len(code)
    if ops == told_ops:
        lines = [i.source for i in told]
    else:
        for a, b, n in SequenceMatcher(None, ops, told_ops, autojunk=False).get_matching_blocks():
            lines[a : a + n] = [i.source for i in told[b : b + n]]
    last = SourceLocation()
    for instruction, line in zip(code, lines, strict=True):
        last = line or last
        yield instruction.line, last


Lines = Callable[[], Mapping[int, SourceLocation]]
_MACHINES = 4  # kept: cases come variant by variant
_LAUNCHES = 1000  # of which a variable may count
_ROOM = 32 * 2**20  # bytes of the global memory of launches that run together


class EmulatedDevice:
    """Runs cases on the PTX that nvcc generates for ``arch`` ("sm_90a"); default nvcc: ``tools.find_nvcc``.

    What it sees besides wrong values becomes violations of the launch, by check: bounds, misaligned,
    uninit, race, barrier, hang, trap, unwritten, state. Without ``by_source`` they name lines of the PTX
    alone, which saves a compilation. If ``strict``, what would be a note is a violation, too.
    ``time_limit``: the seconds that the launches of a case may take before they count as hanging.
    ``cubins``: those of what it runs are going to be needed, too, and come of the same run of nvcc.
    """

    name = "emulated"

    def __init__(
        self,
        arch: str = "sm_90a",
        nvcc: tools.Nvcc | None = None,
        by_source: bool = True,
        strict: bool = False,
        time_limit: float = math.inf,
        cubins: bool = False,
    ) -> None:
        self._time_limit = time_limit
        self.cubins = cubins
        self.arch, self._nvcc, self._by_source, self._strict = arch, nvcc, by_source, strict
        # By variant what `_prepared` needs, and where in the .cu file its instructions are.
        self._variants: dict[
            Any, tuple[tuple[str, str, str], Callable[[], Mapping[int, SourceLocation]]]
        ] = {}
        self._refused: dict[Any, tuple[str, str]] = {}  # the error of each variant that cannot run
        self.lane_instructions = 0

    def run(self, case: Case, inputs: Inputs) -> Outputs:
        return self.run_all([case], [inputs])[0]

    def run_all(
        self, cases: Sequence[Case], inputs: Sequence[Inputs], counters: Counters | None = None
    ) -> list[Outputs]:
        """Launches of one variant on problems that differ in alpha and beta alone, as one grid, or a few if
        they take much memory. Of a kernel with a workspace the blocks of every second launch run last to
        first.

        ``counters`` count what the launches do.

        Raises DeviceError for a kernel that does not compile or uses an instruction unknown here, and for a
        launch that a GPU refuses.
        """
        machine, result = self._machine(cases[0]), result_of(cases[0])
        if not (cases[0].problem.m and cases[0].problem.n):
            # Nothing to compute: there is no block to launch.
            return [Outputs(given[result].copy()) for given in inputs]
        size = sum(storage.bytes for storage in cases[0].storages.values()) + sizes(cases[0])[0]
        most = max(1, _ROOM // size)
        outputs: list[Outputs] = []
        for at in range(0, len(cases), most):
            part = slice(at, at + most)
            # The order of the blocks must not affect the bits of the result.
            every = range(len(cases[part])) if cases[0].kernel.workspace else ()
            backwards = [i for i in every if (at + i) % 2]
            outputs += self._together(machine, cases[part], inputs[part], backwards, counters)
            if not outputs[-1].complete:  # nor do the others run
                return outputs + outputs[-1:] * (len(cases) - len(outputs))
        return outputs

    def _together(
        self,
        machine: PreparedKernel,
        cases: Sequence[Case],
        inputs: Sequence[Inputs],
        backwards: Sequence[int],
        counters: Counters | None,
    ) -> list[Outputs]:
        buffers = buffers_of(cases, inputs)
        memory = GlobalMemory(list(buffers.values()))
        try:
            report = self._launch(machine, cases, buffers, memory, counters, backwards)
        except LaunchError as error:
            raise DeviceError("LAUNCH_FAILED", f"{cases[0].id}: {error}") from None
        self.lane_instructions += report.lane_instructions
        if not report.stopped and (left := memory.changed()):
            report.hazards += self._remembers(machine, cases[0], inputs[0], left)
        if self._strict:
            report.hazards, report.notes = report.hazards + report.notes, []
        named = self._named(cases[0]) if report.hazards else ()
        return [replace(outputs_of(case, buffers, i, report), sources=named) for i, case in enumerate(cases)]

    def _named(self, case: Case) -> tuple[Path, ...]:
        """The files that the PTX of a frontend names: a copy of its own of those of a kernel is nvcc's."""
        if case.kernel.by_nvcc:
            return ()
        (ptx, _, _), _ = self._variants[case.kernel, case.config, case.dtype]
        return tuple(map(Path, files_of(ptx).values()))

    def _launch(
        self,
        machine: PreparedKernel,
        cases: Sequence[Case],
        buffers: Mapping[str, Buffer],
        memory: GlobalMemory,
        counters: Counters | None = None,
        backwards: Sequence[int] = (),
    ) -> Report:
        launch, parameters = cases[0].launch, []
        for i, case in enumerate(cases):
            parameters.append([parameter_of(case, a, buffers, i) for a in case.arguments])
        p = cases[0].problem
        longest = max(p.m, p.n, p.k, cases[0].kernel.operation.depth_of(p))
        steps = 20_000 + 2_000 * (longest if cases[0].kernel.operation.own else p.k)
        return machine.run(
            *(launch.grid, launch.block, launch.dynamic_shared, parameters, memory, steps, counters),
            backwards=backwards,
            seconds=self._time_limit,
        )

    def _remembers(
        self, machine: PreparedKernel, case: Case, inputs: Inputs, left: Mapping[str, bytes]
    ) -> list[Hazard]:
        """What a launch leaves in variables of the module, if a later one does other work, or has another
        result, than one that finds them as they were: the next, or one after many, by when counters and their
        like have gone as far as they do in so many launches."""
        memory, done = GlobalMemory([]), []
        memory.declare(machine.entry.variables, 1)
        states: tuple[Mapping[str, bytes], ...] = ({}, left, memory.ahead(left, _LAUNCHES))
        for found in states:
            buffers = buffers_of([case], [inputs])
            report = self._launch(machine, [case], buffers, GlobalMemory(list(buffers.values()), found))
            result = buffers[result_of(case)].values(0).tobytes()
            done.append((report.lane_instructions, report.stopped, result))
        if done[0] == done[1] == done[2]:
            return []
        names = ", ".join(map(readable, left))
        text = f"a launch writes {names} of the module, and what a later one does depends on it"
        return [Hazard("state", 0, text)]

    def conditions(self, cases: Sequence[Case]) -> Array:
        """Which of the conditions of one variant hold in each of these cases, (cases, conditions) bool: those
        that the parameters of a launch alone decide. Raises DeviceError, PtxError."""
        given = [parameters_alone(case) for case in cases]
        return Conditions(self._machine(cases[0]).entry).of(given)

    def close(self) -> None:
        self._variants.clear()
        self._refused.clear()

    def lines(self, case: Case) -> Mapping[int, SourceLocation]:
        """PTX line of each instruction of a variant to its place in the .cu file, as far as that is known."""
        return self._machine(case).lines()

    def shared_bytes(self, case: Case) -> int:
        """Bytes of shared memory per block, static and dynamic."""
        return self._machine(case).static_shared + case.launch.dynamic_shared

    def _told(self, case: Case) -> Entry:
        """As compiled with the lines of the .cu file. Raises CompileError, ToolchainError and PtxError, which
        names them."""
        ptx = compile_ptx(case.kernel, case.config, case.dtype, self.arch, lines=True, nvcc=self._nvcc)
        assert case.kernel.source is not None
        return parse(ptx, entry_symbol(case.kernel, case.config, case.dtype, ptx), case.kernel.source.name)

    def _lines(self, case: Case, entry: Entry) -> Mapping[int, SourceLocation]:
        with contextlib.suppress(CompileError, ToolchainError, PtxError):
            return dict(align(entry.code, self._told(case).code))
        return {}

    def _unsupported(self, case: Case, error: PtxError) -> str:
        """Why a kernel is not supported, with its line in the .cu file, where that is known."""
        assert case.kernel.source is not None
        try:
            PreparedKernel(self._told(case), case.kernel.source.name)
        except PtxError as told:
            return str(told)
        except (CompileError, ToolchainError):
            pass
        return str(error)

    def _machine(self, case: Case) -> PreparedKernel:
        kernel = case.kernel
        variant = kernel, case.config, case.dtype  # of one source and entry, flags make another
        if variant in self._refused:  # not compiled again for each of its cases
            raise DeviceError(*self._refused[variant])
        if variant not in self._variants:
            assert kernel.source is not None
            try:
                if kernel.from_cubin:
                    if refused := refusal(variant, self.arch, case.arguments):
                        raise DeviceError("SIGNATURE", f"{case.variant}: {refused}")
                    raise PtxError(f"{kernel.source.name} is a binary, which has no PTX to execute")
                ptx = compile_ptx(*variant, self.arch, nvcc=self._nvcc, cubin_too=self.cubins)
                if not kernel.by_nvcc:  # what no compiler made, ptxas may refuse
                    compile_cubin(*variant, self.arch, self._nvcc)
                symbol = entry_symbol(*variant, ptx)
                if reason := mismatch(ptx, symbol, case.arguments):
                    raise DeviceError("SIGNATURE", f"{case.variant}: {reason}")
                machine = _prepared(ptx, symbol, kernel.source.name)
                if machine.static_shared > STATIC_SHARED:
                    what = f"{machine.static_shared} bytes of static shared memory, {STATIC_SHARED} at most"
                    raise CompileError(f"{case.variant}: ptxas refuses {what}")
            except CompileError as error:
                self._refused[variant] = "COMPILE_ERROR", str(error)
                raise DeviceError(*self._refused[variant]) from None
            except PtxError as error:
                self._refused[variant] = "UNSUPPORTED", f"{case.variant}: {self._unsupported(case, error)}"
                raise DeviceError(*self._refused[variant]) from None
            lines = cache(partial(self._lines, case, machine.entry)) if self._by_source else dict
            while len(self._variants) >= _MACHINES:
                del self._variants[next(iter(self._variants))]
            self._variants[variant] = (ptx, symbol, kernel.source.name), lines
        prepared, places = self._variants[variant]
        machine = _prepared(*prepared)
        machine.lines = places
        return machine


_made = WeakSet[PreparedKernel]()


@lru_cache(maxsize=_MACHINES)
def _prepared(ptx: str, symbol: str, source: str) -> PreparedKernel:
    """Of all devices of a process: what checks a kernel and what counts it take turns."""
    _made.add(machine := PreparedKernel(parse(ptx, symbol, source), source))
    return machine


def forget_machines() -> None:
    """Frees the kernels that were made ready. What is left stays, and is not looked through the next time."""
    _prepared.cache_clear()
    for machine in _made:
        machine.close()
    gc.collect()
    gc.freeze()
