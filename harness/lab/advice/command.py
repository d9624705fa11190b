"""``nox -s lab -- advice``: how far the course notes' recommendations are behind the best, from stored
figures; ``--measure`` verifies and times their configs on this GPU first, in one run, and stores them.

Exit status: 0; 1 for a file that cannot be trusted, or, with ``--check``, a page that is out of date;
pytest's if a config is not correct; 2 for a wrong command line.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from gemm_regression.cli.common import KERNELS, PERFORMANCE, PLUGIN, files_of_tests, project_of
from gemm_regression.compiler import tools
from gemm_regression.compiler.static import store
from gemm_regression.model import CaseId, Kernel, Problem, find_problem, variant_name
from gemm_regression.model.gpus import GpuLimits, refusals
from gemm_regression.project.loader import Project
from gemm_regression.project.suites import TIMED
from gemm_regression.report.figures import gflops_text
from gemm_regression.tune import figures
from gemm_regression.tune.figures import Surveyed
from gemm_regression.tune.select import SelectError, Selector
from lab import pages
from lab.advice.policies import POLICIES, Advice, Rank, Speeds, Target, best_single, mean_share, rank


def main(arguments: Sequence[str]) -> int:
    parser = pages.parser("advice", __doc__)
    parser.add_argument("--measure", action="store_true", help="first check and time the configs on this GPU")
    parser.add_argument(
        "--store", type=Path, metavar="RUN", help="store a run's JSON as this GPU's measurements"
    )
    given = parser.parse_args(arguments)
    if given.measure:
        project = project_of(given)
        given.store = project.root / ".benchmarks" / "advice.json"
        given.store.parent.mkdir(exist_ok=True)
        if status := _measure(project, given.store):
            return status

    def text(project: Project) -> str:
        if given.store:
            print(f"wrote {figures.store_survey(given.store, project.baselines)}")
        found = figures.every_survey(project.baselines)
        rivals = [_selection(project, one) for one in found]
        return page(found, [target(project, one) for one in found], project.kernels, rivals)

    return pages.write(given, "advice", text)


def _measure(project: Project, run: Path) -> int:
    """The suite verified and timed, judged by nothing; pytest's exit status."""
    files = files_of_tests(project, KERNELS, PERFORMANCE)
    options = ("--suite", "advice", "--device", "cuda", "-m", "gpu", "--project", str(project.root))
    command = [sys.executable, "-m", "pytest", *PLUGIN, *files, *options, "--baseline-run"]
    return subprocess.run([*command, f"--benchmark-json={run}"], check=False).returncode


def _selection(project: Project, one: Surveyed) -> list[Advice]:
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

    return [Advice("`select`", "measured here", "", "the fastest at the nearest measured shapes", choose)]


def target(project: Project, one: Surveyed) -> Target:
    """A GPU model with the registers stored of each variant. Raises StoreError."""
    limits = GpuLimits.of(one.capability)
    known = store.load(tools.arch(one.capability), *tools.pins(), project.static)
    return Target(limits, {name: made.registers for name, made in known.items()})


SHOWN = ("1024x1024x1024", "4096x4096x4096", "4096x64x4096", "16x8192x8192")


def page(
    found: Sequence[Surveyed],
    targets: Sequence[Target],
    kernels: Sequence[Kernel],
    rivals: Sequence[Sequence[Advice]] = (),
) -> str:
    """The whole page; a section per GPU model, with its target, and other policies there, if any."""
    parts = [
        "# Recommendations of the course notes, compared with the fastest kernels",
        "Written by `nox -s lab -- advice --markdown docs/results/advice.md` from stored measurements; "
        "do not edit. Each recommendation of the course notes chooses a kernel and a config for a problem. "
        "Its share is its speed relative to the fastest kernel of this repository on the same problem and "
        "dtype, without cuBLAS; within its stage, relative to the fastest config of the kernel that it "
        "chooses. The mean is geometric, over the shapes for which its choice was measured. "
        "`nox -s lab -- advice --measure` checks and times the suite `advice` on a GPU, in one run, and "
        "stores the results next to that GPU's baseline.",
    ]
    for one, target, more in zip(found, targets, rivals or [()] * len(found), strict=True):
        parts += _of_gpu(one, target, kernels, more)
    return "\n\n".join(parts) + "\n"


