// D = C + A · Bᵀ by two threads that take turns: A goes to tensor memory through registers, C by tcgen05.cp, B lies in
// shared memory without a swizzle, written by plain stores. D is 128 × 64, K is 32. Names in capitals plant one mistake
// each.

#include "blackwell.cuh"

using namespace blackwell;

constexpr int M = 128, N = 64, K = 32, COLUMNS = 128;
constexpr uint32_t FORM = form(M, N);

struct Shared {
    // Chunks of 16 bytes: those of a column of chunks one after the other, by rows.
    alignas(1024) float4 c[N / 4][M];
    alignas(1024) uint4 b[K / 8][N];
    uint64_t first, done, spare;
    uint32_t tensor;
};

extern "C" __global__ void __launch_bounds__(128, 1) relay(const __half* A, const __half* B, const float* C, float* D)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    Shared& s = *reinterpret_cast<Shared*>(memory);
    const int thread = threadIdx.x, warp = thread / 32;

    if (warp == 0) {
        tensor_alloc<COLUMNS>(&s.tensor);
        tensor_relinquish();
    }
    if (thread == 0) {
        mbarrier_init(&s.first, 1);
        mbarrier_init(&s.done, 1);
        mbarrier_init(&s.spare, 1);
        fence_mbarrier_init();
    }
    __syncthreads();
    const uint32_t d = s.tensor, a = d + N, mine = warp * 32 << 16;

    for (int i = thread; i < N * M / 4; i += 128) s.c[i / M][i % M] = reinterpret_cast<const float4*>(C)[i % M * (N / 4) + i / M];
    for (int i = thread; i < N * K / 8; i += 128)
#ifdef LOADS_HALF_OF_B
        if (i % N < N / 2)
#endif
        s.b[i / N][i % N] = reinterpret_cast<const uint4*>(B)[i % N * (K / 8) + i / N];
    for (int k = 0; k < K / 2; k += 8) {
        uint32_t r[8];
        for (int j = 0; j < 8; ++j) r[j] = reinterpret_cast<const uint32_t*>(A)[thread * (K / 2) + k + j];
#ifdef STORES_TO_LANES_OF_ANOTHER
        tensor_st(a + ((warp + 1) % 4 * 32 << 16) + k, r);
#elif defined STORES_HALF
        if (k == 0) tensor_st(a + mine + k, r);
#elif defined STORES_PAST_THE_END
        tensor_st(a + mine + k + COLUMNS - N, r);
#else
        tensor_st(a + mine + k, r);
#endif
    }
#if defined WAITS_FOR_LOADS
    wait_ld();
#elif !defined NO_WAIT_ST
    wait_st();
#endif
#ifndef NO_PROXY_FENCE
    fence_proxy_async();
#endif
#ifndef STORES_WITHOUT_A_FENCE
    before_thread_sync();
#endif
#ifndef NO_BARRIER
    __syncthreads();
#endif
#ifndef STORES_WITHOUT_A_FENCE
    after_thread_sync();
#endif

    if (warp == 0 && elect_one_sync()) {
        for (int n = 0; n < N; n += 8) {
#ifdef COPIES_A_WRONG_STRIDE
            tensor_cp(d + n, tile(s.c[n / 4], sizeof(s.c[0]), 256, UNSWIZZLED));
#elif defined COPIES_PAST_THE_END
            tensor_cp(d + n + COLUMNS - N + 8, tile(s.c[n / 4], sizeof(s.c[0]), 128, UNSWIZZLED));
#else
            tensor_cp(d + n, tile(s.c[n / 4], sizeof(s.c[0]), 128, UNSWIZZLED));
#endif
        }
#ifdef FORGETS_WHAT_WAS_COPIED
        multiply_there(d, a, tile(s.b[0], sizeof(s.b[0]), 128, UNSWIZZLED), FORM, 0);
#else
        multiply_there(d, a, tile(s.b[0], sizeof(s.b[0]), 128, UNSWIZZLED), FORM, 1);
#endif
#ifdef COPIES_OVER_D
        tensor_cp(d, tile(s.c[0], sizeof(s.c[0]), 128, UNSWIZZLED));
#endif
#ifdef REUSES_B
        s.b[0][0] = uint4();
#endif
#if !defined HANDS_ON_WITHOUT_A_FENCE && !defined TAKES_BY_A_BARE_BARRIER
        before_thread_sync();
#endif
#ifdef HANDS_ON_RELAXED
        asm volatile("mbarrier.arrive.relaxed.cluster.shared::cta.b64 _, [%0];" ::"r"(address(&s.first)) : "memory");
#elif defined COMMITS_TO_ANOTHER
        tensor_commit(&s.spare);
#elif defined HANDS_ON_BY_A_COMMIT
        tensor_commit(&s.first);
#elif defined TAKES_BY_A_BARRIER || defined TAKES_BY_A_BARE_BARRIER
#elif defined FIRST_ONE_COMMITS
        tensor_commit(&s.done);
        mbarrier_arrive(&s.first);
#else
        mbarrier_arrive(&s.first);
#endif
    }
#if defined TAKES_BY_A_BARRIER || defined TAKES_BY_A_BARE_BARRIER
    __syncthreads();
#endif
#ifdef OVERWRITES_A
    uint32_t none[8] = {};
    tensor_st(a + mine, none);
    wait_st();
#endif
    if (warp == 1 && elect_one_sync()) {
#if defined HANDS_ON_RELAXED || defined TAKES_RELAXED
        asm volatile("{\n.reg .pred p;\nAGAIN:\nmbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 p, [%0], 0;\n"
                     "@p bra DONE;\nbra AGAIN;\nDONE:\n}" ::"r"(address(&s.first)) : "memory");
#elif !defined TAKES_NO_TURN && !defined TAKES_BY_A_BARRIER && !defined TAKES_BY_A_BARE_BARRIER
        mbarrier_wait_parity(&s.first, 0);
#endif
#if !defined TAKES_WITHOUT_A_FENCE && !defined TAKES_RELAXED
        after_thread_sync();
#endif
#ifdef ANOTHER_SHAPE
        multiply_there(d, a + K / 4, tile(s.b[2], sizeof(s.b[0]), 128, UNSWIZZLED), form(M, N / 2), 1);
#elif defined A_FROM_THE_NEXT_COLUMN
        multiply_there(d, a + K / 4 + 1, tile(s.b[2], sizeof(s.b[0]), 128, UNSWIZZLED), FORM, 1);
#else
        multiply_there(d, a + K / 4, tile(s.b[2], sizeof(s.b[0]), 128, UNSWIZZLED), FORM, 1);
#endif
#ifndef FIRST_ONE_COMMITS
        tensor_commit(&s.done);
#endif
    }
    mbarrier_wait_parity(&s.done, 0);
    after_thread_sync();
    uint32_t r[2][32];
    tensor_ld(r[0], d + mine);
#ifdef WAITS_BETWEEN
    wait_ld();
#endif
    tensor_ld(r[1], d + mine + 32);
#ifndef WAITS_BETWEEN
    wait_ld();
#endif
    for (int j = 0; j < N; ++j) D[thread * N + j] = __uint_as_float(r[j / 32][j % 32]);
#ifdef LEAVES_BEFORE_THE_OTHERS
    if (warp == 0) tensor_dealloc<COLUMNS>(d);
#else
    __syncthreads();
    if (warp == 0) tensor_dealloc<COLUMNS>(d);
#endif
}
