"""``gemm-regression tune``: searches a kernel's declared space for its fastest config, with Kernel Tuner's
strategies; or replays a stored search (--simulate).

Exit status: 0 done; 1 nothing could be timed; 2 a wrong command line, no device, another cache file;
130 stopped by Ctrl-C; the same command goes on.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from gemm_regression.baselines import BaselineError
from gemm_regression.cli.common import about, busy_text, end_on_sigterm, project_of
from gemm_regression.cli.progress import progress
from gemm_regression.compiler.static.metrics import ARCHES
from gemm_regression.compiler.static.store import shown
from gemm_regression.compiler.tools import ToolchainError
from gemm_regression.devices import DeviceError, NoDevice
from gemm_regression.files import write_whole
from gemm_regression.model import DType, Kernel, Problem, find_problem
from gemm_regression.project.commit import CommitError, working_tree
from gemm_regression.project.loader import Project
from gemm_regression.project.selection import find_kernel
from gemm_regression.report import tuning as said
from gemm_regression.report.page.charts import NoDrawingError
from gemm_regression.tune import stored
from gemm_regression.tune.accept import accept
from gemm_regression.tune.cluster import Cluster, Setup
from gemm_regression.tune.evaluating import OneEmulated, OneGpu
from gemm_regression.tune.screening import ignored_text
from gemm_regression.tune.search import BUDGET, COMPARED, Budget, check_strategy, replay, strategies
from gemm_regression.tune.tune import Outcome, Tuning, Wanted

EMULATED_OBJECTIVE = "instructions"
SEEDS = 10


def main(arguments: Sequence[str]) -> int:
    given = _parser().parse_args(arguments)
    end_on_sigterm()
    try:
        if given.list_strategies:
            print("\n".join(strategies()))
            return 0
        budget = Budget.parse(given.budget) if given.budget else Budget()
        return _simulate(given, budget) if given.simulate else _tune(given, budget)
    except KeyboardInterrupt:
        print(
            "tune: stopped before anything was timed; what was compiled stays in the cache", file=sys.stderr
        )
        return 130
    except NoDevice as error:
        without = "; without one, --device emulated counts instructions, and --simulate FILE replays a search"
        print(f"tune: {error}{without if given.device == 'cuda' else ''}", file=sys.stderr)
    except (ValueError, BaselineError, ToolchainError) as error:
        print(f"tune: {error}", file=sys.stderr)
    except DeviceError as error:
        print(f"tune: {error}", file=sys.stderr)
        return 1
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gemm-regression tune", description=about(__doc__))
    add = parser.add_argument
    add("--project", type=Path, metavar="PATH", help="the project's folder; default: the nearest one above")
    add("--kernel", metavar="NAME", help="the kernel to tune, which declares a space")
    add("--dtype", metavar="NAME", help="such as f16; default: the first that the kernel declares")
    add("--shape", action="append", default=[], metavar="MxNxK", help="the problem; may be repeated")
    add("--axis", action="append", default=[], metavar="NAME=V,V", help="only these values of an axis")
    add("--objective", choices=stored.OBJECTIVES, default="gflops", help="default gflops")
    add("--strategy", default="brute_force", metavar="NAME", help="Kernel Tuner's; default brute_force")
    add("--list-strategies", action="store_true", help="print their names")
    add("--budget", metavar="300s|200", help="seconds, or evaluations; default: until the strategy ends")
    add("--seed", type=int, default=1, metavar="N", help="of the strategy; default 1")
    add(
        "--device",
        choices=("cuda", "emulated"),
        default="cuda",
        help="emulated: fewest instructions, no time",
    )
    add("--arch", choices=ARCHES, default="sm_90a", help="of the emulated device; default sm_90a")
    add("--gpus", type=int, metavar="N", help="so many GPUs at once, through Ray")
    add("--ray", metavar="ADDRESS", help="all GPUs of a Ray cluster; auto: that of `ray start --head` here")
    add("--no-hazards", action="store_true", help="do not run the configs on the emulated device first")
    add("--time-limit", type=float, default=20.0, metavar="S", help="after which a config hangs; default 20")
    add("--allow-busy", action="store_true", help="time although another process uses the GPU")
    add(
        "--cache", type=Path, metavar="FILE", help="the cache file to go on from; default in .benchmarks/tune"
    )
    add("--fresh", action="store_true", help="begin the cache file anew")
    add(
        "--output", type=Path, metavar="FOLDER", help="for <gpu>/tuned/*.json; default: the baselines' folder"
    )
    add("--plot", type=Path, metavar="FILE.svg", help="also a plot; with --simulate of the stored space")
    add("--accept", action="store_true", help="add the best config to the declarations")
    add("--simulate", type=Path, metavar="FILE", help="replay a stored space with several strategies")
    add("--seeds", type=int, default=SEEDS, metavar="N", help=f"of each strategy replayed; default {SEEDS}")
    add("--markdown", type=Path, metavar="FILE", help="write the table of strategies into this page")
    add("--check", action="store_true", help="write no page: exit status 1 if it is out of date")
    add("-q", "--quiet", action="store_true", help="no progress")
    return parser


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
        setup = Setup(str(wanted.root), kernel.name, dtype.name, wanted.objective, given.time_limit)
        return Cluster(setup, given.ray, given.gpus)
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
    if cache.dropped:
        print(f"{shown(cache.path)}: its last line was torn; that config was evaluated again")
    if outcome.resumed:
        print(f"{outcome.resumed} results were in {shown(cache.path)}")
    if text := ignored_text(outcome.screened.ignored):
        print(text)
    if outcome.stopped:
        count = len(outcome.measured)
        print(f"stopped: {count} results are in {shown(cache.path)}; the same command goes on from there")
        return 130
    failed = [stored.Failed(c, m.code, m.reason) for c, m in outcome.measured if m.code]
    print("\n".join(said.excluded(outcome.screened.pruned, [*outcome.screened.failed, *failed])))
    if tuned is None:
        _print_counts(outcome)
        return int(all(m.code for _, m in outcome.measured))
    best = tuned.best
    if best is None:
        print(f"tune: no config of {tuned.name} could be timed", file=sys.stderr)
        return 1
    console.print(said.table(tuned))
    print("\n".join(said.summary(tuned)))
    print(f"wrote {shown(stored.write(given.output or project.baselines, tuned))}")
    _plot(given.plot, tuned)
    if given.accept:
        print(accept(project, tuned.kernel, best.config))
    return 0


def _print_counts(outcome: Outcome) -> None:
    """The emulated device's result, which is no time and is not stored."""
    for config, measured in [(c, m) for c, m in outcome.measured if not m.code][: said.SHOWN]:
        print(f"{measured.values[EMULATED_OBJECTIVE]:14,.0f} warp instructions: {config.label}")
    print("emulated: instructions are no time; nothing is stored")


