// wgmma_grouped: one product for each group of rows of A, by a matrix B of its own: the experts of a mixture.
//
// The idea    A loop of products launches one kernel for each group, and a group of few rows leaves most SMs idle. Here the
//             tiles of all groups are one list. They take unequal times, so each persistent cluster takes its next ones
//             from a counter. A warp of its own, the scheduler, finds them while those before are loaded: its lanes
//             count the tiles of 32 groups, and a scan says where each begins.
// Clusters    Two blocks compute tiles beside one another: the same rows of A, of which each copies half to both.
// Layout      A's rows lie in the order of their groups, offsets[g] the first of group g. One tensor map covers the B of
//             all groups, K along its rows. A tile may read rows of A and columns of B that are not its group's; it
//             stores none of them.
// Few rows    The product is transposed: 64 columns of B are the rows of a wgmma, and the rows of A that a tile has are its
//             columns, of which it takes any multiple of 8. A group is cut into tiles of equal height, in steps of 16
//             rows, and each height has a loop of its own: an instruction names all of its sums.
//             Two warpgroups compute tiles by turns: one multiplies while the other stores its sums.
// WORKSPACE   The counter, zero at every launch. As many numbers are taken as there are tiles; the last resets it.
// The limit   DRAM, where groups have few rows: B is read once for each.
// Next        Sums of FP8 that are promoted, with scales.

#if !defined(TILE_M) || !defined(TILE_N) || !defined(GROUPS) || !defined(STAGES) || !defined(BLOCKS) || !defined(PINGPONG)
#error "wgmma_grouped needs -D TILE_M, TILE_N, GROUPS, STAGES, BLOCKS and PINGPONG"
#endif
#if defined(DTYPE_E4M3) + defined(DTYPE_BF16) != 1
#error "wgmma_grouped needs one of -D DTYPE_E4M3 and DTYPE_BF16"
#endif

#include <cuda_bf16.h>

#if defined(DTYPE_E4M3)
#define TILE_K 128  // a row of a box, 128 bytes
#else
#define TILE_K 64
#endif
#define WGMMA_TRANSPOSES ", 0, 0"       // none: both operands are along K
#define THREADS (GROUPS * 128 + 128)     // the consumer warpgroups, and one for the producer's and the scheduler's warp
#define COLUMN_BLOCKS (TILE_N / 64)
#define BOX_ROWS 16                      // of A, that one copy brings; by so many the tiles of two loops differ
#define CLUSTER 2                        // blocks, and columns of tiles

#include "grouped_scheduler.cuh"
#include "pipeline.cuh"
#include "vectors.cuh"
#include "wgmma.cuh"

using Sum = float;
#if defined(OUTPUT_BF16)
using Output = __nv_bfloat16;
#else
using Output = float;
#endif

static_assert(STAGES >= 2, "STAGES: one that is multiplied, at least one in flight");
static_assert(TILE_M % BOX_ROWS == 0 && TILE_M <= 192, "TILE_M: whole boxes, at most 192 rows");
static_assert(BLOCKS % CLUSTER == 0, "BLOCKS: whole clusters");
static_assert(PINGPONG == 1, "PINGPONG: 1, two warpgroups by turns");
static_assert(TILE_N == 64 || TILE_N == 128, "TILE_N: 64 or 128");

using Accumulators = Sum[TILE_M / 2];
constexpr int ASK_EARLY = 4;  // stages before the end of a tile: the next is found by then

// Calls `body` with the number of rows, a constant in steps of BOX_ROWS.
template <int VALUE>
struct Constant {
    static constexpr int value = VALUE;
};
template <int ROWS, typename Body>
__device__ __forceinline__ void with_rows(int rows, const Body& body)
{
    if constexpr (ROWS > BOX_ROWS)
        if (rows <= ROWS - BOX_ROWS) return with_rows<ROWS - BOX_ROWS>(rows, body);
    body(Constant<ROWS>());
}

// Stores the rows of a tile, 64 columns of a warpgroup, which stages STAGED rows at once in shared memory.
constexpr int WIDTH = 16 / sizeof(Output), LANES = 64 / WIDTH;              // of a vector, and of a row
constexpr int STAGED = 128 / sizeof(Output), STAGING_STRIDE = 64 + WIDTH;  // spreads the rows over the banks

