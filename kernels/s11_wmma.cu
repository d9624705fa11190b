// wmma: tensor cores, with nvcuda::wmma.
//
// The idea    A warp multiplies fragments of 16 × 16 × 16 (16 × 16 × 8 for TF32) as a whole: one
//             instruction for thousands of multiply-adds. FP16, BF16 or TF32 in, FP32 sums.
// The limit   Everything around the product: tiles come and go as in tiled, with nothing in flight
//             meanwhile, and loading a fragment from shared memory takes longer than its product.
// Next        Pipelined copies, ldmatrix and mma.sync on a swizzled layout keep the tensor cores fed.

#if !defined(TILE_M) || !defined(TILE_N) || !defined(TILE_K) || !defined(WARP_TILE_M) || !defined(WARP_TILE_N)
#error "wmma needs -D TILE_M, TILE_N, TILE_K, WARP_TILE_M and WARP_TILE_N"
#endif
#if defined(DTYPE_F16) + defined(DTYPE_BF16) + defined(DTYPE_TF32) != 1
#error "wmma needs one of -D DTYPE_F16, DTYPE_BF16 and DTYPE_TF32"
#endif
#include <mma.h>

#include "vectors.cuh"

using namespace nvcuda;

#if defined(DTYPE_F16)
using Element = half;
using Operand = half;
#elif defined(DTYPE_BF16)
using Element = __nv_bfloat16;
using Operand = __nv_bfloat16;
#else
using Element = float;
using Operand = wmma::precision::tf32;
#endif

#define FRAGMENT 16  // rows and columns
#if defined(DTYPE_TF32)
#define FRAGMENT_K 8
#else
#define FRAGMENT_K 16
#endif
static_assert(TILE_M % WARP_TILE_M == 0 && WARP_TILE_M % FRAGMENT == 0, "TILE_M, WARP_TILE_M: whole fragments");
static_assert(TILE_N % WARP_TILE_N == 0 && WARP_TILE_N % FRAGMENT == 0, "TILE_N, WARP_TILE_N: whole fragments");
static_assert(TILE_K % FRAGMENT_K == 0, "TILE_K: whole fragments");

#define WARPS_N (TILE_N / WARP_TILE_N)
#define WARPS (TILE_M / WARP_TILE_M * WARPS_N)
#define THREADS (WARPS * 32)
static_assert(THREADS <= 1024, "warp tile: a block has at most 1024 threads");

// 16 bytes: what a thread copies at once, and by how much the rows in shared memory are longer, so that
// the rows of a fragment begin in different banks.
#define VECTOR ((int)(16 / sizeof(Element)))
#define A_STRIDE (TILE_K + VECTOR)
#define B_STRIDE (TILE_N + VECTOR)
#define C_STRIDE (FRAGMENT + 4)

using FragmentA = wmma::fragment<wmma::matrix_a, FRAGMENT, FRAGMENT, FRAGMENT_K, Operand, wmma::row_major>;
using FragmentB = wmma::fragment<wmma::matrix_b, FRAGMENT, FRAGMENT, FRAGMENT_K, Operand, wmma::row_major>;
using FragmentC = wmma::fragment<wmma::accumulator, FRAGMENT, FRAGMENT, FRAGMENT_K, float>;

// VECTOR neighbours of a row into shared memory, of which only the first `count` exist; 0 for the others.
__device__ __forceinline__ void copy(Element* shared, const Element* global, int count, bool aligned)
{
    if (aligned && count >= VECTOR) {
        *reinterpret_cast<int4*>(shared) = *reinterpret_cast<const int4*>(global);
        return;
    }
#pragma unroll
    for (int i = 0; i < VECTOR; ++i)
        shared[i] = i < count ? global[i] : Element(0.0f);
}

