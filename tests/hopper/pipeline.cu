// C = A · Bᵀ, FP16 with sums in FP32: a warpgroup brings tiles by TMA, two multiply them with wgmma.
//
// A is M × K, B is N × K, C is M × N, all K or N contiguous, in boxes of 64 × 64 (A and B swizzled by 128 bytes) and
// 64 × 32 (C). Each stage has an mbarrier for "full" and one for "empty". The result goes out by TMA. Sizes are
// multiples of the tile. Names in capitals plant one mistake each.

#include "hopper.cuh"

using namespace hopper;

constexpr int STAGES = 3, TILE_M = 128, TILE_N = 64, TILE_K = 64, CONSUMERS = 2;

struct Stage {
    alignas(1024) __half a[TILE_M][TILE_K];
    alignas(1024) __half b[TILE_N][TILE_K];
};
struct Shared {
    Stage stage[STAGES];
    alignas(1024) float c[CONSUMERS][TILE_N / 32][64][32];
    uint64_t full[STAGES], empty[STAGES];
};

#ifdef EXPECT_LESS
constexpr int BYTES = sizeof(Stage) - 1024;
#elif defined EXPECT_MORE
constexpr int BYTES = sizeof(Stage) + 1024;
#elif defined EXPECT_A_ONLY
constexpr int BYTES = sizeof(__half) * TILE_M * TILE_K;
#else
constexpr int BYTES = sizeof(Stage);
#endif

extern "C" __global__ void __launch_bounds__(128 * (1 + CONSUMERS), 1)
    pipeline(const __grid_constant__ CUtensorMap A, const __grid_constant__ CUtensorMap B,
             const __grid_constant__ CUtensorMap C, int K)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    Shared& s = *reinterpret_cast<Shared*>(memory);
    const int group = threadIdx.x / 128, thread = threadIdx.x % 128;
    const int row = blockIdx.y * TILE_M, column = blockIdx.x * TILE_N, tiles = K / TILE_K;

    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            mbarrier_init(&s.full[i], 1);
#ifdef EMPTY_COUNTS_ONE
            mbarrier_init(&s.empty[i], 1);
#elif defined EMPTY_COUNTS_THREE
            mbarrier_init(&s.empty[i], CONSUMERS + 1);
#else
            mbarrier_init(&s.empty[i], CONSUMERS);
#endif
        }
#ifndef NO_FENCE_INIT
        fence_mbarrier_init();
#endif
    }
#ifndef NO_BARRIER_AFTER_INIT
    __syncthreads();
