"""Mistakes in batches, layouts, epilogues, integers, outputs, workspaces and the order of parameters.

Of the ladder's kernels, and of the tests' own (``tests/operations``).
"""

from __future__ import annotations

from gemm_regression.model import Problem
from tests.mutants.mutant import Mutant

# A gap and leading dimensions of different lengths, a last block with room for more; M, N, K all different.
BATCH = (Problem(9, 7, 5, alpha=2, beta=3, lda=6, ldb=9, ldc=8, batch=5, gap=2),)
SMALL = (Problem(9, 21, 37, alpha=2, beta=3), Problem(18, 5, 6, alpha=-1))
# Sums of K · 127² no longer fit FP32, nor a short.
LONG = (Problem(5, 3, 2100),)
# Several tiles of C, and a K of more tiles than there are blocks to share it, in unequal parts.
SHARED = (Problem(70, 66, 150, alpha=2, beta=3), Problem(40, 33, 100, alpha=-1))

_BATCH = "batch wrong"
BATCHES = (
    Mutant(
        "stride_of_a",
        "batched_small",
        _BATCH,
        (("A += matrix * strideA;", "A += matrix * strideB;"),),
        "matrices of A are as far apart as those of B",
        problems=BATCH,
    ),
    Mutant(
        "stride_of_b",
        "batched",
        _BATCH,
        (("B += blockIdx.z * strideB;", "B += blockIdx.z * strideC;"),),
        "matrices of B are as far apart as those of C",
        problems=BATCH,
    ),
    Mutant(
        "stride_of_c",
        "batched_small",
        _BATCH,
        (("&C[matrix * strideC + ", "&C[matrix * strideA + "),),
        "matrices of C are as far apart as those of A",
        problems=BATCH,
    ),
    Mutant(
        "gap_ignored",
        "batched",
        _BATCH,
        (("C += blockIdx.z * strideC;", "C += (long long)blockIdx.z * M * ldC;"),),
        "matrices of C are taken as one close after another",
        problems=BATCH,
    ),
    Mutant(
        "one_matrix_too_many",
        "batched_small",
        _BATCH,
        (
            ("rows = matrix < batch ?", "rows = matrix <= batch ?"),
            ("cols = matrix < batch", "cols = matrix <= batch"),
        ),
        "a matrix past the last one is made too",
        problems=BATCH,
    ),
    Mutant(
        "last_matrix_skipped",
        "batched_small",
        _BATCH,
        (("rows = matrix < batch ?", "rows = matrix < batch - 1 ?"),),
        "the last matrix is not made",
        problems=BATCH,
    ),
    Mutant(
        "tile_of_another_matrix",
        "batched_small",
        _BATCH,
        (("Bs[mine][k][tx]", "Bs[0][k][tx]"),),
        "all matrices of a block are multiplied by the B of the first",
        problems=BATCH,
    ),
    Mutant(
        "barrier_of_the_batch",
        "batched_small",
        _BATCH,
        (
            (
                "        __syncthreads();  // no thread still reads what the next round overwrites\n",
                "",
            ),
        ),
        "no barrier before the next tiles are stored",
        by_luck="the warps of a block mostly run in step",
        problems=(Problem(9, 7, 21, alpha=2, beta=3, batch=5, gap=2),),
    ),
)

_LAYOUT = "layout wrong"
LAYOUTS = (
    Mutant(
        "rows_of_b",
        "layout_nt",
        _LAYOUT,
        (("B[place<B_COLUMNS>(", "B[place<!B_COLUMNS>("),),
        "a B stored by columns is read by rows",
        problems=SMALL,
    ),
    Mutant(
        "ld_of_the_other",
        "layout_tn",
        _LAYOUT,
        (("(row, k, lda)", "(row, k, ldb)"),),
        "columns of A are as far apart as rows of B",
        problems=SMALL,
    ),
    Mutant(
        "ld_of_rows",
        "layout_tt",
        _LAYOUT,
        (("(k, col, ldb)", "(k, col, N)"),),
        "columns of B are N apart, as rows would be",
        problems=SMALL,
    ),
    Mutant(
        "rows_of_c",
        "layout_nnt",
        _LAYOUT,
        (("C[place<C_COLUMNS>(", "C[place<false>("),),
        "a C to be stored by columns is stored by rows",
        problems=SMALL,
    ),
)

