// wgmma: tensor cores of Hopper, which read A and B from shared memory themselves.
//
// The idea    Four warps, a warpgroup, issue a product of 64 rows and all columns of a tile, and go on: no fragment is
//             loaded, no register holds A or B. While the wgmma of one stage run, those of the next are issued. The
//             warps are specialised: one producer warp only issues TMA and never waits for an epilogue. The kernel is
//             persistent: each of BLOCKS blocks computes several tiles of C, and the first stages of the next tile
//             arrive during the epilogue. With CLUSTER 2 two blocks copy B together, panels in turn, into the shared
//             memory of both (multicast): B comes from L2 once for two tiles of C.
//             With PINGPONG each of two warpgroups computes tiles of its own, by turns: one multiplies while the
//             other stores its sums. All sums are staged by boxes of C, which TMA stores while the warps go on.
// Layout      Boxes as in mma_tma. A descriptor says where a box begins, and how far apart its groups of eight rows and
//             its panels are. B is not K-major: wgmma transposes it, which it does for 16 bits only: no TF32.
// The limit   The power of the board where C is large: the tensor cores are busy for up to 97 % of the cycles.
// Next        wgmma_tf32, for which nothing transposes B.

#if !defined(TILE_M) || !defined(TILE_N) || !defined(GROUPS) || !defined(STAGES) || !defined(BLOCKS)
#error "wgmma needs -D TILE_M, TILE_N, GROUPS, STAGES and BLOCKS"
#endif
#if defined(DTYPE_F16) + defined(DTYPE_BF16) != 1
#error "wgmma needs one of -D DTYPE_F16 and DTYPE_BF16"
#endif
#ifndef BAND_ROWS
#define BAND_ROWS 8
#endif
#ifndef CLUSTER
#define CLUSTER 1
#endif

#define TILE_K 64  // a row of a box, 128 bytes
#define PANEL 64   // columns of B in a row of a box
#define THREADS (GROUPS * 128 + 128)   // the consumer warpgroups, and one for the producer warp
#define BOXES (TILE_N == 192 ? 1 : 2)  // of C that a warp has room for
#define BATCH 1                        // that it stores at once
#define SUMS (M_BLOCKS * TILE_N / 2)   // of C, of each thread
#define WGMMA_TRANSPOSES ", 0, 1"      // b

#include "tma_pipeline.cuh"
#include "wgmma.cuh"

using Output = float;
#include "staged_c.cuh"
#include "tma_epilogue.cuh"

static_assert(STAGES >= 2, "STAGES: one that is multiplied, at least one in flight");
static_assert(TILE_M % (64 * CONSUMERS) == 0 && TILE_M <= 256, "TILE_M: 64 rows for each group, at most one box");
static_assert(TILE_N == 64 || TILE_N == 128 || TILE_N == 192 || TILE_N == 256, "TILE_N: 64, 128, 192 or 256");
static_assert(SUMS <= MOST_SUMS, "tile: more sums than registers");

using Accumulators = float[TILE_N / 2];

