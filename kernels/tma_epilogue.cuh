// The epilogue of sums that a tensor map of C stores: for an Output that the includer has named, GROUPS of four warps, and
// BOXES of C that a warp has room for, of which BATCH are staged and stored at once.
#pragma once

#include "tma_store_ptx.cuh"
#include "wgmma_ptx.cuh"

constexpr int WIDTH = 128 / sizeof(Output);  // columns of a box, whose 16 rows have 128 bytes
constexpr int BOX_BYTES = 16 * 128, STAGING_BYTES = GROUPS * 4 * BOXES * BOX_BYTES;

#if defined(OUTPUT_BF16)
__device__ __forceinline__ unsigned pack(float low, float high)
{
    const __nv_bfloat162 two = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const unsigned&>(two);
}
#endif

__device__ __forceinline__ void store_two(Output* to, float low, float high)
{
#if defined(OUTPUT_BF16)
    *reinterpret_cast<unsigned*>(to) = pack(low, high);
#else
    *reinterpret_cast<float2*>(to) = make_float2(low, high);
#endif
}

__device__ __forceinline__ void st_shared_two(unsigned smem, float low, float high)
{
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(smem), "f"(low), "f"(high) : "memory");
}

// A warp's 16 rows of a box, in the 128-byte swizzle.
__device__ __forceinline__ void stage_box(unsigned to, const float* sums)
{
    const int lane = threadIdx.x % 32;
#if defined(OUTPUT_BF16)
    const unsigned at = to + lane % 16 * 128 + ((lane / 16 ^ lane % 8) << 4);
#pragma unroll
    for (int n = 0; n < WIDTH / 2; n += 8)
        stmatrix_x4(at ^ n * 4, {pack(sums[n], sums[n + 1]), pack(sums[n + 2], sums[n + 3]),
                                 pack(sums[n + 4], sums[n + 5]), pack(sums[n + 6], sums[n + 7])});
#else
    const unsigned at = to + lane / 4 * 128 + ((lane % 4 / 2 ^ lane / 4) << 4) + lane % 2 * 8;
#pragma unroll
    for (int n = 0; n < WIDTH / 2; n += 4)
#pragma unroll
        for (int half = 0; half < 2; ++half)
            st_shared_two((at + half * 1024) ^ n * 8, sums[n + half * 2], sums[n + half * 2 + 1]);
#endif
}

// A warp's 16 rows of so many columns, rounded and staged by boxes, which lane 0 asks TMA to store. A lane has columns 2i and
// 2i + 1 of rows lane / 4 and lane / 4 + 8 of every eight columns. `change` may change a staged box, which begins at a column.
template <int COLUMNS, typename Change>
__device__ __forceinline__ void store(const float (&sums)[COLUMNS / 2], unsigned staging, const CUtensorMap* mapC, int row,
                                      int column, Change change)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int box = 0; box < COLUMNS / WIDTH; ++box) {
        const unsigned to = staging + box % BOXES * BOX_BYTES;
        if (box % BATCH == 0) {
            if (box == 0) bulk_wait_group_read<0>();  // the last tile's
            else if (box >= BOXES) bulk_wait_group_read<BOXES / BATCH - 1>();  // the last ones from here
            __syncwarp();
        }
        stage_box(to, sums + box * WIDTH / 2);
        change(to, column + box * WIDTH);
        if (box % BATCH == BATCH - 1) {
            fence_proxy_async();
            __syncwarp();
#pragma unroll
            for (int i = box + 1 - BATCH; i <= box; ++i)
                tma_store_2d(mapC, column + i * WIDTH, row, staging + i % BOXES * BOX_BYTES, lane == 0);
            bulk_commit_group();
        }
    }
}