_EPILOGUE = "epilogue wrong"
EPILOGUES = (
    Mutant(
        "bias_by_row",
        "bias_relu",
        _EPILOGUE,
        (("bias[col]", "bias[row]"),),
        "a bias for each row of C",
        problems=SMALL,
    ),
    Mutant(
        "bias_past_its_end",
        "bias_relu",
        _EPILOGUE,
        (
            (
                "    if (row >= M || col >= N) return;\n",
                "    const float mine = *(const volatile float*)&bias[col];\n"
                "    if (row >= M || col >= N) return;\n",
            ),
            ("scaled + bias[col]", "scaled + mine"),
        ),
        "threads past the edge read a bias too",
        by_luck="what is read there is not stored",
        problems=SMALL,
    ),
    Mutant(
        "relu_before_bias",
        "bias_relu",
        _EPILOGUE,
        (("activation(scaled + bias[col])", "activation(scaled) + bias[col]"),),
        "the bias is added to what the activation made",
        problems=SMALL,
    ),
    Mutant(
        "alpha_after_bias",
        "bias_gelu",
        _EPILOGUE,
        (("scaled + bias[col]", "scaled + alpha * bias[col]"),),
        "alpha scales the bias too",
        problems=SMALL,
    ),
    Mutant(
        "beta_0_reads_c_under_relu",
        "bias_relu",
        _EPILOGUE,
        (("beta == 0.0f ? alpha * sum : alpha * sum", "alpha * sum"),),
        "C is read where beta is 0, and ReLU makes 0 of its NaN",
        problems=SMALL,
    ),
    Mutant(
        "relu_of_6",
        "bias_relu",
        _EPILOGUE,
        (("return fmaxf(x, 0.0f);", "return fminf(fmaxf(x, 0.0f), 6.0f);"),),
        "ReLU6 instead of ReLU",
        problems=SMALL,
    ),
    Mutant(
        "gelu_by_erf",
        "bias_gelu",
        _EPILOGUE,
        (
            (
                "return 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));",
                "return 0.5f * x * (1.0f + erff(0.7071067812f * x));",
            ),
        ),
        "GELU by erf instead of tanh",
        problems=SMALL,
    ),
    Mutant(
        "gelu_by_sigmoid",
        "bias_gelu",
        _EPILOGUE,
        (
            (
                "return 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));",
                "return x / (1.0f + __expf(-1.702f * x));",
            ),
        ),
        "GELU's approximation by a sigmoid instead of tanh",
        problems=SMALL,
    ),
    Mutant(
        "ld_of_what_is_added",
        "residual",
        _EPILOGUE,
        (("D[(size_t)row * ldd + col]", "D[(size_t)row * N + col]"),),
        "rows of D are N apart",
        problems=(Problem(9, 21, 37, alpha=2, beta=3, ldc=24),),
    ),
    Mutant(
        "beta_of_what_is_added",
        "residual",
        _EPILOGUE,
        (("+ D[", "+ beta * D["),),
        "beta scales D too",
        problems=SMALL,
    ),
)

_INTEGER = "integers wrong"
INTEGERS = (
    Mutant(
        "sums_in_fp32",
        "int8",
        _INTEGER,
        (("tiled_sum<int>", "tiled_sum<float>"),),
        "sums are FP32, which holds no integer above 2^24 for sure",
        problems=LONG,
    ),
    Mutant(
        "sums_in_16_bits",
        "int8",
        _INTEGER,
        (("tiled_sum<int>", "tiled_sum<short>"),),
        "sums are 16 bits wide",
        problems=LONG,
    ),
    Mutant(
        "sign_lost",
        "int8",
        _INTEGER,
        (("? A[(size_t)row * lda + k] : 0;", "? (unsigned char)A[(size_t)row * lda + k] : 0;"),),
        "A is read as if it had no sign",
        problems=SMALL,
    ),
    Mutant(
        "dot_product_without_sign",
        "int8_dp4a",
        _INTEGER,
        (
            (
                "__dp4a(As[ty][k], Bs[k][tx], sum)",
                "__dp4a((unsigned)As[ty][k], (unsigned)Bs[k][tx], (unsigned)sum)",
            ),
        ),
        "dp4a of bytes without a sign",
        problems=SMALL,
    ),
    Mutant(
        "four_past_the_end",
        "int8_dp4a",
        _INTEGER,
        (("if (k + i < K) word", "if (k < K) word"),),
        "four bytes are read where K ends within them",
        problems=SMALL,
    ),
    Mutant(
        "bytes_of_b_reversed",
        "int8_dp4a",
        _INTEGER,
        (
            (
                "? four(B + col, ldb, k0 + 4 * ty, K)",
                "? (int)__byte_perm(four(B + col, ldb, k0 + 4 * ty, K), 0, 0x0123)",
            ),
        ),
        "the four of B are in the opposite order of those of A",
        problems=SMALL,
    ),
)

