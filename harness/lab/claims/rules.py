"""The rules by which claims are judged: each yields what the stored facts show.

A record of claims.toml names one rule, ``{ratio = [...], at = [...], low = 2}``; the rule gets the table as
its arguments. Bounds are ``low`` and ``high``, both included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import inf, prod

from gemm_regression.compiler import tools
from gemm_regression.compiler.static import StaticFigures
from gemm_regression.model import F32, BlockShape, CaseId, Config, DType, Kernel, find_problem
from gemm_regression.model.gpus import GpuLimits, occupancy, shape_refusals
from gemm_regression.tune.figures import Surveyed
from lab.advice.policies import POLICIES, Target, mean_share, rank, stage_of
from lab.claims.claim import Facts, Seen

LARGE, SMALL = "4096x4096x4096", "1024x1024x1024"
CUBLAS = "cublas-f32"
NAIVE = "naive-f32-block32x32"
A100 = GpuLimits.of((8, 0))
COUNTED = "96x160x64"  # whole tiles of every stage that is asked about
PRODUCTS = prod(map(int, COUNTED.split("x")))
BANKS = 32

Found = Iterator[Seen]
Rule = Callable[..., Found]


def number(value: float) -> str:
    """``8,596``, ``1.33``."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def short(problem: str) -> str:
    """``4096³`` of a cube."""
    sides = problem.split("x")
    return f"{sides[0]}³" if len(set(sides)) == 1 else problem.replace("x", "×")


def speed(gpu: Surveyed, variant: str, problem: str) -> float | None:
    """GFLOPS."""
    return gpu.gflops.get(problem, {}).get(variant)


def static_of(facts: Facts, capability: tuple[int, int]) -> dict[str, StaticFigures]:
    """Compiler metrics for a compute capability, by variant; empty if none are stored."""
    return dict(facts.static.get(tools.arch(capability), {}))


def variants(facts: Facts) -> Iterator[tuple[Kernel, Config, DType]]:
    for kernel in facts.kernels:
        for config in kernel.declared:
            yield kernel, config, kernel.dtypes[0]


def ratio(
    facts: Facts, ratio: Sequence[str], at: Sequence[str], low: float, high: float = inf, on: str = ""
) -> Found:
    """The speed of one variant over that of another, at each of these problems; of another GPU than the one
    that the claim is about it stands beside."""
    top, bottom = ratio
    for gpu in facts.gpus:
        for problem in at:
            above, below = speed(gpu, top, problem), speed(gpu, bottom, problem)
            if above and below:
                said = f"{short(problem)}: {number(above)} / {number(below)} = {above / below:.3g}"
                cases = (f"{top}-{problem}", f"{bottom}-{problem}")
                holds = low <= above / below <= high if on in gpu.name else None
                yield Seen(holds, said, gpu.slug, cases)


def padding(facts: Facts, padding: str, configs: Sequence[str], width: int) -> Found:
    """Whether padded rows are faster than plain ones, by more than 0.5 %."""
    for config in configs:
        pair = [f"{padding}-f32-{config}-pad{wide}" for wide in (width, 0)]
        for one in ratio(facts, pair, (LARGE, SMALL), 1.005):
            yield Seen(one.holds, f"{config}, {one.said}", one.gpu, one.cases)


def absolute(facts: Facts, absolute: str, on: str, at: str, low: float, high: float) -> Found:
    """GFLOPS on a GPU of that name; those of others stand beside."""
    for gpu in facts.gpus:
        if of := speed(gpu, absolute, at):
            own = low <= of <= high if on in gpu.name else None
            yield Seen(own, f"{short(at)}: {number(of)} GFLOPS", gpu.slug, (f"{absolute}-{at}",))


def of_roof(facts: Facts, of_roof: Sequence[str], at: Sequence[str], low: float, high: float = inf) -> Found:
    """A variant's speed over the most that the GPU's units of a kind were measured to do."""
    variant, unit = of_roof
    for gpu in facts.gpus:
        most = gpu.roofs.get(unit, {}).get("gflops")
        for problem in at:
            if most and (of := speed(gpu, variant, problem)):
                said = f"{short(problem)}: {number(of)} of {number(most)} GFLOPS = {of / most:.3g}"
                yield Seen(low <= of / most <= high, said, gpu.slug, (f"{variant}-{problem}",))


