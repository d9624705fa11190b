// What one thread of a persistent block does: it fills the ring for each tile, k_tiles stages.
#pragma once

#include "cluster_pipeline.cuh"

// `tile_at` gives the tile of an index of this block, and `load` copies a stage: (to, bar, tile, k).
template <typename TileAt, typename Load>
struct Producer {
    unsigned shared, full, empty;
    int tiles, k_tiles;
    TileAt tile_at;
    Load load;
    PipelineState pipe = {0, 0};
    int loaded = 0;  // stages of the first tile

    __device__ __forceinline__ Producer(unsigned shared, unsigned full, unsigned empty, int tiles, int k_tiles, TileAt tile_at,
                                        Load load)
        : shared(shared), full(full), empty(empty), tiles(tiles), k_tiles(k_tiles), tile_at(tile_at), load(load)
    {
    }

    __device__ __forceinline__ void fill(const Tile& tile, int k)
    {
        const unsigned bar = full + pipe.stage * 8;
        mbarrier_arrive_expect_tx(bar, STAGE_BYTES);
        load(shared + pipe.stage * STAGE_BYTES, bar, tile, k);
        advance(pipe);
    }

    // The first stages, all of which are free.
    __device__ __forceinline__ void begin()
    {
        const Tile tile = tile_at(blockIdx.x / CLUSTER);
#pragma unroll 1
        for (; loaded < min(STAGES, k_tiles); ++loaded) fill(tile, loaded);
    }

    __device__ __forceinline__ void go_on()
    {
        for (int index = blockIdx.x / CLUSTER; index < tiles; index += BLOCKS / CLUSTER, loaded = 0) {
            const Tile tile = tile_at(index);
            for (int k = loaded; k < k_tiles; ++k) {
                mbarrier_wait_parity(empty + pipe.stage * 8, pipe.phase ^ 1);
                fill(tile, k);
            }
        }
    }
};
