// stream_k: as many blocks as SMs, and the same share of the work for each.
//
// The idea    512 tiles on 132 SMs are 3.88 waves, which take as long as 4; 32 tiles leave 100 SMs idle. Here
//             the steps along K of several tiles form one sequence, and each of BLOCKS blocks takes an equal
//             part of it: the end of one tile, the beginning of another. Partial sums go to a slab of the
//             workspace, and the last block to finish adds them up. Only as many tiles as needed are
//             shared, fewer than two per block; each other tile is computed by one block alone.
// GROUP       Where many blocks share a tile, the last one of each GROUP adds theirs, and the last group those
//             of the groups: one block alone would read all slabs. The order of the sums is fixed: the same bits
//             whoever comes last.
// Edges       A few rows or columns more than whole tiles would cost as much as whole tiles. They are no tiles:
//             all blocks share the reads of A and B for them (strips.cuh). If the rows of C are not aligned, C goes
//             through shared memory, so that a warp stores neighbouring elements.
// The limit   The FP32 units, and the power that they take.
// WORKSPACE   Counters first, zero at every launch and reset for the next: one per tile, two per block for the
//             groups that it begins; then two slabs per block, of arbitrary contents.
// Next        mma_sync: tensor cores.

#include "simt_epilogue.cuh"
#include "simt_mainloop.cuh"
#include "strips.cuh"

#if !defined(BLOCKS)
#error "stream_k needs -D BLOCKS"
#endif
#ifndef GROUP
#define GROUP 8
#endif
static_assert(BLOCKS >= 1 && GROUP >= 2, "BLOCKS: 1 or more; GROUP: 2 or more");
#define MIN_STEPS 4  // of a block that shares: adding its sums takes as long as a few steps
#define SLAB (TILE_M * TILE_N)
constexpr int SLABS_AT_ONCE = SLAB / THREADS > 32 ? 1 : 4;  // that are loaded before the first is added

// With early copies the loop is faster, by 4 % for wide tiles (measured: docs/results/attempts.md).
constexpr int COPY_STEP = WIDE ? 2 : STEPS - 1;

typedef float Accumulators[THREAD_TILE_M][THREAD_TILE_N];

// A thread's partial sums to and from a slab, by element and thread: no edge to guard.
__device__ __forceinline__ void store_partial(float* slab, const Accumulators& sum, int slice)
{
#pragma unroll
    for (int m = 0; m < THREAD_TILE_M; ++m)
        if (m / OWN_ROWS == slice)
#pragma unroll
            for (int n = 0; n < THREAD_TILE_N; n += 4)
                store_swapped4(&slab[(m % OWN_ROWS * THREAD_TILE_N + n) * THREADS], &sum[m][n]);
}

__device__ __forceinline__ void add_partial(const float* slab, Accumulators& sum, int slice)
{
#pragma unroll
    for (int m = 0; m < THREAD_TILE_M; ++m)
        if (m / OWN_ROWS == slice)
#pragma unroll
            for (int n = 0; n < THREAD_TILE_N; n += 4)
                add_swapped4(&sum[m][n], &slab[(m % OWN_ROWS * THREAD_TILE_N + n) * THREADS]);
}

__device__ __forceinline__ void clear(Accumulators& sum)
{
#pragma unroll
    for (int m = 0; m < THREAD_TILE_M; ++m)
#pragma unroll
        for (int n = 0; n < THREAD_TILE_N; ++n)
            sum[m][n] = 0.0f;
}

// Whether this block is the last of `all` to arrive at the counter, which is then reset to zero.
__device__ __forceinline__ bool last_of(int all, unsigned* counter, int thread)
{
    __shared__ unsigned before;  // blocks that were counted before this one
    __threadfence();             // this thread's sums are seen by all before its block is counted
    __syncthreads();             // and those of all its threads
    if (thread == 0) before = atomicAdd(counter, 1u);
    __syncthreads();
    const bool last = before == all - 1;
    if (last && thread == 0) *counter = 0;
    __threadfence();  // no slab is read before its block has been counted
    __syncthreads();  // all threads have read `before`, which may now be written again
    return last;
}

