"""Predicates that many claims share: each makes one of stored figures, with the figures as text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import inf

from gemm_regression.compiler import tools
from gemm_regression.compiler.static import StaticFigures
from gemm_regression.model import BlockShape, CaseId, Config, DType, Kernel, Problem, find_problem
from gemm_regression.model.gpus import GpuLimits, shape_refusals
from gemm_regression.project.suites import TIMED, TIMED_BATCHED
from gemm_regression.tune.figures import Surveyed
from lab.advice.policies import POLICIES, Target, mean_share, rank
from lab.claims.claim import Facts, Judged, Predicate, Status, together

LARGE, SMALL = "4096x4096x4096", "1024x1024x1024"
CUBLAS = "cublas-f32"
A100, H200 = (8, 0), (9, 0)
COUNTED = "96x160x64"  # whole tiles of every stage that is asked about

Each = Callable[[Surveyed], tuple[float, str] | None]


def number(value: float) -> str:
    """``8,596``, ``1.33``."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def on_each_gpu(measure: Each, low: float, high: float = inf) -> Predicate:
    """Whether a figure lies within bounds, on each GPU that has it."""

    def judge(facts: Facts) -> Judged:
        found = ((gpu, measure(gpu)) for gpu in facts.gpus)
        return together((low <= seen[0] <= high, f"{gpu.name}: {seen[1]}") for gpu, seen in found if seen)

    return judge


def speed(gpu: Surveyed, variant: str, problem: str) -> float | None:
    """GFLOPS."""
    return gpu.gflops.get(problem, {}).get(variant)


def ratio(top: str, bottom: str, problem: str, low: float, high: float = inf) -> Predicate:
    """Whether one variant's speed over another's lies within bounds."""

    def measure(gpu: Surveyed) -> tuple[float, str] | None:
        above, below = speed(gpu, top, problem), speed(gpu, bottom, problem)
        if above is None or below is None:
            return None
        return above / below, f"{number(above)} / {number(below)} GFLOPS = {number(above / below)}"

    return on_each_gpu(measure, low, high)


def gain(top: str, bottom: str, problems: Sequence[str], least: float = 1.0) -> Predicate:
    """Whether one variant is faster than another on every problem, by this factor at least."""

    def judge(facts: Facts) -> Judged:
        found = []
        for gpu in facts.gpus:
            for problem in problems:
                above, below = speed(gpu, top, problem), speed(gpu, bottom, problem)
                if above and below:
                    found.append((above / below >= least, f"{gpu.name}, {problem}: {number(above / below)}"))
        return together(found)

    return judge


def padding(kernel: str, configs: Sequence[str], widths: Sequence[int]) -> Predicate:
    """Whether rows padded by each width are faster than unpadded ones, by more than 0.5 %, at 4096³ and
    1024³."""

    def judge(facts: Facts) -> Judged:
        found = []
        for gpu in facts.gpus:
            for config in configs:
                for width in widths:
                    for problem in (LARGE, SMALL):
                        plain = speed(gpu, f"{kernel}-f32-{config}-pad0", problem)
                        padded = speed(gpu, f"{kernel}-f32-{config}-pad{width}", problem)
                        if plain and padded:
                            change = padded / plain - 1
                            said = f"{gpu.name}, {config}, +{width}, {problem}: {100 * change:+.1f} %"
                            found.append((change > 0.005, said))
        return together(found)

    return judge


def said_of(word: str, variant: str, problem: str, gflops: float, within: float = 0.1) -> Predicate:
    """Whether a GPU of that model has the GFLOPS that the notes print, ``within`` a share of them: half the
    width of a range, a tenth for a single number. Where there is no such GPU, what others have."""

    def judge(facts: Facts) -> Judged:
        known = [(gpu, of) for gpu in facts.gpus if (of := speed(gpu, variant, problem))]
        own = [
            (abs(of / gflops - 1) <= within, f"{gpu.name}: {number(of)}")
            for gpu, of in known
            if word in gpu.name
        ]
        if own:
            return together(own)
        return Judged(Status.NOT_MEASURED, tuple(f"{gpu.name}: {number(of)} GFLOPS" for gpu, of in known))

    return judge