def cycles(facts: Facts, cycles: str, low: float, high: float) -> Found:
    """A latency that a run has measured."""
    for gpu in facts.gpus:
        if (of := gpu.roofs.get("cycles", {}).get(cycles)) is not None:
            yield Seen(low <= of <= high, f"{number(of)} cycles", gpu.slug)


METRICS: dict[str, Callable[[StaticFigures], float]] = {
    "registers": lambda of: of.registers,
    "bytes of shared memory": lambda of: of.shared_bytes,
    "of the warps": lambda of: of.occupancy,
    "blocks per SM": lambda of: of.blocks,
}


def compiled(
    facts: Facts, compiled: Sequence[str], what: str, arch: str = "sm_80", low: float = 0, high: float = inf
) -> Found:
    """A compiler metric of each variant."""
    for name in compiled:
        if of := facts.static.get(arch, {}).get(name):
            value = METRICS[what](of)
            yield Seen(low <= value <= high, f"`{name}` for {arch}: {number(value)} {what}")


COUNTS: dict[str, Callable[[dict[str, int]], float]] = {
    "words read per product": lambda of: (of["a_read"] + of["b_read"]) / 4 / PRODUCTS,
    "FLOP per byte": lambda of: 2 * PRODUCTS / (of["a_read"] + of["b_read"]),
    "conflicts": lambda of: of["shared_loads_conflicts"] + of["shared_stores_conflicts"],
    "sectors per load": lambda of: of["loads_sectors"] / of["loads_requests"],
    # Of two loads one is of B, whose sectors are used whole.
    "of the bytes of A's sectors": lambda of: 4 / (2 * of["loads_sectors"] / of["loads_requests"] - 1),
    "wavefronts of shared loads per FLOP": lambda of: of["shared_loads_wavefronts"] / of["flop"],
}


def counted(
    facts: Facts, counted: Sequence[str], what: str, low: float = 0, high: float = inf, over: str = ""
) -> Found:
    """What the emulated device counts of each variant; over that of another variant, if named."""

    def value(name: str) -> float | None:
        of = dict(facts.counters.get(name, {}).get(COUNTED, {}))
        return COUNTS[what](of) if of else None

    base = value(over) if over else 1.0
    for name in counted:
        if (of := value(name)) is not None and base:
            said = f"`{name}`: {number(of / base)} {what}" + f", over `{over}`" * bool(over)
            yield Seen(low <= of / base <= high, said)


def resident(facts: Facts, resident: Sequence[int], low: float, high: float) -> Found:
    """An A100's occupancy with this many threads and registers."""
    threads, registers = resident
    held = occupancy(threads, registers, 0, A100)
    said = f"{held.blocks} blocks of {threads} threads with {registers} registers: {percent(held.fraction)}"
    yield Seen(low <= held.fraction <= high, said)


def column(facts: Facts, column: Sequence[int], low: float, high: float) -> Found:
    """How many of the first words of ``rows`` rows of ``stride`` words lie in the same bank."""
    rows, stride = column
    banks = [row * stride % BANKS for row in range(rows)]
    ways = max(map(banks.count, banks))
    yield Seen(low <= ways <= high, f"words 0, {stride} … {(rows - 1) * stride}: {ways}-way")


def rates(facts: Facts, rates: Sequence[Sequence[float]]) -> Found:
    """Whether milliseconds at 4096³ and GFLOPS agree, within 2 %."""
    for ms, gflops in rates:
        of = 2e-6 * 4096**3 / ms
        yield Seen(abs(of / gflops - 1) <= 0.02, f"2·4096³ / {number(ms)} ms = {number(of)} GFLOPS")


