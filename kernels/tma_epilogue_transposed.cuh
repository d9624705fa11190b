// The epilogue of the transposed product, whose sums a tensor map of C stores: for TILE_M, and GROUPS of four warps with 64
// columns each, of which a group stages BOX_ROWS rows in each of its SLOTS.
#pragma once

#include "staged_c.cuh"
#include "tma_store_ptx.cuh"
#include "wgmma_ptx.cuh"

constexpr int SLOTS = 3;  // one that is filled, and two that TMA may still read
constexpr int BOX_BYTES = BOX_ROWS * 128, SLOT_BYTES = 2 * BOX_BYTES;  // a row of a box is 32 columns
constexpr int STAGING_BYTES = GROUPS * SLOTS * SLOT_BYTES;
static_assert(TILE_M % BOX_ROWS == 0 && BOX_ROWS % 8 == 0, "BOX_ROWS: whole boxes in a tile, of whole eights of rows");

// A lane has rows 8j + 2t and 8j + 2t + 1 of a tile, t = lane % 4, and of them two columns of the group's, `step` apart.
struct LaneColumns {
    int first, step;
};

// A group's 64 columns of alpha · sums, and the addend if ADDS: staged in a slot by BOX_ROWS rows, which thread 0 asks TMA to
// store. `slot` is free when this begins; when this ends, it is the next one, which is free.
template <bool ADDS>
__device__ __forceinline__ void store_rows(const float (&sums)[TILE_M / 2], float alpha, const Addend& addend,
                                           unsigned staging, const CUtensorMap* mapC, int row, int column,
                                           LaneColumns lane, int group, int& slot)
{
    const int thread = threadIdx.x % 128;
#pragma unroll
    for (int begin = 0; begin < TILE_M; begin += BOX_ROWS) {
        const unsigned to = staging + slot * SLOT_BYTES;
#pragma unroll
        for (int i = 0; i < BOX_ROWS / 2; ++i) {
            const int c = lane.first + i / 2 % 2 * lane.step;
            st_shared(swizzled(to + c / 32 * BOX_BYTES, i / 4 * 8 + thread % 4 * 2 + i % 2, c % 32), alpha * sums[begin / 2 + i]);
        }
        if (ADDS) {
            warpgroup_sync(group);
            addend.add(to, BOX_ROWS, row + begin, column, thread, 128);
            addend.add(to + BOX_BYTES, BOX_ROWS, row + begin, column + 32, thread, 128);
        }
        fence_proxy_async();
        if (thread == 0) bulk_wait_group_read<SLOTS - 2>();  // the slot after this one is free
        warpgroup_sync(group);
        tma_store_2d(mapC, column, row + begin, to, thread == 0);
        tma_store_2d(mapC, column + 32, row + begin, to + BOX_BYTES, thread == 0);
        bulk_commit_group();
        slot = slot == SLOTS - 1 ? 0 : slot + 1;
    }
}

// beta = 0 has its own code, and the first: instructions are read from memory, too.
__device__ __forceinline__ void store(const float (&sums)[TILE_M / 2], float alpha, const Addend& addend, unsigned staging,
                                      const CUtensorMap* mapC, int row, int column, LaneColumns lane, int group, int& slot)
{
    if (addend.beta != 0.0f) store_rows<true>(sums, alpha, addend, staging, mapC, row, column, lane, group, slot);
    else store_rows<false>(sums, alpha, addend, staging, mapC, row, column, lane, group, slot);
}
