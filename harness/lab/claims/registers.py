"""Claims of the note on register tiling."""

from __future__ import annotations

from gemm_regression.model import BlockShape
from gemm_regression.model.gpus import GpuLimits, occupancy
from gemm_regression.tune.figures import Surveyed
from lab.advice.policies import REGISTERS, TILED_32
from lab.claims.claim import Claim, Facts, Judged, together
from lab.claims.rules import (
    A100,
    COUNTED,
    CUBLAS,
    H200,
    LARGE,
    SMALL,
    Each,
    all_of,
    compiled,
    declared,
    equal,
    gain,
    number,
    on_each_gpu,
    padding,
    percent,
    policy,
    ratio,
    said_of,
    shape,
    speed,
)

FOUR, EIGHT = "register-f32-tile64x64x16-thread4x4-pad0", "register-f32-tile128x128x8-thread8x8-pad0"
WIDE, HALF = (f"register-f32-tile128x128x8-thread{t}-pad0" for t in ("4x16", "4x8"))
FLOAT4 = "vectorized-f32-tile128x128x8-thread8x8-pad4"
LIMITS = GpuLimits.of(A100)


def _shared_loads(facts: Facts) -> Judged:
    """Wavefronts of shared loads per FLOP, over those of one element per thread."""
    base = facts.counters.get(TILED_32, {}).get(COUNTED)
    found = []
    for variant, times in ((FOUR, 4), (EIGHT, 8)):
        of = facts.counters.get(variant, {}).get(COUNTED)
        if base and of:
            before, after = (c["shared_loads_wavefronts"] / c["flop"] for c in (base, of))
            fewer = before / after
            found.append((fewer >= times, f"{times}×{times}: {number(fewer)} times fewer per FLOP"))
    return together(found)


def _resident(facts: Facts) -> Judged:
    """Occupancy with 80 registers a thread, as allocated."""
    held = occupancy(256, 80, 0, LIMITS)
    said = f"{held.blocks} blocks of 256 threads, {percent(held.fraction)} of an A100's warps"
    return together([(abs(held.fraction - 0.4) <= 0.03, said)])


def _cycles(what: str) -> Each:
    """A latency that a run has measured."""

    def measure(gpu: Surveyed) -> tuple[float, str] | None:
        cycles = gpu.roofs.get("cycles", {}).get(what)
        return None if cycles is None else (cycles, f"{number(cycles)} cycles")

    return measure


def _tensor(top: str) -> Each:
    def measure(gpu: Surveyed) -> tuple[float, str] | None:
        fast, slow = speed(gpu, top, LARGE), speed(gpu, CUBLAS, LARGE)
        if not fast or not slow:
            return None
        return fast / slow, f"{top}: {number(fast)} / {number(slow)} GFLOPS = {number(fast / slow)}"

    return measure


