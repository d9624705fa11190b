"""The memory counters of a case: in total, by source line and by matrix; and the expected bytes."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from gemm_regression import oracle
from gemm_regression.compiler.nvcc import Variant
from gemm_regression.devices import DeviceError
from gemm_regression.devices.emulated import EmulatedDevice
from gemm_regression.model import Case, Problem
from gemm_regression.project.fitting import fitted
from gemm_regression.project.loader import Project
from gemm_regression.project.selection import Choice, find_case, fitting, nothing_fits, select, variants
from ptxsan import Counters, GlobalAccess, Tally, mnemonic
from ptxsan.frontend import Place

# One problem of whole vectors and, for most stages, whole tiles; and one where every edge is odd.
PROBLEMS = (Problem(96, 160, 64), Problem(67, 45, 33))


class Bytes(NamedTuple):
    """Bytes ``read`` and ``written``, counted per lane."""

    read: int
    written: int


@dataclass(frozen=True)
class Counts:
    """The counters of one launch of a ``case``, compiled for ``arch``: ``total``; ``lines`` by source line,
    such as s01_naive.cu:27, or PTX line 57 if it is unknown; ``buffers`` by matrix, A, B and C; ``mix`` warp
    executions of each kind of instruction; ``blocks`` and ``warps`` launched; ``shared_bytes`` per block."""

    case: Case
    arch: str
    total: Tally
    lines: Mapping[str, Tally]
    buffers: Mapping[str, Bytes]
    mix: Mapping[str, int]
    blocks: int
    warps: int
    shared_bytes: int

    def sectors_per_request(self, what: str = "reads") -> float:
        """Of ``reads`` (loads and cp.async), ``loads``, ``copies`` or ``stores``; 0 if there are none."""
        access: GlobalAccess = getattr(self.total, what)
        return access.sectors_per_request

    @property
    def conflicts(self) -> int:
        """Shared-memory wavefronts caused by bank conflicts."""
        return self.total.shared.conflicts

    @property
    def barriers(self) -> float:
        """Average number of barriers per warp."""
        return self.total.barriers / self.warps if self.warps else 0.0

    @cached_property
    def intensity(self) -> float:
        """FLOP per byte of global memory, counted per lane."""
        return self.total.flop / self.total.accesses.bytes if self.total.accesses.bytes else 0.0

    @cached_property
    def sector_intensity(self) -> float:
        """FLOP per byte of the sectors that the requests touch."""
        return self.total.flop / (32 * self.total.accesses.sectors) if self.total.accesses.sectors else 0.0

    def worst_line(self, what: str) -> str:
        """The line with the most excess sectors or conflicts of ``loads``, ``shared_stores`` …; empty if
        none."""
        lost = {line: _lost(tally, what) for line, tally in self.lines.items()}
        worst = max(lost, key=lambda line: lost[line], default="")
        return worst if worst and lost[worst] else ""


def _lost(tally: Tally, what: str) -> int:
    access = getattr(tally, what)
    return int(access.excess if isinstance(access, GlobalAccess) else access.conflicts)


def count(
    case: Case, arch: str = "sm_90a", device: EmulatedDevice | None = None, by_source: bool = True
) -> Counts:
    """The counters of one launch of the case; pass a ``device`` for that architecture to count several cases.
    Without ``by_source`` lines are those of the PTX, which saves a compilation.

    Raises DeviceError for a kernel that does not compile, that uses an unsupported instruction, or that the
    emulated device had to stop.
    """
    device = device or EmulatedDevice(arch)
    counters = Counters()
    (output,) = device.run_all(
        [case], [oracle.make_inputs(case.kernel.operation, case.problem, case.dtype, "exact")], counters
    )
    if not output.complete:
        said = "; ".join(violation.message for violation in output.violations[:1])
        raise DeviceError("STOPPED", f"{case.id}: cannot be counted: {said}")
    return _counted(case, device, counters, by_source)


def _counted(case: Case, device: EmulatedDevice, counters: Counters, by_source: bool) -> Counts:
    tallies = list(counters.tallies())
    lines: dict[str, Tally] = defaultdict(Tally)
    named = device.lines(case) if tallies and by_source else {}
    assert case.kernel.source is not None
    mix: Counter[str] = Counter()
    for instruction, tally in tallies:
        mix[mnemonic(instruction.op)] += tally.instructions
        place = named.get(instruction.line, Place())
        known = f"{case.kernel.source.name}:{place.line}" if place.line else place.header
        lines[known or f"PTX line {instruction.line}"] += tally
    read, written = (
        {name: sum(a.bytes for (b, kind), a in counters.buffers.items() if b == name and kind in kinds)
         for name in "ABC"}
        for kinds in (("load", "copy"), ("store",))
    )  # fmt: skip
    return Counts(
        case=case,
        arch=device.arch,
        total=sum(lines.values(), Tally()),
        lines=dict(sorted(lines.items(), key=lambda item: _number(item[0]))),
        buffers={name: Bytes(read[name], written[name]) for name in "ABC"},
        mix=dict(mix.most_common()),
        blocks=counters.blocks,
        warps=counters.warps,
        shared_bytes=device.shared_bytes(case) if tallies else 0,
    )


def _number(place: str) -> int:
    return int(re.findall(r"\d+", place)[-1])


def expected_bytes(case: Case) -> dict[str, Bytes]:
    """The bytes that a kernel accesses which reads each element once per block, by matrix.

    A block of TILE_M × TILE_N elements of C reads its rows of A and its columns of B: M·K·⌈N/TILE_N⌉ and
    K·N·⌈M/TILE_M⌉ elements, which for square tiles are 2·M·N·K/TILE_SIZE in all; without shared memory each
    thread does, 2·M·N·K. C is written once, and read where beta is not 0.
    """
    p, shape = case.problem, case.kernel.shape_of(case.config, case.dtype)
    rows, columns = shape.tile if shape.shared_bytes else (1, 1)
    size, c = case.dtype.storage.itemsize, p.m * p.n * case.dtype.output.itemsize
    return {
        "A": Bytes(p.m * p.k * -(-p.n // columns) * size, 0),
        "B": Bytes(p.k * p.n * -(-p.m // rows) * size, 0),
        "C": Bytes(c if p.beta else 0, c),
    }


def counted(variant: Variant) -> list[Case]:
    """A variant with the problems it is counted on, or similar ones that it accepts; for a batched operation,
    a batch of each."""
    kernel, config, dtype = variant
    batch = 3 if kernel.operation.batched else 1
    problems = [replace(problem, batch=batch) for problem in PROBLEMS]
    return [each.case for each in fitted(kernel, config, dtype, problems, near=True) if each.runs]


def chosen(
    project: Project, choice: Choice, capability: tuple[int, int], ids: Sequence[str] = ()
) -> list[Case]:
    """The cases with these ids; without ids those of the selected variants that match the expression, for the
    selected problems or the ones that are counted by default. Without an expression or configs, only the
    default config of each kernel. Raises ValueError for an unknown id, and if nothing is selected."""
    if ids:
        found = [find_case(project, text, capability) for text in ids]
    else:
        every = variants(project, choice, capability)
        if not (choice.expression or choice.configs):
            every = [
                (kernel, config, dtype) for kernel, config, dtype in every if config == kernel.configs[0]
            ]
        if choice.shapes:
            names = {(kernel.name, dtype, config) for kernel, config, dtype in every}
            selected = select(project, replace(choice, expression=""), capability, emulated=True).verify
            found = [c for c in selected if (c.kernel.name, c.dtype, c.config) in names]
        else:
            found = [case for v in every if v[0].compiled or choice.kernels for case in counted(v)]
        fits = fitting(choice.expression)
        found = [case for case in found if fits(case.id)]
    if bare := next((case for case in found if not case.kernel.compiled), None):
        what = "a library" if bare.kernel.library else "a choice among kernels"
        raise ValueError(f"{bare.id}: {what} has no PTX to count")
    if not found:
        raise ValueError(nothing_fits(choice.expression, project.kernels))
    return found