extern "C" __global__ void CLUSTER_DIMS __launch_bounds__(THREADS, 1)
gemm_wgmma(const __grid_constant__ CUtensorMap mapA, const __grid_constant__ CUtensorMap mapB,
           const __grid_constant__ CUtensorMap mapC, int M, int N, int K, float alpha, float beta, const float* C, int ldc)
{
    extern __shared__ __align__(1024) unsigned char tiles[];  // STAGES times A and panels of B; boxes of C; mbarriers
    const unsigned shared = static_cast<unsigned>(__cvta_generic_to_shared(tiles));
    const unsigned boxes = shared + STAGES * STAGE_BYTES, full = boxes + STAGING_BYTES, empty = full + STAGES * 8;
    const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);  // the same in all lanes, as ptxas now knows
    const int group = warp / 4, rank = rank_in_cluster(), k_tiles = (K - 1) / TILE_K + 1;
    const TileScheduler scheduler = {(M - 1) / (TILE_M * CLUSTER) + 1, (N - 1) / TILE_N + 1};

    // One thread copies: if no block copies to another, the first stages, before the threads of the block meet.
    const bool produces = warp == GROUPS * 4 && elect_one_sync();
    auto tile_at = [&](int index) { return tile_of(scheduler, index, rank); };
    auto load = [&](unsigned to, unsigned bar, const Tile& tile, int k) {
        load_stage(to, bar, &mapA, &mapB, tile, k, rank);
    };
    Producer producer(shared, full, empty, scheduler.tiles(), k_tiles, tile_at, load);
    if (produces) prefetch_tensormap(&mapA), prefetch_tensormap(&mapB), prefetch_tensormap(&mapC);
    if (CLUSTER == 1 ? produces : threadIdx.x == 0) init_pipeline(full, empty, CONSUMERS * CLUSTER);
    if (CLUSTER == 1 && produces) producer.begin();
    sync_before();

    if (group == GROUPS) {
        if (SUMS > 128) setmaxnreg_dec<40>();  // what 128 threads give, 256 take
        if (produces) producer.go_on();
        return;
    }
    if (SUMS > 128) setmaxnreg_inc<232>();

    PipelineState pipe = {0, 0};
    // Descriptors count in 16 bytes: a stage, or a step along K, further on is a sum away.
    const SmemDesc a = make_smem_desc(shared + M_BLOCK(group) * 64 * 128, 0, 1024);
    const SmemDesc b = make_smem_desc(shared + A_BYTES, PANEL_BYTES, 1024);
    const int first = blockIdx.x / CLUSTER, clusters = BLOCKS / CLUSTER;
    if (PINGPONG && group == 1) advance_by(pipe, k_tiles);
    int refills = stages_of(scheduler, k_tiles) - PINGPONG * group * k_tiles - STAGES;
    for (int index = first + PINGPONG * group * clusters; index < scheduler.tiles(); index += (1 + PINGPONG) * clusters) {
        Tile tile = tile_at(index);
        asm volatile("" : "+r"(tile.row), "+r"(tile.column));  // divided here, while the first stage is on its way
        if (PINGPONG && index != first) wait_for_turn(group);
        Accumulators accum[M_BLOCKS];
        int prev_stage = 0;  // the stage that running wgmma read
        auto release_stage = [&](int stage) {
            if (CLUSTER == 1 || refills-- > 0) release_stage_to_all(empty + stage * 8);
        };
        for (int k = 0; k < k_tiles; ++k, advance(pipe)) {  // lesson: begin
            const SmemDesc stage = pipe.stage * (STAGE_BYTES / 16);
            mbarrier_wait_parity(full + pipe.stage * 8, pipe.phase);
            warpgroup_arrive();
#pragma unroll
            for (int step = 0; step < TILE_K / 16; ++step)
#pragma unroll
                for (int m = 0; m < M_BLOCKS; ++m)
                    wgmma<TILE_N>(accum[m], a + stage + m * 64 * 8 + step * 2, b + stage + step * 16 * 8, k > 0 || step > 0);
            warpgroup_commit_batch();
            warpgroup_wait<1>();  // those before these
            if (k > 0) release_stage(prev_stage);
            prev_stage = pipe.stage;  // lesson: end
        }
        if (PINGPONG && index + clusters < scheduler.tiles()) give_turn(1 - group);
        warpgroup_wait<0>();
        release_stage(prev_stage);
        if (PINGPONG) advance_by(pipe, k_tiles);  // past those of the other group
        if (PINGPONG) refills -= k_tiles;

        auto store_tile = [&](auto change) {
#pragma unroll
            for (int m = 0; m < M_BLOCKS; ++m) {
                const int row = tile.row + (M_BLOCK(group) + m) * 64 + warp % 4 * 16;
#pragma unroll
                for (float& sum : accum[m]) sum *= alpha;
                store<TILE_N>(accum[m], boxes + warp * BOXES * BOX_BYTES, &mapC, row, tile.column,
                              [&](unsigned box, int column) { change(box, row, column); });
            }
        };
        // Each has its own code, beta = 0 the first: instructions are read from memory, too.
        if (beta != 0.0f)
            store_tile([&](unsigned box, int row, int column) {
                __syncwarp();
                Addend{beta, C, ldc, M, N}.add(box, 16, row, column, threadIdx.x % 32, 32);
            });
        else
            store_tile([](unsigned, int, int) {});
    }
    bulk_wait_group_read<0>();
}
