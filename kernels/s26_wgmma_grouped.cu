// wgmma_grouped: one product for each group of rows of A, by a matrix B of its own: the experts of a mixture.
//
// The idea    A loop of products launches one kernel for each group, and a group of few rows leaves most SMs idle. Here the
//             tiles of all groups are one list, which persistent blocks share. A warp finds the group of the next tile
//             from where it was: its lanes count the tiles of 32 groups, and a scan says where each begins.
// Layout      A's rows lie in the order of their groups, offsets[g] the first of group g. One tensor map covers the B of
//             all groups, K along its rows. A tile may read rows of A and columns of B that are not its group's; it
//             stores none of them.
// Few rows    A warpgroup whose 64 rows all lie past the end of its group multiplies nothing: a tile that is half empty
//             takes half the time of the tensor cores, so a block takes two of them where others take one.
// The limit   Rows that a group lacks to fill its last tile.
// Next        Sums of FP8 that are promoted, with scales.

#if !defined(TILE_M) || !defined(TILE_N) || !defined(GROUPS) || !defined(STAGES) || !defined(BLOCKS)
#error "wgmma_grouped needs -D TILE_M, TILE_N, GROUPS, STAGES and BLOCKS"
#endif
#if defined(DTYPE_E4M3) + defined(DTYPE_BF16) != 1
#error "wgmma_grouped needs one of -D DTYPE_E4M3 and DTYPE_BF16"
#endif

#include <cuda_bf16.h>

#if defined(DTYPE_E4M3)
#define TILE_K 128  // a row of a box, 128 bytes
#define MMA_K 32
#define TYPES "k32.f32.e4m3.e4m3"
#define SCALE_AB ", 1, 1"
#else
#define TILE_K 64
#define MMA_K 16
#define TYPES "k16.f32.bf16.bf16"
#define SCALE_AB ", 1, 1, 0, 0"
#endif
#define PANEL TILE_K                     // as pipeline.cuh counts: B is rows of 128 bytes
#define THREADS (GROUPS * 128 + 128)     // the consumer warpgroups, and one for the producer warp
#define HALF (GROUPS == 2 ? TILE_M / 2 : 0)  // rows of a tile that leave a warpgroup nothing to do

#include "pipeline.cuh"
#include "wgmma_ptx.cuh"

using Sum = float;
#if defined(OUTPUT_BF16)
using Output = __nv_bfloat16;
#else
using Output = float;
#endif

#include "wgmma_epilogue.cuh"

static_assert(STAGES >= 2, "STAGES: one that is multiplied, at least one in flight");
static_assert(TILE_M % (64 * GROUPS) == 0 && TILE_M <= 256, "TILE_M: 64 rows for each warpgroup, at most one box");
static_assert(TILE_N == 64 || TILE_N == 128 || TILE_N == 256, "TILE_N: 64, 128 or 256");
static_assert(M_BLOCKS * TILE_N <= 256, "tile: at most 128 sums per thread");

// accum (64 × TILE_N) = a (64 × MMA_K) · b (TILE_N × MMA_K)ᵀ, plus accum if scale_d; both operands from shared memory. It
// runs until warpgroup_wait returns for its group.
#define WGMMA(n, names, first, second, third, ...)                                                          \
    asm volatile("{ .reg .pred p; setp.ne.s32 p, " third ", 0; wgmma.mma_async.sync.aligned.m64n" n TYPES \
                 " {" names "}, " first ", " second ", p" SCALE_AB "; }"                                     \
                 : __VA_ARGS__                                                                              \
                 : "l"(a), "l"(b), "r"((int)scale_d)                                                        \
                 : "memory")

using Accumulators = Sum[TILE_N / 2];

__device__ __forceinline__ void wgmma(Accumulators& accum, SmemDesc a, SmemDesc b, bool scale_d)
{
#if TILE_N == 256
    WGMMA("256", ACCUM_NAMES_128, "%128", "%129", "%130", ACCUM_64(0), ACCUM_64(64));
#elif TILE_N == 128
    WGMMA("128", ACCUM_NAMES_64, "%64", "%65", "%66", ACCUM_64(0));
#else
    WGMMA("64", ACCUM_NAMES_32, "%32", "%33", "%34", ACCUM_32(0));
#endif
}

// The first row and column of a tile, the row where its group ends, the group; whether the block takes the next to its
// right, too.
struct GroupedTile {
    int row, column, end, group;
    bool pair;
};

// What blocks take by turns, as one list: of a group its tiles, down the columns of tiles, then pairs of those of half
// their rows or fewer, which take half the time. A warp looks through 32 groups at once.
struct GroupedScheduler {
    const int* offsets;   // of groups + 1
    int groups, columns;  // of tiles
    int index;            // in the list, of what this block takes next
    int chunk, before;    // the first of the 32 groups last looked at, and how much of the list comes before theirs