CLAIMS = (
    Claim(REGISTERS, "answer", "each thread computing 8×8 elements is 2 to 4 times as fast",
          ratio(EIGHT, TILED_32, LARGE, 2, 4), holds="over a tile of 32 with one element per thread"),
    Claim(REGISTERS, "4.3", "4×4 per thread is 1.64 times as fast as tiling alone",
          ratio(FOUR, TILED_32, LARGE, 1.4, 1.9),
          contradicted="it brings more: shared memory limits `tiled`, and the loads fall by more than 4"),
    Claim(REGISTERS, "4.3", "8×8 per thread is 2.26 times as fast as tiling alone",
          ratio(EIGHT, TILED_32, LARGE, 1.9, 2.6), contradicted="it brings more, as 4×4 does"),
    Claim(REGISTERS, "4.3", "with float4 as well, 3.39 times",
          ratio(FLOAT4, TILED_32, LARGE, 2.9, 3.9), holds="within 15 per cent"),
    Claim(REGISTERS, "4.3", "tiling: 1 440 GFLOPS", said_of("A100", TILED_32, LARGE, 1440), "A100",
          unmeasured="no A100 here; other GPUs for comparison"),
    Claim(REGISTERS, "4.3", "4×4 per thread: 2 360 GFLOPS", said_of("A100", FOUR, LARGE, 2360), "A100",
          unmeasured="no A100 here; other GPUs for comparison"),
    Claim(REGISTERS, "4.3", "8×8 per thread: 3 260 GFLOPS", said_of("A100", EIGHT, LARGE, 3260), "A100",
          unmeasured="no A100 here; other GPUs for comparison"),
    Claim(REGISTERS, "4.3", "with float4: 4 890 GFLOPS", said_of("A100", FLOAT4, LARGE, 4890), "A100",
          unmeasured="no A100 here; other GPUs for comparison"),
    Claim(REGISTERS, "2.2, 4.1", "loads from shared memory fall by the thread tile: 4 or 8 times",
          _shared_loads, holds="and by more, for loads of neighbouring words are merged"),
    Claim(REGISTERS, "4.1", "8×8 has 8 FLOP per load from shared memory, one element per thread has 1",
          equal(8, 2 * 8 * 8 / (8 + 8), "2·8·8 FLOP / (8 + 8) loads"),
          holds="16 words for 64 products, if no load is merged"),
    Claim(REGISTERS, "1.2", "an SM has 64 KB of registers",
          equal(64, LIMITS.registers_per_sm * 4 / 1024, "65 536 registers of 4 bytes, KB:"),
          contradicted="64 K registers, of 4 bytes each"),
    Claim(REGISTERS, "1.2", "a thread has about 256 registers",
          equal(256, LIMITS.registers_per_thread, "registers a thread can have:"),
          holds="255; with all of them an SM holds 256 threads, an eighth of what it could"),
    Claim(REGISTERS, "1.2", "a register takes one cycle", on_each_gpu(_cycles("fma"), 0, 1.5),
          contradicted="an instruction waits that long for the result of the one before it; that is what "
          "independent products hide", unmeasured="no stored run has measured latencies"),
    Claim(REGISTERS, "1.1, 1.2", "shared memory takes about 20 cycles",
          on_each_gpu(_cycles("shared"), 16, 24),
          contradicted="of a chain of loads, each of which needs the one before it",
          holds="of a chain of loads, each of which needs the one before it",
          unmeasured="no stored run has measured latencies"),
    Claim(REGISTERS, "4.2", "8×8 per thread needs about 80 registers",
          all_of(*(compiled((EIGHT,), c, lambda of: of.registers, lambda v: v <= 88, "registers")
                   for c in (A100, H200))),
          contradicted="addresses and loads in flight take registers as well"),
    Claim(REGISTERS, "4.2", "80 registers a thread make an occupancy of 40 %", _resident,
          holds="registers are handed out by whole blocks, so it is a little less"),
    Claim(REGISTERS, "3.1", "a 32×32 tile with 8×8 per thread runs with 16 threads per block",
          declared("register", "tile32x32x32-thread8x8-pad0"),
          contradicted="half a warp would stay idle; the stage takes whole warps only"),
    Claim(REGISTERS, "3.2, 5.1", "256 threads compute a 64×64 tile of 8×8 per thread",
          shape(BlockShape((256, 1), (64, 64), (8, 8))),
          contradicted="64 threads have work; the note's own comment computes 64 and uses 256"),
    Claim(REGISTERS, "3.2", "float4 may be stored to rows of TILE_SIZE + 1 = 65 floats",
          declared("vectorized", "tile64x64x8-thread8x8-pad1"),
          contradicted="every other row would be off a multiple of 16 bytes: a misaligned address"),
    Claim(REGISTERS, "3.1", "rows of both tiles padded by one are faster",
          padding("register", ("tile128x128x8-thread8x8", "tile64x64x16-thread4x4"), (1,)),
          depends="an odd stride splits the 16-byte loads of As, and may also save registers",
          contradicted="an odd stride splits the 16-byte loads of As"),
    Claim(REGISTERS, "3.2", "64×64×64 with 8×8 per thread is the optimised version", policy("8×8 per thread"),
          unmeasured="the suite `advice` times it at every shape",
          contradicted="`register` copies word by word and waits meanwhile, here with two warps per block"),
    Claim(REGISTERS, "4.2", "4×8 per thread is as usual a choice as 8×8",
          gain(HALF, EIGHT, (SMALL, LARGE), 0.9),
          contradicted="32 products for 12 words of shared memory, where 8×8 has 64 for 16",
          depends="it depends on the shape"),
    Claim(REGISTERS, "6.2", "4×16 per thread suits other matrix shapes than 8×8 does",
          gain(WIDE, EIGHT, ("4096x64x4096", "16x8192x8192", "8205x5921x2949")),
          contradicted="20 words of shared memory for 64 products, where 8×8 needs 16",
          depends="it depends on the shape", unmeasured="the suite `advice` times it on other shapes"),
    Claim(REGISTERS, "7", "tensor cores are 10 to 20 times as fast (cuBLAS in FP16, BF16 and TF32)",
          all_of(*(on_each_gpu(_tensor(f"cublas-{dtype}"), 10, 20)
                   for dtype in ("f16", "bf16", "tf32"))),
          depends="FP16 and BF16 are; TF32 is half as fast"),
    Claim(REGISTERS, "7", "tensor cores are 10 to 20 times as fast (wmma, over this ladder's FP32)",
          ratio("wmma-f16-tile128x128x32-warp64x32", FLOAT4, LARGE, 10, 20),
          contradicted="cuBLAS is, with the same units; this stage lacks copies that run ahead"),
    Claim(REGISTERS, "summary", "2 to 3 times alone, 3 to 4 times with float4",
          all_of(ratio(EIGHT, TILED_32, LARGE, 2, 3), ratio(FLOAT4, TILED_32, LARGE, 3, 4)),
          holds="8×8 per thread, over a tile of 32 with one element per thread"),
    Claim(REGISTERS, "4.3", "its milliseconds at 4096³ and its GFLOPS agree",
          all_of(*(equal(gflops, 2e-6 * 4096**3 / ms, f"2·4096³ / {ms} ms, GFLOPS", 0.02)
                   for ms, gflops in ((95, 1440), (58, 2360), (42, 3260), (28, 4890)))),
          holds="within 2 per cent"),
)  # fmt: skip
