// mma_tma: tensor cores by mma.sync, with the tensor memory accelerator of Hopper and later.
//
// The idea    One thread asks for a whole box of A or B: swizzled, with zeros past the edges, and TF32 rounded on the
//             way (to nearest, ties to even, where the map says so). No thread computes addresses, waits for copies of
//             its own or rounds what it multiplies. Two mbarriers per stage say that it is full, and that all warps
//             have read it: no warp waits for all others. The warps take turns in asking.
// Layout      A row of a box has 128 bytes, which TMA lays at chunk ^ row % 8: A as ldmatrix wants it; B in panels of
//             128 bytes a row. Of FP32, the columns that a lane multiplies are chosen for the banks, and put in
//             order when the sums leave.
// The limit   mma.sync itself: products of registers alone are 9 % faster.
// Next        wgmma, which multiplies from shared memory.

#if !defined(TILE_M) || !defined(TILE_N) || !defined(STAGES) || !defined(WARP_TILE_M) || !defined(WARP_TILE_N)
#error "mma_tma needs -D TILE_M, TILE_N, STAGES, WARP_TILE_M and WARP_TILE_N"
#endif
#if defined(DTYPE_F16) + defined(DTYPE_BF16) + defined(DTYPE_TF32) != 1
#error "mma_tma needs one of -D DTYPE_F16, DTYPE_BF16 and DTYPE_TF32"
#endif
#define TILE_K ((int)(128 / sizeof(Element)))  // a row of a box

#include "boxes.cuh"
#include "mma.cuh"

#define PANEL TILE_K                // columns of B in a row of a box
#define PANEL_BYTES (TILE_K * 128)
static_assert(TILE_N % PANEL == 0, "TILE_N: whole rows of 128 bytes");
static_assert(TILE_M <= 256, "TILE_M: rows of one box");

// Step of a tile after whose loads the next copies are asked for (measured: 0.5 % either way).
constexpr int ASKING = sizeof(Element) == 4 ? STEPS - 2 : STEPS - 1;

__device__ __forceinline__ unsigned in_panels(unsigned row, unsigned chunk)
{
    return A_BYTES + chunk / 8 * PANEL_BYTES + row * 128 + ((chunk ^ row) & 7) * 16;
}
// Of FP32, a half of a warp loads two chunks that are four apart from four rows: all banks.
__device__ __forceinline__ unsigned quad_chunk(unsigned quad, unsigned pair)
{
    return quad / 2 * 8 + quad % 2 * 2 + pair / 2 + pair % 2 * 4;
}

// Where a lane begins to read the tiles at hand. Carried from tile to tile, else ptxas works out each anew.
__device__ __forceinline__ Starts find_starts_in_boxes(unsigned tiles, const Place& at)
{
    const unsigned lane = at.lane, chunk = at.warp_col / VECTOR;
    Starts starts = find_starts(at);
#pragma unroll
    for (int i = 0; i < STEPS; ++i)
        starts.a[i] += tiles;
#pragma unroll
    for (int i = 0; i < 4; ++i)
        starts.b[i] = tiles + (sizeof(Element) == 2
                                   ? in_panels(lane % 16, chunk + i * 2 + lane / 16)
                                   : in_panels(lane % 4 + i / 2 * 4, chunk + quad_chunk(i % 2, lane / 8)) + lane / 4 % 2 * 8);
    return starts;
}

