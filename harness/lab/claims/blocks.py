"""Claims of the note on how to choose block and tile sizes."""

from __future__ import annotations

from collections.abc import Iterator

from gemm_regression.compiler.static import StaticFigures
from gemm_regression.model import F32, BlockShape, CaseId
from gemm_regression.model.gpus import GpuLimits, occupancy, suggested_block
from gemm_regression.tune.figures import Surveyed
from lab.advice.policies import BLOCKS, TILED_32
from lab.claims.claim import Claim, Facts, Judged, Predicate, together
from lab.claims.rules import (
    A100,
    LARGE,
    SMALL,
    all_of,
    compiled,
    counted,
    declared,
    equal,
    gain,
    number,
    padding,
    percent,
    policy,
    shape,
    speed,
    static_of,
)

LIMITS = GpuLimits.of(A100)
KB = 1024


def _fastest(facts: Facts, problem: str = LARGE) -> Iterator[tuple[Surveyed, str, float, StaticFigures]]:
    """The fastest FP32 kernel on each GPU with a baseline, its speed, and what the compiler makes of it."""
    libraries = {kernel.name for kernel in facts.kernels if not kernel.compiled}
    for gpu in facts.gpus:
        known = static_of(facts, gpu.capability)
        own = {
            name: s
            for name, s in gpu.gflops.get(problem, {}).items()
            if name in known
            and _on_cuda_cores(name, known[name])
            and CaseId.parse(name).kernel not in libraries
        }
        if own and problem in gpu.based:
            best = max(own, key=lambda name: own[name])
            yield gpu, best, own[best], known[best]


def _on_cuda_cores(variant: str, made: StaticFigures) -> bool:
    """Whether it makes FP32 products, and not of narrower ones on tensor cores."""
    return CaseId.parse(variant).dtype == F32.name and not made.tensor_cores


def _occupied(facts: Facts) -> Judged:
    """Whether the fastest kernel has the occupancy that the note aims at."""
    return together(
        (of.occupancy > 0.5, f"{gpu.name}: `{name}` is the fastest at 4096³, with {percent(of.occupancy)}")
        for gpu, name, _, of in _fastest(facts)
    )


def _frugal(facts: Facts) -> Judged:
    """Whether the fastest kernel has fewer registers than the note's limit."""
    return together(
        (of.registers < 128, f"{gpu.name}: `{name}` is the fastest at 4096³, with {of.registers} registers")
        for gpu, name, _, of in _fastest(facts)
    )


def _blocks(facts: Facts) -> Judged:
    """Whether kernels with one block per SM are all at least 5 % behind the fastest."""
    found = []
    for gpu, name, most, of in _fastest(facts):
        known = static_of(facts, gpu.capability)
        alone = {
            n: s
            for n, s in gpu.gflops[LARGE].items()
            if n in known and known[n].blocks == 1 and _on_cuda_cores(n, known[n])
        }
        best = max(alone, key=lambda n: alone[n], default=None)
        if best:
            speed = (
                "is the fastest"
                if best == name
                else f"{percent(alone[best] / most)} of the speed of `{name}`"
            )
            said = f"`{best}` has 1 block per SM and {speed}"
            found.append((of.blocks >= 2 and alone[best] < 0.95 * most, f"{gpu.name}: {said}"))
    return together(found)


def _by_threads(gpu: Surveyed, problem: str) -> dict[int, tuple[str, float]]:
    """The fastest naive kernel for each number of threads per block."""
    found: dict[int, tuple[str, float]] = {}
    for name, of in gpu.gflops.get(problem, {}).items():
        if name.startswith("naive-f32-block"):
            x, y = map(int, CaseId.parse(name).config.removeprefix("block").partition("-")[0].split("x"))
            found[x * y] = max(found.get(x * y, ("", 0.0)), (name, of), key=lambda pair: pair[1])
    return found


def _middle_block(facts: Facts) -> Judged:
    """Whether 128 to 256 threads are the fastest of 64 to 1 024."""
    found = []
    for gpu in facts.gpus:
        for problem in (SMALL, LARGE):
            speeds = _by_threads(gpu, problem)
            if {64, 128, 256, 512, 1024} <= set(speeds):
                best = max(speeds, key=lambda threads: speeds[threads][1])
                by = ", ".join(f"{threads}: {number(speeds[threads][1])}" for threads in sorted(speeds))
                found.append((best in (128, 256), f"{gpu.name}, {problem}, GFLOPS by threads: {by}"))
    return together(found)


