"""Rules that one claim each is judged by: ``own = "barriers"`` in claims.toml names a function of these."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

from gemm_regression.counters.profiler import DATA, L1_HITS
from gemm_regression.model import CaseId, find_problem
from gemm_regression.model.gpus import MODELS, GpuLimits, suggested_block
from gemm_regression.project.suites import TIMED
from gemm_regression.timing.bounds import SHARED_BYTES
from lab.advice.policies import TILED_8, TILED_16, TILED_32, best_single, mean_share, rank, stage_of
from lab.claims.claim import Facts, Seen
from lab.claims.rules import (
    A100,
    LARGE,
    NAIVE,
    SMALL,
    Found,
    best_of_stages,
    number,
    percent,
    short,
    speed,
    static_of,
)

TILES = {8: TILED_8, 16: TILED_16, 32: TILED_32}
START = "register-f32-tile32x32x32-thread2x2-pad0"
# The note's search space, and the shared memory that its test allows.
SWEEP = (16, 32, 48, 64, 96, 128), (64, 128, 256, 512), (4, 8, 16)
STATIC = 48 * 1024


def occupancies(facts: Facts) -> Found:
    """Whether occupancy falls from tile to tile, on an A100."""
    known = {size: of for size, name in TILES.items() if (of := facts.static.get("sm_80", {}).get(name))}
    if len(known) == len(TILES):
        shares = [of.occupancy for of in known.values()]
        said = ", ".join(f"tile {size}: {percent(of.occupancy)}" for size, of in known.items())
        yield Seen(shares[0] > shares[1] > shares[2], said)


def best_tile(facts: Facts) -> Found:
    """Which tile of ``tiled`` is the fastest, where all three were measured."""
    for gpu in facts.gpus:
        for problem in gpu.gflops:
            speeds = {size: s for size, name in TILES.items() if (s := speed(gpu, name, problem))}
            if len(speeds) == len(TILES):
                best = max(speeds, key=lambda size: speeds[size])
                cases = (f"{TILES[best]}-{problem}",)
                yield Seen(best in (16, 32), f"{short(problem)}: {best}", gpu.slug, cases)


def edges(facts: Facts) -> Found:
    """Speed at 4095³ and 4097³ over that at 4096³, of each stage's fastest: a loss of 5 % or more."""
    for gpu in facts.gpus:
        for stage, name in best_of_stages(facts, gpu).items():
            ragged = {p: s for n in (4095, 4097) if (s := speed(gpu, name, p := f"{n}x{n}x{n}"))}
            if ragged:
                worst = min(ragged, key=lambda problem: ragged[problem])
                share = ragged[worst] / gpu.gflops[LARGE][name]
                cases = (f"{name}-{LARGE}", f"{name}-{worst}")
                yield Seen(share < 0.95, f"{stage}: {percent(share)} at {short(worst)}", gpu.slug, cases)


def padded_up(facts: Facts) -> Found:
    """Whether 4095³ takes longer than 4096³ and the copies of A, B and C that make the one the other."""
    size = find_problem("4095x4095x4095")
    for gpu in facts.gpus:
        for stage, name in best_of_stages(facts, gpu).items():
            ragged, whole = speed(gpu, name, size.id), speed(gpu, name, LARGE)
            dram = gpu.roofs.get("dram", {}).get("gbps")
            if ragged and whole and dram:
                copies = 3 * 2 * 4 * 4096**2 / dram / 1e9
                times = size.flops / ragged / 1e9 / (find_problem(LARGE).flops / whole / 1e9 + copies)
                cases = (f"{name}-{size.id}", f"{name}-{LARGE}")
                yield Seen(times > 1.02, f"{stage}: × {times:.3g}", gpu.slug, cases)


def two_notes(facts: Facts) -> Found:
    """Whether the naive kernel is as much slower at 4096³ than at 1024³ as the two notes together have it."""
    for gpu in facts.gpus:
        large, small = speed(gpu, NAIVE, LARGE), speed(gpu, NAIVE, SMALL)
        if large and small:
            said = f"1024³: {number(small)}, 4096³: {number(large)} GFLOPS"
            cases = (f"{NAIVE}-{SMALL}", f"{NAIVE}-{LARGE}")
            yield Seen(small / large >= 300 / 48 if "A100" in gpu.name else None, said, gpu.slug, cases)


