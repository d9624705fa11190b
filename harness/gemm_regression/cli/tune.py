"""``gemm-regression tune``: searches a kernel's space for its fastest config, or replays a search."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from gemm_regression.cli.common import command, end_on_sigterm, fail, option, project_of, refuse_busy
from gemm_regression.cli.progress import progress
from gemm_regression.compiler.static import ARCHES
from gemm_regression.compiler.static.store import shown
from gemm_regression.devices import NoDevice
from gemm_regression.files import write_whole
from gemm_regression.model import DType, Kernel, find_problem
from gemm_regression.project.commit import CommitError, working_tree
from gemm_regression.project.loader import Project
from gemm_regression.project.selection import find_kernel
from gemm_regression.report import tuning as said
from gemm_regression.tune import stored
from gemm_regression.tune.runners import Cluster, OneEmulated, OneGpu, Runner
from gemm_regression.tune.search import BUDGET, COMPARED, Budget, check_strategy, replay, strategies
from gemm_regression.tune.tune import Screen, Tuning, TuningResult

EMULATED_OBJECTIVE = "instructions"
STOPPED = 130  # the exit status


@command(
    "tune",
    "--project",
    "--arch",
    option(
        "--time-limit",
        type=float,
        default=20.0,
        metavar="S",
        help="seconds for a config (default %(default)s)",
    ),
    "--allow-busy",
    "--quiet",
    option("--kernel", metavar="NAME", help="the kernel to tune; it must declare a search space"),
    option("--dtype", metavar="NAME", help="element type, such as f16 (default: the kernel's first)"),
    option("--shape", action="append", default=[], metavar="MxNxK", help="the problem; may be repeated"),
    option("--axis", action="append", default=[], metavar="NAME=V,V", help="only these values of an axis"),
    option("--objective", choices=stored.OBJECTIVES, default="gflops", help="to maximise; default gflops"),
    option("--strategy", default="brute_force", metavar="NAME", help="of Kernel Tuner; default brute_force"),
    option("--list-strategies", action="store_true", help="list the strategies"),
    option("--budget", metavar="300s|200", help="limit in seconds or evaluations (default: none)"),
    option("--seed", type=int, default=1, metavar="N", help="random seed of the strategy (default 1)"),
    option("--device", choices=("cuda", "emulated"), default="cuda", help="emulated: count instructions"),
    option("--gpus", type=int, metavar="N", help="use N GPUs of this host, through Ray"),
    option("--ray", metavar="ADDRESS", help="use all GPUs of a Ray cluster; auto: the one on this host"),
    option("--no-hazards", action="store_true", help="do not first check configs on the emulated device"),
    option("--cache", type=Path, metavar="FILE", help="cache file; default: in .benchmarks/tune"),
    option("--fresh", action="store_true", help="ignore and replace the cache file"),
    option("--output", type=Path, metavar="FOLDER", help="folder for the results; default: the baselines"),
    option("--simulate", type=Path, metavar="FILE", help="replay a stored search with all strategies"),
    option("--seeds", type=int, default=10, metavar="N", help="seeds per strategy replayed (default 10)"),
    option("--markdown", type=Path, metavar="FILE", help="for --simulate: page to write the table to"),
    "--check",
)
def main(given: argparse.Namespace) -> int:
    """Searches for a kernel's fastest config with Kernel Tuner's strategies, or replays a stored search
    (--simulate).

    Exit status: 0 done; 1 nothing could be timed; 2 a wrong command line, no device, or a cache file of
    another search; 130 stopped by Ctrl-C: the same command continues the search.
    """
    end_on_sigterm()
    if given.list_strategies:
        print("\n".join(strategies()))
        return 0
    budget = Budget.parse(given.budget) if given.budget else None
    if given.simulate:
        return _simulate(given, budget or BUDGET)
    try:
        return _tune(given, budget or Budget())
    except NoDevice as error:
        without = "; without one, --device emulated counts instructions, and --simulate FILE replays a search"
        return fail(f"{error}{without if given.device == 'cuda' else ''}", 2)


# Searching


def _tune(given: argparse.Namespace, budget: Budget) -> int:
    project = project_of(given)
    kernel, dtype = _kernel(project, given)
    if not given.shape:
        raise ValueError("name at least one problem, such as --shape 4096x4096x4096")
    problems = [find_problem(text).stored(kernel.operation.layout) for text in dict.fromkeys(given.shape)]
    if empty := next((problem.id for problem in problems if not kernel.operation.flop(problem)), None):
        raise ValueError(f"{empty} has nothing to compute, so there is nothing to time")
    assert kernel.space is not None
    space = kernel.space.narrowed(_axes(given.axis))
    check_strategy(given.strategy)
    emulated = given.device == "emulated"
    objective = EMULATED_OBJECTIVE if emulated else given.objective
    with contextlib.closing(_runner(given, (project.root, kernel.name, dtype.name), objective)) as runner:
        if isinstance(runner, OneGpu):
            refuse_busy(runner.gpu, given.allow_busy)
        hazards = not given.no_hazards and not emulated
        tuning = Tuning(
            Screen(project.root, kernel, dtype, space, runner.capability, hazards),
            runner,
            objective=objective,
            strategy=given.strategy,
            budget=budget,
            seed=given.seed,
            caches=given.cache or project.root / ".benchmarks" / "tune",
            fresh=given.fresh,
            commit=_commit(project),
            progress=partial(progress, silent=given.quiet),
        )
        status = 0
        for problem in problems:
            status = max(status, _report(given, project, tuning.tune(problem)))
            if status == STOPPED:
                break
        return status


def _runner(given: argparse.Namespace, of: tuple[Path, str, str], objective: str) -> Runner:
    if given.ray or given.gpus:
        return Cluster(OneGpu, (*of, objective, given.time_limit), given.ray, given.gpus)
    if given.device == "emulated":
        return OneEmulated(*of, ARCHES[given.arch], given.time_limit)
    return OneGpu(*of, objective, given.time_limit)


def _report(given: argparse.Namespace, project: Project, outcome: TuningResult) -> int:
    """Prints and stores what was found; the exit status."""
    cache, tuned = outcome.cache, outcome.tuned
    if cache.torn:
        print(f"{shown(cache.path)}: its last line was torn; that config was evaluated again")
    if outcome.resumed:
        print(f"{outcome.resumed} results were in {shown(cache.path)}")
    if outcome.stopped:
        count = len(outcome.results)
        print(f"stopped: {count} results are in {shown(cache.path)}; the same command goes on from there")
        return STOPPED
    print("\n".join(said.excluded(outcome.pruned, outcome.failed)))
    if tuned is None:  # the emulated device's result, which is no time and is not stored
        counted = [one for one in outcome.results if isinstance(one, stored.Evaluation)]
        for one in counted[: said.SHOWN]:
            print(f"{one.instructions:14,} warp instructions: {one.config.label}")
        print("emulated: instructions are no time; nothing is stored")
        return int(not counted)
    if (best := tuned.best) is None:
        return fail(f"no config of {tuned.name} could be timed")
    print("\n".join([said.table(tuned), *said.summary(tuned)]))
    print(f"wrote {shown(stored.write(given.output or project.baselines, tuned))}")
    if best.config != tuned.declared:
        print(f"to keep it, add {best.config!r} to the configs of {tuned.kernel}")
    return 0


def _kernel(project: Project, given: argparse.Namespace) -> tuple[Kernel, DType]:
    spaces = [kernel.name for kernel in project.kernels if kernel.space is not None]
    known = ", ".join(spaces) or "none"
    if not given.kernel:
        raise ValueError(f"name the kernel with --kernel; these declare a space: {known}")
    kernel = find_kernel(project.kernels, given.kernel)
    if kernel.space is None:
        raise ValueError(f"{kernel.name} declares no search space (space=Space(axes)); these do: {known}")
    for dtype in kernel.dtypes:
        if given.dtype in (None, dtype.name):
            return kernel, dtype
    raise ValueError(f"{kernel.name} has no {given.dtype}, only {', '.join(d.name for d in kernel.dtypes)}")


def _axes(words: Sequence[str]) -> dict[str, tuple[int, ...]]:
    found = {}
    for word in words:
        name, _, values = word.partition("=")
        try:
            found[name] = tuple(int(value) for value in values.split(",") if value)
        except ValueError:
            raise ValueError(f"--axis {word}: must be a name and integers, such as STAGES=2,3") from None
    return found


def _commit(project: Project) -> Mapping[str, Any]:
    """As a baseline names it: without git, as in a container, GEMM_COMMIT (or GITHUB_SHA) does."""
    try:
        tree = working_tree(project.root)
        return {"id": tree.sha, "dirty": tree.dirty, "time": None}
    except CommitError:
        named = os.environ.get("GEMM_COMMIT") or os.environ.get("GITHUB_SHA")
        return {"id": named or "unknown", "dirty": not named, "time": None}


# Replaying


def _simulate(given: argparse.Namespace, budget: Budget) -> int:
    tuned = stored.load(given.simulate)
    chosen = COMPARED if given.strategy == "brute_force" else (given.strategy,)
    mark = said.mark(given.simulate.read_bytes(), chosen, given.seeds, str(budget))
    if (page := given.markdown) and given.check:
        # Of the same: some strategies have random numbers that no seed repeats.
        if page.is_file() and mark in page.read_text(encoding="utf-8"):
            return 0
        return fail(f"{page} was made of something else; write it again without --check")
    with progress("replay", len(chosen) * given.seeds, given.quiet) as step:
        found = replay(tuned, chosen, range(1, given.seeds + 1), budget, step)
    print(said.strategies(tuned, found))
    if page:
        write_whole(page, said.strategies(tuned, found, shown(given.simulate.resolve()), mark) + "\n")
    return 0