// Sixteen rows of a warp's 16 columns. A lane has rows 2i and 2i + 1 of columns lane / 4 and lane / 4 + 8 of every eight rows.
__device__ __forceinline__ void stage(const Sum* sums, Output* staging)
{
    const int lane = threadIdx.x % 32;
#if defined(OUTPUT_BF16)
    unsigned pairs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(sums[2 * i], sums[2 * i + 1]);
        pairs[i] = reinterpret_cast<const unsigned&>(pair);
    }
    const Output* to = staging + (lane / 16 * 8 + lane % 8) * STAGING_STRIDE + lane / 8 % 2 * 8;
    stmatrix_x4_trans(static_cast<unsigned>(__cvta_generic_to_shared(to)), pairs);
#else
#pragma unroll
    for (int i = 0; i < 8; ++i)
        staging[(i / 4 * 8 + lane % 4 * 2 + i % 2) * STAGING_STRIDE + i / 2 % 2 * 8 + lane / 4] = sums[i];
#endif
}

// FP8 gains where C is the first to leave L2, BF16 loses.
__device__ __forceinline__ void store(uint4* c, const uint4& values)
{
#if defined(DTYPE_E4M3)
    __stcs(c, values);
#else
    *c = values;
#endif
}

__device__ __forceinline__ void epilogue(const Accumulators& accum, const GroupedTile& tile, int N, Output* C,
                                         Output* staging, int column0, int barrier)
{
    const int thread = threadIdx.x % 128, column = column0 + thread % LANES * WIDTH;
    const bool aligned = rows_aligned(C, N);
#pragma unroll
    for (int begin = 0; begin < TILE_M; begin += STAGED) {
        if (begin >= tile.rows) break;
        const int end = begin + STAGED < TILE_M ? begin + STAGED : TILE_M;
#pragma unroll
        for (int row = begin; row < end; row += 16)
            stage(accum + row / 2, staging + (row - begin) * STAGING_STRIDE + thread / 32 * 16);
        warpgroup_sync(barrier);
        for (int row = begin + thread / LANES; row < min(end, tile.rows); row += 128 / LANES) {
            const Output* from = staging + (row - begin) * STAGING_STRIDE + thread % LANES * WIDTH;
            Output* c = C + (size_t)(tile.row + row) * N + column;
            if (aligned && column < N) store(reinterpret_cast<uint4*>(c), *reinterpret_cast<const uint4*>(from));
            else
#pragma unroll
                for (int j = 0; j < WIDTH; ++j)
                    if (column + j < N) c[j] = from[j];
        }
        warpgroup_sync(barrier);  // the next rows overwrite these
    }
}

