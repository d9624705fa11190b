// wgmma_bytes: operands of 8 bits, FP8 (E4M3) or integers: twice the products of 16 bits in the same time.
//
// The idea    A row of a box is still 128 bytes, now 128 elements of K, and a wgmma multiplies 32 of them: the bytes that
//             a product moves are halved, and the tensor cores take twice as many a cycle. Nothing transposes bytes, so B
//             must be stored as A is, K along its rows: the layout of weights, C = A · Bᵀ.
//             CLUSTER blocks that lie above one another multiply the same columns of B. Each copies a part of them into
//             the shared memory of all (multicast): B comes from L2 once for the cluster, not once a block.
//             With PINGPONG each of two warpgroups computes tiles of its own, by turns: one multiplies while the
//             other stores its sums.
// Layout      Both operands are K-major: a descriptor needs only the distance of eight rows, and the next 32 of K lie
//             32 bytes on.
// The limit   The power of the board, as in wgmma. FP8 sums keep 14 bits or so; integers are exact.
// Next        Sums of FP8 that are promoted to FP32, and scales for blocks.

#if !defined(TILE_M) || !defined(TILE_N) || !defined(GROUPS) || !defined(STAGES) || !defined(BLOCKS) || !defined(CLUSTER)
#error "wgmma_bytes needs -D TILE_M, TILE_N, GROUPS, STAGES, BLOCKS and CLUSTER"
#endif
#if defined(DTYPE_E4M3) + defined(DTYPE_S8) != 1
#error "wgmma_bytes needs one of -D DTYPE_E4M3 and DTYPE_S8"
#endif
#ifndef BAND_ROWS
#define BAND_ROWS 8
#endif

#define TILE_K 128  // a row of a box, 128 bytes
#define THREADS (GROUPS * 128 + 128)  // the consumer warpgroups, and one for the producer warp

#if defined(DTYPE_S8)
using Sum = int;
#else
using Sum = float;
#endif

#include <cuda_bf16.h>

#include "cluster_producer.cuh"
#include "wgmma.cuh"

#if defined(OUTPUT_BF16)
using Output = __nv_bfloat16;
#else
using Output = Sum;
#endif

#include "wgmma_epilogue.cuh"

static_assert(STAGES >= 2, "STAGES: one that is multiplied, at least one in flight");
static_assert(TILE_M % (64 * CONSUMERS) == 0 && TILE_M <= 256, "TILE_M: 64 rows for each group, at most one box");
static_assert(TILE_N == 64 || TILE_N == 128 || TILE_N == 176 || TILE_N == 192 || TILE_N == 256,
              "TILE_N: 64, 128, 176, 192 or 256");
static_assert(M_BLOCKS * TILE_N / 2 <= MOST_SUMS, "tile: more sums than registers");

using Accumulators = Sum[TILE_N / 2];

extern "C" __global__ void CLUSTER_DIMS __launch_bounds__(THREADS, 1)
gemm_wgmma_bytes(const __grid_constant__ CUtensorMap mapA, const __grid_constant__ CUtensorMap mapB, int M, int N, int K,
                 Sum alpha, Sum beta, Output* __restrict__ C, int ldc)
{
    extern __shared__ __align__(1024) unsigned char tiles[];  // STAGES times A and B; mbarriers; sums
    const unsigned shared = static_cast<unsigned>(__cvta_generic_to_shared(tiles));
    const unsigned full = shared + STAGES * STAGE_BYTES, empty = full + STAGES * 8;
    const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);  // the same in all lanes, as ptxas now knows
    const int group = warp / 4, rank = rank_in_cluster(), k_tiles = (K - 1) / TILE_K + 1;
    const TileScheduler scheduler = {(M - 1) / (TILE_M * CLUSTER) + 1, (N - 1) / TILE_N + 1};
    PipelineState pipe = {0, 0};

    if (threadIdx.x == 0) init_pipeline(full, empty, CONSUMERS * CLUSTER);
    if (threadIdx.x == GROUPS * 128) prefetch_tensormap(&mapA), prefetch_tensormap(&mapB);
    sync_before();

    if (group == GROUPS) {
        if (GROUPS == 2) setmaxnreg_dec<40>();  // what 128 threads give, 256 take
        if (warp == GROUPS * 4 && elect_one_sync())
            produce(shared, full, empty, &mapA, &mapB, scheduler, k_tiles, rank, pipe);
        return;
    }
    if (GROUPS == 2) setmaxnreg_inc<232>();

    // Descriptors count in 16 bytes: a stage, or a step along K, further on is a sum away.
    const SmemDesc a = make_smem_desc(shared + M_BLOCK(group) * 64 * 128, 0, 1024), b = make_smem_desc(shared + A_BYTES, 0, 1024);
    const int first = blockIdx.x / CLUSTER, clusters = BLOCKS / CLUSTER;
    if (PINGPONG && group == 1) advance_by(pipe, k_tiles);
    for (int index = first + PINGPONG * group * clusters; index < scheduler.tiles(); index += (1 + PINGPONG) * clusters) {
        if (PINGPONG && index != first) wait_for_turn(group);
        Accumulators accum[M_BLOCKS];
        int prev_stage = 0;  // the stage that running wgmma read
        auto release_stage = [&](int stage) { release_stage_to_all(empty + stage * 8); };
        for (int k = 0; k < k_tiles; ++k, advance(pipe)) {  // lesson: begin
            const SmemDesc stage = pipe.stage * (STAGE_BYTES / 16);
            mbarrier_wait_parity(full + pipe.stage * 8, pipe.phase);
            warpgroup_arrive();
#pragma unroll
            for (int step = 0; step < TILE_K / 32; ++step)
#pragma unroll
                for (int m = 0; m < M_BLOCKS; ++m)
                    wgmma<TILE_N>(accum[m], a + stage + m * 64 * 8 + step * 2, b + stage + step * 2, k > 0 || step > 0);
            warpgroup_commit_batch();
            warpgroup_wait<1>();  // those before these
            if (k > 0) release_stage(prev_stage);
            prev_stage = pipe.stage;  // lesson: end
        }
        if (PINGPONG && index + clusters < scheduler.tiles()) give_turn(1 - group);
        warpgroup_wait<0>();
        release_stage(prev_stage);
        if (PINGPONG) advance_by(pipe, k_tiles);  // past those of the other group

        const Tile tile = tile_of(scheduler, index, rank);
        Output* const staging =
            reinterpret_cast<Output*>(tiles + STAGES * (STAGE_BYTES + 16)) + warp * 16 * STAGING_STRIDE;
#pragma unroll
        for (int m = 0; m < M_BLOCKS; ++m) {
            const int row = tile.row + (M_BLOCK(group) + m) * 64 + warp % 4 * 16;
            if (beta == Sum(0)) epilogue<false>(accum[m], M, N, alpha, beta, C, ldc, staging, row, tile.column);
            else epilogue<true>(accum[m], M, N, alpha, beta, C, ldc, staging, row, tile.column);
        }
    }
    sync_after();
}
