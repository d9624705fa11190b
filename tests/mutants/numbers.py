"""Mistakes in what is computed: alpha and beta, sums that are lost, precision."""

from __future__ import annotations

from tests.mutants.edges import LAST_LINE
from tests.mutants.mutant import Mutant
from tests.mutants.order import FIRST_BARRIER, WARP_BARRIER

_SCALES = "alpha or beta wrong"
_BETA_0 = "beta = 0 reads C"
SCALES = (
    Mutant(
        "alpha_ignored",
        "naive",
        _SCALES,
        ((LAST_LINE, LAST_LINE.replace("alpha * sum", "sum")),),
        "alpha is taken as 1",
    ),
    Mutant("beta_ignored", "tiled", _SCALES, ((LAST_LINE, "    *c = alpha * sum;\n"),), "beta is taken as 0"),
    Mutant(
        "alpha_of_vectors",
        "vectorized",
        _SCALES,
        (("v[n] = alpha * sum[n];", "v[n] = sum[n];"),),
        "alpha is taken as 1",
    ),
    Mutant(
        "beta_is_1",
        "warp_tiled",
        _SCALES,
        (("v[n] += beta * c[n];", "v[n] += c[n];"),),
        "beta is taken as 1 where it is not 0",
    ),
    Mutant(
        "alpha_of_all",
        "wmma",
        _SCALES,
        (("value + beta * *c;", "value + alpha * beta * *c;"),),
        "alpha scales beta * C too",
    ),
    Mutant(
        "beta_0_reads_c",
        "tiled",
        _BETA_0,
        ((LAST_LINE, "    *c = alpha * sum + beta * *c;\n"),),
        "beta * C is added whatever beta is",
    ),
    Mutant(
        "vectors_read_c",
        "prefetch",
        _BETA_0,
        (("if (beta != 0.0f && n < count) v[n]", "if (n < count) v[n]"),),
        "beta * C is added whatever beta is",
    ),
    Mutant(
        "fragments_read_c",
        "wmma",
        _BETA_0,
        (("*c = beta == 0.0f ? value : value + beta * *c;", "*c = value + beta * *c;"),),
        "beta * C is added whatever beta is",
    ),
)

_RESET = "sum reset at a later tile"
SUMS = (
    Mutant(
        "sum_reset",
        "rectangular",
        _RESET,
        ((FIRST_BARRIER, FIRST_BARRIER + "        if (k0 == 8 * TILE_K) sum[0] = 0.0f;\n"),),
        "one sum begins anew at the ninth tile",
    ),
    Mutant(
        "fragment_reset",
        "wmma",
        _RESET,
        ((WARP_BARRIER, WARP_BARRIER + "        if (k0 == TILE_K) wmma::fill_fragment(sum[0][0], 0.0f);\n"),),
        "one fragment begins anew at the third tile",
    ),
    Mutant(
        "sum_of_the_last_tiles",
        "double_buffered",
        _RESET,
        (
            (
                "        load_fragments(0, s, 0);\n",
                "        load_fragments(0, s, 0);\n        if (k0 == 4 * TILE_K)\n"
                "            for (auto& row : sum)\n                for (float& one : row) one = 0.0f;\n",
            ),
        ),
        "all sums begin anew at the fifth tile",
    ),
)

_PRECISION = "precision lowered"
PRECISION = (
    Mutant(
        "tf32",
        "register",
        _PRECISION,
        (
            (
                "                a[m] = As[ty + m * THREADS_Y][k];\n",
                "            {\n                unsigned bits;\n"
                "                const float exact = As[ty + m * THREADS_Y][k];\n"
                '                asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(exact));\n'
                "                a[m] = __uint_as_float(bits);\n            }\n",
            ),
        ),
        "A is rounded to TF32",
    ),
    Mutant(
        "masked",
        "vectorized",
        _PRECISION,
        (
            (
                "sum[m][n] += a[m] * b[n];",
                "sum[m][n] += __uint_as_float(__float_as_uint(a[m]) & 0xffffe000u) * b[n];",
            ),
        ),
        "A is cut to the bits of TF32",
    ),
    Mutant(
        "half_sums",
        "tiled",
        _PRECISION,
        (
            ("#if !defined(TILE_SIZE)", "#include <cuda_fp16.h>\n#if !defined(TILE_SIZE)"),
            (FIRST_BARRIER, FIRST_BARRIER + "        sum = __half2float(__float2half(sum));\n"),
        ),
        "the sum is rounded to half at each tile",
    ),
    Mutant(
        "rounded_sums",
        "wmma",
        _PRECISION,
        (
            (
                WARP_BARRIER,
                WARP_BARRIER + "        for (int i = 0; i < sum[0][0].num_elements; ++i)\n"
                "            sum[0][0].x[i] = __half2float(__float2half(sum[0][0].x[i]));\n",
            ),
        ),
        "the sums of a fragment are rounded to half at each tile",
    ),
)

MUTANTS = (*SCALES, *SUMS, *PRECISION)