    // Whether there is a tile after this one.
    __device__ __forceinline__ bool next(GroupedTile& tile)
    {
        if (tile.pair) {
            tile.pair = false, tile.column += TILE_N;
            return true;
        }
        const int lane = threadIdx.x % 32;
        for (; chunk < groups; chunk += 32) {
            const int group = chunk + lane;
            const int first = group < groups ? offsets[group] : 0, end = group < groups ? offsets[group + 1] : 0;
            const int full = (end - first + TILE_M - 1 - HALF) / TILE_M, all = (end - first + TILE_M - 1) / TILE_M;
            const int own = full * columns + (all - full) * (columns + 1) / 2;
            int up_to = own;  // of this lane's group and of those of lower lanes
#pragma unroll
            for (int distance = 1; distance < 32; distance *= 2) {
                const int other = __shfl_up_sync(0xffffffff, up_to, distance);
                if (lane >= distance) up_to += other;
            }
            const unsigned after = __ballot_sync(0xffffffff, index < before + up_to);
            if (after != 0) {
                const int of = __ffs(after) - 1;
                const int in_group = index - before - __shfl_sync(0xffffffff, up_to - own, of);
                const int row = __shfl_sync(0xffffffff, first, of), height = __shfl_sync(0xffffffff, full, of);
                const int last = __shfl_sync(0xffffffff, end, of), column = (in_group - height * columns) * 2;
                if (column < 0)
                    tile = {row + in_group % height * TILE_M, in_group / height * TILE_N, last, chunk + of, false};
                else
                    tile = {row + height * TILE_M, column * TILE_N, last, chunk + of, column + 1 < columns};
                index += BLOCKS;
                return true;
            }
            before += __shfl_sync(0xffffffff, up_to, 31);
        }
        return false;
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
gemm_wgmma_grouped(const __grid_constant__ CUtensorMap mapA, const __grid_constant__ CUtensorMap mapB,
                   const int* __restrict__ offsets, int groups, int N, int K, Output* __restrict__ C)
{
    extern __shared__ __align__(1024) unsigned char tiles[];  // STAGES times A and B; mbarriers; sums
    const unsigned shared = static_cast<unsigned>(__cvta_generic_to_shared(tiles));
    const unsigned full = shared + STAGES * STAGE_BYTES, empty = full + STAGES * 8;
    const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);  // the same in all lanes, as ptxas now knows
    const int warpgroup = warp / 4, k_tiles = (K - 1) / TILE_K + 1;
    GroupedScheduler scheduler = {offsets, groups, (N - 1) / TILE_N + 1, (int)blockIdx.x, 0, 0};
    GroupedTile tile = {};
    PipelineState pipe = {0, 0};

    if (threadIdx.x == 0) init_pipeline(full, empty);
    if (threadIdx.x == GROUPS * 128) prefetch_tensormap(&mapA), prefetch_tensormap(&mapB);
    __syncthreads();

    if (warpgroup == GROUPS) {
        if (GROUPS == 2) setmaxnreg_dec<40>();  // what 128 threads give, 256 take
        if (warp != GROUPS * 4) return;
        while (scheduler.next(tile)) {
            if (!elect_one_sync()) continue;
            for (int k = 0; k < k_tiles; ++k, advance(pipe)) {
                const unsigned to = shared + pipe.stage * STAGE_BYTES, bar = full + pipe.stage * 8;
                mbarrier_wait_parity(empty + pipe.stage * 8, pipe.phase ^ 1);
                mbarrier_arrive_expect_tx(bar, STAGE_BYTES);
                tma_load_2d(to, &mapA, k * TILE_K, tile.row, bar);
                tma_load_2d(to + A_BYTES, &mapB, k * TILE_K, tile.group * N + tile.column, bar);
            }
        }
        return;
    }
    if (GROUPS == 2) setmaxnreg_inc<232>();

    // Descriptors count in 16 bytes: a stage, or a step along K, further on is a sum away.
    const SmemDesc a = make_smem_desc(shared + M_BLOCK(warpgroup) * 64 * 128, 0, 1024), b = make_smem_desc(shared + A_BYTES, 0, 1024);
    while (scheduler.next(tile)) {
        Accumulators accum[M_BLOCKS];
        const int row0 = tile.row + warpgroup * M_BLOCKS * 64;
        const bool has_rows = row0 < tile.end;
        int prev_stage = 0;  // the stage that running wgmma read
        auto release_stage = [&](int stage) {
            if (threadIdx.x % 128 == 0) mbarrier_arrive(empty + stage * 8);
        };
        for (int k = 0; k < k_tiles; ++k, advance(pipe)) {  // lesson: begin
            const SmemDesc stage = pipe.stage * (STAGE_BYTES / 16);
            mbarrier_wait_parity(full + pipe.stage * 8, pipe.phase);
            if (has_rows) {
                warpgroup_arrive();
#pragma unroll
                for (int step = 0; step < TILE_K / MMA_K; ++step)
#pragma unroll
                    for (int m = 0; m < M_BLOCKS; ++m)
                        wgmma(accum[m], a + stage + m * 64 * 8 + step * 2, b + stage + step * 2, k > 0 || step > 0);
                warpgroup_commit_batch();
                warpgroup_wait<1>();  // those before these
            } else {
                warpgroup_sync(warpgroup);  // no wgmma keeps its warps in step: one would miss a phase of `full`
            }
            if (k > 0) release_stage(prev_stage);
            prev_stage = pipe.stage;  // lesson: end
        }
        warpgroup_wait<0>();
        release_stage(prev_stage);
        if (!has_rows) continue;

        Output* const staging =
            reinterpret_cast<Output*>(tiles + STAGES * (STAGE_BYTES + 16)) + warp * 16 * STAGING_STRIDE;
#pragma unroll
        for (int m = 0; m < M_BLOCKS; ++m)
            epilogue<false>(accum[m], tile.end, N, 1.0f, 0.0f, C, N, staging, row0 + m * 64 + warp % 4 * 16, tile.column);
    }
}
