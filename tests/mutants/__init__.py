"""Broken kernels that the suite must catch: small edits of the real ones, so that they cannot rot unseen."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from harness.model import Kernel
from harness.suites import find_kernel

Edits = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Mutant:
    """``edits``: (old, new) texts, each old one exactly once in the kernel's file. ``wrong`` false: the
    result is right, and about 3 % later. ``kind`` is the class of mistake. ``by_luck``: why values do not
    surely show it on a GPU, where it is then only compiled."""

    name: str
    kernel: str
    kind: str
    edits: Edits
    wrong: bool = True
    by_luck: str = ""


class Rotten(Exception):
    """An edit that no longer matches its kernel exactly once."""


def build(mutant: Mutant, folder: Path) -> Kernel:
    """The declaration of the mutated kernel, whose file is written into ``folder``. Raises Rotten."""
    kernel = find_kernel(mutant.kernel)
    assert kernel.source is not None
    text = kernel.source.read_text(encoding="utf-8")
    for old, new in mutant.edits:
        if text.count(old) != 1:
            raise Rotten(f"{mutant.name}: occurs {text.count(old)} times in {kernel.source.name}: {old!r}")
        text = text.replace(old, new)
    path = folder / f"{mutant.name}.cu"
    path.write_text(text, encoding="utf-8")
    return replace(kernel, source=path)


FIRST_BARRIER = "        __syncthreads();  // the tiles are complete\n"
SECOND_BARRIER = "        __syncthreads();  // no thread still reads what the next round overwrites\n"
WARP_BARRIER = "        __syncthreads();  // no warp still reads what the next round overwrites\n"
EARLY = "the copies are mostly there before they are waited for"
LAST_LINE = "    *c = beta == 0.0f ? alpha * sum : alpha * sum + beta * *c;\n"

WRONG: tuple[Mutant, ...] = (
    # Barriers
    Mutant("first_barrier", "tiled", "missing __syncthreads", ((FIRST_BARRIER, ""),)),
    Mutant("second_barrier", "tiled_unrolled", "missing __syncthreads", ((SECOND_BARRIER, ""),)),
    Mutant("register_barrier", "register", "missing __syncthreads", ((FIRST_BARRIER, ""),)),
    Mutant(
        "pair_barrier",
        "double_buffered",
        "missing __syncthreads",
        (("        __syncthreads();  // the other pair is complete, and this one may be overwritten\n", ""),),
    ),
    Mutant("wmma_barrier", "wmma", "missing __syncthreads", ((FIRST_BARRIER, ""),)),
    # Guards
    # Those of K, for what an M or N guard lets in goes only into sums that are not stored.
    Mutant("k_guard_of_a", "tiled", "edge guard dropped on load", (("row < M && k0 + tx < K", "row < M"),)),
    Mutant("k_guard_of_b", "tiled", "edge guard dropped on load", (("k0 + ty < K && col < N", "col < N"),)),
    Mutant(
        "store_guard",
        "naive",
        "edge guard dropped on store",
        (("if (row >= M || col >= N)", "if (row >= M)"),),
    ),
    Mutant(
        "one_row_too_far",
        "naive",
        "off-by-one store",
        (("if (row >= M || col >= N)", "if (row > M || col >= N)"),),
    ),
    Mutant(
        "one_column_too_far",
        "register",
        "off-by-one store",
        (("row >= M || col >= N", "row >= M || col > N"),),
    ),
    Mutant(
        "tail_too_far",
        "vectorized",
        "off-by-one store",
        (("        if (n < count) c[n] = v[n];", "        if (n <= count) c[n] = v[n];"),),
    ),
    # K
    Mutant(
        "k_tail",
        "tiled",
        "K tail lost",
        (("k0 < K; k0 += TILE_SIZE", "k0 + TILE_SIZE <= K; k0 += TILE_SIZE"),),
    ),
    Mutant("k_cut_by_one", "naive", "K cut by one", (("k < K; ++k", "k < K - 1; ++k"),)),
    Mutant(
        "zero_fill",
        "tiled",
        "zero fill missing",
        (("k0 + tx] : 0.0f", "k0 + tx] : 1.0f"), ("ldb + col] : 0.0f", "ldb + col] : 1.0f")),
    ),
    Mutant(
        "sum_reset",
        "rectangular",
        "sum reset at a later tile",
        ((FIRST_BARRIER, FIRST_BARRIER + "        if (k0 == 8 * TILE_K) sum[0] = 0.0f;\n"),),
    ),
    # Indices
    Mutant(
        "ld_for_n", "naive", "N and K, or ld, mixed up", (("(size_t)k * ldb + col", "(size_t)k * N + col"),)
    ),
    Mutant("n_for_k", "naive", "N and K, or ld, mixed up", (("k < K; ++k", "k < N; ++k"),)),
    Mutant(
        "transposed",
        "tiled_unrolled",
        "index transposed",
        (("As[ty][k] * Bs[k][tx]", "As[ty][k] * Bs[tx][k]"),),
    ),
    Mutant(
        "fragment_offset",
        "wmma",
        "fragment offset wrong",
        (("warp_row + m * FRAGMENT) *", "warp_row + m * 8) *"),),
    ),
    # alpha and beta
    Mutant(
        "alpha_ignored", "naive", "alpha ignored", ((LAST_LINE, LAST_LINE.replace("alpha * sum", "sum")),)
    ),
    Mutant("beta_ignored", "tiled", "beta ignored", ((LAST_LINE, "    *c = alpha * sum;\n"),)),
    Mutant(
        "beta_0_reads_c", "tiled", "beta = 0 reads C", ((LAST_LINE, "    *c = alpha * sum + beta * *c;\n"),)
    ),
    # Precision
    Mutant(
        "tf32",
        "register",
        "TF32 rounding",
        (
            (
                "                a[m] = As[ty + m * THREADS_Y][k];\n",
                "            {\n                unsigned bits;\n"
                "                const float exact = As[ty + m * THREADS_Y][k];\n"
                '                asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(exact));\n'
                "                a[m] = __uint_as_float(bits);\n            }\n",
            ),
        ),
    ),
    Mutant(
        "rounded_sums",
        "wmma",
        "half accumulation",
        (
            (
                WARP_BARRIER,
                WARP_BARRIER + "        for (int i = 0; i < sum[0][0].num_elements; ++i)\n"
                "            sum[0][0].x[i] = __half2float(__float2half(sum[0][0].x[i]));\n",
            ),
        ),
    ),
    # Pipelines
    Mutant(
        "parity",
        "double_buffered",
        "wrong buffer parity",
        (("if (more) stage(s ^ 1);", "if (more) stage(s);"),),
    ),
    Mutant(
        "stage_not_filled",
        "async_copy",
        "wrong buffer parity",
        (("copy_tiles(stage == 0 ? STAGES - 1 : stage - 1, ahead)", "copy_tiles(stage, ahead)"),),
    ),
    Mutant(
        "wait_short",
        "async_copy",
        "cp.async wait one group short",
        (("        cp_async_wait<STAGES - 2>();  // this", "        cp_async_wait<STAGES - 1>();  // this"),),
        by_luck=EARLY,
    ),
    Mutant(
        "wait_missing",
        "warp_tiled",
        "cp.async wait one group short",
        (("                cp_async_wait<STAGES - 2>();  // this", "                // this"),),
        by_luck=EARLY,
    ),
    # Output
    Mutant(
        "stale",
        "tiled",
        "stale output",
        ((LAST_LINE, "    if (*c != *c || beta != 0.0f)\n    " + LAST_LINE),),
    ),
    Mutant(
        "block_skipped",
        "prefetch",
        "block skipped",
        (
            (
                "    float sum[THREAD_TILE_M][THREAD_TILE_N] = {};\n",
                "    float sum[THREAD_TILE_M][THREAD_TILE_N] = {};\n"
                "    if (blockIdx.x && blockIdx.x == gridDim.x - 1) return;\n",
            ),
        ),
    ),
    Mutant(
        "wrong_block",
        "warp_tiled",
        "block skipped",
        (("in_band % rows) * TILE_M", "in_band % band_rows) * TILE_M"),),
    ),
    Mutant(
        "does_nothing",
        "strided",
        "writes nothing",
        (("    float sum = 0.0f;\n", "    return;\n    float sum = 0.0f;\n"),),
    ),
    # No output at all
    Mutant("hang", "naive", "endless loop", (("k < K; ++k", "k < K; k += clock64() < 0"),)),
    Mutant(
        "crash",
        "naive",
        "illegal address",
        (("(size_t)k * ldb + col", "(size_t)k * ldb + col + (1ll << 42)"),),
    ),
)

# The body of the main loop once more for one tile in 32, its sum kept alive but never used.
_EXTRA = """    float waste = 0.0f;
    for (int k0 = 0; k0 < K / 32; k0 += TILE_SIZE) {
        As[ty][tx] = row < M && k0 + tx < K ? A[(size_t)row * lda + k0 + tx] : 0.0f;
        Bs[ty][tx] = k0 + ty < K && col < N ? B[(size_t)(k0 + ty) * ldb + col] : 0.0f;
        __syncthreads();
        for (int k = 0; k < TILE_SIZE; ++k)
            waste += As[ty][k] * Bs[k][tx];
        __syncthreads();
    }
    if (waste == 0.123456789f) sum += 1.0f;

"""
_STORE = "    if (row >= M || col >= N) return;\n    float* c = &C[(size_t)row * ldc + col];\n"
SLOW: tuple[Mutant, ...] = (
    Mutant("slow_tiled", "tiled", "a tile in 32 twice", ((_STORE, _EXTRA + _STORE),), wrong=False),
    Mutant(
        "slow_naive",
        "naive",
        "an element in 32 twice",
        (
            (
                "    float* c = &C",
                "    float waste = 0.0f;\n    for (int k = 0; k < K / 32; ++k)\n"
                "        waste += A[(size_t)row * lda + k] * B[(size_t)k * ldb + col];\n"
                "    if (waste == 0.123456789f) sum += 1.0f;\n\n    float* c = &C",
            ),
        ),
        wrong=False,
    ),
)
MUTANTS = WRONG + SLOW
