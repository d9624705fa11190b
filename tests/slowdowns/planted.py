"""The planted slowdowns, each in a variant of its own; what they cost is in measured.json."""

from __future__ import annotations

from gemm_regression.model import Problem
from tests.slowdowns.slowdown import Slowdown

_1024, _2048, _4096 = (Problem(n, n, n) for n in (1024, 2048, 4096))
_32S, _64S = Problem(32, 32, 32, batch=20000), Problem(64, 64, 64, batch=5000)

# One barrier more, in each round along K or in one of several.

# What the file says of its rounds, where it is not the same as in most: the barrier's line, and the round.
_LAST = "        __syncthreads();  // no thread still reads what the next round overwrites\n"
_LINES = {
    "wmma": _LAST.replace("no thread", "no warp"),
    "double_buffered": "        if (more) stage(s ^ 1);\n",
    "async_copy": "        stage = stage == STAGES - 1 ? 0 : stage + 1;\n",
}
_ROUNDS = {
    "tiled": "k0 / TILE_SIZE",
    "tiled_unrolled": "k0 / TILE_SIZE",
    "batched_small": "k0 / TILE",
    "split_k": "tile",
}


def _barrier(
    name: str, kernel: str, config: str, problem: Problem, rounds: int = 1, dtype: str = "f32"
) -> Slowdown:
    """A barrier more in one of so many rounds."""
    line, step = _LINES.get(kernel, _LAST), _ROUNDS.get(kernel, "k0 / TILE_K")
    some = f"if ({step} % {rounds} == 0) " * (rounds > 1)
    more = f"        {some}__syncthreads();\n"
    new = more + line if kernel == "double_buffered" else line + more
    about = "one barrier more for " + (f"one of {rounds} tiles of K" if rounds > 1 else "each tile of K")
    return Slowdown(name, kernel, about, config, problem, ((line, new),), dtype)


_BARRIERS = (
    _barrier("tiled_barrier", "tiled", "tile32-pad0", _2048),
    _barrier("tiled_few_barriers", "tiled", "tile8-pad0", _1024, rounds=4),
    _barrier("unrolled_32", "tiled_unrolled", "tile32-pad0", _1024, rounds=4),
    _barrier("unrolled_16", "tiled_unrolled", "tile16-pad1", _1024),
    _barrier("unrolled_8", "tiled_unrolled", "tile8-pad0", _1024, rounds=2),
    _barrier("unrolled_8_padded", "tiled_unrolled", "tile8-pad4", _1024, rounds=4),
    _barrier("rectangular_8", "rectangular", "tile128x64x8-thread16", _2048),
    _barrier("rectangular_64", "rectangular", "tile64x64x8-thread8", _1024, rounds=4),
    _barrier("rectangular_wide", "rectangular", "tile64x128x8-thread8", _1024),
    _barrier("register_8x8", "register", "tile128x128x8-thread8x8-pad4", _1024, rounds=2),
    _barrier("register_4x4", "register", "tile128x128x8-thread4x4-pad0", _4096, rounds=2),
    _barrier("register_4x8", "register", "tile128x128x8-thread4x8-pad0", _4096, rounds=4),
    _barrier("register_4x16", "register", "tile128x128x8-thread4x16-pad0", _4096, rounds=2),
    _barrier("vectorized_64", "vectorized", "tile64x64x8-thread8x8-pad4", _1024),
    _barrier("prefetch_128x64", "prefetch", "tile128x64x16-thread8x4-pad4", _4096, rounds=4),
    _barrier("double_128", "double_buffered", "tile128x128x16-thread8x8-pad4-stages2", _2048),
    _barrier("double_64", "double_buffered", "tile64x64x16-thread4x4-pad4-stages2", _4096),
    _barrier("async_2", "async_copy", "tile128x128x8-thread8x8-stages2", _1024),
    _barrier("async_4", "async_copy", "tile128x128x8-thread8x8-stages4", _4096),
    _barrier("wmma_64", "wmma", "tile64x64x32-warp32x32", _4096, rounds=4, dtype="f16"),
    _barrier("batched_8", "batched_small", "tile8-matrices8", _32S),
    _barrier("batched_16", "batched_small", "tile16-matrices4", _64S, rounds=2),
    _barrier("batched_32", "batched_small", "tile32-matrices1", _64S),
    _barrier("split_32", "split_k", "tile32x32x32-thread4x4-split8", _4096, rounds=2),
    _barrier("split_128", "split_k", "tile128x64x16-thread8x4-split8", _4096),
    _barrier("split_16", "split_k", "tile16x64x16-thread4x4-split8", _1024, rounds=4),
)