__device__ __forceinline__ void load_fragments(Fragments& f, int step, const Starts& starts)
{
    const unsigned row = step * STEP * 128;
#pragma unroll
    for (int m = 0; m < WARP_TILE_M / 16; ++m)
        load_rows(f, m, starts.a[step] + m * 16 * 128);
#pragma unroll
    for (int n = 0; n < WARP_TILE_N / 16; ++n) {
        if (sizeof(Element) == 2) load_columns(f, n, row + starts.b[n % 4] + n / 4 * PANEL_BYTES);
#pragma unroll
        for (int i = 0; i < (sizeof(Element) == 4 ? 2 : 0); ++i)
            load_two(f, n, i, row + starts.b[i * 2 + n % 2] + n / 2 * PANEL_BYTES);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
gemm_mma_tma(const __grid_constant__ CUtensorMap mapA, const __grid_constant__ CUtensorMap mapB, int M, int N, int K,
             float alpha, float beta, float* __restrict__ C, int ldc)
{
    extern __shared__ __align__(1024) unsigned char tiles[];  // STAGES times: A, panels of B; then their mbarriers
    const unsigned shared = static_cast<unsigned>(__cvta_generic_to_shared(tiles));
    const unsigned full = shared + STAGES * STAGE_BYTES, empty = full + STAGES * 8;
    const unsigned warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);  // the same in all lanes, as ptxas now knows
    const Place at = find_place();
    const int count = (K - 1) / TILE_K + 1;

    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i)
            set_up(full + i * 8, 1), set_up(empty + i * 8, WARPS);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();

    // One thread's: the tiles at TILE_K · tile, into their stage as soon as all warps have read what was there.
    auto copy_tiles = [&](int tile) {
        if (tile >= count) return;
        const int stage = tile % STAGES;
        const unsigned to = shared + stage * STAGE_BYTES, bar = full + stage * 8;
        wait(empty + stage * 8, tile / STAGES + 1 & 1);
        expect(bar, STAGE_BYTES);
        copy_box(to, &mapA, tile * TILE_K, at.block_row, bar);
#pragma unroll
        for (int i = 0; i < TILE_N / PANEL; ++i)
            copy_box(to + A_BYTES + i * PANEL_BYTES, &mapB, at.block_col + i * PANEL, tile * TILE_K, bar);
    };
    if (warp == 0 && elected())
        for (int tile = 0; tile < STAGES - 1; ++tile)
            copy_tiles(tile);
    __syncwarp();

    Sums sum = {};
    Starts starts = find_starts_in_boxes(shared, at);
    Fragments fragments[2];
    int stage = 0;
    unsigned parity = 0;  // of the phase in which this stage is filled
    wait(full, 0);
    load_fragments(fragments[0], 0, starts);
    for (int tile = 0; tile < count; ++tile) {
        const bool more = tile + 1 < count;
        bool here = false;
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            if (step == STEPS - 1) {
                __syncwarp();  // all lanes have the last fragments of these tiles
                if (at.lane == 0) arrive(empty + stage * 8);
                const bool wraps = stage == STAGES - 1;
                stage = wraps ? 0 : stage + 1, parity ^= wraps;
                const int on = wraps ? -(STAGES - 1) * STAGE_BYTES : STAGE_BYTES;
#pragma unroll
                for (int i = 0; i < STEPS; ++i)
                    starts.a[i] += on;
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    starts.b[i] += on;
                if (more && !here) wait(full + stage * 8, parity);
            }
            if (step < STEPS - 1 || more) load_fragments(fragments[(step + 1) % 2], (step + 1) % STEPS, starts);
            if (step == ASKING) {
                if (warp == tile % WARPS && elected()) copy_tiles(tile + STAGES - 1);
                __syncwarp();
            }
            if (step == STEPS - 2)  // an early look, whose answer comes while this step multiplies
                here = completed(full + (stage == STAGES - 1 ? 0 : stage + 1) * 8, parity ^ (stage == STAGES - 1));
#pragma unroll
            for (int p = 0; p < QUADS * PAIRS; ++p)
                mma(sum[p / PAIRS][p % PAIRS], fragments[step % 2].quads[p / PAIRS], fragments[step % 2].pairs[p % PAIRS]);
        }
    }
    __syncthreads();  // all warps have read the last tiles
    store_sums(sum, M, N, alpha, beta, C, ldc, tiles, at, [](int, float*) {}, [](unsigned column) {
        const unsigned chunk = column / 4;  // quad_chunk, the other way
        return sizeof(Element) == 2 ? column : (chunk / 8 * 8 + chunk % 4 / 2 * 4 + chunk % 2 * 2 + chunk % 8 / 4) * 4;
    });
}