def _whole_warps(odd: str, whole: str) -> Predicate:
    return gain(f"naive-f32-block{whole}", f"naive-f32-block{odd}-oddblock1", (SMALL, LARGE), 1.005)


def _suggestion(facts: Facts) -> Judged:
    """Whether the suggested number of threads is within 5 % of the best for the naive kernel."""
    found = []
    for gpu in facts.gpus:
        of, speeds = static_of(facts, gpu.capability).get("naive-f32-block32x32"), _by_threads(gpu, LARGE)
        if of is None or len(speeds) < 2:
            continue
        threads = suggested_block(of.registers, 0, GpuLimits.of(gpu.capability))
        if threads in speeds:
            share = speeds[threads][1] / max(s for _, s in speeds.values())
            said = f"{threads} threads, {percent(share)} of the best of {len(speeds)} block sizes"
            found.append((share >= 0.95, f"{gpu.name}: {said}"))
    return together(found)


def _full(threads: int, registers: int, fraction: float) -> Predicate:
    held = occupancy(threads, registers, 0, LIMITS)
    return equal(fraction, held.fraction, f"{held.blocks} blocks of {threads} threads, occupancy")


def _by_shared(said: dict[int, int]) -> Predicate:
    """Blocks per SM that a pair of padded tiles leaves room for, alone and with the limits of threads."""

    def judge(facts: Facts) -> Judged:
        found = []
        for size, blocks in said.items():
            asked = 2 * size * (size + 1) * 4
            unit = LIMITS.shared_unit
            room = LIMITS.shared_per_sm // (-(-(asked + LIMITS.shared_reserved) // unit) * unit)
            found.append((room == blocks, f"{size}×{size}: {room} by shared memory, the note has {blocks}"))
        return together(found)

    return judge


def _batches(facts: Facts) -> Judged:
    """Which tile of ``batched_small`` is the fastest on matrices of at most 64."""
    found = []
    for gpu in facts.gpus:
        for problem, speeds in gpu.gflops.items():
            size = problem.split("x")[0]
            tiles = {n: s for n, s in speeds.items() if n.startswith("batched_small-")}
            if (
                size.isdigit()
                and int(size) <= 64
                and len({CaseId.parse(n).config.partition("-")[0] for n in tiles}) > 1
            ):
                best = max(tiles, key=lambda n: tiles[n])
                found.append(("-tile8-" in best, f"{gpu.name}, {problem}: `{best}`"))
    return together(found)


def _sweep(facts: Facts) -> Judged:
    """Whether the tiles of the sweep pass the note's own test of shared memory, 48 KB."""
    return together(
        (2 * n * n * 4 <= 48 * KB, f"{n}×{n}: {2 * n * n * 4} bytes") for n in (16, 32, 48, 64, 96, 128)
    )


def _odd_tiles(facts: Facts) -> Judged:
    """Tiles of 31 beside 32, for one element per thread."""
    found = []
    for gpu in facts.gpus:
        for problem in (SMALL, LARGE):
            odd, plain = (speed(gpu, f"tiled-f32-tile{n}-pad0", problem) for n in (31, 32))
            if odd and plain:
                found.append((odd >= plain, f"{gpu.name}, {problem}: {number(odd / plain)} of tile 32"))
    return together(found)