_OUTPUT = "output rounded wrong"
OUTPUTS = (
    Mutant(
        "rounded_twice",
        "outputs",
        _OUTPUT,
        (
            (
                "rounded(beta == 0.0f ? alpha * sum : alpha * sum + beta * float(*c))",
                "rounded(beta == 0.0f ? alpha * sum : float(rounded(alpha * sum)) + beta * float(*c))",
            ),
        ),
        "alpha times the sum is rounded before beta times C is added",
        dtype="bf16_bf16",
        problems=SMALL,
    ),
    Mutant(
        "half_truncated",
        "outputs",
        _OUTPUT,
        (("__float2half_rn(x)", "__float2half_rz(x)"),),
        "FP16 is rounded to zero",
        dtype="f16_f16",
        problems=SMALL,
    ),
    Mutant(
        "bf16_truncated",
        "outputs",
        _OUTPUT,
        (("__float2bfloat16_rn(x)", "__float2bfloat16_rz(x)"),),
        "BF16 is rounded to zero",
        dtype="f32_bf16",
        problems=SMALL,
    ),
    Mutant(
        "sums_in_half",
        "outputs",
        _OUTPUT,
        (("tiled_sum<float>", "tiled_sum<Input>"),),
        "sums are FP16",
        dtype="f16_f16",
        problems=SMALL,
    ),
    Mutant(
        "half_by_way_of_bf16",
        "outputs",
        _OUTPUT,
        (("__float2half_rn(x)", "__float2half_rn(__bfloat162float(__float2bfloat16_rn(x)))"),),
        "FP16 is made of BF16",
        dtype="f32_f16",
        problems=SMALL,
    ),
)

