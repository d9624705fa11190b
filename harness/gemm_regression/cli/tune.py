"""``gemm-regression tune``: searches a kernel's space for its fastest config, or replays a search."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from gemm_regression.cli.common import busy_text, command, end_on_sigterm, fail, option, project_of
from gemm_regression.cli.progress import progress
from gemm_regression.compiler.static import ARCHES
from gemm_regression.compiler.static.store import shown
from gemm_regression.devices import NoDevice
from gemm_regression.files import write_whole
from gemm_regression.model import DType, Kernel, Problem, find_problem
from gemm_regression.project.commit import CommitError, working_tree
from gemm_regression.project.loader import Project
from gemm_regression.project.selection import find_kernel
from gemm_regression.report import tuning as said
from gemm_regression.tune import stored
from gemm_regression.tune.cluster import Cluster, open_gpu
from gemm_regression.tune.evaluating import OneEmulated, OneGpu
from gemm_regression.tune.search import BUDGET, COMPARED, Budget, check_strategy, replay, strategies
from gemm_regression.tune.tune import Outcome, Tuning, Wanted

EMULATED_OBJECTIVE = "instructions"


@command(
    "tune",
    "--project",
    "--arch",
    option("--time-limit", type=float, default=20.0, metavar="S", help="of one config (default %(default)s)"),
    "--allow-busy",
    "--quiet",
    option("--kernel", metavar="NAME", help="the kernel to tune, which declares a space"),
    option("--dtype", metavar="NAME", help="such as f16; default: the first that the kernel declares"),
    option("--shape", action="append", default=[], metavar="MxNxK", help="the problem; may be repeated"),
    option("--axis", action="append", default=[], metavar="NAME=V,V", help="only these values of an axis"),
    option("--objective", choices=stored.OBJECTIVES, default="gflops", help="default gflops"),
    option("--strategy", default="brute_force", metavar="NAME", help="Kernel Tuner's; default brute_force"),
    option("--list-strategies", action="store_true", help="print their names"),
    option("--budget", metavar="300s|200", help="seconds, or evaluations; default: all of the strategy"),
    option("--seed", type=int, default=1, metavar="N", help="of the strategy; default 1"),
    option("--device", choices=("cuda", "emulated"), default="cuda", help="emulated: counts instructions"),
    option("--gpus", type=int, metavar="N", help="so many GPUs at once, through Ray"),
    option("--ray", metavar="ADDRESS", help="all GPUs of a Ray cluster; auto: of `ray start --head` here"),
    option("--no-hazards", action="store_true", help="do not run the configs on the emulated device first"),
    option("--cache", type=Path, metavar="FILE", help="to go on from; default in .benchmarks/tune"),
    option("--fresh", action="store_true", help="begin the cache file anew"),
    option("--output", type=Path, metavar="FOLDER", help="for <gpu>/tuned/*.json; default: the baselines'"),
    option("--simulate", type=Path, metavar="FILE", help="replay a stored space with several strategies"),
    option("--seeds", type=int, default=10, metavar="N", help="of each strategy replayed; default 10"),
    option("--markdown", type=Path, metavar="FILE", help="write the table of strategies into this page"),
    "--check",
)
def main(given: argparse.Namespace) -> int:
    """Searches a kernel's declared space for its fastest config, with Kernel Tuner's strategies; or replays a
    stored search (--simulate).

    Exit status: 0 done; 1 nothing could be timed; 2 a wrong command line, no device, another cache file; 130
    stopped by Ctrl-C; the same command goes on, and what was compiled stays in the cache.
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
    kernel = _kernel(project, given.kernel)
    dtype = _dtype(kernel, given.dtype)
    if not given.shape:
        raise ValueError("name at least one problem, such as --shape 4096x4096x4096")
    problems = [_problem(kernel, text) for text in dict.fromkeys(given.shape)]
    assert kernel.space is not None
    space = kernel.space.narrowed(_axes(given.axis))
    check_strategy(given.strategy)
    emulated = given.device == "emulated"
    wanted = Wanted(
        root=project.root,
        kernel=kernel,
        dtype=dtype,
        space=space,
        objective=EMULATED_OBJECTIVE if emulated else given.objective,
        strategy=given.strategy,
        budget=budget,
        seed=given.seed,
        hazards=not given.no_hazards and not emulated,
        caches=given.cache or project.root / ".benchmarks" / "tune",
        fresh=given.fresh,
        commit=_commit(project),
    )
    gpus = _gpus(given, wanted)
    console = Console(width=None if sys.stdout.isatty() else 200)
    try:
        tuning = Tuning(wanted, gpus, lambda title, steps: progress(title, steps, given.quiet))
        status = 0
        for problem in problems:
            outcome = tuning.tune(problem)
            status = max(status, _report(given, project, outcome, console))
            if outcome.stopped:
                return 130
        return status
    finally:
        gpus.close()


