"""Claims of the notes on tiling: how it speeds up matrix multiplication, and the memory wall."""

from __future__ import annotations

from collections.abc import Callable

from gemm_regression.model import F32, variant_name
from lab.advice.policies import TILED_8, TILED_16, TILED_32, TILING, WALL
from lab.claims.claim import Claim, Facts, Judged, Status, together
from lab.claims.rules import (
    A100,
    COUNTED,
    CUBLAS,
    H200,
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
    products,
    ratio,
    read_floats,
    said_of,
    speed,
)

NAIVE, NAIVE_16 = "naive-f32-block32x32", "naive-f32-block16x16"
RECTANGULAR = "rectangular-f32-tile64x64x8-thread8"
PREFETCH, VECTORIZED, DOUBLE = (
    f"{name}-f32-tile128x128x{k}-thread8x8-pad4{more}"
    for name, k, more in (("prefetch", 8, ""), ("vectorized", 8, ""), ("double_buffered", 8, "-stages2"))
)
TILES = {8: TILED_8, 16: TILED_16, 32: TILED_32}


def _exactly(value: float) -> Callable[[float], bool]:
    return lambda seen: seen == value


def _reuse(facts: Facts) -> Judged:
    """Reads of the naive kernel over those of a tile, beside the tile."""
    naive = facts.counters.get(NAIVE, {}).get(COUNTED)
    found = []
    for size, variant in TILES.items():
        of = facts.counters.get(variant, {}).get(COUNTED)
        if naive and of:
            times = read_floats(dict(naive)) / read_floats(dict(of))
            found.append((times == size, f"tile {size}: {number(times)} times fewer"))
    return together(found)


def _intensity(of: dict[str, int]) -> float:
    """FLOP per byte of A and B."""
    return 2 * products() / (of["a_read"] + of["b_read"])


def _intensity_gain(facts: Facts) -> Judged:
    both = [facts.counters.get(name, {}).get(COUNTED) for name in (NAIVE, TILED_16)]
    if None in both:
        return Judged(Status.NOT_MEASURED)
    before, after = (_intensity(dict(of or {})) for of in both)
    said = f"from {number(before)} to {number(after)} FLOP/byte: {number(after / before)} times"
    return together([(after / before == 8, said)])


def _occupancies(facts: Facts) -> Judged:
    """Whether occupancy falls from tile to tile, on an A100."""
    known = [(n, of) for n, name in TILES.items() if (of := facts.static.get("sm_80", {}).get(name))]
    if len(known) < len(TILES):
        return Judged(Status.NOT_MEASURED)
    shares = [of.occupancy for _, of in known]
    said = ", ".join(f"{n}: {percent(of.occupancy)}" for n, of in known)
    return together([(shares[0] > shares[1] > shares[2], f"on an A100, {said}")])


def _best_tile(facts: Facts) -> Judged:
    """Which tile of ``tiled`` is the fastest, by GPU and shape."""
    found = []
    for gpu in facts.gpus:
        for problem in gpu.gflops:
            speeds = {size: s for size, name in TILES.items() if (s := speed(gpu, name, problem))}
            if len(speeds) == len(TILES):
                best = max(speeds, key=lambda size: speeds[size])
                found.append((best in (16, 32), f"{gpu.name}, {problem}: {best}"))
    return together(found)


def _edges(facts: Facts) -> Judged:
    """Speed at 4095³ and 4097³ over that at 4096³, of the first config of each stage; at least 0.95."""
    found = []
    for gpu in facts.gpus:
        for kernel in facts.kernels:
            name = variant_name(kernel, kernel.configs[0], F32)
            whole = speed(gpu, name, LARGE)
            ragged = [s for n in (4095, 4097) if (s := speed(gpu, name, f"{n}x{n}x{n}"))]
            if whole and ragged and kernel.compiled:
                share = min(ragged) / whole
                found.append((share < 0.95, f"{gpu.name}, {kernel.name}: {number(100 * share)} %"))
    return together(found)


def _agree(facts: Facts) -> Judged:
    """Whether the naive kernel is several times slower at 4096³ than at 1024³, as the two notes have it."""
    found = []
    for gpu in facts.gpus:
        large, small = speed(gpu, NAIVE, LARGE), speed(gpu, NAIVE, SMALL)
        if large and small:
            said = f"{gpu.name}: {number(small)} at 1024³, {number(large)} at 4096³"
            found.append((small / large >= 300 / 48, said))
    return together(found)


