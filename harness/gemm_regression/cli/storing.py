"""From the runs of a baseline to what is stored: merged, paired with the best binaries, appended."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gemm_regression.baselines import (
    Baseline,
    BaselineEntry,
    BaselineError,
    append,
    current,
    load_run,
    merge_runs,
)
from gemm_regression.devices import DeviceError, Gpu, NoDevice, open_cuda
from gemm_regression.model import Case
from gemm_regression.project import selection as cases
from gemm_regression.project.loader import Project
from gemm_regression.report.refresh import refresh_lines
from gemm_regression.run.creep import Refresh, refresh
from gemm_regression.tune.select import Selector

Opens = Callable[[int | None], Gpu]


def store(
    files: Sequence[Path],
    root: Path,
    project: Project,
    confirmed: Callable[[str], bool],
    accepting: Mapping[str, str],
    index: int | None = None,
    opens: Opens = lambda index: open_cuda(60.0, index),
) -> int:
    """Stores what these runs measured, on the GPU that they ran on; ``index``: its number; ``accepting``: why
    a case may be slower than its best binary.

    The exit status: 0 stored, 1 not, or without the cases that were refused. Raises BaselineError.
    """
    measured = merge_runs([load_run(file) for file in files])
    before = current(root, measured.slug, measured.board)
    if unknown := sorted(set(accepting) - set(measured.entries)):
        raise BaselineError(f"--accept-slower {unknown[0]}: no such case was measured")
    try:
        device = opens(index)
    except NoDevice as error:
        raise BaselineError(f"{error}; binaries are stored, and compared, on the GPU they ran on") from None
    try:
        known = _cases(project, measured, device)
        made = refresh(device, root, measured, before, known, accepting)
        binaries = {case: binary for case in made.entries if (binary := device.binary(known[case]))}
    except DeviceError as error:
        raise BaselineError(f"{error.code}: {error}") from None
    finally:
        device.close()
    print("\n".join(refresh_lines(before, measured, made)))
    sys.stdout.flush()
    if not made.entries:
        print("error: nothing written", file=sys.stderr)
        return 1
    if not confirmed(f"write this to {root / measured.slug}? [y/N] "):
        print("error: nothing written; pass --yes to write without being asked", file=sys.stderr)
        return 1
    print(f"wrote {append(root, replace(measured, entries=_with_margins(made, known)), binaries)}")
    return int(bool(made.refused))


def _cases(project: Project, measured: Baseline, device: Gpu) -> dict[str, Case]:
    """The measured cases, by id, a choice in the place of each that chooses. Raises BaselineError."""
    capability = device.info.capability
    selector = Selector.of(project, measured.slug, capability)
    try:
        found = {case: cases.find_case(project, case, capability) for case in measured.entries}
    except ValueError as error:
        raise BaselineError(f"{error}; it was measured, but is not in this tree") from None
    return {name: selector.resolved(case) for name, case in found.items()}


def _with_margins(made: Refresh, known: Mapping[str, Case]) -> dict[str, BaselineEntry]:
    """The margins that kernels declare now judge from the next run on."""
    return {case: replace(entry, margin=known[case].kernel.margin) for case, entry in made.entries.items()}