constexpr int SLOTS_AT = STAGES * (STAGE_BYTES + 16) + GROUPS * 16;  // in shared memory, after all mbarriers
constexpr int SUMS_AT = SLOTS_AT + GROUPS * sizeof(GroupedTile);

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)
gemm_wgmma_grouped(const __grid_constant__ CUtensorMap mapA, const __grid_constant__ CUtensorMap mapB,
                   const int* __restrict__ offsets, int groups, int N, int K, Output* __restrict__ C, unsigned* workspace)
{
    extern __shared__ __align__(1024) unsigned char smem[];  // STAGES times A and B; mbarriers; slots; sums
    const unsigned shared = static_cast<unsigned>(__cvta_generic_to_shared(smem));
    const unsigned full = shared + STAGES * STAGE_BYTES, empty = full + STAGES * 8, told = empty + STAGES * 8;
    const TileSlots slots = {reinterpret_cast<GroupedTile*>(smem + SLOTS_AT), told, told + GROUPS * 8};
    const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);  // the same in all lanes, as ptxas now knows
    const int warpgroup = warp / 4, rank = cluster_rank(), k_tiles = (K - 1) / TILE_K + 1;
    PipelineState pipe = {0, 0};

    if (threadIdx.x == 0) slots.init(), init_pipeline(full, empty, CLUSTER);
    if (threadIdx.x == GROUPS * 128) prefetch_tensormap(&mapA), prefetch_tensormap(&mapB);
    cluster_sync();

    if (warpgroup == GROUPS) {
        setmaxnreg_dec<40>();  // what 128 threads give, 256 take
        if (warp == GROUPS * 4 + 1 && rank == 0)
            return schedule({offsets, groups, (N - 1) / (CLUSTER * TILE_N) + 1, 0, 0}, slots, workspace);
        if (warp != GROUPS * 4 || !elect_one_sync()) return;
        for (int turn = 0;; ++turn) {
            const GroupedTile tile = slots.hear(turn);
            if (tile.rows == 0) return slots.ask(turn + 1);
            slots.expect(turn + GROUPS);
            const int boxes = (tile.rows + BOX_ROWS - 1) / BOX_ROWS;
            for (int k = 0; k < k_tiles; ++k, advance(pipe)) {
                const unsigned to = shared + pipe.stage * STAGE_BYTES, bar = full + pipe.stage * 8;
                if (k == max(k_tiles - ASK_EARLY, 0)) slots.ask(turn + 1);
                mbarrier_wait_parity(empty + pipe.stage * 8, pipe.phase ^ 1);
                mbarrier_arrive_expect_tx(bar, boxes * BOX_ROWS * 128 + B_BYTES);
                tma_load_2d(to + A_BYTES, &mapB, k * TILE_K, tile.group * N + tile.column, bar);
                for (int box = rank; box < boxes; box += CLUSTER)
                    tma_load_2d_multicast(to + box * BOX_ROWS * 128, &mapA, k * TILE_K, tile.row + box * BOX_ROWS, bar,
                                          (1 << CLUSTER) - 1);
            }
        }
    }
    setmaxnreg_inc<232>();

    // Descriptors count in 16 bytes: a stage, or a step along K, further on is a sum away.
    const SmemDesc a = make_smem_desc(shared, 0, 1024), b = make_smem_desc(shared + A_BYTES, 0, 1024);
    Output* const staging = reinterpret_cast<Output*>(smem + SUMS_AT) + warpgroup * STAGED * STAGING_STRIDE;
    auto release_stage = [&](int stage) {
        const unsigned thread = threadIdx.x % 128;  // to all blocks, which copy to it
        if (thread < CLUSTER) mbarrier_arrive_cluster(map_shared_rank(empty + stage * 8, thread));
    };
    if (warpgroup == 1) advance_by(pipe, k_tiles);
    for (int turn = warpgroup;; turn += GROUPS) {
        const GroupedTile tile = slots.hear(turn);
        slots.heard(turn);
        if (tile.rows > 0 ? turn > 0 : tile.group) wait_for_turn(warpgroup);
        if (tile.rows == 0) break;
        Accumulators accum[COLUMN_BLOCKS];
        int prev_stage = 0;  // the stage that running wgmma read
        with_rows<TILE_M>(tile.rows, [&](auto rows) {
            constexpr int ROWS = decltype(rows)::value;
            for (int k = 0; k < k_tiles; ++k, advance(pipe)) {  // lesson: begin
                const SmemDesc stage = pipe.stage * (STAGE_BYTES / 16);
                mbarrier_wait_parity(full + pipe.stage * 8, pipe.phase);
                warpgroup_arrive();
#pragma unroll
                for (int step = 0; step < TILE_K / MMA_K; ++step)
#pragma unroll
                    for (int n = 0; n < COLUMN_BLOCKS; ++n)
                        wgmma<ROWS>(accum[n], b + stage + n * 64 * 8 + step * 2, a + stage + step * 2, k > 0 || step > 0);
                warpgroup_commit_batch();
                warpgroup_wait<1>();  // those before these
                if (k > 0) release_stage(prev_stage);
                prev_stage = pipe.stage;  // lesson: end
            }
            give_turn(1 - warpgroup);
            warpgroup_wait<0>();
        });
        release_stage(prev_stage);
        advance_by(pipe, k_tiles);  // past those of the other group
#pragma unroll
        for (int n = 0; n < COLUMN_BLOCKS; ++n)
            epilogue(accum[n], tile, N, C, staging, tile.column + n * 64, GROUPS + warpgroup);  // not those of turns
    }
    cluster_sync();  // no block ends while the other releases a stage of it, or asks it for a tile
}
