// The producer of stages of A and panels of B, from tensor maps.
#pragma once

#include "producer.cuh"

#define PANELS (TILE_N / PANEL)  // of B

// Copies a stage: of B the panels of this block, to all of the cluster.
__device__ __forceinline__ void load_stage(unsigned to, unsigned bar, const CUtensorMap* mapA, const CUtensorMap* mapB,
                                           const Tile& tile, int k, int rank)
{
    tma_load_2d(to, mapA, k * TILE_K, tile.row, bar);
#pragma unroll
    for (int i = 0; i < PANELS; i += CLUSTER) {
        const int panel = i + rank;
        if (PANELS % CLUSTER == 0 || panel < PANELS)
            tma_load_2d_to_all(to + A_BYTES + panel * PANEL_BYTES, mapB, tile.column + panel * PANEL, k * TILE_K, bar);
    }
}
