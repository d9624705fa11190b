// wgmma_grouped: one product for each group of rows of A, by a matrix B of its own: the experts of a mixture.
//
// The idea    A loop of products launches one kernel for each group, and a group of few rows leaves most SMs idle. Here the
//             tiles of all groups are one list, which persistent blocks share. A warp finds the group of the next tile
//             from where it was: its lanes count the tiles of 32 groups, and a scan says where each begins.
// Layout      A's rows lie in the order of their groups, offsets[g] the first of group g. One tensor map covers the B of
//             all groups, K along its rows. A tile may read rows of A and columns of B that are not its group's; it
//             stores none of them.
// Few rows    The product is transposed: 64 columns of B are the rows of a wgmma, and the rows of A that a tile has are its
//             columns, of which it takes any multiple of 8. A group is cut into tiles of equal height, in steps of 16
//             rows, and each height has a loop of its own: an instruction names all of its sums.
//             Two warpgroups compute tiles by turns: one multiplies while the other stores its sums and finds a tile.
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
#define THREADS (GROUPS * 128 + 128)     // the consumer warpgroups, and one for the producer warp
#define COLUMN_BLOCKS (TILE_N / 64)
#define BOX_ROWS 16                      // of A, that one copy brings; by so many the tiles of two loops differ

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
static_assert(PINGPONG == 1, "PINGPONG: 1, two warpgroups by turns");
static_assert(TILE_N == 64 || TILE_N == 128, "TILE_N: 64 or 128");

using Accumulators = Sum[TILE_M / 2];

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

// The first row and column of a tile, how many rows it has, the group.
struct GroupedTile {
    int row, column, rows, group;
};

// The tiles of all groups as one list: of a group, down the columns of tiles. A warp looks through 32 groups at once.
struct GroupedScheduler {
    const int* offsets;   // of groups + 1
    int groups, columns;  // of tiles
    int chunk, before;    // the first of the 32 groups last looked at, and how many tiles come before theirs

    // How many tiles of rows this lane's group of 32 has; its first row and its end.
    __device__ __forceinline__ int rows_of_tiles(int chunk, int& first, int& end) const
    {
        const int group = chunk + threadIdx.x % 32;
        first = group < groups ? offsets[group] : 0, end = group < groups ? offsets[group + 1] : 0;
        return (end - first + TILE_M - 1) / TILE_M;
    }

    __device__ __forceinline__ int tiles() const
    {
        int first, end, own = 0;
        for (int i = 0; i < groups; i += 32) own += rows_of_tiles(i, first, end);
        return __reduce_add_sync(0xffffffff, own) * columns;
    }

    // The tile of this index, which is not less than that of the last call.
    __device__ __forceinline__ GroupedTile tile(int index)
    {
        const int lane = threadIdx.x % 32;
        for (; chunk < groups; chunk += 32) {
            int first, end;
            const int down = rows_of_tiles(chunk, first, end), own = down * columns;
            int up_to = own;  // of this lane's group and of those of lower lanes
#pragma unroll
            for (int distance = 1; distance < 32; distance *= 2) {
                const int other = __shfl_up_sync(0xffffffff, up_to, distance);
                if (lane >= distance) up_to += other;
            }
            const unsigned after = __ballot_sync(0xffffffff, index < before + up_to);
            if (after != 0) {
                auto of = [&](int value) { return __shfl_sync(0xffffffff, value, __ffs(after) - 1); };
                const int in_group = index - before - of(up_to - own), tiles = of(down), rows = of(end - first);
                const int equal = (rows + tiles - 1) / tiles, height = (equal + BOX_ROWS - 1) / BOX_ROWS * BOX_ROWS;
                const int row = in_group % tiles * height;
                return {of(first) + row, in_group / tiles * TILE_N, min(height, rows - row), of(chunk + lane)};
            }
            before += __shfl_sync(0xffffffff, up_to, 31);
        }
        return {};
    }
};

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
            if (aligned && column < N) *reinterpret_cast<uint4*>(c) = *reinterpret_cast<const uint4*>(from);
            else
