// C = A · Bᵀ by pairs of blocks, FP16 with sums in FP32: each block brings its half of the rows of A and of B by TMA, one
// thread of the first block multiplies for both, and each block stores its rows. A is ROWS × K for a pair, B is 64 × K, with
// K a multiple of 64. Names in capitals plant one mistake each.

#define GROUP "2"
#include "blackwell.cuh"

using namespace blackwell;

#ifndef ROWS
#define ROWS 256
#endif
constexpr int TILE_M = ROWS / 2, TILE_N = 64, TILE_K = 64, COLUMNS = 64;
#ifdef FORM_OF_ONE_BLOCK
constexpr uint32_t FORM = form(64, TILE_N);
#elif defined FORM_OF_FEWER_ROWS
constexpr uint32_t FORM = form(ROWS / 2, TILE_N);
#else
constexpr uint32_t FORM = form(ROWS, TILE_N);
#endif

struct Shared {
    alignas(1024) __half a[TILE_M][TILE_K];
    alignas(1024) __half b[TILE_N / 2][TILE_K];
    uint64_t full, ready, done;
    uint32_t tensor;
};

extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(128, 1)
    pair(const __grid_constant__ CUtensorMap A, const __grid_constant__ CUtensorMap B, float* C, int K)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    Shared& s = *reinterpret_cast<Shared*>(memory);
    const int thread = threadIdx.x, warp = thread / 32, rank = cluster_rank();
    const int row = blockIdx.x * TILE_M, column = blockIdx.y * TILE_N;

#ifdef ALLOCATES_IN_ONE_BLOCK
    if (warp == 0 && rank == 0) tensor_alloc<COLUMNS>(&s.tensor);
#else
    if (warp == 0) {
        tensor_alloc<COLUMNS>(&s.tensor);
        tensor_relinquish();
    }
#endif
    if (thread == 0) {
        mbarrier_init(&s.full, 1);
        mbarrier_init(&s.ready, 1);
        mbarrier_init(&s.done, 1);
        fence_mbarrier_init();
    }
#ifdef NO_MEETING_AT_THE_START
    __syncthreads();
#else
    cluster_sync();
#endif
    const uint32_t d = s.tensor;

    for (int t = 0; t < K / TILE_K; ++t) {
#ifdef COPIES_FOR_THE_PAIR
        if (thread == 0) {
#ifdef EXPECTS_ITS_OWN_HALF
            if (rank == 0) mbarrier_arrive_expect_tx(&s.full, sizeof(s.a) + sizeof(s.b));
#else
            if (rank == 0) mbarrier_arrive_expect_tx(&s.full, 2 * (sizeof(s.a) + sizeof(s.b)));
#endif
            for (int i = 0; i < TILE_M; i += 64) tma_load_2d_for_pair(s.a[i], &A, t * TILE_K, row + i, &s.full);
            tma_load_2d_for_pair(s.b, &B, t * TILE_K, column + rank * TILE_N / 2, &s.full);
        }
        if (rank == 0 && thread == 0) {
            mbarrier_wait_parity(&s.full, t & 1);
#else
        if (thread == 0) {
            mbarrier_arrive_expect_tx(&s.full, sizeof(s.a) + sizeof(s.b));
            for (int i = 0; i < TILE_M; i += 64) tma_load_2d(s.a[i], &A, t * TILE_K, row + i, &s.full);
#ifdef SAME_HALF_OF_B
            tma_load_2d(s.b, &B, t * TILE_K, column, &s.full);
#else
            tma_load_2d(s.b, &B, t * TILE_K, column + rank * TILE_N / 2, &s.full);
#endif
        }
        if (rank == 1 && thread == 0) {
#ifndef TELLS_TOO_EARLY
            mbarrier_wait_parity(&s.full, t & 1);
#endif
#ifndef TELLS_NOBODY
            mbarrier_arrive_remote(&s.ready, 0);
#endif
        }
#ifdef BOTH_MULTIPLY
        if (thread == 0) {
            mbarrier_wait_parity(&s.full, t & 1);
            if (rank == 0) mbarrier_wait_parity(&s.ready, t & 1);
#else
        if (rank == 0 && thread == 0) {
            mbarrier_wait_parity(&s.full, t & 1);
#ifndef NO_WAIT_FOR_THE_OTHER
            mbarrier_wait_parity(&s.ready, t & 1);
#endif
#endif
#endif
            for (int k = 0; k < TILE_K; k += 16)
#ifdef MULTIPLIES_ALONE
                asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %4, 0;\ntcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p;\n}"
                             ::"r"(d), "l"(tile(&s.a[0][k], 16, 1024, ATOMS_OF_128)), "l"(tile(&s.b[0][k], 16, 1024, ATOMS_OF_128)),
                               "r"(form(128, 32)), "r"(int(t || k)));
#else
                multiply(d, tile(&s.a[0][k], 16, 1024, ATOMS_OF_128), tile(&s.b[0][k], 16, 1024, ATOMS_OF_128), FORM, t || k);
#endif
#ifdef TELLS_ITSELF_ALONE
            tensor_commit(&s.done);
#elif defined TELLS_THE_OTHER_ALONE
            tensor_commit_multicast(&s.done, 2);
#elif defined TELLS_A_THIRD
            tensor_commit_multicast(&s.done, 7);
#elif defined BOTH_MULTIPLY
            if (rank == 0) tensor_commit_multicast(&s.done, 3);
#else
            tensor_commit_multicast(&s.done, 3);
#endif
        }
#ifdef FIRST_BLOCK_WAITS_ALONE
        if (rank == 0)
#endif
        mbarrier_wait_parity(&s.done, t & 1);
        __syncthreads(); // no thread is a phase behind
    }
    after_thread_sync();
    if (TILE_M == 128) {
        uint32_t r[2][32];
        tensor_ld(r[0], d + (warp * 32 << 16));
        tensor_ld(r[1], d + (warp * 32 << 16) + 32);
        wait_ld();
        for (int j = 0; j < TILE_N; ++j)
            C[(row + thread) * gridDim.y * TILE_N + column + j] = __uint_as_float(r[j / 32][j % 32]);
    } else { // two warps have one half of the columns, and two the other one
        uint32_t r[32];
        tensor_ld(r, d + (warp * 32 << 16));
        wait_ld();
        for (int j = 0; j < TILE_N / 2; ++j)
            C[(row + thread % 64) * gridDim.y * TILE_N + column + thread / 64 * TILE_N / 2 + j] = __uint_as_float(r[j]);
    }
#ifdef NO_MEETING_AT_THE_END
    __syncthreads();
#else
    cluster_sync();
#endif
#ifdef DEALLOCATES_IN_ONE_BLOCK
    if (warp == 0 && rank == 0) tensor_dealloc<COLUMNS>(d);
#else
    if (warp == 0) tensor_dealloc<COLUMNS>(d);
#endif
}
