"""``nox -s lab -- advice``: how far the course notes' recommendations are behind the best, from stored
figures; ``--measure`` verifies and times their configs on this GPU first, in one run, and stores them.

Exit status: 0; 1 for a file that cannot be trusted, or, with ``--check``, a page that is out of date;
pytest's if a config is not correct; 2 for a wrong command line.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from gemm_regression.baselines import BaselineError
from gemm_regression.cli.common import KERNELS, PERFORMANCE, PLUGIN, about, files_of_tests, project_of
from gemm_regression.compiler import tools
from gemm_regression.compiler.static import store
from gemm_regression.compiler.static.store import StoreError
from gemm_regression.files import write_whole
from gemm_regression.model import Problem
from gemm_regression.model.gpus import GpuLimits
from gemm_regression.project.loader import Project
from gemm_regression.tune import figures
from gemm_regression.tune.figures import Surveyed
from gemm_regression.tune.select import SelectError, Selector
from lab.advice.page import page
from lab.advice.policies import Policy, Target


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="nox -s lab -- advice", description=about(__doc__))
    parser.add_argument("--project", type=Path, metavar="PATH", help="the project's folder")
    parser.add_argument(
        "--measure", action="store_true", help="verify and time the configs on this GPU first"
    )
    parser.add_argument("--store", type=Path, metavar="RUN", help="store a run's JSON as this GPU's figures")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the page there")
    parser.add_argument("--check", action="store_true", help="write nothing: is that file up to date?")
    given = parser.parse_args(arguments)
    if given.check and not given.markdown:
        parser.error("--check needs --markdown FILE")
    try:
        project = project_of(given)
        if given.measure:
            given.store = project.root / ".benchmarks" / "advice.json"
            given.store.parent.mkdir(exist_ok=True)
            if status := _measure(project, given.store):
                return status
        if given.store:
            print(f"wrote {figures.store_survey(given.store, project.baselines)}")
        found = figures.every_survey(project.baselines)
        rivals = [_selection(project, one) for one in found]
        text = page(found, [target(project, one) for one in found], project.kernels, rivals)
    except (BaselineError, StoreError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if not given.markdown:
        print(text, end="")
    elif not given.check:
        write_whole(given.markdown, text)
    elif not given.markdown.is_file() or given.markdown.read_text(encoding="utf-8") != text:
        again = f"`nox -s lab -- advice --markdown {given.markdown}` updates it"
        print(f"error: {given.markdown} is out of date; {again}", file=sys.stderr)
        return 1
    return 0


def _measure(project: Project, run: Path) -> int:
    """The suite verified and timed, judged by nothing; pytest's exit status."""
    files = files_of_tests(project, KERNELS, PERFORMANCE)
    options = ("--suite", "advice", "--device", "cuda", "-m", "gpu", "--project", str(project.root))
    command = [sys.executable, "-m", "pytest", *PLUGIN, *files, *options, "--baseline-run"]
    return subprocess.run([*command, f"--benchmark-json={run}"], check=False).returncode


def _selection(project: Project, one: Surveyed) -> list[Policy]:
    """What `select` chooses, as a policy; none for a GPU without a baseline."""
    try:
        selector = Selector.of(project, one.slug)
    except SelectError:
        return []

    def choose(problem: Problem, target: Target) -> str | None:
        try:
            return selector.select(problem).variant.name
        except SelectError:
            return None

    return [Policy("`select`", "measured here", "", "the fastest at the nearest measured shapes", choose)]


def target(project: Project, one: Surveyed) -> Target:
    """A GPU model with the registers stored of each variant. Raises StoreError."""
    limits = GpuLimits.of(one.capability)
    known = store.load(tools.arch(one.capability), *tools.pins(), project.static)
    return Target(limits, {name: made.registers for name, made in known.items()})
