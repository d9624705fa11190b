"""``gemm-regression compare BASE``: times the kernels of the working tree side by side with those of another
commit.

Exit status: 0 nothing is slower; 1 something is slower, ambiguous, wrong or could not be judged; 2 a wrong
command line, no such commit, no GPU; 3 the control failed, and nothing was judged.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from harness.baselines import provenance
from harness.commands.common import about, busy_text, end_on_sigterm, project_of, share
from harness.commands.progress import progress
from harness.compiler.errors import CompileError, ToolchainError
from harness.compiler.nvcc import Binary, Variant, compile_all
from harness.devices import DeviceError, Gpu, NoDevice, open_cuda
from harness.files import write_whole
from harness.gate import document
from harness.gate.compare import CONTROLS, compare
from harness.gate.pairs import Compiled, pairs_of
from harness.project import selection as cases
from harness.project.commit import CommitError, Tree, checked_out, folder_of, working_tree
from harness.project.loader import Project
from harness.reports import paired as report
from harness.reports.terminal import room
from harness.timing.looks import Rule
from harness.timing.plan import PairPlan


def main(
    arguments: Sequence[str] | None = None,
    open_device: Callable[[float], Gpu] = open_cuda,
) -> int:
    given = _parser().parse_args(arguments)
    try:
        rule = Rule(delta=_share("--delta", given.delta), error=_share("--error", given.error))
        for file in filter(None, (given.json, given.markdown)):
            if not file.absolute().parent.is_dir():
                raise ValueError(f"{file}: its folder does not exist")
        return _run(given, rule, open_device)
    except (CommitError, DeviceError, NoDevice, ToolchainError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gemm-regression compare", description=about(__doc__, 1))
    add = parser.add_argument
    add(
        "base",
        metavar="BASE",
        help="a commit: main, HEAD, v1.2, 1a2b3c4; HEAD judges uncommitted changes. Or a folder: ../old",
    )
    cases.add_selection(parser)
    add("--delta", default="0.5%", metavar="PCT", help="the smallest change that matters (default 0.5%%)")
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


def _share(option: str, text: str) -> float:
    return share(text, f"{option} {text}", "0.5%")


def _run(given: argparse.Namespace, rule: Rule, open_device: Callable[[float], Gpu]) -> int:
    project = project_of(given)
    tree = _tree(given.base, project)
    with checked_out(given.base, project) as commit:
        device = open_device(given.time_limit)
        try:
            others = [] if given.allow_busy else device.busy()
            if others:
                raise ValueError(busy_text(device.info.name, others))
            selection = cases.select(project, cases.Choice.of(given), device.info.capability)
            if selection.refused_text:
                print(f"refused: {selection.refused_text}")
            pairs = pairs_of(selection.timed, commit, device.info.capability, _compiled(given.quiet))
            timed = [p for p in pairs if p.base and p.outcome is None]
            sides = [side for p in timed for side in (p.base, p.case) if side]
            variants = {p.case.variant for p in timed}
            with progress("compile for the GPU", 2 * len(variants), given.quiet) as step:
                device.prepare_pairs(sides, step)
            seed = secrets.randbelow(2**32) if given.seed is None else given.seed
            busy = list if given.allow_busy else device.busy
            most = rule.looks * (len(timed) + CONTROLS)
            with progress("compare", most, given.quiet, most=True) as step:
                result = compare(device, pairs, rule, seed, PairPlan(()), busy, step)
            machine = provenance.machine_info(device.info)
        finally:
            device.close()
    print("\n".join(report.heading(result, commit, tree)))
    print(report.table(result, sys.stdout.isatty(), room()))
    if given.markdown:
        write_whole(given.markdown, report.markdown(result, commit, tree))
    if given.json:
        when = datetime.now(UTC).isoformat(timespec="seconds")
        record = document.document(result, commit, tree, machine, when)
        write_whole(given.json, json.dumps(record, indent=1, allow_nan=False) + "\n")
    return result.exit_status


def _compiled(quiet: bool) -> Compiled:
    def compiled(variants: list[Variant], arch: str) -> list[Binary | CompileError]:
        with progress("compile both sides", len(variants), quiet) as step:
            return compile_all(variants, arch, step=step)

    return compiled


def _tree(base: str, project: Project) -> Tree:
    try:
        return working_tree(project.root)
    except CommitError:
        if folder_of(base, project) is None:
            raise
        return Tree("", True)


if __name__ == "__main__":
    end_on_sigterm()
    sys.exit(main())