def _plot(path: Path | None, tuned: stored.Tuned) -> None:
    if path is None:
        return
    try:
        said.plot(tuned, path)
        print(f"wrote {shown(path.resolve())}")
    except NoDrawingError as error:
        print(f"tune: {error}", file=sys.stderr)


def _kernel(project: Project, name: str | None) -> Kernel:
    spaces = [kernel.name for kernel in project.kernels if kernel.space is not None]
    if not name:
        raise ValueError(
            f"name the kernel with --kernel; these declare a space: {', '.join(spaces) or 'none'}"
        )
    kernel = find_kernel(project.kernels, name)
    if kernel.space is None:
        known = ", ".join(spaces) or "none"
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
    budget = budget if given.budget else BUDGET
    mark = said.mark(given.simulate.read_bytes(), chosen, given.seeds, str(budget))
    if given.markdown and given.check:
        return _checked(given.markdown, mark)
    with progress("replay", len(chosen) * given.seeds, given.quiet) as step:
        found = replay(tuned, chosen, range(1, given.seeds + 1), budget, step)
    text = said.strategies(tuned, found)
    print(text)
    _plot(given.plot, tuned)
    if given.markdown:
        write_whole(given.markdown, said.page(text, shown(given.simulate.resolve()), mark))
    return 0


def _checked(page: Path, mark: str) -> int:
    """Whether the page was made of the same; some strategies have random numbers that no seed repeats."""
    if page.is_file() and mark in page.read_text(encoding="utf-8"):
        return 0
    print(f"tune: {page} was made of something else; write it again without --check", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
