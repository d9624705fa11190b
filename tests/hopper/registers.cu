// out = Σ A · Bᵀ over n pairs of 64 × 64 tiles of x: A goes through registers, B is read by wgmma; one stage.
//
// One thread of the four warps releases the stage, which the wait for a wgmma of all of them allows. RELEASES_EARLY: it
// does so before.

#include "hopper.cuh"

using namespace hopper;

extern "C" __global__ void __launch_bounds__(256) registers(const __grid_constant__ CUtensorMap x, float* out, int n)
{
    __shared__ alignas(1024) __half tile[2][64 * 64];
    __shared__ uint64_t full, empty;
    const int t = threadIdx.x;
    if (t == 0) {
        mbarrier_init(&full, 1);
        mbarrier_init(&empty, 1);
        fence_mbarrier_init();
    }
    __syncthreads();
    if (t >= 128) {
        if (t == 128)
            for (int i = 0; i < n; ++i) {
                mbarrier_wait_parity(&empty, i & 1 ^ 1);
                mbarrier_arrive_expect_tx(&full, sizeof tile);
                tma_load_2d(tile[0], &x, 0, 128 * i, &full);
                tma_load_2d(tile[1], &x, 0, 128 * i + 64, &full);
            }
        return;
    }
    float d[32];
    for (float& v : d) v = 0;
    for (int i = 0; i < n; ++i) {
        mbarrier_wait_parity(&full, i & 1);
        uint32_t a[4][4];
        for (int k = 0; k < 4; ++k)
            for (int r = 0; r < 4; ++r) {
                const int row = t / 32 * 16 + t % 32 / 4 + r % 2 * 8;
                const int byte = row * 128 + k * 32 + t % 4 * 4 + r / 2 * 16;
                a[k][r] = *reinterpret_cast<uint32_t*>(reinterpret_cast<char*>(tile[0]) + (byte ^ (byte >> 7 & 7) << 4));
            }
#ifdef RELEASES_EARLY
        if (t == 0) mbarrier_arrive(&empty);
#endif
        warpgroup_arrive();
        for (int k = 0; k < 4; ++k) wgmma(d, a[k], make_smem_desc(tile[1] + 16 * k, 16, 1024, SWIZZLE_128));
        warpgroup_commit_batch();
        warpgroup_wait<0>();
#ifndef RELEASES_EARLY
        if (t == 0) mbarrier_arrive(&empty);
#endif
    }
    for (int j = 0; j < 32; ++j) out[row_of(t, j) * 64 + column_of(t, j)] = d[j];
}