#endif

    if (group == 0) {
#ifdef TOO_MANY_REGISTERS
        setmaxnreg_dec<160>();
#else
        setmaxnreg_dec<40>();
#endif
        if (thread == 0) {
            for (int t = 0; t < tiles; ++t) {
                const int i = t % STAGES, round = t / STAGES;
#ifdef NO_WAIT_FOR_EMPTY
#elif defined EMPTY_WRONG_PARITY
                mbarrier_wait_parity(&s.empty[i], round & 1);
#elif defined EMPTY_OF_ANOTHER_STAGE
                mbarrier_wait_parity(&s.empty[(i + 1) % STAGES], round & 1 ^ 1);
#else
                mbarrier_wait_parity(&s.empty[i], round & 1 ^ 1);
#endif
                mbarrier_arrive_expect_tx(&s.full[i], BYTES);
                tma_load_2d(s.stage[i].a[0], &A, t * TILE_K, row, &s.full[i]);
                tma_load_2d(s.stage[i].a[64], &A, t * TILE_K, row + 64, &s.full[i]);
#ifdef B_ON_ANOTHER_BARRIER
                tma_load_2d(s.stage[i].b, &B, t * TILE_K, column, &s.full[(i + 1) % STAGES]);
#else
                tma_load_2d(s.stage[i].b, &B, t * TILE_K, column, &s.full[i]);
#endif
            }
        }
    } else {
#ifdef TOO_MANY_REGISTERS
        setmaxnreg_inc<240>();
#else
        setmaxnreg_inc<232>();
#endif
        const int consumer = group - 1;
        float d[32];
        for (float& x : d) x = 0;
        for (int t = 0; t < tiles; ++t) {
            const int i = t % STAGES, round = t / STAGES;
#ifdef FULL_WRONG_PARITY
            mbarrier_wait_parity(&s.full[i], round & 1 ^ 1);
#elif defined FULL_OF_ANOTHER_STAGE
            mbarrier_wait_parity(&s.full[(i + STAGES - 1) % STAGES], i ? round & 1 : round & 1 ^ 1);
#elif defined ONE_THREAD_WAITS
            if (thread == 0) mbarrier_wait_parity(&s.full[i], round & 1);
#elif !defined NO_WAIT_FOR_FULL
            mbarrier_wait_parity(&s.full[i], round & 1);
#endif
#ifdef RELEASE_BEFORE_USE
            if (thread == 0) mbarrier_arrive(&s.empty[i]);
#endif
#ifndef NO_WGMMA_FENCE
            warpgroup_arrive();
#endif
            for (int k = 0; k < TILE_K; k += 16) {
#ifdef SECOND_HALF_OF_A_MISALIGNED
                const uint64_t a = make_smem_desc(&s.stage[i].a[consumer * 60][k], 16, 1024, SWIZZLE_128);
#else
                const uint64_t a = make_smem_desc(&s.stage[i].a[consumer * 64][k], 16, 1024, SWIZZLE_128);
#endif
#ifdef WRONG_SWIZZLE
                const uint64_t b = make_smem_desc(&s.stage[i].b[0][k], 16, 1024, SWIZZLE_64);
#elif defined WRONG_STRIDE
                const uint64_t b = make_smem_desc(&s.stage[i].b[0][k], 16, 512, SWIZZLE_128);
#else
                const uint64_t b = make_smem_desc(&s.stage[i].b[0][k], 16, 1024, SWIZZLE_128);
#endif
                wgmma(d, a, b);
            }
#ifndef NO_COMMIT
            warpgroup_commit_batch();
#endif
#if defined WAIT_TOO_LAX
            warpgroup_wait<1>();
#elif !defined NO_WGMMA_WAIT
            warpgroup_wait<0>();
#endif
#ifdef TOUCH_IN_FLIGHT
            warpgroup_arrive();
            wgmma(d, make_smem_desc(&s.stage[i].a[consumer * 64], 16, 1024, SWIZZLE_128),
                  make_smem_desc(&s.stage[i].b, 16, 1024, SWIZZLE_128), 0);
            warpgroup_commit_batch();
            d[5] += 1;
            warpgroup_wait<0>();
#endif
#ifdef RELEASE_TWICE
            if (thread < 2) mbarrier_arrive(&s.empty[i]);
#elif defined RELEASE_THREE_TIMES
            if (thread < 3) mbarrier_arrive(&s.empty[i]);
#elif !defined RELEASE_BEFORE_USE && !defined NO_RELEASE
            if (thread == 0) mbarrier_arrive(&s.empty[i]);
#endif
        }
        for (int j = 0; j < 32; ++j) {
            const int r = row_of(thread, j), c = column_of(thread, j);
            s.c[consumer][c / 32][r][c % 32] = d[j];
        }
#ifndef NO_PROXY_FENCE
        fence_proxy_async();
#endif
#ifdef MEET_TOO_FEW
        named_barrier_sync(1 + consumer, 96);
#elif !defined NO_MEET
        named_barrier_sync(1 + consumer, 128);
#endif
        if (thread == 0) {
            for (int j = 0; j < TILE_N / 32; ++j) tma_store_2d(&C, column + 32 * j, row + 64 * consumer, s.c[consumer][j]);
#ifndef NO_STORE_COMMIT
            tma_store_commit_group();
#endif
#ifndef NO_STORE_WAIT
            tma_store_wait_group_read<0>();
#endif
        }
#ifdef REUSE_STORED
        s.c[consumer][0][thread / 2][thread % 2] = 0;
#endif
    }
}