CLAIMS = (
    Claim(TILING, "1.1, 3.1",
          "without tiles each element of C costs 2K reads from global memory, 2MNK in all",
          counted((NAIVE,), read_floats, lambda n: n == 2 * products(), f"floats read of {COUNTED}"),
          holds="reads by threads; caches serve most of them, so DRAM sees far fewer"),
    Claim(TILING, "3.1", "with tiles 2MNK / TILE_SIZE reads",
          counted((TILED_32,), read_floats, lambda n: n == 2 * products() / 32, f"floats read of {COUNTED}"),
          holds="each element is read once per block that needs it; for whole tiles"),
    Claim(TILING, "3.2", "an element of a tile is used TILE_SIZE times", _reuse,
          holds="counted as the reads that it saves"),
    Claim(TILING, "3.3", "the naive kernel has 0.5 FLOP per byte",
          counted((NAIVE,), _intensity, lambda value: value == 0.5, "FLOP/byte"),
          contradicted="2K FLOP over 2K floats of 4 bytes are a quarter; the note divides by K floats"),
    Claim(TILING, "3.3", "a tile has TILE_SIZE / 4 FLOP per byte, 4 for 16",
          counted((TILED_16,), _intensity, lambda value: value == 4, "FLOP/byte"),
          holds="by the same arithmetic, done right"),
    Claim(TILING, "3.3", "a tile of 16 raises the intensity 8 times", _intensity_gain,
          contradicted="the gain is the tile, 16; it follows from the wrong 0.5 before"),
    Claim(TILING, "3.1, summary", "the speed-up of tiling is TILE_SIZE in theory",
          all_of(ratio(TILED_16, NAIVE, LARGE, 8), ratio(TILED_32, NAIVE, LARGE, 16)),
          contradicted="a bound for kernels that DRAM limits; but L1 and L2 serve the naive kernel's "
          "repeated reads already (half of the bound would have counted)"),
    Claim(TILING, "6, summary", "tiling is 15 to 30 times as fast in practice",
          all_of(ratio(TILED_16, NAIVE, LARGE, 15, 30), ratio(TILED_32, NAIVE, LARGE, 15, 30)),
          contradicted="caches serve the naive kernel's repeated reads; it is not as slow as the note says"),
    Claim(TILING, "6", "naive: 48 GFLOPS, 2850 ms at 4096³", said_of("A100", NAIVE, LARGE, 48), "A100",
          unmeasured="no A100 here; other GPUs for comparison"),
    Claim(TILING, "6", "tiles of 16: 760 GFLOPS at 4096³", said_of("A100", TILED_16, LARGE, 760), "A100",
          unmeasured="no A100 here; other GPUs for comparison"),
    Claim(TILING, "6", "tiles of 32: 1 440 GFLOPS at 4096³", said_of("A100", TILED_32, LARGE, 1440), "A100",
          unmeasured="no A100 here; other GPUs for comparison"),
    Claim(TILING, "6", "cuBLAS: 19 500 GFLOPS at 4096³", said_of("A100", CUBLAS, LARGE, 19500), "A100",
          unmeasured="no A100 here; the figure is the whole FP32 peak of its datasheet"),
    Claim(TILING, "6", "its milliseconds at 4096³ and its GFLOPS agree",
          all_of(*(
              equal(gflops, 2e-6 * 4096**3 / ms, f"2·4096³ / {ms} ms, GFLOPS", 0.02)
              for ms, gflops in ((2850, 48), (180, 760), (95, 1440), (7, 19500))
          )), holds="within 2 per cent"),
    Claim(TILING, "6", "tiles of 32 are twice as fast as tiles of 16",
          ratio(TILED_32, TILED_16, LARGE, 1.7, 2.2),
          contradicted="both read as many words of shared memory per product, and that bounds them"),
    Claim(TILING, "6", "cuBLAS is 407 times as fast as the naive kernel",
          ratio(CUBLAS, NAIVE, LARGE, 300, 500),
          contradicted="the same base of 48 GFLOPS; another of these notes says 50 times"),
    Claim(TILING, "4.1", "occupancy is high with a tile of 8, middle with 16, low with 32", _occupancies,
          contradicted="neither shared memory nor registers limit it: threads do, and all three fill the SM"),
    Claim(TILING, "4.1", "a pair of tiles takes 512 bytes, 2 KB or 8 KB of shared memory",
          all_of(*(
              compiled((name,), A100, lambda of: of.shared_bytes, _exactly(8 * size * size), "bytes")
              for size, name in TILES.items()
          )), holds="as nvcc reports it, without the 1 KB that the driver reserves per block"),
    Claim(TILING, "4.2", "from compute capability 7.0 on, tiles of 16 or 32 are best", _best_tile,
          "7.0 and later", holds="of one element per thread, where 8, 16 and 32 were all measured",
          depends="of one element per thread: a small problem fills the GPU better with tiles of 8"),
    Claim(TILING, "4.2", "the tile had better be a multiple of 32", gain(TILED_32, TILED_16, (SMALL, LARGE)),
          holds="a warp then reads one row of a tile; by little"),
    Claim(TILING, "5.1", "a rectangular tile of 64×64×8 is better than a square one",
          gain(RECTANGULAR, TILED_32, (SMALL, LARGE)),
          holds="a thread computes a column, so that a word from shared memory serves several products"),
    Claim(TILING, "5.1", "64×64×8 is a tile to choose", policy("rectangular tile"),
          contradicted="a column per thread still reads two words for most products"),
    Claim(TILING, "5.2", "As[ty][k] and Bs[k][tx] may conflict without padding",
          counted((TILED_32, TILED_16, TILED_8), lambda of: of["shared_loads_conflicts"], lambda v: v > 0,
                  f"wavefronts lost to conflicts, {COUNTED}"),
          contradicted="As[ty][k] is one word for a whole row of threads, Bs[k][tx] contiguous words"),
    Claim(TILING, "5.2, 7", "tiles padded by one column are faster (tiled)",
          padding("tiled", ("tile8", "tile16", "tile32"), (1,)),
          contradicted="there is no conflict to avoid, and an odd row stride keeps ptxas from merging four "
          "loads of As into one of 16 bytes"),
    Claim(TILING, "5.2, 7", "tiles padded by one column are faster (unrolled)",
          padding("tiled_unrolled", ("tile8", "tile16", "tile32"), (1,)),
          contradicted="as above; unrolling does not bring the merged loads back"),
    Claim(TILING, "5.3",
          "reading the next tile while this one is computed is faster, into registers or a second buffer",
          all_of(gain(PREFETCH, VECTORIZED, (SMALL, LARGE)), gain(DOUBLE, VECTORIZED, (SMALL, LARGE))),
          holds="loads from global memory overlap with arithmetic"),
    Claim(TILING, "7", "#pragma unroll makes the loop over a tile faster",
          gain("tiled_unrolled-f32-tile32-pad0", TILED_32, (SMALL, LARGE)),
          holds="by little: nvcc unrolls a loop of known length by itself"),
    Claim(TILING, "7", "a loop that is fully unrolled is faster than one that is not",
          gain("tiled_unrolled-f32-tile32-pad0", "tiled_unrolled-f32-tile32-pad0-unroll1", (SMALL, LARGE)),
          holds="loop counters and addresses go away, and loads of As are merged"),
    Claim(TILING, "4.2", "16×16 is a usual configuration", policy("tile 16"),
          contradicted="one element per thread is bound by shared memory, whatever the tile"),
    Claim(WALL, "4", "reads fall from 2N³ to 2N³/T",
          counted((NAIVE, TILED_16), read_floats, lambda n: n in (2 * products(), 2 * products() / 16),
                  f"floats read of {COUNTED}"), holds="counted per thread, for whole tiles"),
    Claim(WALL, "2", "the naive kernel's accesses to A or B are not coalesced",
          counted((NAIVE,), lambda of: of["loads_sectors"] / of["loads_requests"], lambda v: v > 4,
                  "sectors per request"),
          contradicted="with neighbouring threads along a row of C, B is read in full lines (4 sectors) and "
          "A is one word for all (1 sector); threads along a column, as in `strided`, are not coalesced"),
    Claim(WALL, "5", "a large tile exceeds the SM's shared memory", declared("tiled", "tile64-pad0", H200),
          contradicted="with one element per thread, the limit of 1 024 threads comes first: a pair of "
          "64×64 tiles would fit"),
    Claim(WALL, "5", "sizes that are no multiple of the tile cost speed", _edges,
          depends="stages that read word by word lose little; large tiles are mostly empty at the edge, and "
          "16-byte access falls back to words where rows are not aligned",
          holds="where it costs at least 5 % at 4095³ or 4097³"),
    Claim(TILING, "6", "with the note on feeding the GPU: 48 GFLOPS naive at 4096³, 300 to 500 at 1024³",
          _agree, "A100",
          contradicted="one of the two figures is wrong: the naive kernel is about as fast at both sizes"),
)  # fmt: skip
