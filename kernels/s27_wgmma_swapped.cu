// wgmma_swapped: the transposed product, with the operands of wgmma swapped, for a C that tiles of 64 rows do not fit.
//
// The idea    A wgmma has 64 rows, but any multiple of 8 columns. So columns of B are its rows, and rows of A its columns: a
//             tile may be 72, 176 or 200 rows high, and the size and number of tiles fit C and the SMs. In 200×256, all
//             registers are sums but 32 of a thread's: the fewest bytes from L2 for a product that a block can have.
// Layout      Boxes and panels as in wgmma. A panel, 64 columns of B, is the rows of a wgmma, which transposes them as it
//             reads them. A lane has sums of two rows and two columns of every eight rows: they are staged as C lies, by
//             boxes that TMA stores.
// Clusters    In both directions. The CLUSTER_N blocks of a row of tiles copy A for all of them, each one step of K in turn;
//             the CLUSTER_M blocks of a column of tiles the panels of B. Where rows begin at no multiple of 128 bytes,
//             each row of a box takes two requests to L2, and what several blocks share is asked for once. A tile of
//             200×256 needs none.
// The limit   At 1000³ the start of the kernel and of its pipeline; where C is large, the power of the board.
// Next        wgmma_split_k, where there are too few tiles of any size.

#if !defined(TILE_M) || !defined(TILE_N) || !defined(GROUPS) || !defined(STAGES) || !defined(BLOCKS) || \
    !defined(CLUSTER_M) || !defined(CLUSTER_N)
#error "wgmma_swapped needs -D TILE_M, TILE_N, GROUPS, STAGES, BLOCKS, CLUSTER_M and CLUSTER_N"
#endif
#if defined(DTYPE_F16) + defined(DTYPE_BF16) != 1
#error "wgmma_swapped needs one of -D DTYPE_F16 and DTYPE_BF16"
#endif
#ifndef BAND_ROWS
#define BAND_ROWS 6
#endif

#define TILE_K 64  // a row of a box, 128 bytes
#define PANEL 64   // columns of B in a row of a box
#define PANELS (TILE_N / PANEL)
#define B_BYTES (PANELS * PANEL_BYTES)
#define THREADS (GROUPS * 128 + 128)       // the consumer warpgroups, and one for the producer warp
#define CLUSTER (CLUSTER_M * CLUSTER_N)    // rows and columns of tiles
#define WGMMA_TRANSPOSES ", 1, 0"          // a, the columns of B
#define GROUP_PANELS (PANELS / GROUPS)     // of a warpgroup
#define BOX_ROWS (TILE_M % 16 == 0 ? 16 : TILE_M % 24 == 0 ? 24 : 8)  // of C, that a warpgroup stages in shared memory at once

#include "producer.cuh"
#include "tma_epilogue_transposed.cuh"
#include "wgmma.cuh"

static_assert(STAGES >= 2, "STAGES: one that is multiplied, at least one in flight");
static_assert(TILE_M == 72 || TILE_M == 176 || TILE_M == 200, "TILE_M: 72, 176 or 200");
static_assert(TILE_N == PANEL * GROUPS * GROUP_PANELS, "TILE_N: as many panels for each group");
constexpr int SUMS = GROUP_PANELS * TILE_M / 2;  // of a thread
static_assert(SUMS <= (GROUPS == 1 ? 128 : GROUPS == 2 ? 200 : 96), "tile: more sums than registers");

using Accumulators = float[GROUP_PANELS][TILE_M / 2];

// Copies a stage: this block's parts of A and B into all blocks that share them.
__device__ __forceinline__ void load_stage(unsigned to, unsigned bar, const CUtensorMap* mapA, const CUtensorMap* mapB,
                                           const Tile& tile, int k, int rank)
{
    const int down = rank % CLUSTER_M, across = rank / CLUSTER_M;  // this block's place in its cluster
    if (CLUSTER_N == 1) {
        tma_load_2d(to, mapA, k * TILE_K, tile.row, bar);
    } else if (k % CLUSTER_N == across) {
        unsigned short beside = 0;
#pragma unroll
        for (int i = 0; i < CLUSTER_N; ++i) beside |= 1 << (i * CLUSTER_M + down);
        tma_load_2d_multicast(to, mapA, k * TILE_K, tile.row, bar, beside);
    }
    const unsigned short above = ((1 << CLUSTER_M) - 1) << (across * CLUSTER_M);
#pragma unroll
    for (int panel = 0; panel < PANELS; ++panel) {
        const unsigned panel_to = to + A_BYTES + panel * PANEL_BYTES;
        const int column = tile.column + panel * PANEL;
        if (CLUSTER_M == 1) tma_load_2d(panel_to, mapB, column, k * TILE_K, bar);
        else if ((k * PANELS + panel) % CLUSTER_M == down)
            tma_load_2d_multicast(panel_to, mapB, column, k * TILE_K, bar, above);
    }
}