def policy(name: str, least: float = 0.9) -> Predicate:
    """Whether a recommendation reaches this share of the fastest kernel's speed, on average over the timed
    shapes; those that its choice is timed at must all have been measured, with the ladder's kernels."""
    (chosen,) = (one for one in POLICIES if one.name == name)

    def on(facts: Facts, gpu: Surveyed) -> tuple[bool, str] | None:
        libraries = {kernel.name for kernel in facts.kernels if not kernel.compiled}
        speeds = {
            problem: {n: s for n, s in of.items() if CaseId.parse(n).kernel not in libraries}
            for problem, of in gpu.gflops.items()
        }
        registers = {n: made.registers for n, made in static_of(facts, gpu.capability).items()}
        target = Target(GpuLimits.of(gpu.capability), registers)
        wanted = [
            problem
            for problem in (*TIMED, *TIMED_BATCHED)
            if _timed(facts, chosen.choose(problem, target), problem)
        ]
        ranks = rank(lambda problem: chosen.choose(problem, target), speeds, wanted)
        mean = mean_share(ranks)
        if mean is None or len(ranks) < len(wanted) or not {p.id for p in wanted} <= gpu.based:
            return None
        worst = min(ranks, key=lambda one: one.share)
        said = f"{percent(mean)} of the fastest on average of {len(ranks)} shapes"
        return mean >= least, f"{gpu.name}: {said}, {percent(worst.share)} at {worst.problem}"

    return lambda facts: together(found for gpu in facts.gpus if (found := on(facts, gpu)))


def _timed(facts: Facts, variant: str | None, problem: Problem) -> bool:
    """Whether a variant is timed on a problem."""
    kernel = next((k for k in facts.kernels if variant and k.name == CaseId.parse(variant).kernel), None)
    return kernel is not None and (
        problem.flops <= kernel.largest_timed and kernel.operation.batched == (problem.batch > 1)
    )


def static_of(facts: Facts, capability: tuple[int, int]) -> dict[str, StaticFigures]:
    """Compiler metrics for a compute capability, by variant; empty if none are stored."""
    return dict(facts.static.get(tools.arch(capability), {}))


def compiled(
    variants: Sequence[str],
    capability: tuple[int, int],
    value: Callable[[StaticFigures], float],
    holds: Callable[[float], bool],
    unit: str,
) -> Predicate:
    """Whether a compiler metric of each variant is as claimed."""

    def judge(facts: Facts) -> Judged:
        known = static_of(facts, capability)
        arch = tools.arch(capability)
        return together(
            (holds(value(known[v])), f"`{v}` on {arch}: {number(value(known[v]))} {unit}")
            for v in variants
            if v in known
        )

    return judge


def counted(
    variants: Sequence[str],
    value: Callable[[dict[str, int]], float],
    holds: Callable[[float], bool],
    unit: str,
    problem: str = COUNTED,
) -> Predicate:
    """Whether a figure of the memory counters of each variant is as claimed."""

    def judge(facts: Facts) -> Judged:
        return together(
            (holds(value(of)), f"`{variant}`: {number(value(of))} {unit}")
            for variant in variants
            if (of := dict(facts.counters.get(variant, {}).get(problem, {})))
        )

    return judge


def read_floats(of: dict[str, int]) -> float:
    """Floats read from global memory, of A and B, counted per thread."""
    return (of["a_read"] + of["b_read"]) / 4


def products(problem: str = COUNTED) -> int:
    """M·N·K."""
    size = find_problem(problem)
    return size.m * size.n * size.k


def shape(block: BlockShape, capability: tuple[int, int] = A100) -> Predicate:
    """Whether a block as a note has it is legal."""
    return lambda facts: _legal(shape_refusals(block, GpuLimits.of(capability)))


def declared(kernel: str, label: str, capability: tuple[int, int] = A100) -> Predicate:
    """Whether a declared config is legal."""

    def judge(facts: Facts) -> Judged:
        for of, config, dtype in _variants(facts):
            if (of.name, config.label) == (kernel, label):
                return _legal(shape_refusals(of.shape_of(config, dtype), GpuLimits.of(capability)))
        return Judged(Status.NOT_MEASURED)

    return judge


def _variants(facts: Facts) -> Iterator[tuple[Kernel, Config, DType]]:
    for kernel in facts.kernels:
        for config in kernel.declared:
            yield kernel, config, kernel.dtypes[0]


def _legal(reasons: Sequence[str]) -> Judged:
    if reasons:
        return Judged(Status.CONTRADICTED, tuple(reasons))
    return Judged(Status.HOLDS, ("the rules of legality allow it",))


def equal(said: float, value: float, what: str, within: float = 0.01) -> Predicate:
    """Whether a number that follows from a formula is the one printed."""
    holds = abs(value - said) <= within * abs(said)
    return lambda facts: together([(holds, f"{what} = {number(value)}")])


def all_of(*judges: Predicate) -> Predicate:
    """All of them: their verdict if they agree, else DEPENDS; the unmeasured ones do not count."""

    def judge(facts: Facts) -> Judged:
        made = [one(facts) for one in judges]
        known = [one for one in made if one.verdict is not Status.NOT_MEASURED]
        if not known:
            return Judged(Status.NOT_MEASURED, tuple(said for one in made for said in one.figures))
        verdicts = {one.verdict for one in known}
        verdict = verdicts.pop() if len(verdicts) == 1 else Status.DEPENDS
        return Judged(verdict, tuple(said for one in known for said in one.figures))

    return judge