def barriers(facts: Facts) -> Found:
    """Which planted bugs that take a barrier away show in an H200's values."""
    gone = {n: seen for n, seen in facts.planted.items() if n.endswith("_barrier")}
    for shown in (True, False):
        names = [name for name, seen in gone.items() if bool(seen) is shown]
        if names:
            what = "shown" if shown else "not shown"
            yield Seen(
                shown, f"{len(names)} of {len(gone)} barriers taken away are {what} by an H200's values"
            )


def memory_pipe(facts: Facts) -> Found:
    """Whether the naive kernel keeps the data path of L1 busier than the arithmetic, by ncu's wavefronts."""
    for gpu in facts.gpus:
        for problem in (SMALL, LARGE):
            case = f"{NAIVE}-{problem}"
            counts, of = facts.seen.get(gpu.slug, {}).get(case), speed(gpu, NAIVE, problem)
            if counts and of and "shared" in gpu.roofs:
                seconds = find_problem(problem).flops / of / 1e9
                path = counts.values[DATA] * SHARED_BYTES / seconds / 1e9 / gpu.roofs["shared"]["gbps"]
                math = of / gpu.roofs["f32"]["gflops"]
                said = f"{short(problem)}: data path of L1 {percent(path)}, math {percent(math)}"
                yield Seen(path > 0.6 > math, said, gpu.slug, (case,), counts.made["commit"][:8])


def l1_hits(facts: Facts) -> Found:
    """L1's hit rate of tiles beside the naive kernel's, as ncu counted them."""
    for gpu in facts.gpus:
        for problem in (SMALL, LARGE):
            cases = (f"{NAIVE}-{problem}", f"{TILED_32}-{problem}")
            counts = [one for case in cases if (one := facts.seen.get(gpu.slug, {}).get(case))]
            if len(counts) == 2:
                naive, tiled = (one.values[L1_HITS] for one in counts)
                said = f"{short(problem)}: from {number(naive)} % to {number(tiled)} %"
                yield Seen(tiled > naive, said, gpu.slug, cases, counts[0].made["commit"])


