// wgmma_tf32: tensor cores of Hopper in TF32. The transposed product: columns of B from registers.
//
// The idea    In TF32, wgmma wants both operands along K in shared memory, which A is and B is not. So it computes
//             Cᵀ = Bᵀ · Aᵀ (operands swapped): the first may come from registers, there 64 columns of B; the second is
//             the tile of A. The columns of the next step are loaded while those of this one are multiplied. Producer,
//             consumers and several tiles per block as in wgmma. In 200×256, a warpgroup has two parts of 64 columns,
//             which it multiplies in turn: registers for the columns of one part are enough.
// Layout      Boxes as in mma_tma, rounded by TMA. Which column a register stands for is free: a lane takes two
//             neighbours, and loads them as one. Sixteen lanes load two chunks, four apart, from four rows, which as they
//             are swizzled lie in all banks. Sums are staged as C lies, by boxes that TMA stores.
// The limit   The power of the board where C is large.
// Next        pack, for rows that TMA cannot take.

#if !defined(TILE_M) || !defined(TILE_N) || !defined(STAGES) || !defined(BLOCKS)
#error "wgmma_tf32 needs -D TILE_M, TILE_N, STAGES and BLOCKS"
#endif
#ifndef BAND_ROWS
#define BAND_ROWS 4
#endif

#define TILE_K 32                     // a row of a box, 128 bytes
#define PANEL 32                      // columns of B in a row of a box
#define PARTS (TILE_N > 128 ? 2 : 1)  // of 64 columns of B, that a warpgroup multiplies
#define GROUPS (TILE_N / 64 / PARTS)
#define THREADS (GROUPS * 128 + 128)
#define STEPS (TILE_K / 8 * PARTS)
#define BOX_ROWS (TILE_M % 16 == 0 ? 16 : 8)  // of C, that a warpgroup stages in shared memory at once

#include "tma_pipeline.cuh"
#include "tma_epilogue_transposed.cuh"
#include "wgmma_tf32.cuh"

static_assert(STAGES >= 3, "STAGES: one that is multiplied, one that is loaded, at least one in flight");
static_assert(TILE_M == 64 || TILE_M == 128 || TILE_M == 200 || TILE_M == 256, "TILE_M: 64, 128, 200 or 256");
static_assert(TILE_N == 64 || TILE_N == 128 || TILE_N == 256, "TILE_N: 64, 128 or 256");
static_assert(TILE_M <= 200 || PARTS == 1, "TILE_M: 200 for a TILE_N of 256, or there are more sums than registers");

using Accumulators = float[PARTS][TILE_M / 2];

extern "C" __global__ void __launch_bounds__(THREADS, 1)
gemm_wgmma_tf32(const __grid_constant__ CUtensorMap mapA, const __grid_constant__ CUtensorMap mapB,
                const __grid_constant__ CUtensorMap mapC, int M, int N, int K, float alpha, float beta, const float* C, int ldc)
{
    extern __shared__ __align__(1024) unsigned char tiles[];  // STAGES times A and panels of B; boxes of C; mbarriers
    const unsigned shared = static_cast<unsigned>(__cvta_generic_to_shared(tiles));
    const unsigned boxes = shared + STAGES * STAGE_BYTES, full = boxes + STAGING_BYTES, empty = full + STAGES * 8;
    const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);  // the same in all lanes, as ptxas now knows
    const int group = warp / 4, k_tiles = (K - 1) / TILE_K + 1;
    const TileScheduler scheduler = {(M - 1) / TILE_M + 1, (N - 1) / TILE_N + 1};

    // One thread initialises the mbarriers and copies: the first stages are on their way before the block meets.
    const bool produces = warp == GROUPS * 4 && elect_one_sync();
    auto tile_at = [&](int index) { return scheduler.tile(index); };
    auto load = [&](unsigned to, unsigned bar, const Tile& tile, int k) {
        load_stage(to, bar, &mapA, &mapB, tile, k, 0);
    };
    Producer producer(shared, full, empty, scheduler.tiles(), k_tiles, tile_at, load);
    if (produces) {
        prefetch_tensormap(&mapA), prefetch_tensormap(&mapB), prefetch_tensormap(&mapC);
        init_pipeline(full, empty);
        producer.begin();
    }
    __syncthreads();

    if (group == GROUPS) {
        if (GROUPS == 2) setmaxnreg_dec<PARTS == 1 ? 40 : 24>();  // what 128 threads give, 256 take
        if (produces) producer.go_on();
        return;
    }
    if (GROUPS == 2) setmaxnreg_inc<PARTS == 1 ? 232 : 240>();

    PipelineState pipe = {0, 0};
    const unsigned column = lane_column(warp);
    const LanePlaces places(column);
    const LaneColumns lane = {static_cast<int>(column) % 64, 1};
    int slot = 0;

    const SmemDesc a = make_smem_desc(shared, 0, 1024);  // counts in 16 bytes: a stage further on is a sum away
    for (int index = blockIdx.x; index < scheduler.tiles(); index += BLOCKS) {
        Accumulators accum;
        Fragment fragments[2];
        int prev_stage = 0;  // the stage that running wgmma read
        auto release_stage = [&](int stage) {
            if (threadIdx.x % 128 == 0) mbarrier_arrive(empty + stage * 8);
        };
        auto load = [&](Fragment& b, int step) {
            const unsigned part = step % PARTS * GROUPS * 2 * PANEL_BYTES;
            places.load(b, shared + pipe.stage * STAGE_BYTES + part, step / PARTS);
        };
        mbarrier_wait_parity(full + pipe.stage * 8, pipe.phase);
        load(fragments[0], 0);
        for (int k = 0; k < k_tiles; ++k) {
            const SmemDesc stage = pipe.stage * (STAGE_BYTES / 16);
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {  // lesson: begin
                warpgroup_arrive();
                wgmma<TILE_M>(accum[step % PARTS], fragments[step % 2], a + stage + step / PARTS * 2, k > 0 || step >= PARTS);
                warpgroup_commit_batch();
                warpgroup_wait<1>();  // those before these: their registers are free
                if (step == 0 && k > 0) release_stage(prev_stage);
                if (step < STEPS - 1) {
                    load(fragments[1 - step % 2], step + 1);  // lesson: end
                } else {
                    prev_stage = pipe.stage;
                    advance(pipe);
                    if (k + 1 < k_tiles) {
                        mbarrier_wait_parity(full + pipe.stage * 8, pipe.phase);
                        load(fragments[1 - step % 2], 0);
                    }
                }
            }
        }
        warpgroup_wait<0>();
        release_stage(prev_stage);

        const Tile tile = tile_at(index);
#pragma unroll
        for (int part = 0; part < PARTS; ++part)
            store(accum[part], alpha, {beta, C, ldc, M, N}, boxes + group * SLOTS * SLOT_BYTES, &mapC, tile.row,
                  tile.column + (part * GROUPS + group) * 64, lane, group, slot);
    }
    if (threadIdx.x % 128 == 0) bulk_wait_group_read<0>();
}
