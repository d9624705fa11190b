// The tiles of groups of rows in the order in which the blocks of a persistent kernel take them, and how the warp that
// finds a tile tells the warpgroup that computes it.
#pragma once

#include "tma_ptx.cuh"

// The first row and column of a tile, how many rows it has, the group. Without rows: the end of the list, and `group` says
// whether a warpgroup is still given the turn.
struct __align__(16) GroupedTile {
    int row, column, rows, group;
};

// The tiles of all groups as one list: of a group, down the columns of tiles. A warp looks through 32 groups at once.
struct GroupedScheduler {
    const int* offsets;   // of groups + 1
    int groups, columns;  // of tiles
    int chunk, before;    // the first of the 32 groups last looked at, and how many tiles come before theirs

    // How many tiles of rows this lane's group of 32 has; its first row and its end.
    __device__ __forceinline__ int rows_of_tiles(int chunk, int& first, int& end) const
    {
        const int group = chunk + threadIdx.x % 32;
        first = group < groups ? offsets[group] : 0, end = group < groups ? offsets[group + 1] : 0;
        return (end - first + TILE_M - 1) / TILE_M;
    }

    __device__ __forceinline__ int tiles() const
    {
        int first, end, own = 0;
        for (int i = 0; i < groups; i += 32) own += rows_of_tiles(i, first, end);
        return __reduce_add_sync(0xffffffff, own) * columns;
    }

    // The tile of this index, which is not less than that of the last call.
    __device__ __forceinline__ GroupedTile tile(int index)
    {
        const int lane = threadIdx.x % 32;
        for (; chunk < groups; chunk += 32) {
            int first, end;
            const int down = rows_of_tiles(chunk, first, end), own = down * columns;
            int up_to = own;  // of this lane's group and of those of lower lanes
#pragma unroll
            for (int distance = 1; distance < 32; distance *= 2) {
                const int other = __shfl_up_sync(0xffffffff, up_to, distance);
                if (lane >= distance) up_to += other;
            }
            const unsigned after = __ballot_sync(0xffffffff, index < before + up_to);
            if (after != 0) {
                auto of = [&](int value) { return __shfl_sync(0xffffffff, value, __ffs(after) - 1); };
                const int in_group = index - before - of(up_to - own), tiles = of(down), rows = of(end - first);
                const int equal = (rows + tiles - 1) / tiles, height = (equal + BOX_ROWS - 1) / BOX_ROWS * BOX_ROWS;
                const int row = in_group % tiles * height;
                return {of(first) + row, in_group / tiles * TILE_N, min(height, rows - row), of(chunk + lane)};
            }
            before += __shfl_sync(0xffffffff, up_to, 31);
        }
        return {};
    }
};

// Where the producer tells each of the warpgroups its next tile: a slot for each, an mbarrier for when it is told, and one
// for when the four warps have read it. The turns of a block are counted; the warpgroups take them one after another.
struct TileSlots {
    GroupedTile* tiles;
    unsigned told, read;

    __device__ __forceinline__ void init() const
    {
        for (int slot = 0; slot < GROUPS; ++slot) mbarrier_init(told + slot * 8, 1), mbarrier_init(read + slot * 8, 4);
    }

    __device__ __forceinline__ void tell(int turn, const GroupedTile& tile) const
    {
        const int slot = turn % GROUPS;
        mbarrier_wait_parity(read + slot * 8, turn / GROUPS % 2 ^ 1);
        tiles[slot] = tile;
        mbarrier_arrive(told + slot * 8);
    }

    __device__ __forceinline__ GroupedTile hear(int turn) const
    {
        const int slot = turn % GROUPS;
        mbarrier_wait_parity(told + slot * 8, turn / GROUPS % 2);
        const int4 tile = reinterpret_cast<const int4*>(tiles)[slot];
        __syncwarp();
        if (threadIdx.x % 32 == 0) mbarrier_arrive(read + slot * 8);
        return {tile.x, tile.y, tile.z, tile.w};
    }
};