extern "C" __global__ void CLUSTER_DIMS __launch_bounds__(THREADS, 1)
gemm_wgmma_swapped(const __grid_constant__ CUtensorMap mapA, const __grid_constant__ CUtensorMap mapB,
                   const __grid_constant__ CUtensorMap mapC, int M, int N, int K, float alpha, float beta, const float* C,
                   int ldc)
{
    extern __shared__ __align__(1024) unsigned char smem[];  // STAGES times A and panels of B; boxes of C; mbarriers
    const unsigned shared = static_cast<unsigned>(__cvta_generic_to_shared(smem));
    const unsigned boxes = shared + STAGES * STAGE_BYTES, full = boxes + STAGING_BYTES, empty = full + STAGES * 8;
    const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);  // the same in all lanes, as ptxas now knows
    const int group = warp / 4, rank = rank_in_cluster(), k_tiles = (K - 1) / TILE_K + 1;
    const TileScheduler scheduler = {(M - 1) / (TILE_M * CLUSTER_M) + 1, (N - 1) / (TILE_N * CLUSTER_N) + 1};
    const bool produces = warp == GROUPS * 4 && elect_one_sync();
    // Of the tiles of a cluster, which are one tile of the scheduler's, that of this block.
    auto tile_at = [&](int index) {
        const Tile tile = scheduler.tile(index);
        return Tile{tile.row * CLUSTER_M + rank % CLUSTER_M * TILE_M, tile.column * CLUSTER_N + rank / CLUSTER_M * TILE_N};
    };
    auto load = [&](unsigned to, unsigned bar, const Tile& tile, int k) {
        load_stage(to, bar, &mapA, &mapB, tile, k, rank);
    };
    Producer producer(shared, full, empty, scheduler.tiles(), k_tiles, tile_at, load);
    if (threadIdx.x == 0) init_pipeline(full, empty, GROUPS * CLUSTER);
    if (produces) prefetch_tensormap(&mapA), prefetch_tensormap(&mapB), prefetch_tensormap(&mapC);
    sync_before();

    if (group == GROUPS) {
        if (SUMS > 128) setmaxnreg_dec<40>();  // what 128 threads give, 256 take
        if (produces) producer.go_on();
        return;
    }

    if (SUMS > 128) setmaxnreg_inc<232>();

    PipelineState pipe = {0, 0};
    // Descriptors count in 16 bytes: a stage, or a step along K, further on is a sum away.
    const SmemDesc a = make_smem_desc(shared, 0, 1024);
    const SmemDesc b = make_smem_desc(shared + A_BYTES + group * GROUP_PANELS * PANEL_BYTES, PANEL_BYTES, 1024);
    const LaneColumns lane = {warp % 4 * 16 + static_cast<int>(threadIdx.x) % 32 / 4, 8};  // of a panel
    int slot = 0, refills = stages_of(scheduler, k_tiles) - STAGES;
    for (int index = blockIdx.x / CLUSTER; index < scheduler.tiles(); index += BLOCKS / CLUSTER) {
        Tile tile = tile_at(index);
        asm volatile("" : "+r"(tile.row), "+r"(tile.column));  // divided here, while the first stage is on its way
        Accumulators accum;
        int prev_stage = 0;  // the stage that running wgmma read
        auto release_stage = [&](int stage) {
            if (refills-- > 0) release_stage_to_all(empty + stage * 8);
        };
        for (int k = 0; k < k_tiles; ++k, advance(pipe)) {  // lesson: begin
            const SmemDesc stage = pipe.stage * (STAGE_BYTES / 16);
            mbarrier_wait_parity(full + pipe.stage * 8, pipe.phase);
            warpgroup_arrive();
#pragma unroll
            for (int step = 0; step < TILE_K / 16; ++step)
#pragma unroll
                for (int panel = 0; panel < GROUP_PANELS; ++panel)
                    wgmma<TILE_M>(accum[panel], b + stage + (panel * PANEL_BYTES / 16 + step * 16 * 8),
                                  a + stage + step * 2, k > 0 || step > 0);
            warpgroup_commit_batch();
            warpgroup_wait<1>();  // those before these
            if (k > 0) release_stage(prev_stage);
            prev_stage = pipe.stage;  // lesson: end
        }
        warpgroup_wait<0>();
        release_stage(prev_stage);
#pragma unroll
        for (int panel = 0; panel < GROUP_PANELS; ++panel)
            store(accum[panel], alpha, {beta, C, ldc, M, N}, boxes + group * SLOTS * SLOT_BYTES, &mapC, tile.row,
                  tile.column + (group * GROUP_PANELS + panel) * PANEL, lane, group, slot);
    }
    if (threadIdx.x % 128 == 0) bulk_wait_group_read<0>();
}