def block(facts: Facts, block: Sequence[Sequence[int]]) -> Found:
    """Whether a block of such threads, tile and thread tile is legal."""
    threads, tile, thread = ((pair[0], pair[1]) for pair in block)
    reasons = shape_refusals(BlockShape(threads, tile, thread), A100)
    yield Seen(not reasons, "; ".join(reasons) or "the rules of legality allow it")


def declared(facts: Facts, declared: Sequence[str]) -> Found:
    """Whether a declared config is legal."""
    for kernel, config, dtype in variants(facts):
        if [kernel.name, config.label] == list(declared):
            reasons = shape_refusals(kernel.shape_of(config, dtype), A100)
            yield Seen(not reasons, "; ".join(reasons) or "the rules of legality allow it")


def advice(facts: Facts, advice: str, at: Sequence[str], on: str = "", low: float = 0.9) -> Found:
    """The speed of what a recommendation chooses over the fastest of its own stage and dtype, on (geometric)
    average of these problems, or else at each of them. Beside, without a verdict, stands what was measured on
    another GPU than the one that it is for, or of a part of the problems."""
    (chosen,) = (one for one in POLICIES if one.name == advice)
    for gpu in facts.gpus:
        registers = {name: of.registers for name, of in static_of(facts, gpu.capability).items()}
        target = Target(GpuLimits.of(gpu.capability), registers)
        problems = [find_problem(problem) for problem in at]
        ranks = rank(lambda of, target=target: chosen.choose(of, target), gpu.gflops, problems, True)  # type: ignore[misc]
        mean, known = mean_share(ranks) or 0.0, len(ranks) == len(at) and gpu.based >= set(at)
        for one in ranks:
            said = f"{short(one.problem)}: {percent(one.share)}"
            holds = max(mean, one.share) >= low if known and on in gpu.name else None
            yield Seen(holds, said, gpu.slug, (f"{one.variant}-{one.problem}", f"{one.best}-{one.problem}"))
        if ranks[1:]:
            yield Seen(None, f"on average {percent(mean)}", gpu.slug)


def best_of_stages(facts: Facts, gpu: Surveyed) -> dict[str, str]:
    """The fastest variant of each FP32 stage on CUDA cores at 4096³, in the order of the ladder."""
    known, here = static_of(facts, gpu.capability), gpu.gflops.get(LARGE, {})
    found: dict[str, str] = {}
    for kernel in facts.kernels:
        own = [n for n in here if stage_of(n) == (kernel.name, F32.name) and n in known]
        if own and not known[own[0]].tensor_cores:
            found[kernel.name] = max(own, key=lambda name: here[name])
    return found


def threads(facts: Facts, variant: str) -> int | None:
    """Threads per block of a declared variant."""
    of = CaseId.parse(variant)
    for kernel, config, dtype in variants(facts):
        if (kernel.name, config.label) == (of.kernel, of.config):
            return prod(kernel.shape_of(config, dtype).block)
    return None


def fastest(facts: Facts, fastest: str, low: float = 0, high: float = inf, share: float = 0) -> Found:
    """A metric of the fastest variant of each FP32 stage on CUDA cores at 4096³ that has this ``share`` of
    cuBLAS."""
    for gpu in facts.gpus:
        known = static_of(facts, gpu.capability)
        for stage, name in best_of_stages(facts, gpu).items():
            library = speed(gpu, CUBLAS, LARGE)
            if library and gpu.gflops[LARGE][name] < share * library:
                continue
            value = threads(facts, name) if fastest == "threads" else METRICS[fastest](known[name])
            if value is not None:
                said = f"{stage}: {percent(value) if fastest == 'of the warps' else number(value)}"
                yield Seen(low <= value <= high, said, gpu.slug, (f"{name}-{LARGE}",))


def nothing(facts: Facts, nothing: bool) -> Found:
    """Of what no fact is stored."""
    yield from ()


_TIMED = (ratio, padding, absolute, of_roof, cycles, advice, fastest)
_COMPUTED = (compiled, counted, resident, column, rates, block, declared, nothing)
RULES: dict[str, Rule] = {rule.__name__: rule for rule in (*_TIMED, *_COMPUTED)}