# A part of the work done twice

_C = "    float* c = &C"


def _element_twice(share: int) -> tuple[tuple[str, str], ...]:
    """Of naive and strided: one element of K in so many."""
    extra = f"""    float waste = 0.0f;
    for (int k = 0; k < K / {share}; ++k)
        waste += A[(size_t)row * lda + k] * B[(size_t)k * ldb + col];
    if (waste == 0.123456789f) sum += 1.0f;

"""
    return ((_C, extra + _C),)


def _tile_twice(share: int) -> tuple[tuple[str, str], ...]:
    """Of tiled: one tile in so many."""
    store = "    if (row >= M || col >= N) return;\n" + _C
    extra = f"""    float waste = 0.0f;
    for (int k0 = 0; k0 < K / {share}; k0 += TILE_SIZE) {{
        As[ty][tx] = row < M && k0 + tx < K ? A[(size_t)row * lda + k0 + tx] : 0.0f;
        Bs[ty][tx] = k0 + ty < K && col < N ? B[(size_t)(k0 + ty) * ldb + col] : 0.0f;
        __syncthreads();
        for (int k = 0; k < TILE_SIZE; ++k)
            waste += As[ty][k] * Bs[k][tx];
        __syncthreads();
    }}
    if (waste == 0.123456789f) sum += 1.0f;

"""
    return ((store, extra + store),)


def _twice(name: str, kernel: str, config: str, problem: Problem, share: int) -> Slowdown:
    whole = kernel == "tiled"
    about = f"one {'tile' if whole else 'element'} of K in {share} is multiplied twice"
    edits = _tile_twice(share) if whole else _element_twice(share)
    return Slowdown(name, kernel, about, config, problem, edits)


_REPEATED = (
    _twice("naive_twice", "naive", "block32x32", _2048, 160),
    _twice("strided_twice", "strided", "block32x8", _1024, 64),
    _twice("tiled_twice", "tiled", "tile32-pad1", _4096, 64),
    _twice("tiled_8_twice", "tiled", "tile8-pad1", _4096, 80),
)

# Hints to the compiler

_STEPS = "#endif\n        for (int k = 0; k < TILE_SIZE"
_COPIES = "        for (int i = thread; i < TILE_M * TILE_K"


def _unrolled(name: str, kernel: str, config: str, problem: Problem, loop: str, by: int) -> Slowdown:
    edits = ((f"#pragma unroll\n{loop}", f"#pragma unroll {by}\n{loop}"),)
    about = f"a loop unrolled by {by}" if by > 1 else "a loop not unrolled"
    return Slowdown(name, kernel, about, config, problem, edits)


def _unbound(name: str, kernel: str, config: str, problem: Problem, bounds: str) -> Slowdown:
    edits = ((f" __launch_bounds__({bounds})\n", "\n"),)
    return Slowdown(name, kernel, "launch bounds dropped", config, problem, edits)


_HINTS = (
    _unrolled("unrolled_by_8", "tiled_unrolled", "tile32-pad4", _1024, _STEPS, 8),
    _unrolled("unrolled_by_4", "tiled_unrolled", "tile16-pad0", _1024, _STEPS, 4),
    _unrolled("register_copies", "register", "tile64x64x16-thread4x4-pad4", _4096, _COPIES, 1),
    _unbound("rectangular_unbound", "rectangular", "tile128x64x16-thread16", _1024, "THREADS"),
    # It costs next to nothing on an H200, and on the H100 of measured.json.
    _unbound("prefetch_unbound", "prefetch", "tile128x128x8-thread8x8-pad4", _1024, "THREADS, BLOCKS_PER_SM"),
)

PLANTED = (*_BARRIERS, *_REPEATED, *_HINTS)
