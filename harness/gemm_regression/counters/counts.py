"""The memory counters of a case: in total, by source line and by matrix; expected bytes; tables of these."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from rich.table import Table

from gemm_regression import oracle
from gemm_regression.compiler.nvcc import Variant
from gemm_regression.devices import DeviceError
from gemm_regression.devices.emulated import EmulatedDevice
from gemm_regression.model import Case, Problem
from gemm_regression.project.loader import Project
from gemm_regression.project.selection import Choice, find_case, fitting, nothing_fits, select, variants
from gemm_regression.project.suites import fitted
from ptxsan import Counters, GlobalAccess, Tally, mnemonic
from ptxsan.frontend import SourceLocation

# One problem of whole vectors and, for most stages, whole tiles; and one where every edge is odd.
PROBLEMS = (Problem(96, 160, 64), Problem(67, 45, 33))


class Bytes(NamedTuple):
    """Bytes ``read`` and ``written``, counted per lane."""

    read: int
    written: int


@dataclass(frozen=True)
class Counts:
    """The counters of one launch of a ``case``, compiled for ``arch``: ``total``; ``lines`` by source line,
    such as s01_naive.cu:27, or PTX line 57 if it is unknown; ``buffers`` by matrix; ``mix`` warp
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

    def worst_line(self, what: str) -> str:
        """The line with the most excess sectors or conflicts of ``loads``, ``shared_stores`` …; empty if
        none."""

        def lost(line: str) -> int:
            access = getattr(self.lines[line], what)
            return int(access.excess if isinstance(access, GlobalAccess) else access.conflicts)

        return max(filter(lost, self.lines), key=lost, default="")


def count(
    case: Case, arch: str = "sm_90a", device: EmulatedDevice | None = None, by_source: bool = True
) -> Counts:
    """The counters of one launch of the case; pass a ``device`` for that architecture to count several cases.
    Without ``by_source`` lines are those of the PTX, which saves a compilation.

    Raises DeviceError for a kernel that does not compile, that uses an unsupported instruction, or that the
    emulated device had to stop.
    """
    device, counters = device or EmulatedDevice(arch), Counters()
    inputs = oracle.make_inputs(case.kernel.operation, case.problem, case.dtype, "exact")
    (output,) = device.run_all([case], [inputs], counters)
    if not output.complete:
        said = "; ".join(violation.message for violation in output.violations[:1])
        raise DeviceError("STOPPED", f"{case.id}: cannot be counted: {said}")
    tallies = list(counters.tallies())
    on_line: dict[str, list[Tally]] = defaultdict(list)
    named = device.lines(case) if tallies and by_source else {}
    assert case.kernel.source is not None
    mix: Counter[str] = Counter()
    nowhere = SourceLocation()
    for instruction, tally in tallies:
        mix[mnemonic(instruction.op)] += tally.instructions
        place = named.get(instruction.line, nowhere)
        known = f"{case.kernel.source.name}:{place.line}" if place.line else place.header
        on_line[known or f"PTX line {instruction.line}"].append(tally)
    moved: Counter[tuple[str, bool]] = Counter()
    for (buffer, kind), access in counters.buffers.items():
        moved[buffer, kind == "store"] += access.bytes
    return Counts(
        case=case,
        arch=device.arch,
        total=Tally.of_all([tally for _, tally in tallies]),
        lines={line: Tally.of_all(on_line[line]) for line in sorted(on_line, key=_number)},
        buffers={name: Bytes(moved[name, False], moved[name, True]) for name in _named(case)},
        mix=dict(mix.most_common()),
        blocks=counters.blocks,
        warps=counters.warps,
        shared_bytes=device.shared_bytes(case) if tallies else 0,
    )


def _number(line: str) -> int:
    """Of a line as it is named."""
    return int(re.findall(r"\d+", line)[-1])


def _named(case: Case) -> Iterable[str]:
    """The operands whose bytes are told: A, B and C of a GEMM, else all."""
    return case.storages if case.kernel.operation.own else "ABC"


def expected_bytes(case: Case) -> dict[str, Bytes]:
    """The bytes that a kernel accesses which reads each element once per block, by matrix.

    A block of TILE_M × TILE_N elements of C reads its rows of A and its columns of B: M·K·⌈N/TILE_N⌉ and
    K·N·⌈M/TILE_M⌉ elements, which for square tiles are 2·M·N·K/TILE_SIZE in all; without shared memory each
    thread does, 2·M·N·K. C is written once, and read where beta is not 0.
    """
    p, shape = case.problem, case.kernel.shape_of(case.config, case.dtype)
    if case.kernel.operation.own:
        operation = case.kernel.operation
        return {
            name: Bytes(s.bytes * operation.reads(name, p), s.bytes * (name in operation.outputs))
            for name, s in case.storages.items()
        }
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
    problems = [*kernel.operation.verified[-1:]] or [replace(problem, batch=batch) for problem in PROBLEMS]
    return [each.case for each in fitted(kernel, config, dtype, problems, near=True) if each.runs]


