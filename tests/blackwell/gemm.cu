// C = A · Bᵀ, FP16 with sums in FP32 in tensor memory: a warp brings tiles by TMA, a thread multiplies, four warps store.
//
// A is M × K, B is N × K, C is M × N. A block makes all tiles of its 64 columns, one after the other, in one accumulator.
// Each stage has an mbarrier for "full" and one for "empty"; the accumulator has "done" and "drained". Sizes are multiples
// of the tile. Names in capitals plant one mistake each.

#include "blackwell.cuh"

using namespace blackwell;

constexpr int STAGES = 2, TILE_M = 128, TILE_N = 64, TILE_K = 64, BRINGS = 4, MULTIPLIES = 5;

struct Stage {
    alignas(1024) __half a[TILE_M][TILE_K];
    alignas(1024) __half b[TILE_N][TILE_K];
};
struct Shared {
    Stage stage[STAGES];
    uint64_t full[STAGES], empty[STAGES], done, drained;
    uint32_t tensor;
};

#ifdef COLUMNS_ARE_FEW
constexpr int COLUMNS = 32;
#elif defined COLUMNS_ARE_NO_POWER
constexpr int COLUMNS = 96;
#elif defined COLUMNS_ARE_BELOW_32
constexpr int COLUMNS = 16;
#else
constexpr int COLUMNS = TILE_N;
#endif

#ifdef FORM_OF_BF16
constexpr uint32_t FORM = form(TILE_M, TILE_N, 1, 1, 1);
#elif defined FORM_TURNS_B
constexpr uint32_t FORM = form(TILE_M, TILE_N, 1, 0, 0, 0, 1);
#elif defined FORM_OF_64_ROWS
constexpr uint32_t FORM = form(64, TILE_N);
#elif defined FORM_OF_HALF_N
constexpr uint32_t FORM = form(TILE_M, TILE_N / 2);
#elif defined FORM_OF_TWICE_N
constexpr uint32_t FORM = form(TILE_M, TILE_N * 2);
#elif defined FORM_OF_A_PAIR
constexpr uint32_t FORM = form(256, TILE_N);
#elif defined FORM_SUMS_FP16
constexpr uint32_t FORM = form(TILE_M, TILE_N, 0);
#else
constexpr uint32_t FORM = form(TILE_M, TILE_N);
#endif

extern "C" __global__ void __launch_bounds__(192, 1)
    gemm(const __grid_constant__ CUtensorMap A, const __grid_constant__ CUtensorMap B, float* C, int M, int N, int K)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    Shared& s = *reinterpret_cast<Shared*>(memory);
    const int warp = threadIdx.x / 32, column = blockIdx.x * TILE_N, tiles = K / TILE_K;

#ifdef ALLOCATES_BY_ONE_THREAD
    if (threadIdx.x == 0) tensor_alloc<COLUMNS>(&s.tensor);
#elif defined ALLOCATES_WITHOUT_THE_PERMIT
    if (warp == 0) {
        tensor_relinquish();
        tensor_alloc<COLUMNS>(&s.tensor);
    }
#elif defined ALLOCATES_MORE_LATER
    if (warp == 0) {
        tensor_alloc<COLUMNS>(&s.tensor);
        uint32_t more = s.tensor;
        tensor_alloc<2 * COLUMNS>(&s.tensor);
        tensor_dealloc<2 * COLUMNS>(s.tensor);
        s.tensor = more;
    }
#elif defined ALLOCATES_TOO_MUCH
    if (warp == 0) {
        tensor_alloc<512>(&s.tensor);
        tensor_alloc<COLUMNS>(&s.tensor);
    }
#else
    if (warp == 0) {
        tensor_alloc<COLUMNS>(&s.tensor);
        tensor_relinquish();
    }
#endif
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            mbarrier_init(&s.full[i], 1);
            mbarrier_init(&s.empty[i], 1);
        }
        mbarrier_init(&s.done, 1);
#ifdef DRAINED_COUNTS_ONE
        mbarrier_init(&s.drained, 1);