def _gpus(given: argparse.Namespace, wanted: Wanted) -> OneGpu | OneEmulated | Cluster:
    kernel, dtype = wanted.kernel, wanted.dtype
    if given.ray or given.gpus:
        of = (wanted.root, kernel.name, dtype.name, wanted.objective, given.time_limit)
        return Cluster(partial(open_gpu, *of), given.ray, given.gpus)
    if given.device == "emulated":
        return OneEmulated(kernel, dtype, ARCHES[given.arch], given.time_limit)
    one = OneGpu(kernel, dtype, wanted.objective, given.time_limit)
    if (others := one.device.busy()) and not given.allow_busy:
        one.close()
        raise NoDevice(busy_text(one.device_name, others))
    return one


def _report(given: argparse.Namespace, project: Project, outcome: Outcome, console: Console) -> int:
    """Prints and stores what was found; the exit status."""
    cache, tuned = outcome.cache, outcome.tuned
    if cache.torn:
        print(f"{shown(cache.path)}: its last line was torn; that config was evaluated again")
    if outcome.resumed:
        print(f"{outcome.resumed} results were in {shown(cache.path)}")
    if outcome.stopped:
        count = len(outcome.results)
        print(f"stopped: {count} results are in {shown(cache.path)}; the same command goes on from there")
        return 130
    failed = [one for one in outcome.results if isinstance(one, stored.Failed)]
    print("\n".join(said.excluded(outcome.screened.pruned, [*outcome.screened.failed, *failed])))
    if tuned is None:  # the emulated device's result, which is no time and is not stored
        counted = [one for one in outcome.results if isinstance(one, stored.Evaluation)]
        for one in counted[: said.SHOWN]:
            print(f"{one.instructions:14,} warp instructions: {one.config.label}")
        print("emulated: instructions are no time; nothing is stored")
        return int(not counted)
    if (best := tuned.best) is None:
        return fail(f"no config of {tuned.name} could be timed")
    console.print(said.table(tuned))
    print("\n".join(said.summary(tuned)))
    print(f"wrote {shown(stored.write(given.output or project.baselines, tuned))}")
    if best.config != tuned.declared:
        print(f"to keep it, add {best.config!r} to the configs of {tuned.kernel}")
    return 0


def _kernel(project: Project, name: str | None) -> Kernel:
    spaces = [kernel.name for kernel in project.kernels if kernel.space is not None]
    known = ", ".join(spaces) or "none"
    if not name:
        raise ValueError(f"name the kernel with --kernel; these declare a space: {known}")
    kernel = find_kernel(project.kernels, name)
    if kernel.space is None:
        raise ValueError(f"{name} declares no search space (space=Space(axes)); these do: {known}")
    return kernel


def _dtype(kernel: Kernel, name: str | None) -> DType:
    found = [dtype for dtype in kernel.dtypes if name in (None, dtype.name)]
    if not found:
        raise ValueError(f"{kernel.name} has no {name}, only {', '.join(d.name for d in kernel.dtypes)}")
    return found[0]


def _problem(kernel: Kernel, text: str) -> Problem:
    problem = find_problem(text).stored(kernel.operation.layout)
    if not kernel.operation.flop(problem):
        raise ValueError(f"{text} has nothing to compute, so there is nothing to time")
    return problem


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
