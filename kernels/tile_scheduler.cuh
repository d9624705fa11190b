// The tiles of C in the order in which the blocks of a persistent kernel take them.
#pragma once

static_assert(BAND_ROWS >= 1 && BLOCKS >= 1, "BAND_ROWS, BLOCKS: 1 or more");

// The first row and column of a tile.
struct Tile {
    int row, column;
};

// Down the columns of bands of BAND_ROWS rows of tiles: blocks that work at the same time share A and B in L2.
struct TileScheduler {
    int rows, columns;  // of tiles

    __device__ __forceinline__ int tiles() const { return rows * columns; }

    __device__ __forceinline__ Tile tile(int index) const
    {
        const int band_rows = BAND_ROWS;
        const int band = index / (band_rows * columns), in_band = index % (band_rows * columns);
        const int height = min(rows - band * band_rows, band_rows);  // the last band may be shorter
        return {(band * band_rows + in_band % height) * TILE_M, in_band / height * TILE_N};
    }
};

// Tiles that an edge of C cuts to half their size or less come after all others: they take less time, and so they
// belong into the last turn of the blocks.
struct EdgesLast {
    TileScheduler all, whole;

    __device__ __forceinline__ EdgesLast(int M, int N)
        : all{(M - 1) / TILE_M + 1, (N - 1) / TILE_N + 1},
          whole{(M + TILE_M / 2 - 1) / TILE_M, (N + TILE_N / 2 - 1) / TILE_N}
    {
    }

    __device__ __forceinline__ int tiles() const { return all.tiles(); }

    // Of the others first those down the last column, then those along the last row.
    __device__ __forceinline__ Tile tile(int index) const
    {
        if (index < whole.tiles()) return whole.tile(index);
        const int edge = index - whole.tiles(), down = all.columns > whole.columns ? all.rows : 0;
        if (edge < down) return {edge * TILE_M, whole.columns * TILE_N};
        return {whole.rows * TILE_M, (edge - down) * TILE_N};
    }
};
