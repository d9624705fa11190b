"""Claims of the note on feeding the GPU by tiling."""

from __future__ import annotations

from gemm_regression.counters.profiler import L1_HITS
from gemm_regression.tune.figures import Surveyed
from lab.advice.policies import FEEDING, TILED_16, TILED_32
from lab.claims.claim import Claim, Facts, Judged, together
from lab.claims.rules import (
    A100,
    COUNTED,
    CUBLAS,
    LARGE,
    SMALL,
    all_of,
    compiled,
    counted,
    number,
    on_each_gpu,
    padding,
    percent,
    products,
    ratio,
    read_floats,
    said_of,
    speed,
    static_of,
)
from lab.claims.tiling import NAIVE

STRIDED = "strided-f32-block32x8"
BANKS = 32


def conflict(stride: int, rows: int) -> int:
    """How many of the words at column 0 of ``rows`` rows of ``stride`` words lie in the same bank."""
    banks = [row * stride % BANKS for row in range(rows)]
    return max(banks.count(bank) for bank in banks)


def _ways(stride: int, rows: int, said: int) -> Judged:
    ways = conflict(stride, rows)
    return together([(ways == said, f"a column of [{rows}][{stride}]: {ways}-way")])


def _barriers(facts: Facts) -> Judged:
    """What an H200's values show of a barrier left out."""
    said = {
        name: facts.planted[name] for name in ("first_barrier", "second_barrier") if name in facts.planted
    }
    return together(
        (bool(seen), f"`{name}` left out: an H200's values fail the check {seen or 'of nothing'}")
        for name, seen in said.items()
    )


def _of_dram(gpu: Surveyed) -> tuple[float, str] | None:
    """What the naive kernel's threads read a second, a quarter of a FLOP per byte, over what DRAM gives."""
    gflops, most = speed(gpu, NAIVE, LARGE), gpu.roofs.get("dram", {}).get("gbps")
    if not gflops or not most:
        return None
    return 4 * gflops / most, f"threads read {number(4 * gflops)} GB/s at 4096³, DRAM gives {number(most)}"


def _throughput(facts: Facts) -> Judged:
    """Whether a kernel of low occupancy is faster than one that fills the SM."""
    found = []
    for gpu in facts.gpus:
        known = static_of(facts, gpu.capability)
        pair = ("prefetch-f32-tile128x128x8-thread8x8-pad4", TILED_32)
        speeds = [speed(gpu, name, LARGE) for name in pair]
        if all(name in known for name in pair) and speeds[0] and speeds[1]:
            low, full = (percent(known[name].occupancy) for name in pair)
            times = number(speeds[0] / speeds[1])
            said = f"{gpu.name}: `{pair[0]}` ({low}) is {times} times as fast as `{pair[1]}` ({full})"
            found.append((speeds[0] > speeds[1], said))
    return together(found)


def _l1_hits(facts: Facts) -> Judged:
    """L1's hit rate of tiles beside the naive kernel's, as ncu counted them."""
    found = []
    for gpu in facts.gpus:
        seen = facts.seen.get(gpu.slug, {})
        for problem in (SMALL, LARGE):
            cases = [seen.get(f"{name}-{problem}") for name in (NAIVE, TILED_32)]
            rates = [one.values[L1_HITS] for one in cases if one and L1_HITS in one.values]
            if len(rates) == 2:
                naive, tiled = (percent(rate / 100) for rate in rates)
                found.append((rates[1] > rates[0], f"{gpu.name}, {problem}: from {naive} to {tiled}"))
    return together(found)