#else
        mbarrier_init(&s.drained, 128);
#endif
        fence_mbarrier_init();
    }
#ifdef ADDRESS_READ_EARLY
    const uint32_t d = s.tensor;
#endif
    __syncthreads();
#ifdef ADDRESS_TAKEN_FOR_0
    const uint32_t d = 0;
#elif !defined ADDRESS_READ_EARLY
    const uint32_t d = s.tensor;
#endif

    if (warp == BRINGS) {
        if (elect_one_sync()) {
            for (int i = 0, t = 0; t < M / TILE_M * tiles; ++t, i = t % STAGES) {
                const int row = t / tiles * TILE_M, k = t % tiles * TILE_K;
#ifndef NO_WAIT_FOR_EMPTY
                mbarrier_wait_parity(&s.empty[i], t / STAGES & 1 ^ 1);
#endif
                mbarrier_arrive_expect_tx(&s.full[i], sizeof(Stage));
                tma_load_2d(s.stage[i].a[0], &A, k, row, &s.full[i]);
                tma_load_2d(s.stage[i].a[64], &A, k, row + 64, &s.full[i]);
                tma_load_2d(s.stage[i].b, &B, k, column, &s.full[i]);
            }
        }
    } else if (warp == MULTIPLIES) {
#ifdef ALL_LANES_MULTIPLY
        if (true) {
#else
        if (elect_one_sync()) {
#endif
            for (int i = 0, t = 0; t < M / TILE_M * tiles; ++t, i = t % STAGES) {
#ifndef NO_WAIT_FOR_DRAINED
                if (t % tiles == 0) {
                    mbarrier_wait_parity(&s.drained, t / tiles & 1 ^ 1);
                    after_thread_sync();
                }
#endif
#ifdef FULL_WRONG_PARITY
                mbarrier_wait_parity(&s.full[i], t / STAGES & 1 ^ 1);
#elif !defined NO_WAIT_FOR_FULL
                mbarrier_wait_parity(&s.full[i], t / STAGES & 1);
#endif
#ifdef RELEASES_BEFORE_USE
                tensor_commit(&s.empty[i]);
#endif
                for (int k = 0; k < TILE_K; k += 16) {
#ifdef TILE_WITHOUT_VERSION
                    const uint64_t a = tile(&s.stage[i].a[0][k], 16, 1024, ATOMS_OF_128, 0);
#elif defined TILE_OF_HOPPER
                    const uint64_t a = make_smem_desc(&s.stage[i].a[0][k], 16, 1024, SWIZZLE_128);
#elif defined TILE_SWIZZLED_BY_64
                    const uint64_t a = tile(&s.stage[i].a[0][k], 16, 1024, ATOMS_OF_64);
#elif defined TILE_OF_A_WRONG_STRIDE
                    const uint64_t a = tile(&s.stage[i].a[0][k], 16, 512, ATOMS_OF_128);
#elif defined TILE_STAYS
                    const uint64_t a = tile(&s.stage[i].a[0][0], 16, 1024, ATOMS_OF_128);
#elif defined TILE_FROM_THE_NEXT_ROW
                    const uint64_t a = tile(&s.stage[i].a[4][k], 16, 1024, ATOMS_OF_128);
#else
                    const uint64_t a = tile(&s.stage[i].a[0][k], 16, 1024, ATOMS_OF_128);
#endif
                    const uint64_t b = tile(&s.stage[i].b[0][k], 16, 1024, ATOMS_OF_128);
#ifdef ALWAYS_ADDS
                    multiply(d, a, b, FORM, 1);
#elif defined ADDS_TO_THE_LAST_TILE
                    multiply(d, a, b, FORM, t || k);
#elif defined ADDS_WITHIN_A_STAGE_ALONE
                    multiply(d, a, b, FORM, k);
#elif defined TO_ANOTHER_LANE
                    multiply(d + (16 << 16), a, b, FORM, t % tiles || k);
#else
                    multiply(d, a, b, FORM, t % tiles || k);
#endif
                }
#ifdef RELEASES_BY_AN_ARRIVAL
                mbarrier_arrive(&s.empty[i]);
#elif !defined NEVER_RELEASES && !defined RELEASES_BEFORE_USE
                tensor_commit(&s.empty[i]);
#endif
#ifdef DONE_BY_AN_ARRIVAL
                if (t % tiles == tiles - 1) mbarrier_arrive(&s.done);
#elif defined DONE_AFTER_EACH_STAGE
                tensor_commit(&s.done);
#elif defined COMMITS_FOR_A_PAIR
                if (t % tiles == tiles - 1)
                    asm volatile("tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(address(&s.done)));
#elif !defined NO_COMMIT
                if (t % tiles == tiles - 1) tensor_commit(&s.done);
#endif
            }
        }
    } else {
#ifdef LANES_OF_ANOTHER_WARP
        const uint32_t mine = d + ((warp ^ 1) * 32 << 16);
#elif defined LANES_FROM_0
        const uint32_t mine = d;
#else
        const uint32_t mine = d + (warp * 32 << 16);
#endif
        for (int t = 0; t < M / TILE_M; ++t) {
#ifdef DONE_WRONG_PARITY
            mbarrier_wait_parity(&s.done, t & 1 ^ 1);
#elif defined ONE_WARP_WAITS
            if (warp == 0) mbarrier_wait_parity(&s.done, t & 1);
#elif defined ONE_WARP_WAITS_FOR_ALL || defined ONE_WARP_WAITS_AND_FENCES
            if (warp == 0) mbarrier_wait_parity(&s.done, t & 1);
#ifdef ONE_WARP_WAITS_AND_FENCES
            before_thread_sync();
#endif
            named_barrier_sync(1, 128);
#elif !defined NO_WAIT_FOR_DONE
            mbarrier_wait_parity(&s.done, t & 1);
#endif
#ifndef ONE_WARP_WAITS_FOR_ALL
            after_thread_sync();
#endif
            uint32_t r[2][32];
#ifdef ONE_COLUMN_PAST_THE_END
            tensor_ld(r[0], mine + 1);
            tensor_ld(r[1], mine + 33);
#else
            tensor_ld(r[0], mine);
            tensor_ld(r[1], mine + 32);
#endif
#ifdef DRAINED_BEFORE_THE_WAIT
            mbarrier_arrive(&s.drained);
#endif
#ifdef WAITS_FOR_STORES
            wait_st();
#elif !defined NO_WAIT_LD
            wait_ld();
#endif
            before_thread_sync();
#if !defined NEVER_DRAINED && !defined DRAINED_BEFORE_THE_WAIT
            mbarrier_arrive(&s.drained);
#endif
            for (int j = 0; j < TILE_N; ++j)
                C[(t * TILE_M + threadIdx.x) * N + column + j] = __uint_as_float(r[j / 32][j % 32]);
        }
#ifdef DEALLOCATES_EARLY
        if (warp == 0) tensor_dealloc<COLUMNS>(d);
#endif
    }
    __syncthreads();
#ifdef DEALLOCATES_BY_ALL_WARPS
    tensor_dealloc<COLUMNS>(d);
#elif defined DEALLOCATES_HALF
    if (warp == 0) tensor_dealloc<COLUMNS / 2>(d);
#elif defined DEALLOCATES_ANOTHER
    if (warp == 0) tensor_dealloc<COLUMNS>(d + 32);
#elif defined DEALLOCATES_BEFORE_THE_LAST_LOAD
    if (warp == 0) tensor_dealloc<COLUMNS>(d);
    if (warp < 4) {
        uint32_t r[32];
        tensor_ld(r, d + (warp * 32 << 16));
        wait_ld();
    }
#elif !defined NEVER_DEALLOCATES && !defined DEALLOCATES_EARLY
    if (warp == 0) tensor_dealloc<COLUMNS>(d);
#endif
}