def _of_gpu(
    one: Surveyed, target: Target, kernels: Sequence[Kernel], rivals: Sequence[Advice]
) -> Iterator[str]:
    problems = [find_problem(text) for text in one.gflops]
    libraries = {kernel.name for kernel in kernels if not kernel.compiled}
    speeds = {
        group: {name: speed for name, speed in of.items() if CaseId.parse(name).kernel not in libraries}
        for group, of in one.gflops.items()
    }
    yield f"## {one.name}"
    yield f"From {', '.join(f'`baselines/{one.slug}/{name}`' for name in one.files)}."
    if alone := [group for group in one.gflops if group not in one.based]:
        yield (
            f"There is no baseline of {', '.join(alone)}: shares there are relative to the fastest "
            "recommended config, not to the fastest kernel."
        )
    yield "### Recommendations"
    single = best_single(speeds, [problem for problem in TIMED if problem.id in speeds])
    policies = [*POLICIES, *rivals, *([single] if single else [])]
    ranked = [(policy, _ranks(policy, target, speeds, problems)) for policy in policies]
    ranked.sort(key=lambda pair: -(mean_share(pair[1]) or 0))
    own = {
        policy.name: mean_share(_ranks(policy, target, speeds, problems, within=True)) for policy in policies
    }
    heads = ("recommendation", "source", "rule", "shapes", "within its stage")
    yield pages.table(
        (*heads, "mean share", "worst", "fastest there"),
        [_policy(policy, ranks, own[policy.name]) for policy, ranks in ranked],
    )
    yield "### Configs"
    yield "GFLOPS, and in parentheses the share of the fastest."
    rows = list(_configs(one, speeds, kernels))
    yield pages.table(("config", *SHOWN), rows)
    if refused := list(_refused(target.limits, kernels)):
        yield "### Configs that cannot run"
        yield pages.table(("config", "why"), refused)


def _ranks(
    policy: Advice, target: Target, speeds: Speeds, problems: Sequence[Problem], within: bool = False
) -> list[Rank]:
    return rank(lambda problem: policy.choose(problem, target), speeds, problems, within)


def _policy(policy: Advice, ranks: Sequence[Rank], own: float | None) -> tuple[str, ...]:
    said = (policy.name, policy.source, policy.gist, str(len(ranks)))
    if not ranks:
        return (*said, "not measured", "", "", "")
    worst = min(ranks, key=lambda one: one.share)
    mean = mean_share(ranks)
    assert mean is not None
    assert own is not None
    return (*said, _share(own), _share(mean), f"{_share(worst.share)} at {worst.problem}", f"`{worst.best}`")


def _configs(one: Surveyed, speeds: Speeds, kernels: Sequence[Kernel]) -> Iterator[tuple[str, ...]]:
    for kernel in kernels:
        for config in kernel.advised:
            dtype = kernel.dtypes[0]
            name = variant_name(kernel, config, dtype)
            cells = []
            for group in SHOWN:
                here = {n: s for n, s in speeds.get(group, {}).items() if CaseId.parse(n).dtype == dtype.name}
                share = f" ({_share(here[name] / max(here.values()))})" if name in here else ""
                cells.append(gflops_text(here.get(name)) + share)
            if any(name in of for of in speeds.values()):
                yield (f"`{name}`", *cells)


def _refused(limits: GpuLimits, kernels: Sequence[Kernel]) -> Iterator[tuple[str, ...]]:
    for kernel in kernels:
        for config in kernel.advised:
            if reasons := refusals(kernel, config, kernel.dtypes[0], limits):
                yield f"`{variant_name(kernel, config, kernel.dtypes[0])}`", "; ".join(reasons)


def _share(share: float) -> str:
    return f"{100 * share:.1f} %"