_WORKSPACE = "workspace wrong"
_ARRIVES = "the others have mostly written long before"
WORKSPACES = (
    Mutant(
        "fence_of_the_slabs",
        "split_k",
        _WORKSPACE,
        (
            (
                "    __threadfence();  // this thread's sums are seen by all before its block is counted\n",
                "",
            ),
        ),
        "no fence between the sums and the counter",
        by_luck=_ARRIVES,
        problems=SHARED,
    ),
    Mutant(
        "fence_of_the_sums",
        "split",
        _WORKSPACE,
        (("    __threadfence();  // the sum is seen by all before its block is counted\n", ""),),
        "no fence between the sum and the counter",
        by_luck=_ARRIVES,
        problems=SHARED,
    ),
    Mutant(
        "barrier_of_the_slabs",
        "split_k",
        _WORKSPACE,
        (("    __syncthreads();  // and those of all its threads\n", ""),),
        "a block is counted before all its threads have written",
        by_luck=_ARRIVES,
        problems=SHARED,
    ),
    Mutant(
        "counter_left",
        "split_k",
        _WORKSPACE,
        (("    if (thread == 0) *counter = 0;  // zero again for the next launch\n", ""),),
        "the counters are not zero again",
        problems=SHARED,
    ),
    Mutant(
        "counter_of_the_last_left",
        "split",
        _WORKSPACE,
        (("if (thread == 0) counters[tile] = 0;", "if (thread == 0 && tile == 0) counters[tile] = 0;"),),
        "only the counter of the first tile is zero again",
        problems=SHARED,
    ),
    Mutant(
        "slabs_not_cleared",
        "split_k",
        _WORKSPACE,
        (("* THREADS] = sum[m][n];", "* THREADS] += sum[m][n];"),),
        "sums are added to what the workspace held",
        problems=SHARED,
    ),
    Mutant(
        "order_of_arrival",
        "split_k",
        _WORKSPACE,
        (
            (
                "slabs[z * TILE_M * TILE_N +",
                "slabs[(z + blockIdx.z) % SPLIT * TILE_M * TILE_N +",
            ),
        ),
        "the slabs are added from that of the last block on, so the bits depend on which one it is",
        by_luck="the blocks mostly arrive in the same order",
        problems=SHARED,
    ),
    Mutant(
        "atomic_sums",
        "split",
        _WORKSPACE,
        (
            (
                "    sums[blockIdx.z * TILE * TILE] = sum;\n",
                "    if (row < M && col < N) atomicAdd(&C[(size_t)row * N + col], sum);\n",
            ),
            ("if (row < M && col < N) C[(size_t)row * N + col] = total;", ""),
        ),
        "the blocks add to C by atomics, in any order, to what it held",
        problems=SHARED,
    ),
    Mutant(
        "slab_left_out",
        "split_k",
        _WORKSPACE,
        (("for (int z = 0; z < SPLIT; ++z)", "for (int z = 0; z < SPLIT - 1; ++z)"),),
        "the last slab is not added",
        problems=SHARED,
    ),
    Mutant(
        "slabs_overlap",
        "split_k",
        _WORKSPACE,
        (("(size_t)tile_of_c * SPLIT * TILE_M", "(size_t)tile_of_c * TILE_M"),),
        "the slabs of one tile of C lie on those of the next",
        problems=SHARED,
    ),
    Mutant(
        "slab_of_two",
        "split_k",
        _WORKSPACE,
        (("(size_t)blockIdx.z * TILE_M", "(size_t)(blockIdx.z / 2) * TILE_M"),),
        "two blocks write to one slab",
        problems=SHARED,
    ),
    Mutant(
        "last_but_one",
        "split_k",
        _WORKSPACE,
        (("before != SPLIT - 1", "before != SPLIT - 2"),),
        "the last block but one adds the slabs",
        by_luck="the last block is often there before the slabs are added",
        problems=SHARED,
    ),
    Mutant(
        "rest_of_k_lost",
        "split_k",
        _WORKSPACE,
        (("tiles / SPLIT + (tiles % SPLIT != 0)", "tiles / SPLIT"),),
        "what K has beyond equal parts is left out",
        problems=SHARED,
    ),
    Mutant(
        "count_not_shared",
        "split",
        _WORKSPACE,
        (
            (
                "    __syncthreads();\n    if (before != SPLIT - 1) return;",
                "    if (before != SPLIT - 1) return;",
            ),
        ),
        "no barrier between the count and its readers",
        by_luck="the warps of a block mostly run in step",
        problems=SHARED,
    ),
)

_SIGNATURE = "parameters exchanged"
SIGNATURES = (
    Mutant(
        "size_for_scalar",
        "sgemm",
        _SIGNATURE,
        (("int K, float alpha,", "float alpha, int K,"),),
        "K and alpha are exchanged, of different kinds",
        problems=SMALL,
    ),
    Mutant(
        "short_stride",
        "batched",
        _SIGNATURE,
        (("long long strideC,", "int strideC,"),),
        "a stride is an int",
        problems=BATCH,
    ),
    Mutant(
        "m_for_n",
        "sgemm",
        _SIGNATURE,
        (("sgemm(int M, int N,", "sgemm(int N, int M,"),),
        "M and N are exchanged, of the same kind",
        problems=SMALL,
    ),
    Mutant(
        "lda_for_ldb_in_the_signature",
        "outputs",
        _SIGNATURE,
        (
            ("const Input* A, int lda,", "const Input* A, int ldb,"),
            ("const Input* B, int ldb,", "const Input* B, int lda,"),
        ),
        "lda and ldb are exchanged, of the same kind",
        problems=SMALL,
    ),
    Mutant(
        "a_for_b",
        "matrix_mul",
        _SIGNATURE,
        (("float* A, float* B,", "float* B, float* A,"),),
        "A and B are exchanged, of the same kind",
        problems=(Problem(16, 48, 32),),
    ),
    Mutant(
        "widths_exchanged",
        "matrix_mul",
        _SIGNATURE,
        (("int wA, int wB", "int wB, int wA"),),
        "the widths of A and B are exchanged, of the same kind",
        problems=(Problem(16, 48, 32),),
    ),
)

MUTANTS = (
    *BATCHES,
    *LAYOUTS,
    *EPILOGUES,
    *INTEGERS,
    *OUTPUTS,
    *WORKSPACES,
    *SIGNATURES,
)
