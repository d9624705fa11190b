// pack: operands whose rows TMA cannot take, copied once to where tensor cores are fed from.
//
// The idea    A tensor map needs rows that begin at multiples of 16 bytes, and A of 4095 columns has none. Copying A
//             and B takes as long as moving their bytes twice, multiplying 4095³ five times as long as that. So all
//             warps first copy A and B to the workspace, element by element, and then multiply as in wgmma.
// Layout      As in a BLAS for CPUs, a packed operand is a sequence of tiles in the order of their use, each in one
//             piece: swizzled as tensor cores want it, zero past the edges. A bulk copy moves it, without a tensor map.
//             In TF32, which wgmma does not transpose, B is transposed here, and both are rounded.
// One launch  Boxes are handed out by a counter. A block that gets none waits until all are packed: they were taken by
//             blocks that run, so none waits for one that cannot start. Bulk copies read what plain stores wrote
//             after a fence.proxy.async.
// Edges       What is left of C at an edge is little: 4097 is a column more than 16 tiles. Such tiles come last, and
//             neither rows nor columns that are not there are multiplied, but to whole wgmma.
// WORKSPACE   Counters, zero at every launch and reset for the next; then the tiles of A, then those of B.
// Turns       With PINGPONG each of two warpgroups computes tiles of its own: one multiplies while the other stores.
// C           Its rows are unaligned, too: a warp stores 32 neighbouring elements at once.
// The limit   The memory, while nothing is multiplied; then as wgmma.
// Next        wgmma_split_k, for a C of few tiles.

#if !defined(TILE_M) || !defined(TILE_N) || !defined(GROUPS) || !defined(STAGES) || !defined(BLOCKS)
#error "pack needs -D TILE_M, TILE_N, GROUPS, STAGES and BLOCKS"
#endif
#if defined(DTYPE_F16) + defined(DTYPE_BF16) + defined(DTYPE_TF32) != 1
#error "pack needs one of -D DTYPE_F16, DTYPE_BF16 and DTYPE_TF32"
#endif
#ifndef BAND_ROWS
#define BAND_ROWS 8
#endif

#if defined(DTYPE_TF32)
#define TILE_K 32  // a row of a box, 128 bytes
#else
#define TILE_K 64
#endif
#define PANEL TILE_K                     // columns of B in a row of a box, if it is not transposed
#define B_BYTES (TILE_N * 128)
#define THREADS (GROUPS * 128 + 128)     // the consumer warpgroups, and one for the producer warp
#define GROUP_ROWS (M_BLOCKS * 64)
#define NARROW 64                        // columns of a tile that is no wider, which are then multiplied alone
#define WGMMA_TRANSPOSES ", 0, 1"        // b
#define STAGING_COLUMNS 32               // of C, that a warp stages in shared memory at once
#define STAGING_STRIDE (STAGING_COLUMNS + 8)  // spreads the rows of a fragment over the banks

#include "pipeline.cuh"
#include "tile_scheduler.cuh"
#include "wgmma.cuh"

// Makes what this thread wrote visible to bulk copies, which read memory by another proxy.
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async;" ::: "memory"); }

// Adds to a counter, after what the threads before it wrote.
__device__ __forceinline__ void red_release(unsigned* counter, unsigned more)
{
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(__cvta_generic_to_global(counter)), "r"(more) : "memory");
}

#include "packing.cuh"

static_assert(STAGES >= 2, "STAGES: one that is multiplied, at least one in flight");
static_assert(TILE_M % (64 * CONSUMERS) == 0, "TILE_M: 64 rows for each group");
static_assert(TILE_N == 64 || TILE_N == 128 || TILE_N == 256, "TILE_N: 64, 128 or 256");
static_assert(M_BLOCKS * TILE_N <= 256, "tile: at most 128 sums per thread");
static_assert(THREADS / 32 * BOX_BYTES <= STAGES * STAGE_BYTES, "STAGES: room for a box of each warp");

// A number of columns that is known at compile time, as a value.
template <int COUNT>
struct Columns {
    __device__ constexpr operator int() const { return COUNT; }
};

using Accumulators = float[TILE_N / 2];

// Copies bytes, a multiple of 16, into shared memory; `bar` counts them when they arrive.
__device__ __forceinline__ void bulk_load(unsigned smem, const unsigned char* from, int bytes, unsigned bar)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(smem),
                 "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(bar)
                 : "memory");
}

// Waits until all tickets are packed. The last block to come resets the counters.
__device__ __forceinline__ void wait_until_packed(Counters* counters, unsigned tickets)
{
    unsigned packed, before;
    do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                     : "=r"(packed) : "l"(__cvta_generic_to_global(&counters->packed)) : "memory");
    } while (packed != tickets);
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
                 : "=r"(before) : "l"(__cvta_generic_to_global(&counters->finished)) : "memory");
    if (before == gridDim.x - 1) *counters = {0, 0, 0};
}