def _limits(facts: Facts) -> Judged:
    said = {
        "threads per SM": (2048, LIMITS.threads_per_sm),
        "blocks per SM": (32, LIMITS.blocks_per_sm),
        "threads per block": (1024, LIMITS.threads_per_block),
        "registers per SM": (65536, LIMITS.registers_per_sm),
        "KB of shared memory per SM": (164, LIMITS.shared_per_sm // KB),
    }
    return together((one == table, f"{table:,} {what}") for what, (one, table) in said.items())


def _policy(section: str, gist: str, name: str, why: str, gpu: str = "") -> Claim:
    holds = "within a tenth of the fastest"
    advised = "the suite `advice` times it at every shape"
    return Claim(BLOCKS, section, gist, policy(name), gpu, holds, why, unmeasured=advised)


_SIMPLE = "one element per thread takes two words of shared memory for each product"
_SCALAR = "`register` copies word by word and waits meanwhile; with the same config `prefetch` is faster"
_UNITS = "stages that copy ahead, by mma.sync or wgmma, are faster"

CLAIMS = (
    Claim(BLOCKS, "1.2", "limits of an A100's SM", _limits, "A100",
          holds="as in the CUDA C++ Programming Guide; a block can have 163 KB"),
    Claim(BLOCKS, "2.1", "a block must be a multiple of 32 threads",
          all_of(_whole_warps("17x15", "16x16"), _whole_warps("31x1", "32x1")),
          holds="the last warp runs with idle lanes, and rows of a warp straddle lines of memory",
          depends="no rule of the hardware: such blocks run; it costs idle lanes, unless something else "
          "limits the kernel",
          unmeasured="the suite `advice` times 17×15 and 31×1; such blocks run, and are correct"),
    Claim(BLOCKS, "2.1", "128 to 256 threads per block are the fastest", _middle_block,
          contradicted="for one element per thread a larger block shares more of what it reads in L1",
          depends="it depends on the problem",
          unmeasured="the suite `advice` times 32 to 1 024 threads"),
    Claim(BLOCKS, "answer", "an SM needs 2 to 4 blocks to hide latency", _blocks,
          contradicted="one block with many independent products per thread hides it too",
          holds="where kernels with one block are at least 5 % behind"),
    Claim(BLOCKS, "2.2", "256 threads per block: occupancy 100 %", _full(256, 32, 1), "A100",
          holds="with up to 32 registers a thread"),
    Claim(BLOCKS, "2.2", "128 threads per block: occupancy 100 %", _full(128, 32, 1), "A100",
          holds="with up to 32 registers a thread"),
    Claim(BLOCKS, "2.2", "256 threads of 64 registers: 50 %", _full(256, 64, 0.5), "A100",
          holds="as the driver computes it"),
    Claim(BLOCKS, "summary, 8", "occupancy should be above 50 %, better 75 to 100 %", _occupied,
          contradicted="many independent products per thread hide latency as well, and registers save loads"),
    Claim(BLOCKS, "8", "a thread should use fewer than 128 registers", _frugal,
          contradicted="the fastest kernels take all that their number of threads leaves them"),
    Claim(BLOCKS, "2.3", "cudaOccupancyMaxPotentialBlockSize finds the number of threads", _suggestion,
          holds="for the naive kernel, whose block is free; it knows nothing of tiles"),
    _policy("2.3", "its suggestion makes a fast kernel", "largest potential block",
            "full occupancy of a kernel that computes one element per thread"),
    Claim(BLOCKS, "3.1", "two padded tiles of 32 take 8 448 bytes",
          compiled(("tiled-f32-tile32-pad1",), A100, lambda of: of.shared_bytes, lambda v: v == 8448,
                   "bytes"),
          holds="as nvcc reports it"),
    Claim(BLOCKS, "3.1", "an SM holds 78, 19, 4 or 1 blocks with tiles of 16, 32, 64 or 128",
          _by_shared({16: 78, 32: 19, 64: 4, 128: 1}), "A100",
          depends="the driver takes 1 KB of each block; with an element per thread, 8 blocks of 256 threads "
          "or 2 of 1 024 are the most anyway"),
    Claim(BLOCKS, "3.3", "128×128×8 with one word of padding takes 8.7 KB",
          compiled(("register-f32-tile128x128x8-thread8x8-pad1",), A100,
                   lambda of: of.shared_bytes / 1000, lambda v: 8.65 <= v < 8.75, "kB"),
          holds="in units of 1 000 bytes; 8.5 in units of 1 024"),
    Claim(BLOCKS, "answer, 3.4",
          "rows and columns of a tile should be no multiples of 32: As[32][32] conflicts",
          counted((TILED_32, "tiled_unrolled-f32-tile32-pad0"),
                  lambda of: of["shared_loads_conflicts"] + of["shared_stores_conflicts"], lambda v: v > 0,
                  "wavefronts lost to conflicts"),
          contradicted="rows of 32 words conflict only when a warp reads a column; it does not"),
    Claim(BLOCKS, "3.4", "tiles of [31][31] are better than [32][32]", _odd_tiles,
          contradicted="961 threads leave part of a warp idle, and rows do not start at a line",
          unmeasured="the suite `advice` times it"),
    Claim(BLOCKS, "3.4", "a tile of [36][36] can be used, with an element per thread",
          declared("tiled", "tile36-pad0"), contradicted="more threads than a block can have"),
    Claim(BLOCKS, "3.4", "rows of 36 words are better than rows of 32",
          padding("tiled_unrolled", ("tile32",), (4,)),
          contradicted="no difference: there is no conflict to avoid, and merged loads of four words stay",
          depends="there is no conflict to avoid, and merged loads of four words stay"),
    Claim(BLOCKS, "4.2", "tiling: 32×32 with 1 024 threads", policy("tiling"),
          contradicted=_SIMPLE),
    _policy("4.1", "16×16 below 512, 32×32 to 2048, 128×128×8 above", "by size, first choice", _SCALAR),
    _policy("4.1", "32×32 with 64 threads, 64×64 with 64, 128×128×8", "by size, second choice", _SCALAR),
    Claim(BLOCKS, "4.1", "128×128 with warps of 64×64 has 256 threads",
          shape(BlockShape((256, 1), (128, 128), (16, 8))),
          contradicted="four such warps make the tile: 128 threads"),
    _policy("4.1", "tensor cores: 128×128×32 with 64×64 per warp",
            "tensor cores, 64×64 per warp", _UNITS),
    _policy("4.2", "tensor cores: 64×64 with four warps", "tensor cores, four warps", _UNITS),
    _policy("4.2", "double buffering: 32×32 in two stages", "double buffering, small tile", _SCALAR),
    Claim(BLOCKS, "5.1", "the sweep's tiles of 16 to 128 pass its own test of shared memory", _sweep,
          depends="a square pair of 96 or 128 exceeds the 48 KB that it allows"),
    Claim(BLOCKS, "5.1", "48×48 with 4×4 per thread is a config of the sweep",
          declared("register", "tile48x48x48-thread4x4-pad0"),
          contradicted="144 threads are no whole warps; its test lets 256 run, of which 112 have no work"),
    Claim(BLOCKS, "5.3", "the function's config for large sizes: tile 64, 128 threads, 4×4 per thread",
          shape(BlockShape((128, 1), (64, 64), (4, 4))),
          contradicted="it leaves half of the tile uncomputed"),
    _policy("5.3", "tile and threads by a function of the size", "by a function of the size", _SCALAR),
    Claim(BLOCKS, "6.2", "matrices below 64: tiles of 8×8", _batches,
          contradicted="larger tiles reuse more of what they read",
          depends="only the smallest matrices want the smallest tiles"),
    _policy("6.2", "many small matrices: 8×8 with 64 threads", "small batches",
            "32 blocks of 64 threads are the most an SM holds, and each reads little at a time"),
    _policy("6.3", "a long and narrow C: 128×64 with 16×16 threads", "by shape",
            "too few tiles to fill the GPU: K must be shared"),
    _policy("7.1", "tile and threads by a table of sizes", "by size", _SCALAR),
    _policy("7.2", "with register tiling: 32×32 with 64 threads of 4×4", "register tiling", _SCALAR),
    _policy("7.2", "with double buffering: 64×64 with 256 threads of 4×4", "double buffering",
            "a good choice below 2048³; large problems want more products per word"),
    _policy("7.2", "tensor cores: 128×128 with 256 threads", "tensor cores", _UNITS),
    _policy("7.3", "tile and threads by a table of architectures", "by architecture",
            "the shape decides, not the architecture: small and narrow problems want small tiles", "Hopper"),
    _policy("7.3", "Ampere: 64×64×8 with 128 threads", "as for Ampere", _SCALAR, "Ampere"),
    _policy("7.3", "Turing: 32×32×32 with 256 threads", "as for Turing", _SCALAR, "Turing"),
    _policy("summary", "to start from: 32×32 with 256 threads", "starting point", _SCALAR),
)  # fmt: skip