CLAIMS = (
    Claim(FEEDING, "data reuse", "the naive kernel reads 2K words per thread, a tile of 16 a sixteenth",
          counted((NAIVE, TILED_16), read_floats, lambda n: n in (2 * products(), 2 * products() / 16),
                  f"floats read of {COUNTED}"),
          holds="counted per thread"),
    Claim(FEEDING, "introduction", "the naive kernel is 50 times slower than cuBLAS",
          ratio(CUBLAS, NAIVE, SMALL, 40, 60),
          contradicted="a coalesced naive kernel is far better than that"),
    Claim(FEEDING, "comparison", "the naive kernel reaches 2 to 3 % of cuBLAS at 1024³",
          ratio(NAIVE, CUBLAS, SMALL, 0.02, 0.03), "A100",
          contradicted="caches serve its repeated reads"),
    Claim(FEEDING, "comparison", "the naive kernel: 300 to 500 GFLOPS at 1024³",
          said_of("A100", NAIVE, SMALL, 400, 0.25), "A100",
          unmeasured="no A100 here; other GPUs for comparison"),
    Claim(FEEDING, "comparison", "tiles of 16: 2 000 to 4 000 GFLOPS at 1024³",
          said_of("A100", TILED_16, SMALL, 3000, 0.34), "A100",
          unmeasured="no A100 here; other GPUs for comparison"),
    Claim(FEEDING, "comparison", "tiles of 16 reach 15 to 25 % of cuBLAS at 1024³",
          ratio(TILED_16, CUBLAS, SMALL, 0.15, 0.25), "A100", holds="here too"),
    Claim(FEEDING, "comparison", "cuBLAS: 15 000 to 19 000 GFLOPS at 1024³",
          said_of("A100", CUBLAS, SMALL, 17000, 0.12), "A100",
          unmeasured="no A100 here; other GPUs for comparison"),
    Claim(FEEDING, "what is missing", "tiles of 16 are 5 to 8 times as fast as the naive kernel at 1024³",
          ratio(TILED_16, NAIVE, SMALL, 5, 8),
          contradicted="caches serve the naive kernel's repeated reads; tiles move them to shared memory"),
    Claim(FEEDING, "what is missing", "and 5 to 10 times slower than cuBLAS",
          all_of(ratio(CUBLAS, TILED_16, SMALL, 5, 10), ratio(CUBLAS, TILED_16, LARGE, 5, 10)),
          holds="at both sizes", depends="the larger the problem, the further cuBLAS is ahead"),
    Claim(FEEDING, "global memory", "memory is read by 128 bytes, so that scattered threads get 1/32 of it",
          counted((STRIDED,), lambda of: 4 / (2 * of["loads_sectors"] / of["loads_requests"] - 1),
                  lambda share: share < 0.04, "of the bytes of the sectors of A are used"),
          contradicted="the unit is a sector of 32 bytes, of which a thread uses 4: an eighth"),
    Claim(FEEDING, "padding", "one column more removes the conflicts, and is almost always worth it",
          padding("tiled", ("tile8", "tile16", "tile32"), (1,)),
          contradicted="there are none to remove; it costs merged 16-byte loads of As"),
    Claim(FEEDING, "padding", "padded tiles have no bank conflicts",
          counted(("tiled-f32-tile8-pad1", "tiled-f32-tile16-pad1", "tiled-f32-tile32-pad1"),
                  lambda of: of["shared_loads_conflicts"] + of["shared_stores_conflicts"], lambda v: v == 0,
                  f"wavefronts lost to conflicts, {COUNTED}"),
          depends="where a row is shorter than a warp, its threads store two rows or more at once, and one "
          "word more makes them overlap"),
    Claim(FEEDING, "Q3", "a column of As[16][16] is a 32-way conflict", lambda facts: _ways(16, 16, 32),
          contradicted="its rows start in two banks in turn, each being half of the 32; there are 16"),
    Claim(FEEDING, "Q3", "a column of As[16][17] has none", lambda facts: _ways(17, 16, 1),
          holds="an odd stride reaches every bank"),
    Claim(FEEDING, "Q2", "two padded tiles of 16 take 2.2 KB, of 32 8.5 KB",
          all_of(
              compiled(("tiled-f32-tile16-pad1",), A100, lambda of: of.shared_bytes / 1000,
                       lambda v: 2.15 <= v < 2.25, "kB"),
              compiled(("tiled-f32-tile32-pad1",), A100, lambda of: of.shared_bytes / 1000,
                       lambda v: 8.4 <= v < 8.55, "kB"),
          ), holds="as nvcc reports it"),
    Claim(FEEDING, "Q2", "1 024 threads per block may lower occupancy",
          all_of(*(compiled((TILED_32,), c, lambda of: of.occupancy, lambda v: v < 1, "of the warps")
                   for c in (A100, (12, 0)))),
          depends="two such blocks fill an SM of 2 048 threads; one of 1 536 holds a single one"),
    Claim(FEEDING, "Q1", "without either barrier results are wrong", _barriers,
          holds="as the values showed; the emulated device reports the race in every run"),
    Claim(FEEDING, "occupancy", "throughput is the aim, not occupancy", _throughput,
          holds="which another of these notes forgets"),
    Claim(FEEDING, "ncu", "tiling raises the hit rate of L1", _l1_hits,
          contradicted="the naive kernel's threads read the same elements again and again, mostly from L1; "
          "with tiles they read them from shared memory, and L1 sees each element of a block once",
          unmeasured="no hit rates of ncu are stored"),
    Claim(FEEDING, "Q5", "the naive kernel is nearly always bound by memory", on_each_gpu(_of_dram, 0, 1),
          contradicted="its threads read more than DRAM could give: caches serve them",
          unmeasured="no stored run has measured the bandwidth of DRAM"),
)  # fmt: skip
