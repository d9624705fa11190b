"""EmulatedDevice: the Device protocol over the interpreter. Needs nvcc, and no GPU."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from harness.compiler import toolchain
from harness.devices import Array, DeviceError, Inputs, Outputs, Violation
from harness.devices.emulated.lines import source_lines
from harness.model import Case
from harness.ptx import Buffer, Counters, Entry, GlobalMemory, Machine, PtxError, Report, parse

_MACHINES = 4  # kept: cases come variant by variant


class EmulatedDevice:
    """Runs cases on the PTX that nvcc makes for ``arch`` ("sm_90a"), ``toolchain.find_nvcc``'s unless told.

    What it sees besides wrong values becomes violations of the launch, by check: bounds, misaligned,
    uninit, race, barrier, hang, unwritten. Without ``by_source`` they name lines of the PTX alone, which
    saves a compilation.
    """

    name = "emulated"

    def __init__(
        self, arch: str = "sm_90a", nvcc: toolchain.Nvcc | None = None, by_source: bool = True
    ) -> None:
        self.arch, self._nvcc, self._by_source = arch, nvcc, by_source
        self._machines: OrderedDict[Any, Machine] = OrderedDict()
        self.lane_instructions = 0

    def run(self, case: Case, inputs: Inputs) -> Outputs:
        return self.run_all([case], [inputs])[0]

    def run_all(
        self, cases: Sequence[Case], inputs: Sequence[Inputs], counters: Counters | None = None
    ) -> list[Outputs]:
        """Launches of one variant on problems that differ in alpha and beta alone, as one grid.

        ``counters`` are told what the launches do.

        Raises DeviceError for a kernel that does not compile or uses an instruction unknown here.
        """
        first = cases[0].problem
        if not (first.m and first.n):
            # Nothing to compute: the launcher has no block to start.
            return [Outputs(given.c.copy()) for given in inputs]
        machine = self._machine(cases[0])
        buffers = _buffers(cases, inputs)
        parameters = [_parameters(case, buffers, i) for i, case in enumerate(cases)]
        launch = cases[0].launch
        report = machine.run(
            launch.grid,
            launch.block,
            launch.dynamic_shared,
            parameters,
            GlobalMemory(buffers),
            20_000 + 2_000 * first.k,
            counters,
        )
        self.lane_instructions += report.lane_instructions
        return [self._outputs(case, buffers[2], i, report) for i, case in enumerate(cases)]

    def close(self) -> None:
        self._machines.clear()

    def lines(self, case: Case) -> Mapping[int, int]:
        """PTX line of each instruction of a variant to its line in the .cu file, as far as that is known."""
        return self._machine(case).lines()

    def shared_bytes(self, case: Case) -> int:
        """Bytes of shared memory a block, static and dynamic."""
        return self._machine(case).static_shared + case.launch.dynamic_shared

    def _lines(self, case: Case, entry: Entry) -> Mapping[int, int]:
        with contextlib.suppress(toolchain.CompileError, toolchain.ToolchainError, PtxError):
            return source_lines(entry.code, case.kernel, case.config, case.dtype, self.arch, self._nvcc)
        return {}

    def _outputs(self, case: Case, c: Buffer, i: int, report: Report) -> Outputs:
        found = [Violation(h.check, h.message) for h in report.hazards if h.launch == i]
        p = case.problem
        keeps = p.beta == 1 and (p.alpha == 0 or p.k == 0)  # C stays as it is
        if not report.stopped and not keeps and (missing := c.unwritten(i, p.n)):
            row, column, count = missing
            found.append(
                Violation("unwritten", f"no thread wrote C({row}, {column}); {count} elements in all")
            )
        return Outputs(c.values(i), tuple(found), complete=not report.stopped)

    def _machine(self, case: Case) -> Machine:
        kernel = case.kernel
        # The source is part of the key: an edited kernel is another one.
        key = (kernel.source, kernel.entry, case.config, case.dtype.name)
        if key not in self._machines:
            try:
                ptx = toolchain.compile_ptx(kernel, case.config, case.dtype, self.arch, nvcc=self._nvcc)
                assert kernel.source is not None
                entry = parse(ptx, kernel.entry)
                lines = cache(partial(self._lines, case, entry)) if self._by_source else dict
                self._machines[key] = Machine(entry, kernel.source.name, lines)
            except toolchain.CompileError as error:
                raise DeviceError("COMPILE_ERROR", str(error)) from None
            except PtxError as error:
                raise DeviceError("UNSUPPORTED", f"{case.variant}: {error}") from None
            if len(self._machines) > _MACHINES:
                self._machines.popitem(last=False)
        self._machines.move_to_end(key)
        return self._machines[key]


def _buffers(cases: Sequence[Case], inputs: Sequence[Inputs]) -> list[Buffer]:
    p = cases[0].problem
    item = inputs[0].a.itemsize

    def readable(array: Array, columns: int) -> Array:
        known = np.zeros(array.shape, bool)
        known[:, :columns] = True
        return known

    # Columns past the row are no part of the matrix; nor is C, where beta is 0.
    return [
        Buffer("A", 0, [i.a for i in inputs], p.lda * item, [readable(i.a, p.k) for i in inputs]),
        Buffer("B", 1, [i.b for i in inputs], p.ldb * item, [readable(i.b, p.n) for i in inputs]),
        Buffer(
            "C",
            2,
            [i.c for i in inputs],
            p.ldc * 4,
            [readable(i.c, p.n if case.problem.beta else 0) for case, i in zip(cases, inputs, strict=True)],
            writable=True,
        ),
    ]


def _parameters(case: Case, buffers: Sequence[Buffer], launch: int) -> list[Any]:
    p = case.problem
    a, b, c = (np.int64(buffer.address(launch)) for buffer in buffers)
    i, f = np.int32, np.float32
    return [i(p.m), i(p.n), i(p.k), f(p.alpha), a, i(p.lda), b, i(p.ldb), f(p.beta), c, i(p.ldc)]
