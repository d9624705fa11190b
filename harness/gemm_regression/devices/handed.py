"""What a launch on the emulated device is handed, finds in global memory and leaves there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from gemm_regression.devices import DeviceError, Inputs, Outputs
from gemm_regression.devices.work import WORKSPACE, new_workspace, sizes, workspace_violations
from gemm_regression.model import Argument, Case, DType, Finding, Kernel, Problem
from ptxsan import Buffer, PtxError, Report, TensorMapDescriptor
from ptxsan.checks import Hazard


def result_of(case: Case) -> str:
    return case.kernel.operation.result.name


def _finding(h: Hazard) -> Finding:
    return Finding(h.check, h.message, h.file, h.line, h.thread, h.problem)


def outputs_of(case: Case, buffers: Mapping[str, Buffer], i: int, report: Report) -> Outputs:
    name, p = result_of(case), case.problem
    buffer, storage = buffers[name], case.storages[name]
    found = [_finding(hazard) for hazard in report.hazards if hazard.launch == i]
    keeps = p.beta == 1 and (p.alpha == 0 or p.k == 0)  # C stays as it is
    if not report.stopped and not (keeps and case.kernel.operation.bare):
        missing = storage.matrices(~buffer.written(i))
        if missing.any():
            at = tuple(int(v) for v in np.argwhere(missing)[0])
            place = storage.element(*at)
            rows, columns = case.kernel.shape_of(case.config, case.dtype).tile
            grid = "x".join(map(str, case.launch.grid))
            launched = f"the grid is {grid}, of tiles of {rows}x{columns}, x along the columns"
            text = f"no thread wrote {name}{place}; {int(missing.sum())} elements in total; {launched}"
            found.append(Finding("unwritten", text))
    if not report.stopped and (workspace := buffers.get(WORKSPACE)) is not None:
        zeroed = sizes(case)[1]
        found += workspace_violations(zeroed, workspace.values(i))
        if (lost := np.flatnonzero(~workspace.initialised(i)[0, : zeroed // 4])).size:
            text = f"byte {4 * int(lost[0])} of the workspace, which is to be zero again, is undefined"
            found.append(Finding("uninit", f"{text}; {lost.size} words in total"))
    notes = [_finding(note) for note in report.notes if note.launch == i]
    if printed := "".join(text for launch, text in report.printed if launch == i):
        first, *more = printed.splitlines() or [""]
        lines = f", the first of {len(more) + 1} lines" if more else ""
        notes.append(Finding("printf", f"prints {first!r}{lines}"))
    return Outputs(buffer.values(i), tuple(found), not report.stopped, tuple(notes))


def buffers_of(cases: Sequence[Case], inputs: Sequence[Inputs]) -> dict[str, Buffer]:
    """The operands in global memory, and the workspace. What lies beside the elements of an operand is no
    part of it; nor is an output, where beta is 0 and the kernel does not say that it reads it. What two
    blocks write is the work of a wrong mapping, even if it is the same.
    """
    first, made = cases[0], {}
    operation, read_anyway = first.kernel.operation, first.kernel.constraints.finite_c
    for number, (name, storage) in enumerate(first.storages.items()):
        known = []
        for case in cases:
            readable = np.zeros(storage.shape, bool)
            reads = operation.reads(name, case.problem) or (read_anyway and name == result_of(case))
            storage.elements(readable)[:] = reads
            known.append(readable)
        values = [given[name] for given in inputs]
        pitch = storage.ld * storage.dtype.itemsize
        written = name in operation.outputs
        made[name] = Buffer(name, number, values, pitch, known, written, start=storage.start, divided=written)
    if first.kernel.workspace:
        fresh = [new_workspace(case) for case in cases]
        zeroed = [words == 0 for words in fresh]
        made[WORKSPACE] = Buffer(WORKSPACE, len(made), fresh, None, zeroed, True, output=False, divided=True)
    return made


# As a register holds them: a half by its bits.
_TYPES: dict[str, Any] = {
    **{"i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64, "p64": np.int64},
    **{"f16": np.uint16, "bf16": np.uint16, "f32": np.float32, "f64": np.float64},
}


def parameters_alone(case: Case) -> list[Any]:
    """The parameters of a launch, with pointers that are aligned as its own, to memory that is not there."""
    if case.kernel.maps is None:
        return _of_any_config(case.kernel, case.dtype, case.problem)
    return _without_memory(case)


@lru_cache(maxsize=2000)
def _of_any_config(kernel: Kernel, dtype: DType, problem: Problem) -> list[Any]:
    """Of a kernel without tensor maps, which alone depend on the config."""
    return _without_memory(Case(kernel, dtype, kernel.configs[0], problem))


def _without_memory(case: Case) -> list[Any]:
    starts = {name: s.start * s.dtype.itemsize for name, s in case.storages.items()}
    each = (one for argument in case.arguments for one in argument.members or [argument])
    names = dict.fromkeys(one.buffer for one in each if one.buffer)
    at = {name: ((i + 1) << 50) + starts.get(name, 0) for i, name in enumerate(names)}
    buffers: Any = {name: SimpleNamespace(address=lambda launch, to=to: to) for name, to in at.items()}
    return [parameter_of(case, argument, buffers, 0) for argument in case.arguments]


def parameter_of(case: Case, a: Argument, buffers: Mapping[str, Buffer], launch: int) -> Any:
    if a.map is not None:
        storage = case.storages[a.buffer]
        element = "tfloat32" if a.map.tf32 else "uint8" if storage.dtype.itemsize == 1 else storage.dtype.name
        try:
            at, dimensions = buffers[a.buffer].address(launch), a.map.dimensions(storage)
            made = TensorMapDescriptor(element, at, *dimensions, swizzle=a.map.swizzle)
        except (PtxError, ValueError) as error:
            remedy = "declare what it takes: constraints=Constraints(multiples=...)"
            raise DeviceError("LAUNCH_FAILED", f"{case.variant}: {a.buffer}: {error}; {remedy}") from None
        return made.encode()
    handed = a.handed(lambda name: int(buffers[name].address(launch)))
    return handed if a.members else _TYPES[a.kind](handed)
