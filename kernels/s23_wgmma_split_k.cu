// wgmma_split_k: the K of a tile of C split over the blocks of a cluster, whose sums meet in distributed shared memory.
//
// The idea    A small C has fewer tiles than the GPU has SMs, and a skinny one is bound by how fast many SMs together
//             read the larger operand. Here the SPLIT blocks of a cluster take a part of K each, and their sums, in
//             shared memory, are added by all of them, each its own rows: no slab in global memory, no counter.
// Tiles       The transposed product: columns of B are the 64 rows of a wgmma, rows of A its 8 to 256 columns. So
//             the tile of a C of 8 rows has 8. 16 bits: wgmma transposes B. TF32: B from registers, as in wgmma_tf32.
// The limit   Large C: each tile begins with an empty pipeline. Skinny C: the memory.
// Next        Blackwell's tcgen05, whose sums are in memory of its own.

#if !defined(TILE_M) || !defined(TILE_N) || !defined(SPLIT) || !defined(STAGES)
#error "wgmma_split_k needs -D TILE_M, TILE_N, SPLIT and STAGES"
#endif
#if defined(DTYPE_F16) + defined(DTYPE_BF16) + defined(DTYPE_TF32) != 1
#error "wgmma_split_k needs one of -D DTYPE_F16, DTYPE_BF16 and DTYPE_TF32"
#endif

#if defined(DTYPE_TF32)
#define TILE_K 32  // a row of a box, 128 bytes
#else
#define TILE_K 64
#endif
#define PANEL TILE_K          // columns of B in a row of a box
#define GROUPS (TILE_N / 64)  // each multiplies 64 columns of B
#define THREADS (GROUPS * 128 + 128)
#define STEPS (TILE_K / MMA_K)
#define WGMMA_TRANSPOSES ", 1, 0"     // a, the columns of B
#define STAGING_STRIDE (TILE_N + 4)  // of the sums in shared memory, which spreads a fragment over the banks
#define STAGING_BYTES (TILE_M * STAGING_STRIDE * 4)
#define RING_BYTES (STAGES * STAGE_BYTES > STAGING_BYTES ? STAGES * STAGE_BYTES : STAGING_BYTES)

#include "cluster_ptx.cuh"
#include "pipeline.cuh"
#include "vectors.cuh"
#include "wgmma.cuh"

static_assert(STAGES >= 3, "STAGES: one that is multiplied, one that is loaded, at least one in flight");
static_assert(TILE_M >= 8 && TILE_M <= 256 && (TILE_M & (TILE_M - 1)) == 0, "TILE_M: a power of two from 8 to 256");
static_assert(TILE_N == 64 || TILE_N == 128 || TILE_N == 256, "TILE_N: 64, 128 or 256");
static_assert(TILE_M * GROUPS <= 512, "tile: registers for the sums of all groups");
static_assert(SPLIT == 1 || SPLIT == 2 || SPLIT == 4 || SPLIT == 8, "SPLIT: 1, 2, 4 or 8 blocks of a cluster");

using Accumulators = float[TILE_M / 2];

// The column of B that a lane's first sum is of, and how many columns on that of its third is.
#if defined(DTYPE_TF32)
#define COLUMN_STEP 1
#include "wgmma_tf32.cuh"
#else
#define COLUMN_STEP 8
__device__ __forceinline__ unsigned lane_column(int warp) { return warp * 16 + threadIdx.x % 32 / 4; }
#endif

// What a warpgroup does with `count` stages of its block.
__device__ __forceinline__ void multiply(Accumulators& accum, unsigned shared, unsigned full, unsigned empty, int warp,
                                         int count)
{
    // Descriptors count in 16 bytes: a stage, or a step along K, further on is a sum away.
    const SmemDesc a = make_smem_desc(shared, 0, 1024);
    PipelineState pipe = {0, 0};
    int prev_stage = 0;  // the stage that running wgmma read
    auto release_stage = [&](int stage) {
        if (threadIdx.x % 128 == 0) mbarrier_arrive(empty + stage * 8);
    };
#if defined(DTYPE_TF32)
    const LanePlaces places(lane_column(warp));
    Fragment fragments[2];
    auto load = [&](Fragment& b, int step) { places.load(b, shared + pipe.stage * STAGE_BYTES, step); };
    mbarrier_wait_parity(full, 0);
    load(fragments[0], 0);
    for (int k = 0; k < count; ++k) {
        const SmemDesc stage = pipe.stage * (STAGE_BYTES / 16);
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            warpgroup_arrive();
            wgmma<TILE_M>(accum, fragments[step % 2], a + stage + step * 2, k > 0 || step > 0);
            warpgroup_commit_batch();
            warpgroup_wait<1>();  // those before these: their registers are free
            if (step == 0 && k > 0) release_stage(prev_stage);
            if (step < STEPS - 1) {
                load(fragments[1 - step % 2], step + 1);
            } else {
                prev_stage = pipe.stage;
                advance(pipe);
                if (k + 1 < count) {
                    mbarrier_wait_parity(full + pipe.stage * 8, pipe.phase);
                    load(fragments[1 - step % 2], 0);
                }
            }
        }
    }