#pragma unroll
                for (int j = 0; j < WIDTH; ++j)
                    if (column + j < N) c[j] = from[j];
        }
        warpgroup_sync(barrier);  // the next rows overwrite these
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
gemm_wgmma_grouped(const __grid_constant__ CUtensorMap mapA, const __grid_constant__ CUtensorMap mapB,
                   const int* __restrict__ offsets, int groups, int N, int K, Output* __restrict__ C)
{
    extern __shared__ __align__(1024) unsigned char smem[];  // STAGES times A and B; mbarriers; sums
    const unsigned shared = static_cast<unsigned>(__cvta_generic_to_shared(smem));
    const unsigned full = shared + STAGES * STAGE_BYTES, empty = full + STAGES * 8;
    const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);  // the same in all lanes, as ptxas now knows
    const int warpgroup = warp / 4, k_tiles = (K - 1) / TILE_K + 1;
    GroupedScheduler scheduler = {offsets, groups, (N - 1) / TILE_N + 1, 0, 0};
    const int tiles = scheduler.tiles();
    PipelineState pipe = {0, 0};

    if (threadIdx.x == 0) init_pipeline(full, empty);
    if (threadIdx.x == GROUPS * 128) prefetch_tensormap(&mapA), prefetch_tensormap(&mapB);
    __syncthreads();

    if (warpgroup == GROUPS) {
        setmaxnreg_dec<40>();  // what 128 threads give, 256 take
        if (warp != GROUPS * 4) return;
        for (int index = blockIdx.x; index < tiles; index += BLOCKS) {
            const GroupedTile tile = scheduler.tile(index);
            if (!elect_one_sync()) continue;
            const int boxes = (tile.rows + BOX_ROWS - 1) / BOX_ROWS;
            for (int k = 0; k < k_tiles; ++k, advance(pipe)) {
                const unsigned to = shared + pipe.stage * STAGE_BYTES, bar = full + pipe.stage * 8;
                mbarrier_wait_parity(empty + pipe.stage * 8, pipe.phase ^ 1);
                mbarrier_arrive_expect_tx(bar, boxes * BOX_ROWS * 128 + B_BYTES);
                tma_load_2d(to + A_BYTES, &mapB, k * TILE_K, tile.group * N + tile.column, bar);
                for (int box = 0; box < boxes; ++box)
                    tma_load_2d(to + box * BOX_ROWS * 128, &mapA, k * TILE_K, tile.row + box * BOX_ROWS, bar);
            }
        }
        return;
    }
    setmaxnreg_inc<232>();

    // Descriptors count in 16 bytes: a stage, or a step along K, further on is a sum away.
    const SmemDesc a = make_smem_desc(shared, 0, 1024), b = make_smem_desc(shared + A_BYTES, 0, 1024);
    Output* const staging =
        reinterpret_cast<Output*>(smem + STAGES * (STAGE_BYTES + 16)) + warpgroup * STAGED * STAGING_STRIDE;
    auto release_stage = [&](int stage) {
        if (threadIdx.x % 128 == 0) mbarrier_arrive(empty + stage * 8);
    };
    if (warpgroup == 1) advance_by(pipe, k_tiles);
    for (int index = blockIdx.x + warpgroup * BLOCKS; index < tiles; index += GROUPS * BLOCKS) {
        const GroupedTile tile = scheduler.tile(index);
        if (index != blockIdx.x) wait_for_turn(warpgroup);
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
            if (index + BLOCKS < tiles) give_turn(1 - warpgroup);
            warpgroup_wait<0>();
        });
        release_stage(prev_stage);
        advance_by(pipe, k_tiles);  // past those of the other group
#pragma unroll
        for (int n = 0; n < COLUMN_BLOCKS; ++n)
            epilogue(accum[n], tile, N, C, staging, tile.column + n * 64, GROUPS + warpgroup);  // not those of turns
    }
}