// TF32 takes the upper 19 bits of a float: rounded to nearest here, else the rest would be cut off.
template <typename Fragment>
__device__ __forceinline__ void round_operand(Fragment& fragment)
{
#if defined(DTYPE_TF32)
#pragma unroll
    for (int i = 0; i < fragment.num_elements; ++i)
        fragment.x[i] = wmma::__float_to_tf32(fragment.x[i]);
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS)
gemm_wmma(int M, int N, int K, float alpha, const Element* __restrict__ A, int lda,
          const Element* __restrict__ B, int ldb, float beta, float* __restrict__ C, int ldc)
{
    // Fragments start at multiples of 32 bytes.
    __shared__ __align__(32) Element As[TILE_M * A_STRIDE];
    __shared__ __align__(32) Element Bs[TILE_K * B_STRIDE];
    __shared__ __align__(32) float Cs[WARPS][FRAGMENT * C_STRIDE];  // a fragment of C per warp

    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    const int block_row = blockIdx.y * TILE_M, block_col = blockIdx.x * TILE_N;
    const int warp_row = warp / WARPS_N * WARP_TILE_M, warp_col = warp % WARPS_N * WARP_TILE_N;
    const bool a_aligned = rows_aligned(A, lda), b_aligned = rows_aligned(B, ldb);

    FragmentC sum[WARP_TILE_M / FRAGMENT][WARP_TILE_N / FRAGMENT];
#pragma unroll
    for (int m = 0; m < WARP_TILE_M / FRAGMENT; ++m)
#pragma unroll
        for (int n = 0; n < WARP_TILE_N / FRAGMENT; ++n)
            wmma::fill_fragment(sum[m][n], 0.0f);

    for (int k0 = 0; k0 < K; k0 += TILE_K) {
#pragma unroll
        for (int i = thread; i < TILE_M * TILE_K / VECTOR; i += THREADS) {
            const int m = i / (TILE_K / VECTOR), k = i % (TILE_K / VECTOR) * VECTOR, row = block_row + m;
            // A row past the edge has no element.
            copy(&As[m * A_STRIDE + k], A + (size_t)row * lda + k0 + k, row < M ? K - k0 - k : 0, a_aligned);
        }
#pragma unroll
        for (int i = thread; i < TILE_K * TILE_N / VECTOR; i += THREADS) {
            const int k = i / (TILE_N / VECTOR), n = i % (TILE_N / VECTOR) * VECTOR, col = block_col + n;
            copy(&Bs[k * B_STRIDE + n], B + (size_t)(k0 + k) * ldb + col, k0 + k < K ? N - col : 0, b_aligned);
        }
        __syncthreads();  // the tiles are complete
#pragma unroll
        for (int k = 0; k < TILE_K; k += FRAGMENT_K) {  // lesson: begin
            FragmentA a[WARP_TILE_M / FRAGMENT];
#pragma unroll
            for (int m = 0; m < WARP_TILE_M / FRAGMENT; ++m) {
                wmma::load_matrix_sync(a[m], &As[(warp_row + m * FRAGMENT) * A_STRIDE + k], A_STRIDE);
                round_operand(a[m]);
            }
#pragma unroll
            for (int n = 0; n < WARP_TILE_N / FRAGMENT; ++n) {
                FragmentB b;
                wmma::load_matrix_sync(b, &Bs[k * B_STRIDE + warp_col + n * FRAGMENT], B_STRIDE);
                round_operand(b);
#pragma unroll
                for (int m = 0; m < WARP_TILE_M / FRAGMENT; ++m)
                    wmma::mma_sync(sum[m][n], a[m], b, sum[m][n]);  // lesson: end
            }
        }
        __syncthreads();  // no warp still reads what the next round overwrites
    }

    // Which lane holds which element of a fragment is not specified: through shared memory it is known.
    float* const own = Cs[warp];
#pragma unroll
    for (int m = 0; m < WARP_TILE_M / FRAGMENT; ++m)
#pragma unroll
        for (int n = 0; n < WARP_TILE_N / FRAGMENT; ++n) {
            wmma::store_matrix_sync(own, sum[m][n], C_STRIDE, wmma::mem_row_major);
            __syncwarp();
            for (int i = lane; i < FRAGMENT * FRAGMENT; i += 32) {
                const int row = block_row + warp_row + m * FRAGMENT + i / FRAGMENT;
                const int col = block_col + warp_col + n * FRAGMENT + i % FRAGMENT;
                if (row >= M || col >= N) continue;
                const float value = alpha * own[i / FRAGMENT * C_STRIDE + i % FRAGMENT];
                float* c = &C[(size_t)row * ldc + col];
                *c = beta == 0.0f ? value : value + beta * *c;
            }
            __syncwarp();  // the next fragment overwrites this one
        }
}