#else
    const SmemDesc b = make_smem_desc(shared + A_BYTES + warp / 4 * PANEL_BYTES, PANEL_BYTES, 1024);
    for (int k = 0; k < count; ++k, advance(pipe)) {
        const SmemDesc stage = pipe.stage * (STAGE_BYTES / 16);
        mbarrier_wait_parity(full + pipe.stage * 8, pipe.phase);
        warpgroup_arrive();
#pragma unroll
        for (int step = 0; step < STEPS; ++step)
            wgmma<TILE_M>(accum, b + stage + step * 16 * 8, a + stage + step * 2, k > 0 || step > 0);
        warpgroup_commit_batch();
        warpgroup_wait<1>();  // those before these
        if (k > 0) release_stage(prev_stage);
        prev_stage = pipe.stage;
    }
#endif
    warpgroup_wait<0>();
}

// The sums of a lane to shared memory, by rows of the tile of C.
__device__ __forceinline__ void stage_sums(float* staging, const Accumulators& accum, int warp)
{
    float* to = staging + threadIdx.x % 4 * 2 * STAGING_STRIDE + lane_column(warp);
#pragma unroll
    for (int j = 0; j < TILE_M / 8; ++j, to += 8 * STAGING_STRIDE)
#pragma unroll
        for (int odd = 0; odd < 2; ++odd)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                to[odd * STAGING_STRIDE + half * COLUMN_STEP] = accum[j * 4 + half * 2 + odd];
}

// C = alpha · (the sums of all blocks of the cluster, in their order) + beta · C, for this block's share of the rows.
__device__ __forceinline__ void add_sums(unsigned staging, int rank, int M, int N, float alpha, float beta, float* C,
                                         int ldc, int row0, int col0)
{
    constexpr int ROWS = (TILE_M - 1) / SPLIT + 1, FOURS = TILE_N / 4;
    const bool aligned = rows_aligned(C, ldc);
    for (int i = threadIdx.x; i < ROWS * FOURS; i += THREADS) {
        const int row = rank * ROWS + i / FOURS, col = i % FOURS * 4;  // lesson: begin
        if (row0 + row >= M || col0 + col >= N) continue;
        const unsigned from = staging + (row * STAGING_STRIDE + col) * 4;
        float4 sum[SPLIT];
#pragma unroll
        for (int s = 0; s < SPLIT; ++s)
            sum[s] = ld_cluster_v4(map_shared_rank(from, s));
#pragma unroll
        for (int s = 1; s < SPLIT; ++s)
            sum[0].x += sum[s].x, sum[0].y += sum[s].y, sum[0].z += sum[s].z, sum[0].w += sum[s].w;
        store4(C + (size_t)(row0 + row) * ldc + col0 + col, N - col0 - col, aligned, alpha, &sum[0].x, beta);  // lesson: end
    }
}

// All blocks that add up a tile: a barrier of the cluster takes longer than one of the block.
__device__ __forceinline__ void meet()
{
    if (SPLIT > 1)
        cluster_sync();
    else
        __syncthreads();
}

extern "C" __global__ void __cluster_dims__(1, 1, SPLIT) __launch_bounds__(THREADS)
gemm_wgmma_split_k(const __grid_constant__ CUtensorMap mapA, const __grid_constant__ CUtensorMap mapB, int M, int N,
                   int K, float alpha, float beta, float* __restrict__ C, int ldc)
{
    extern __shared__ __align__(1024) unsigned char tiles[];  // STAGES times A and panels of B, later sums; mbarriers
    const unsigned shared = static_cast<unsigned>(__cvta_generic_to_shared(tiles));
    const unsigned full = shared + RING_BYTES, empty = full + STAGES * 8;
    const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);  // the same in all lanes, as ptxas now knows
    const int row0 = blockIdx.y * TILE_M, col0 = blockIdx.x * TILE_N, rank = cluster_rank();

    // This block's part of K, in steps; of a short K perhaps none.
    const int k_tiles = (K - 1) / TILE_K + 1;
    const int first = k_tiles * rank / SPLIT, count = k_tiles * (rank + 1) / SPLIT - first;

    // One thread initialises the mbarriers and copies, so that the first stages are on their way before the block meets.
    const bool producer = warp == GROUPS * 4 && elect_one_sync();
    PipelineState copied = {0, 0};
    int k = first;
    auto copy_stage = [&] {
        const unsigned to = shared + copied.stage * STAGE_BYTES, bar = full + copied.stage * 8;
        mbarrier_arrive_expect_tx(bar, STAGE_BYTES);
        tma_load_2d(to, &mapA, k * TILE_K, row0, bar);
#pragma unroll
        for (int i = 0; i < TILE_N / PANEL; ++i)
            tma_load_2d(to + A_BYTES + i * PANEL_BYTES, &mapB, col0 + i * PANEL, k * TILE_K, bar);
        ++k, advance(copied);
    };
    if (producer) {
        prefetch_tensormap(&mapA), prefetch_tensormap(&mapB);
        init_pipeline(full, empty);
        while (k < first + min(count, STAGES))
            copy_stage();
    }
    __syncthreads();

    Accumulators accum = {};
    if (warp < GROUPS * 4) {
        if (count > 0) multiply(accum, shared, full, empty, warp, count);
    } else if (producer) {
        while (k < first + count) {
            mbarrier_wait_parity(empty + copied.stage * 8, copied.phase ^ 1);
            copy_stage();
        }
    }
    __syncthreads();  // all groups have read all stages, which sums now overwrite
    if (warp < GROUPS * 4) stage_sums(reinterpret_cast<float*>(tiles), accum, warp);
    meet();
    add_sums(shared, rank, M, N, alpha, beta, C, ldc, row0, col0);
    if (SPLIT > 1) meet();  // no block ends while another reads its sums
}
