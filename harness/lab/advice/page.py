"""The notes' recommendations as Markdown: how far each is behind the best, from stored figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gemm_regression.model import Kernel, Problem, find_problem, variant_name
from gemm_regression.model.legality import GpuLimits, refusals
from gemm_regression.project.suites import TIMED
from gemm_regression.report.figures import gflops_text
from gemm_regression.tune.survey import Surveyed
from lab.advice.policies import POLICIES, Policy, Rank, Speeds, Target, best_single, mean_share, rank

SHOWN = ("1024x1024x1024", "4096x4096x4096", "4096x64x4096", "16x8192x8192")


def page(
    found: Sequence[Surveyed],
    targets: Sequence[Target],
    kernels: Sequence[Kernel],
    rivals: Sequence[Sequence[Policy]] = (),
) -> str:
    """The whole page; a section per GPU model, with its target, and other policies there, if any."""
    parts = [
        "# What the notes recommend, and how far it is behind",
        "Written by `nox -s lab -- advice --markdown docs/results/advice.md` from stored figures; "
        "do not edit. Each recommendation of the course notes is a policy: a kernel and a config for a "
        "problem. Its share is its speed over that of the fastest kernel of this repository measured on the "
        "same problem and dtype (cuBLAS is not one); the mean is geometric, over the shapes where its "
        "choice was measured. `nox -s lab -- advice --measure` verifies and times the suite `advice` "
        "on a GPU, in one run, and stores the figures beside that GPU's baseline.",
    ]
    for one, target, more in zip(found, targets, rivals or [()] * len(found), strict=True):
        parts += _of_gpu(one, target, kernels, more)
    return "\n\n".join(parts) + "\n"


def _of_gpu(
    one: Surveyed, target: Target, kernels: Sequence[Kernel], rivals: Sequence[Policy]
) -> Iterator[str]:
    problems = [find_problem(text) for text in one.gflops]
    libraries = {kernel.name for kernel in kernels if not kernel.compiled}
    speeds = {
        group: {name: speed for name, speed in of.items() if name.split("-")[0] not in libraries}
        for group, of in one.gflops.items()
    }
    yield f"## {one.name}"
    yield f"From {', '.join(f'`baselines/{one.slug}/{name}`' for name in one.files)}."
    if alone := [group for group in one.gflops if group not in one.based]:
        yield (
            f"Without a baseline of {', '.join(alone)}: shares there are of the fastest recommended config, "
            "not of the fastest kernel."
        )
    yield "### Policies"
    single = best_single(speeds, [problem for problem in TIMED if problem.id in speeds])
    policies = [*POLICIES, *rivals, *([single] if single else [])]
    ranked = [(policy, _ranks(policy, target, speeds, problems)) for policy in policies]
    ranked.sort(key=lambda pair: -(mean_share(pair[1]) or 0))
    heads = ("policy", "source", "gist", "shapes", "mean share", "worst", "there the best is")
    yield _table(heads, [_policy(policy, ranks) for policy, ranks in ranked])
    yield "### Configs"
    yield "GFLOPS, and in brackets the share of the fastest."
    rows = list(_configs(one, speeds, kernels))
    yield _table(("config", *SHOWN), rows)
    if refused := list(_refused(target.limits, kernels)):
        yield "### Configs that cannot run"
        yield _table(("config", "why"), refused)


def _ranks(policy: Policy, target: Target, speeds: Speeds, problems: Sequence[Problem]) -> list[Rank]:
    return rank(lambda problem: policy.choose(problem, target), speeds, problems)


def _policy(policy: Policy, ranks: Sequence[Rank]) -> tuple[str, ...]:
    said = (policy.name, policy.source, policy.gist, str(len(ranks)))
    if not ranks:
        return (*said, "not measured", "", "")
    worst = min(ranks, key=lambda one: one.share)
    mean = mean_share(ranks)
    assert mean is not None
    return (*said, _share(mean), f"{_share(worst.share)} at {worst.problem}", f"`{worst.best}`")


def _configs(one: Surveyed, speeds: Speeds, kernels: Sequence[Kernel]) -> Iterator[tuple[str, ...]]:
    for kernel in kernels:
        for config in kernel.advised:
            dtype = kernel.dtypes[0]
            name = variant_name(kernel, config, dtype)
            cells = []
            for group in SHOWN:
                here = {n: s for n, s in speeds.get(group, {}).items() if n.split("-")[1] == dtype.name}
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


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