// How many of so many rows of A or columns of B are multiplied, and so packed: all of them and what completes the last
// tile, or its part.
__device__ __forceinline__ int rows_in_groups(int rows) { return (rows - 1) / GROUP_ROWS * GROUP_ROWS + GROUP_ROWS; }
__device__ __forceinline__ int columns_in_tiles(int columns)
{
    const int last = (columns - 1) % TILE_N + 1;
    return columns - last + (last <= NARROW ? NARROW : TILE_N);
}

// A warpgroup has read a stage.
__device__ __forceinline__ void release_stage(unsigned empty, int stage)
{
    if (threadIdx.x % 128 == 0) mbarrier_arrive(empty + stage * 8);
}

// What the producer's one thread does: for each tile of its block, k_tiles stages of A and B.
__device__ __forceinline__ void bulk_producer(unsigned shared, unsigned full, unsigned empty,
                                              const unsigned char* a_tiles, const unsigned char* b_tiles,
                                              const EdgesLast& scheduler, int M, int N, int k_tiles, PipelineState& pipe)
{
    for (int index = blockIdx.x; index < scheduler.tiles(); index += BLOCKS) {
        const Tile tile = scheduler.tile(index);
        const int a_bytes = min(rows_in_groups(M - tile.row), TILE_M) * 128;
        const int b_bytes = (N - tile.column <= NARROW ? NARROW : TILE_N) * 128;
        const unsigned char* a = a_tiles + (size_t)(tile.row / TILE_M) * k_tiles * A_BYTES;
        const unsigned char* b = b_tiles + (size_t)(tile.column / TILE_N) * k_tiles * B_BYTES;
        for (int k = 0; k < k_tiles; ++k, a += A_BYTES, b += B_BYTES, advance(pipe)) {
            const unsigned to = shared + pipe.stage * STAGE_BYTES, bar = full + pipe.stage * 8;
            mbarrier_wait_parity(empty + pipe.stage * 8, pipe.phase ^ 1);
            mbarrier_arrive_expect_tx(bar, a_bytes + b_bytes);
            bulk_load(to, a, a_bytes, bar);
            bulk_load(to + A_BYTES, b, b_bytes, bar);
        }
    }
}

// What a warpgroup does with the k_tiles stages of a tile, before the other's turn if it takes the `next` one.
template <int COLUMNS>
__device__ __forceinline__ void multiply(Accumulators (&accum)[M_BLOCKS], unsigned shared, unsigned full, unsigned empty,
                                         int group, int k_tiles, PipelineState& pipe, bool next)
{
    // Descriptors count in 16 bytes: a stage, or a step along K, further on is a sum away. B is in rows along K, or in
    // panels of rows along N.
    const SmemDesc a = make_smem_desc(shared + M_BLOCK(group) * 64 * 128, 0, 1024);
    const SmemDesc b = make_smem_desc(shared + A_BYTES, TURN_B ? 0 : PANEL_BYTES, 1024);
    int prev_stage = 0;  // the stage that running wgmma read
    for (int k = 0; k < k_tiles; ++k, advance(pipe)) {
        const SmemDesc stage = pipe.stage * (STAGE_BYTES / 16);
        mbarrier_wait_parity(full + pipe.stage * 8, pipe.phase);
        warpgroup_arrive();
#pragma unroll
        for (int step = 0; step < TILE_K / MMA_K; ++step)
#pragma unroll
            for (int m = 0; m < M_BLOCKS; ++m)
                wgmma<COLUMNS>(accum[m], a + stage + m * 64 * 8 + step * 2, b + stage + step * (TURN_B ? 2 : 16 * 8),
                               k > 0 || step > 0);
        warpgroup_commit_batch();
        warpgroup_wait<1>();  // those before these
        if (k > 0) release_stage(empty, prev_stage);
        prev_stage = pipe.stage;
    }
    if (PINGPONG && next) give_turn(1 - group);
    warpgroup_wait<0>();
    release_stage(empty, prev_stage);
    if (PINGPONG) advance_by(pipe, k_tiles);  // past those of the other group
}

// What it does with them where it has no row of C: no wgmma keeps its warps in step, and one that falls behind by a
// phase of `full` waits for ever.
__device__ __forceinline__ void pass_over(unsigned full, unsigned empty, int group, int k_tiles, PipelineState& pipe)
{
    for (int k = 0; k < k_tiles; ++k, advance(pipe)) {
        mbarrier_wait_parity(full + pipe.stage * 8, pipe.phase);
        warpgroup_sync(group);
        release_stage(empty, pipe.stage);
    }
}