def chosen(
    project: Project, choice: Choice, capability: tuple[int, int], ids: Sequence[str] = ()
) -> list[Case]:
    """The cases with these ids; without ids those of the selected variants that match the expression, for the
    selected problems or the ones that are counted by default. Without an expression or configs, only the
    default config of each kernel. Raises ValueError for an unknown id, and if nothing is selected."""
    found = [find_case(project, text, capability) for text in ids]
    if not ids:
        default = not (choice.expression or choice.configs)
        every = [v for v in variants(project, choice, capability) if not default or v[1] == v[0].configs[0]]
        if choice.shapes:
            selected = select(project, replace(choice, expression=""), capability, emulated=True).verify
            found = [case for case in selected if (case.kernel, case.config, case.dtype) in every]
        else:
            found = [case for v in every if v[0].compiled or choice.kernels for case in counted(v)]
        fits = fitting(choice.expression)
        found = [case for case in found if fits(case.id)]
    if bare := next((case for case in found if not case.kernel.compiled), None):
        what = "a library" if bare.kernel.library else "a choice among kernels"
        raise ValueError(f"{bare.id}: {what} has no PTX to count")
    if not found:
        raise ValueError(nothing_fits(choice.expression))
    return found


LEGEND = """\
loads, stores: requests to global memory, one per warp with an active lane; loads include cp.async
sectors: of 32 bytes per request; 4 if a warp accesses 128 contiguous bytes, 16 for a float4 per lane
wavefronts: shared memory modelled as 32 banks of 4 bytes that serve 32, 16 or 8 lanes at a time for \
accesses of up to 4, 8 and 16 bytes; conflicts: more than one per such group. PTX is counted; ptxas merges \
some accesses
barriers: of all warps; divergent: branches that split a warp; FLOP: those on zeros past an edge, too
bytes: counted per lane; ×: if other than M·K·⌈N/TILE_N⌉ of A, K·N·⌈M/TILE_M⌉ of B, M·N of C"""


def table(found: Iterable[Counts]) -> Table:
    """One row per case."""
    found = list(found)
    more = any(set(counts.buffers) - {*"ABC"} for counts in found)
    made = _table("stage", "dtype", "config", "problem")
    for counts in found:
        case = counts.case
        names = (case.kernel.name, case.dtype.name, case.config.label, case.problem.id)
        moved = {f"bytes of {m}": _bytes(counts, m) if m in counts.buffers else "" for m in "ABC"}
        others = " ".join(f"{m} {_bytes(counts, m)}" for m in counts.buffers if m not in "ABC")
        _add(made, names, _cells(counts.total) | moved | ({"bytes of others": others} if more else {}))
    return made


def lines_table(counts: Counts) -> Table:
    """One row per source line that does more than integer arithmetic."""
    made = _table("line")
    made.title, made.title_justify = f"{counts.case.id} ({counts.arch})", "left"
    for line, tally in counts.lines.items():
        if tally != Tally(instructions=tally.instructions):
            _add(made, (line,), {name: "" if cell == "0" else cell for name, cell in _cells(tally).items()})
    return made


def _table(*names: str) -> Table:
    made = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for name in names:
        made.add_column(name, no_wrap=True)
    return made


def _add(made: Table, names: Sequence[str], cells: Mapping[str, str]) -> None:
    if not made.rows:
        for name in cells:
            made.add_column(name, justify="right")
    made.add_row(*names, *cells.values())


def _cells(tally: Tally) -> dict[str, str]:
    reads, stores, shared = tally.reads, tally.stores, tally.shared
    return {
        "instructions": f"{tally.instructions:,}",
        "loads": f"{reads.requests:,}",
        "sectors per load": f"{reads.sectors_per_request:.2f}" if reads.requests else "0",
        "stores": f"{stores.requests:,}",
        "sectors per store": f"{stores.sectors_per_request:.2f}" if stores.requests else "0",
        "wavefronts": f"{shared.wavefronts:,}",
        "conflicts": f"{shared.conflicts:,}",
        "barriers": f"{tally.barriers:,}",
        "divergent": f"{tally.divergent:,}",
        "FLOP": f"{tally.flop:,}",
    }


def _bytes(counts: Counts, name: str) -> str:
    """Bytes of a matrix, and their ratio to the expected bytes if they differ."""
    asked, expected = sum(counts.buffers[name]), sum(expected_bytes(counts.case)[name])
    return f"{asked:,}" + ("" if asked == expected else f" ×{asked / expected:.2f}" if expected else " ×∞")