extern "C" __global__ void __launch_bounds__(THREADS)
gemm_stream_k(int M, int N, int K, float alpha, const float* __restrict__ A, int lda, const float* __restrict__ B,
              int ldb, float beta, float* __restrict__ C, int ldc, unsigned* workspace)
{
    extern __shared__ __align__(16) float tiles[];
    if (M == 0 || N == 0) return;

    const int thread = threadIdx.x, block = blockIdx.x, blocks = gridDim.x;
    const int low = strip_size(M, TILE_M), right = strip_size(N, TILE_N);
    if (low > 0 || right > 0)
        strips<THREADS, WIDE>(low, right, tiles, thread, M, N, K, alpha, A, lda, B, ldb, beta, C, ldc);
    M -= low, N -= right;  // the rest is for tiles

    const bool vectors = rows_aligned(B, ldb) && N % 4 == 0;
    const int steps = K > 0 ? (K - 1) / TILE_K + 1 : 1;
    const int count = ((M - 1) / TILE_M + 1) * ((N - 1) / TILE_N + 1);  // of tiles

    // The last tiles, dp_tiles per block, are data-parallel: one block computes each. The others are stream-k.
    const int dp_tiles = count % blocks == 0 ? count / blocks : max(0, count / blocks - 1);
    const int sk_tiles = count - dp_tiles * blocks;
    const long long all = (long long)sk_tiles * steps;  // steps of all stream-k tiles
    const int sk_blocks = (int)min((long long)blocks, (all + MIN_STEPS - 1) / MIN_STEPS);
    auto begin_of = [&](int b) { return b >= sk_blocks ? all : all * b / sk_blocks; };
    auto owner_of = [&](long long step) { return (int)(((step + 1) * sk_blocks - 1) / all); };

    // Of blocks that could share: the size of the workspace.
    const int most = (int)min((long long)BLOCKS, ((long long)count * steps + MIN_STEPS - 1) / MIN_STEPS);
    unsigned* const group_counters = workspace + count;
    float* const slabs = reinterpret_cast<float*>(workspace + (count + 2 * most + 3) / 4 * 4) + thread * 4;

    long long step = begin_of(block);  // lesson: begin
    const long long end = begin_of(block + 1);
    for (int done = 0; step < end || done < dp_tiles;) {
        int index = sk_tiles + done * blocks + block, first = 0, last = steps;
        if (step < end) {
            index = (int)(step / steps);
            first = (int)(step - (long long)index * steps);
            last = (int)min((long long)steps, end - (long long)index * steps);
            step += last - first;
        } else {
            ++done;  // lesson: end
        }
        const int2 tile = rasterize_tile(index, M, N);
        const ThreadCoord coord = thread_coord(thread, tile.y * TILE_M, tile.x * TILE_N);
        Accumulators sum;
        clear(sum);
        if (K > 0) {
            if (vectors)
                mainloop<true, COPY_STEP>(sum, tiles, thread, coord, A, lda, B, ldb, M, N, K, first, last);
            else
                mainloop<false, COPY_STEP>(sum, tiles, thread, coord, A, lda, B, ldb, M, N, K, first, last);
        }
        reduce_slices(sum, tiles, thread, coord.slice);
        if (first > 0 || last < steps) {
            const int from = owner_of((long long)index * steps);
            const int peers = owner_of((long long)(index + 1) * steps - 1) - from + 1;
            // A block has at most two such parts: of a tile that another began, and of one that it begins.
            auto slab_of = [&](int i) { return slabs + (size_t)((from + i) * 2 + (i == 0)) * SLAB; };
            const int me = block - from, group = me / GROUP * GROUP, groups = (peers - 1) / GROUP + 1;
            const int members = min(GROUP, peers - group);
            store_partial(slab_of(me), sum, coord.slice);
            if (!last_of(members, &group_counters[(from + group) * 2 + (group == 0)], thread)) continue;
            clear(sum);
#pragma unroll SLABS_AT_ONCE
            for (int i = 0; i < members; ++i)
                add_partial(slab_of(group + i), sum, coord.slice);
            if (groups > 1) {
                store_partial(slab_of(group), sum, coord.slice);
                if (!last_of(groups, &workspace[index], thread)) continue;
                clear(sum);
#pragma unroll SLABS_AT_ONCE
                for (int i = 0; i < groups; ++i)
                    add_partial(slab_of(i * GROUP), sum, coord.slice);
            }
        }
        if (EPILOGUE_BY_ROWS && !rows_aligned(C, ldc))
            epilogue_by_rows(sum, tiles, thread, coord, M, N, alpha, beta, C, ldc);
        else
            epilogue(sum, coord, M, N, alpha, beta, C, ldc);
        __syncthreads();  // no thread still reads shared memory when the next tile is copied there
    }
}