def a100_limits(facts: Facts) -> Found:
    """The note's limits of an SM of the A100."""
    said = {
        "threads per SM": (2048, A100.threads_per_sm),
        "blocks per SM": (32, A100.blocks_per_sm),
        "threads per block": (1024, A100.threads_per_block),
        "registers per SM": (65536, A100.registers_per_sm),
        "KB of shared memory per SM": (164, A100.shared_per_sm // 1024),
    }
    for what, (one, table) in said.items():
        yield Seen(one == table, f"{table:,} {what}")


def register_file(facts: Facts) -> Found:
    """The note's size of the registers of an SM, 64 KB."""
    size = A100.registers_per_sm * 4 // 1024
    yield Seen(size == 64, f"{A100.registers_per_sm:,} registers of 4 bytes: {size} KB")


def most_registers(facts: Facts) -> Found:
    """The note's number of registers of a thread, about 256."""
    yield Seen(abs(A100.registers_per_thread - 256) <= 1, f"{A100.registers_per_thread} registers")


def outer_product(facts: Facts) -> Found:
    """FLOP per word of shared memory: of 8 by 8 products, and of one."""
    for size, said in ((1, 1), (8, 8)):
        of = 2 * size * size / (2 * size)
        yield Seen(of == said, f"{size}×{size}: 2·{size}·{size} FLOP / {2 * size} words = {number(of)}")


def bytes_read(facts: Facts) -> Found:
    """The answer to the note's question on the bytes at 1024³."""
    naive, itself = 2 * 1024**3 * 4 / 1e9, 2 * 1024**2 * 4 / 1e6
    said = f"naive: 2·1024³·4 = {naive:.3g} GB; tiles of 16: {naive / 16:.3g} GB; A and B: {itself:.3g} MB"
    yield Seen(True, said)


def naive_block(facts: Facts) -> Found:
    """The number of threads with which the naive kernel is the fastest."""
    for gpu in facts.gpus:
        for problem in (SMALL, LARGE):
            by = _by_threads(gpu.gflops.get(problem, {}))
            if {64, 128, 256, 512, 1024} <= set(by):
                best = max(by, key=lambda size: by[size][1])
                said = f"{short(problem)}: {best} threads, {number(by[best][1])} GFLOPS"
                yield Seen(best in (128, 256), said, gpu.slug, (f"{by[best][0]}-{problem}",))


def _by_threads(speeds: Mapping[str, float]) -> dict[int, tuple[str, float]]:
    """The fastest naive kernel for each number of threads per block."""
    found: dict[int, tuple[str, float]] = {}
    for name, of in speeds.items():
        if name.startswith("naive-f32-block"):
            x, y = map(int, CaseId.parse(name).config.removeprefix("block").partition("-")[0].split("x"))
            found[x * y] = max(found.get(x * y, ("", 0.0)), (name, of), key=lambda pair: pair[1])
    return found


def suggestion(facts: Facts) -> Found:
    """Whether the block that the occupancy calculator suggests is within 5 % of the naive kernel's best."""
    for gpu in facts.gpus:
        of, by = static_of(facts, gpu.capability).get(NAIVE), _by_threads(gpu.gflops.get(LARGE, {}))
        size = suggested_block(of.registers, 0, GpuLimits.of(gpu.capability)) if of else 0
        if size in by and len(by) > 1:
            share = by[size][1] / max(s for _, s in by.values())
            said = f"4096³: {size} threads, {percent(share)} of the best of {len(by)} sizes"
            yield Seen(share >= 0.95, said, gpu.slug, (f"{by[size][0]}-{LARGE}",))


def blocks_by_shared(facts: Facts) -> Found:
    """Blocks per SM that a pair of padded tiles leaves room for on an A100."""
    for size, said in {16: 78, 32: 19, 64: 4, 128: 1}.items():
        unit, asked = A100.shared_unit, 2 * size * (size + 1) * 4 + A100.shared_reserved
        room = A100.shared_per_sm // (-(-asked // unit) * unit)
        yield Seen(room == said, f"{size}×{size}: {room}, the note has {said}")


def square_pairs(facts: Facts) -> Found:
    """Whether a pair of square tiles fits the static shared memory of a block."""
    for size in (16, 32, 64, 96, 128):
        asked = 2 * size * size * 4
        yield Seen(asked > STATIC, f"{size}×{size}: {asked:,} of {STATIC:,} bytes")


def sweep(facts: Facts) -> Found:
    """Of the sweep's configs that the note's test lets pass, how many have a thread for each thread tile."""
    passed = [one for one in product(*SWEEP) if valid(*one)]
    exact = [one for one in passed if (one[0] / one[2]) ** 2 == one[1]]
    yield Seen(
        True, f"{len(passed)} of {len(list(product(*SWEEP)))} pass; of {len(exact)} each thread has a tile"
    )
    yield Seen(False, f"of {len(passed) - len(exact)} some threads have none")


def valid(tile: int, block: int, thread: int) -> bool:
    """The note's test of a config."""
    if 2 * tile * tile * 4 > STATIC or block > 1024 or block % 32:
        return False
    return (tile // thread) ** 2 <= block


def small_tiles(facts: Facts) -> Found:
    """Which tile of ``batched_small`` is the fastest on matrices of at most 64."""
    for gpu in facts.gpus:
        for problem, speeds in gpu.gflops.items():
            size = problem.split("x")[0]
            tiles = {n: s for n, s in speeds.items() if n.startswith("batched_small-")}
            kinds = {CaseId.parse(n).config.partition("-")[0] for n in tiles}
            if size.isdigit() and int(size) <= 64 and len(kinds) > 1:
                best = max(tiles, key=lambda n: tiles[n])
                said = f"{problem}: {CaseId.parse(best).config}"
                yield Seen("-tile8-" in best, said, gpu.slug, (f"{best}-{problem}",))


def one_config(facts: Facts) -> Found:
    """Whether the config that is the best on average stays below 90 % of the fastest of each shape."""
    libraries = {kernel.name for kernel in facts.kernels if not kernel.compiled}
    for gpu in facts.gpus:
        speeds = {
            problem: {n: s for n, s in of.items() if CaseId.parse(n).kernel not in libraries}
            for problem, of in gpu.gflops.items()
        }
        problems = [problem for problem in TIMED if problem.id in speeds]
        if single := best_single(speeds, problems):
            name = single.gist.strip("`")
            ranks = rank(lambda problem, name=name: name, speeds, problems)  # type: ignore[misc]
            mean = mean_share(ranks) or 0.0
            said = f"`{name}`: {percent(mean)} of the fastest on average of {len(ranks)} shapes"
            yield Seen(mean < 0.9, said, gpu.slug, tuple(f"{name}-{one.problem}" for one in ranks))


def growth(facts: Facts) -> Found:
    """FLOP per byte of DRAM by the datasheets, beside the A100's."""
    old = MODELS["NVIDIA A100-SXM4-80GB"]
    base = old.peaks["f32"] / old.dram
    for gpu in facts.gpus:
        if model := MODELS.get(gpu.name):
            of = model.peaks["f32"] / model.dram
            said = f"{of:.3g} FLOP/byte in FP32; an A100 has {base:.3g}"
            yield Seen(of > base, said, gpu.slug)


def complexity(facts: Facts) -> Found:
    """Lines of code of the naive and the tiled kernel."""
    lines = {}
    for kernel in facts.kernels:
        if kernel.name in ("naive", "tiled") and kernel.source and kernel.source.is_file():
            code = (line.strip() for line in kernel.source.read_text(encoding="utf-8").splitlines())
            lines[kernel.name] = sum(1 for line in code if line and not line.startswith(("//", "#")))
    if len(lines) == 2:
        yield Seen(lines["tiled"] > lines["naive"], f"lines: naive {lines['naive']}, tiled {lines['tiled']}")


def checklist(facts: Facts) -> Found:
    """Whether the fastest FP32 config that passes the note's checks is the fastest of all."""
    for gpu in facts.gpus:
        known, stages, timed = static_of(facts, gpu.capability), best_of_stages(facts, gpu), gpu.gflops
        here = {n: s for n, s in timed.get(LARGE, {}).items() if n in known and stage_of(n)[0] in stages}
        passing = {
            name: of
            for name, of in here.items()
            if known[name].occupancy > 0.5
            and known[name].registers < 128
            and known[name].shared_bytes < STATIC
        }
        if passing:
            best, of = (max(some, key=lambda name: some[name]) for some in (here, passing))
            share = here[of] / here[best]
            said = (
                f"{len(passing)} of {len(here)} pass; the fastest, `{of}`, has {percent(share)} of the best"
            )
            yield Seen(share >= 0.9, said, gpu.slug, (f"{of}-{LARGE}", f"{best}-{LARGE}"))


def search(facts: Facts) -> Found:
    """Where a search arrives that starts from the recommended config of ``register`` at 4096³ and changes one
    or two parameters at a time to the fastest of what was measured."""
    for gpu in facts.gpus:
        found: dict[tuple[tuple[str, int], ...], tuple[str, float]] = {}
        every = facts.searched.get(gpu.slug, ())
        if not any(one.source.startswith("tuned/register") for one in every):
            continue  # nobody searched there
        for one in every:
            if one.variant.kernel.name == "register" and one.problem.id == LARGE:
                found.setdefault(tuple(sorted(one.variant.config.items())), (one.variant.name, one.gflops))
        now = next((key for key, (name, _) in found.items() if name == START), None)
        if now is None:
            continue
        looked, steps = {now}, 0
        while True:
            near = {key for key in found if sum(a != b for a, b in zip(key, now, strict=True)) in (1, 2)}
            looked |= near
            best = max(near, key=lambda key: found[key][1], default=now)
            if found[best][1] <= found[now][1]:
                break
            now, steps = best, steps + 1
        share = found[now][1] / max(of for _, of in found.values())
        said = f"{steps} steps, {len(looked)} of {len(found)} configs timed: {percent(share)} of the best"
        yield Seen(share >= 0.9, said, gpu.slug, (f"{START}-{LARGE}", f"{found[now][0]}-{LARGE}"))


def tensor_rate(facts: Facts) -> Found:
    """Whether cuBLAS is faster than the CUDA cores could be, in each dtype."""
    for gpu in facts.gpus:
        most = gpu.roofs.get("f32", {}).get("gflops")
        for dtype in ("f32", "tf32", "f16", "bf16"):
            of = speed(gpu, f"cublas-{dtype}", LARGE)
            if most and of:
                said = f"{dtype}: {number(of)}, CUDA cores at most {number(most)} GFLOPS"
                yield Seen(of > most, said, gpu.slug, (f"cublas-{dtype}-{LARGE}",))
