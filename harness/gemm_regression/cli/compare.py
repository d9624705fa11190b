"""``gemm-regression compare BASE``: times the kernels of the working tree side by side with those of another
commit; with ``--nvcc``, with those of another compiler.

Exit status: 0 nothing is slower; 1 something is slower, ambiguous, wrong or could not be judged; 2 a wrong
command line, no such commit, no GPU; 3 controls failed, and nothing that has changed could be judged.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import secrets
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from gemm_regression.baselines import provenance
from gemm_regression.cli.common import about, busy_text, end_on_sigterm, margin_of, project_of, share
from gemm_regression.cli.progress import progress
from gemm_regression.compiler.nvcc import Variant, compile_all
from gemm_regression.compiler.tools import Nvcc, ToolchainError, find_nvcc, nvcc_at
from gemm_regression.devices import DeviceError, Gpu, NoDevice, open_cuda
from gemm_regression.files import write_whole
from gemm_regression.judge.vocabulary import DEFAULT_MARGIN
from gemm_regression.project import selection as cases
from gemm_regression.project.commit import CommitError, Tree, checked_out, folder_of, here, working_tree
from gemm_regression.project.loader import Project
from gemm_regression.report import paired as report
from gemm_regression.report.terminal import room
from gemm_regression.run.compare import Built, Comparison, Row, Side, compare, pairs_of, removed
from gemm_regression.run.pairing import Pair
from gemm_regression.run.replay import document
from gemm_regression.timing.looks import Rule
from gemm_regression.timing.plan import PairPlan


def main(
    arguments: Sequence[str] | None = None,
    open_device: Callable[[float], Gpu] = open_cuda,
) -> int:
    given = _parser().parse_args(arguments)
    try:
        rule = Rule(error=share(given.error, f"--error {given.error}", "1%"))
        margin = given.margin and margin_of(given.margin)
        for file in filter(None, (given.json, given.markdown)):
            if not file.absolute().parent.is_dir():
                raise ValueError(f"{file}: its folder does not exist")
        return _run(given, rule, margin, open_device)
    except (CommitError, DeviceError, NoDevice, ToolchainError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gemm-regression compare", description=about(__doc__, 1))
    add = parser.add_argument
    add(
        "base",
        metavar="BASE",
        nargs="?",
        help="a commit: main, HEAD, v1.2, 1a2b3c4; HEAD judges uncommitted changes. Or a folder: ../old. "
        "May be left out with --nvcc",
    )
    add(
        "--nvcc",
        type=Path,
        metavar="PATH",
        help="compile the base with this nvcc; without BASE, the same sources with both compilers",
    )
    cases.add_selection(parser)
    add(
        "--margin",
        metavar="PCT",
        help="the slowdown that counts, such as 1%% (default 0.5%%, or what the base declares; at most 2%%)",
    )
    add("--error", default="1%", metavar="PCT", help="probability of any false verdict (default 1%%)")
    add("--seed", type=int, default=None, help="for the random order of the launches (default: a new one)")
    add(
        "--json",
        type=Path,
        metavar="FILE",
        help="write everything the verdicts are based on, to judge it again",
    )
    add("--markdown", type=Path, metavar="FILE", help="write the result for a pull request")
    add("-q", "--quiet", action="store_true", help="do not show how far it is")
    add("--allow-busy", action="store_true", help="time even while other processes use the GPU")
    add("--time-limit", type=float, default=60.0, metavar="S", help="seconds until a kernel counts as hung")
    return parser


def _run(
    given: argparse.Namespace, rule: Rule, margin: float | None, open_device: Callable[[float], Gpu]
) -> int:
    project = project_of(given)
    nvcc = _other(given)
    tree = _tree(given.base, project)
    with checked_out(given.base, project) if given.base else contextlib.nullcontext(here(project)) as commit:
        side = Side(commit, nvcc)
        device = open_device(given.time_limit)
        try:
            result = _compared(given, project, side, rule, margin, device)
            machine = provenance.machine_info(device.info)
        finally:
            device.close()
    print("\n".join(report.heading(result, side, tree)))
    print(report.table(result, side, sys.stdout.isatty(), room()))
    if given.markdown:
        write_whole(given.markdown, report.markdown(result, side, tree))
    if given.json:
        when = datetime.now(UTC).isoformat(timespec="seconds")
        record = document(result, side, tree, machine, when)
        write_whole(given.json, json.dumps(record, indent=1, allow_nan=False) + "\n")
    return result.exit_status


def _compared(
    given: argparse.Namespace, project: Project, side: Side, rule: Rule, margin: float | None, device: Gpu
) -> Comparison:
    others = [] if given.allow_busy else device.busy()
    if others:
        raise ValueError(busy_text(device.info.name, others))
    choice, capability = cases.Choice.of(given), device.info.capability
    selection = cases.select(project, choice, capability)
    if selection.refused_text:
        print(f"refused: {selection.refused_text}")

    def compiled(variants: list[Variant], sm: str, nvcc: Nvcc | None) -> list[Built]:
        title = f"compile with nvcc {nvcc.version}" if nvcc else "compile"
        with progress(title, len(variants), given.quiet) as step:
            return compile_all(variants, sm, nvcc=nvcc, step=step)

    pairs = pairs_of(selection.timed, side, capability, margin, compiled)
    gone: list[Pair | Row] = [*removed(project, side, choice, capability, pairs)]
    seed = secrets.randbelow(2**32) if given.seed is None else given.seed
    busy = list if given.allow_busy else device.busy
    changed = {pair.case.id for pair in pairs if isinstance(pair, Pair)}
    with progress("compare", len(changed), given.quiet) as steps:

        def step(what: str) -> None:
            (steps if what in changed else steps.now)(what)

        return compare(
            device, [*pairs, *gone], rule, seed, PairPlan(()), busy, step, margin or DEFAULT_MARGIN
        )


def _other(given: argparse.Namespace) -> Nvcc | None:
    """The other compiler, if one is named. Raises ToolchainError, and ValueError for the present one."""
    if given.nvcc is None:
        if given.base is None:
            raise ValueError("nothing to compare with: name a commit, such as main, or another --nvcc")
        return None
    nvcc = nvcc_at(given.nvcc)
    if nvcc.version == find_nvcc().version:
        raise ValueError(f"--nvcc {given.nvcc}: it is nvcc {nvcc.version}, as the present one; leave it out")
    return nvcc


def _tree(base: str | None, project: Project) -> Tree:
    try:
        return working_tree(project.root)
    except CommitError:
        if base and folder_of(base, project) is None:
            raise
        return Tree("", True)


if __name__ == "__main__":
    end_on_sigterm()
    sys.exit(main())