// C = alpha · accum + beta · C for a warp's 16 rows, staged in its own part of shared memory: a lane then has the same
// column of all rows, and neighbouring lanes neighbouring columns.
template <int COLUMNS>
__device__ __forceinline__ void epilogue(const Accumulators& accum, int M, int N, float alpha, float beta, float* C,
                                         int ldc, float* staging, int row0, int col0)
{
    const unsigned lane = threadIdx.x % 32;
    const bool whole = beta == 0.0f && row0 + 16 <= M && col0 + COLUMNS <= N;
    float* c = C + (size_t)row0 * ldc + col0 + lane;
#pragma unroll
    for (int n_block = 0; n_block < COLUMNS / STAGING_COLUMNS; ++n_block, c += STAGING_COLUMNS) {
        // A lane has columns 2i and 2i + 1 of rows lane / 4 and lane / 4 + 8 of every eight columns.
#pragma unroll
        for (int n = 0; n < STAGING_COLUMNS / 8; ++n)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float* two = accum + (n_block * STAGING_COLUMNS / 8 + n) * 4 + half * 2;
                *reinterpret_cast<float2*>(staging + (lane / 4 + half * 8) * STAGING_STRIDE + n * 8 + lane % 4 * 2) =
                    make_float2(alpha * two[0], alpha * two[1]);
            }
        __syncwarp();
        const float* from = staging + lane;
        if (whole) {
#pragma unroll
            for (int i = 0; i < 16; ++i)
                c[(size_t)i * ldc] = from[i * STAGING_STRIDE];
        } else if (col0 + n_block * STAGING_COLUMNS + (int)lane < N) {
#pragma unroll 1
            for (int i = 0; i < min(M - row0, 16); ++i) {
                float* const to = c + (size_t)i * ldc;
                *to = beta == 0.0f ? from[i * STAGING_STRIDE] : from[i * STAGING_STRIDE] + beta * *to;
            }
        }
        __syncwarp();  // the next columns overwrite these
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
gemm_pack(int M, int N, int K, float alpha, const Element* __restrict__ A, int lda, const Element* __restrict__ B, int ldb,
          float beta, float* __restrict__ C, int ldc, unsigned char* workspace)
{
    extern __shared__ __align__(1024) unsigned char tiles[];  // STAGES times A and B; mbarriers; sums
    const unsigned shared = static_cast<unsigned>(__cvta_generic_to_shared(tiles));
    const unsigned full = shared + STAGES * STAGE_BYTES, empty = full + STAGES * 8;
    const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);  // the same in all lanes, as ptxas now knows
    const int group = warp / 4, k_tiles = (K - 1) / TILE_K + 1;
    const EdgesLast scheduler(M, N);
    PipelineState pipe = {0, 0};

    Counters* const counters = reinterpret_cast<Counters*>(workspace);
    unsigned char* const a_tiles = workspace + COUNTER_BYTES;
    unsigned char* const b_tiles = a_tiles + (size_t)scheduler.all.rows * k_tiles * A_BYTES;
    const Boxes a = {A, M, K, lda, rows_in_groups(M) / BOX_ROWS, k_tiles};
    const Boxes b = {B, K, N, ldb, k_tiles * (TILE_K / BOX_ROWS), columns_in_tiles(N) / BOX_COLUMNS};

    if (threadIdx.x == 0) init_pipeline(full, empty);
    pack(a, b, k_tiles, a_tiles, b_tiles, tiles + warp * BOX_BYTES, counters);
    __syncthreads();

    if (group == GROUPS) {
        if (warp == GROUPS * 4 && elect_one_sync()) {
            wait_until_packed(counters, a.tickets() + b.tickets());
            bulk_producer(shared, full, empty, a_tiles, b_tiles, scheduler, M, N, k_tiles, pipe);
        }
        return;  // no `else`, as in wgmma: ptxas would take `pipe` for divergent below
    }

    const int first = blockIdx.x;
    if (PINGPONG && group == 1) advance_by(pipe, k_tiles);
    for (int index = first + PINGPONG * group * BLOCKS; index < scheduler.tiles(); index += (1 + PINGPONG) * BLOCKS) {
        if (PINGPONG && index != first) wait_for_turn(group);
        const Tile tile = scheduler.tile(index);
        const int row0 = tile.row + M_BLOCK(group) * 64;
        if (row0 >= M) {
            pass_over(full, empty, group, k_tiles, pipe);
            continue;
        }
        float* const staging =
            reinterpret_cast<float*>(tiles + STAGES * (STAGE_BYTES + 16)) + warp * 16 * STAGING_STRIDE;
        auto compute = [&](auto columns) {
            Accumulators accum[M_BLOCKS];
            multiply<columns>(accum, shared, full, empty, group, k_tiles, pipe, index + BLOCKS < scheduler.tiles());
#pragma unroll
            for (int m = 0; m < M_BLOCKS; ++m)
                epilogue<columns>(accum[m], M, N, alpha, beta, C, ldc, staging, row0 + m * 64 + warp % 4 * 16,
                                  tile.column);
        };
        if (N - tile.column > NARROW)
            compute(Columns<TILE_N>{});
        else
            compute(Columns<NARROW>{});
    }
}
