// The pipeline of persistent blocks in clusters: CLUSTER blocks compute neighbouring tiles of C, and each copies a part of
// what they share into the shared memory of all. With CLUSTER 1 all of this is what one block does.
#pragma once

#ifndef CLUSTER
#define CLUSTER 1
#endif
static_assert(CLUSTER >= 1 && CLUSTER <= 8, "CLUSTER: 1 to 8 blocks");
#ifndef CLUSTER_M  // tiles above one another alone, for all SMs
static_assert(CLUSTER <= 2, "CLUSTER: 1 or 2 blocks, since the SMs of a GPC are no multiple of 4");
#endif
static_assert(BLOCKS % CLUSTER == 0, "BLOCKS: whole clusters");
#if CLUSTER > 1
#define CLUSTER_DIMS __cluster_dims__(CLUSTER, 1, 1)
#else
#define CLUSTER_DIMS
#endif

#include "cluster_ptx.cuh"
#include "pipeline.cuh"
#include "tile_scheduler.cuh"

// This block's place in its cluster.
__device__ __forceinline__ int rank_in_cluster()
{
    return CLUSTER > 1 ? cluster_rank() : 0;
}

// Of the tiles that lie above one another, which are one tile of the scheduler's, that of this block.
__device__ __forceinline__ Tile tile_of(const TileScheduler& scheduler, int index, int rank)
{
    const Tile tile = scheduler.tile(index);
    return {tile.row * CLUSTER + rank * TILE_M, tile.column};
}

// How often this block fills a stage, for all of its tiles. Nobody waits for the release of the last STAGES of them. Where
// it is left out, a block need not wait at its end until the others have released its stages.
__device__ __forceinline__ int stages_of(const TileScheduler& scheduler, int k_tiles)
{
    const int first = blockIdx.x / CLUSTER, clusters = BLOCKS / CLUSTER;
    return ((scheduler.tiles() - 1 - first) / clusters + 1) * k_tiles;
}

// As tma_load_2d, to this place in every block of the cluster; a copy to one block by multicast would be slower.
__device__ __forceinline__ void tma_load_2d_to_all(unsigned smem, const CUtensorMap* map, int column, int row,
                                                   unsigned bar)
{
#if CLUSTER > 1
    tma_load_2d_multicast(smem, map, column, row, bar, (1 << CLUSTER) - 1);
#else
    tma_load_2d(smem, map, column, row, bar);
#endif
}

// This warpgroup has read a stage, which all blocks copy to: one arrival at the `empty` of each.
__device__ __forceinline__ void release_stage_to_all(unsigned empty)
{
#if CLUSTER > 1
    const unsigned thread = threadIdx.x % 128;
    if (thread < CLUSTER) mbarrier_arrive_cluster(map_shared_rank(empty, thread));
#else
    if (threadIdx.x % 128 == 0) mbarrier_arrive(empty);
#endif
}

// Before the first copy: no block copies to another that has not initialised its mbarriers.
__device__ __forceinline__ void sync_before()
{
#if CLUSTER > 1
    cluster_sync();
#else
    __syncthreads();
#endif
}

// After the last release: no block ends while another still releases a stage of it.
__device__ __forceinline__ void sync_after()
{
#if CLUSTER > 1
    cluster_sync();
#endif
}
