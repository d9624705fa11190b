// The tiles of groups of rows in the order in which the clusters of a persistent kernel take them, and how the warp that
// finds a tile tells those that load and compute it.
#pragma once

#include "cluster_ptx.cuh"
#include "tma_ptx.cuh"

// The first row and column of a tile, how many rows it has, the group. Without rows: the end of the list, and `group` says
// whether a warpgroup is still given the turn.
struct __align__(16) GroupedTile {
    int row, column, rows, group;
};

// The tiles of all groups as one list: of a group, down the columns of tiles. One of the list is a tile for each block of a
// cluster, beside one another. A warp looks through 32 groups at once.
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
                return {of(first) + row, in_group / tiles * (CLUSTER * TILE_N), min(height, rows - row), of(chunk + lane)};
            }
            before += __shfl_sync(0xffffffff, up_to, 31);
        }
        return {};
    }
};

// Writes 16 bytes to any block; its mbarrier counts them. Both addresses are of the same block.
__device__ __forceinline__ void st_async_v4(unsigned there, int4 values, unsigned bar_there)
{
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(there),
                 "r"(values.x), "r"(values.y), "r"(values.z), "r"(values.w), "r"(bar_there)
                 : "memory");
}

// A slot for each warpgroup, where a tile is told to it and to the producer: an mbarrier for when it is told. The turns of a
// block are counted; the warpgroups take them one after another, in step with those of the other blocks of the cluster. One
// of these has the scheduler, and the mbarriers for when the slots of all may be written again: all warps of the warpgroups
// have heard, and the producers ask for a tile.
struct TileSlots {
    GroupedTile* tiles;
    unsigned told, asked;

    __device__ __forceinline__ void init() const
    {
        for (int slot = 0; slot < GROUPS; ++slot) {
            mbarrier_init(told + slot * 8, 1), mbarrier_init(asked + slot * 8, 5 * CLUSTER);
            expect(slot);
        }
    }

    // That a tile will be told.
    __device__ __forceinline__ void expect(int turn) const
    {
        mbarrier_arrive_expect_tx(told + turn % GROUPS * 8, sizeof(GroupedTile));
    }

    __device__ __forceinline__ void ask(int turn) const
    {
        if (turn >= GROUPS) arrive(turn);  // the first ones are told unasked
    }

    __device__ __forceinline__ void wait_until_asked(int turn) const
    {
        mbarrier_wait_parity(asked + turn % GROUPS * 8, turn / GROUPS % 2 ^ 1);
    }

    // To all blocks, which compute tiles beside one another.
    __device__ __forceinline__ void tell(int turn, const GroupedTile& tile) const
    {
        const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(tiles + turn % GROUPS));
        const unsigned bar = told + turn % GROUPS * 8;
        for (int rank = 0; rank < CLUSTER; ++rank)
            st_async_v4(map_shared_rank(to, rank), {tile.row, tile.column + rank * TILE_N, tile.rows, tile.group},
                        map_shared_rank(bar, rank));
    }

    __device__ __forceinline__ GroupedTile hear(int turn) const
    {
        mbarrier_wait_parity(told + turn % GROUPS * 8, turn / GROUPS % 2);
        const int4 tile = reinterpret_cast<const int4*>(tiles)[turn % GROUPS];
        return {tile.x, tile.y, tile.z, tile.w};
    }

    __device__ __forceinline__ void heard(int turn) const
    {
        __syncwarp();
        if (threadIdx.x % 32 == 0) arrive(turn);
    }

    __device__ __forceinline__ void arrive(int turn) const
    {
        mbarrier_arrive_cluster(map_shared_rank(asked + turn % GROUPS * 8, 0));
    }
};

// The scheduler's warp: the first tile is the cluster's own, the next ones are those whose numbers the counter gives.
__device__ __forceinline__ void schedule(GroupedScheduler scheduler, const TileSlots& slots, unsigned* counter)
{
    const bool tells = threadIdx.x % 32 == 0;
    GroupedTile tile = scheduler.tile(blockIdx.x / CLUSTER);
    if (tells) slots.tell(0, tile);
    const int tiles = scheduler.tiles();
    int turn = 0;
    while (tile.rows > 0) {
        int index = 0;
        ++turn;
        if (tells) slots.wait_until_asked(turn), index = gridDim.x / CLUSTER + atomicInc(counter, tiles - 1);
        tile = scheduler.tile(__shfl_sync(0xffffffff, index, 0));
        if (tells) slots.tell(turn, tile.rows > 0 ? tile : GroupedTile{0, 0, 0, 1});
    }
    if (tells) slots.wait_until_asked(turn + 1), slots.tell(turn + 1, {});
}
