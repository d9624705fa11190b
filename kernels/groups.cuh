// Groups of warps that multiply tiles while one warp copies them. For the stages wgmma and wgmma_tf32, with the
// constants of whichever includes it.
#pragma once

#include "boxes.cuh"

#define PANEL_BYTES (TILE_K * 128)
#define A_BYTES (TILE_M * 128)
#define STAGE_BYTES (A_BYTES + TILE_N * 128)

static_assert(BAND_ROWS >= 1 && BLOCKS >= 1, "BAND_ROWS, BLOCKS: 1 or more");

// The sums of a product as operands of its instruction: their names there, and themselves.
#define TEN(t) ", %" #t "0, %" #t "1, %" #t "2, %" #t "3, %" #t "4, %" #t "5, %" #t "6, %" #t "7, %" #t "8, %" #t "9"
#define FIRST_32 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9" TEN(1) TEN(2) ", %30, %31"
#define FIRST_64 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9" TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) ", %60, %61, %62, %63"
#define FIRST_128                                                                                                  \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9" TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) TEN(7) TEN(8) TEN(9) TEN(10) \
    TEN(11) ", %120, %121, %122, %123, %124, %125, %126, %127"
#define SUMS_4(i) "+f"(sum[i]), "+f"(sum[i + 1]), "+f"(sum[i + 2]), "+f"(sum[i + 3])
#define SUMS_16(i) SUMS_4(i), SUMS_4(i + 4), SUMS_4(i + 8), SUMS_4(i + 12)
#define SUMS_32(i) SUMS_16(i), SUMS_16(i + 16)
#define SUMS_64(i) SUMS_32(i), SUMS_32(i + 32)

// Registers are as they should be for the next products.
__device__ __forceinline__ void products_begin()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
// Closes a group of products; groups complete in order.
__device__ __forceinline__ void products_end()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most PENDING groups are under way.
template <int PENDING>
__device__ __forceinline__ void wait_for_products()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

using Described = unsigned long long;
// Where rows of 128 bytes, swizzled, begin; from panel to panel, of what is turned; from eight rows to the next.
__device__ __forceinline__ Described described(unsigned at, unsigned panel, unsigned eight_rows)
{
    return (Described)(1u << 30 | eight_rows >> 4) << 32 | (panel >> 4) << 16 | (at & 0x3ffff) >> 4;
}

// Rows of tiles and columns of tiles of C, and where one of them begins: down the columns of bands of BAND_ROWS rows,
// so that those that are at work at the same time share A and B in L2.
struct Tiles {
    int rows, columns;
};
struct Tile {
    int row, column;
};
__device__ __forceinline__ Tile find_tile(int index, const Tiles& all)
{
    const int band_rows = BAND_ROWS;
    const int band = index / (band_rows * all.columns), in_band = index % (band_rows * all.columns);
    const int rows = min(all.rows - band * band_rows, band_rows);  // the last band may be shorter
    return {(band * band_rows + in_band % rows) * TILE_M, in_band / rows * TILE_N};
}

// A stage, and the parity of the phase in which it is filled.
struct Turn {
    int stage;
    unsigned parity;
};
__device__ __forceinline__ void advance(Turn& turn)
{
    const bool wraps = turn.stage == STAGES - 1;
    turn.stage = wraps ? 0 : turn.stage + 1, turn.parity ^= wraps;
}

// The mbarriers of a stage: that it is full, and that all groups have multiplied it.
__device__ __forceinline__ void set_up_stages(unsigned full, unsigned empty)
{
    for (int i = 0; i < STAGES; ++i)
        set_up(full + i * 8, 1), set_up(empty + i * 8, GROUPS);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// All that a block multiplies: for each of its tiles `count` stages of A and B. By one thread.
__device__ __forceinline__ void copy_tiles(unsigned shared, unsigned full, unsigned empty, const CUtensorMap* mapA,
                                           const CUtensorMap* mapB, const Tiles& all, int count, Turn& turn)
{
    for (int index = blockIdx.x; index < all.rows * all.columns; index += BLOCKS) {
        const Tile at = find_tile(index, all);
        for (int k = 0; k < count; ++k, advance(turn)) {
            const unsigned to = shared + turn.stage * STAGE_BYTES, bar = full + turn.stage * 8;
            wait(empty + turn.stage * 8, turn.parity ^ 1);
            expect(bar, STAGE_BYTES);
            copy_box(to, mapA, k * TILE_K, at.row, bar);
#pragma unroll
            for (int i = 0; i < TILE_N / PANEL; ++i)
                copy_box(to + A_BYTES + i * PANEL_BYTES, mapB, at.column + i * PANEL, k * TILE_K, bar);
        }
    }
}
