// mma_tma: tensor cores by mma.sync, with the tensor memory accelerator of Hopper and later.
//
// The idea    One thread issues the copy of a whole box of A or B: swizzled, with zeros past the edges, and TF32 rounded
//             on the way (to nearest, ties to even, where the map says so). No thread computes addresses, waits for
//             copies of its own or rounds what it multiplies. Two mbarriers per stage say that it is full, and that all warps
//             have read it (empty): no warp waits for all others. The warps take turns to issue TMA.
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

#include "mma_epilogue.cuh"
#include "mma_fragments.cuh"
#include "tma_ptx.cuh"

#define PANEL TILE_K                // columns of B in a row of a box
#define PANEL_BYTES (TILE_K * 128)
static_assert(TILE_N % PANEL == 0, "TILE_N: whole rows of 128 bytes");
static_assert(TILE_M <= 256, "TILE_M: rows of one box");

// The step of a tile after whose loads TMA is issued for a later one (measured: 0.5 % either way).
constexpr int TMA_STEP = sizeof(Element) == 4 ? STEPS - 2 : STEPS - 1;

__device__ __forceinline__ unsigned panel_offset(unsigned row, unsigned chunk)
{
    return A_BYTES + chunk / 8 * PANEL_BYTES + row * 128 + ((chunk ^ row) & 7) * 16;
}
// Of FP32, half of a warp loads from four rows two chunks that are four apart: together they cover all banks.
__device__ __forceinline__ unsigned fragment_chunk(unsigned n, unsigned part)
{
    return n / 2 * 8 + n % 2 * 2 + part / 2 + part % 2 * 4;
}

// Where a lane begins to read the current stage: advanced with it, else ptxas computes each address in every tile.
__device__ __forceinline__ FragmentOffsets fragment_addresses(unsigned tiles, const WarpCoord& coord)
{
    const unsigned lane = coord.lane, chunk = coord.warp_col / VECTOR;
    FragmentOffsets offsets = fragment_offsets(coord);
#pragma unroll
    for (int i = 0; i < STEPS; ++i)
        offsets.a[i] += tiles;
#pragma unroll
    for (int i = 0; i < 4; ++i)
        offsets.b[i] = tiles + (sizeof(Element) == 2
                                    ? panel_offset(lane % 16, chunk + i * 2 + lane / 16)
                                    : panel_offset(lane % 4 + i / 2 * 4, chunk + fragment_chunk(i % 2, lane / 8)) +
                                          lane / 4 % 2 * 8);
    return offsets;
}

__device__ __forceinline__ void load_fragments(Fragments& f, int step, const FragmentOffsets& offsets)
{
    const unsigned row = step * MMA_K * 128;
#pragma unroll
    for (int m = 0; m < WARP_TILE_M / 16; ++m)
        load_a_ldmatrix(f, m, offsets.a[step] + m * 16 * 128);
#pragma unroll
    for (int n = 0; n < WARP_TILE_N / 16; ++n) {
        if (!SWAP_AB) load_b_ldmatrix(f, n, row + offsets.b[n % 4] + n / 4 * PANEL_BYTES);
#pragma unroll
        for (int i = 0; i < (SWAP_AB ? 2 : 0); ++i)
            load_b_lds(f, n, i, row + offsets.b[i * 2 + n % 2] + n / 2 * PANEL_BYTES);
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
    const WarpCoord coord = warp_coord();
    const int count = (K - 1) / TILE_K + 1;

    if (threadIdx.x == 32) prefetch_tensormap(&mapA), prefetch_tensormap(&mapB);
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i)
            mbarrier_init(full + i * 8, 1), mbarrier_init(empty + i * 8, WARPS);
        fence_mbarrier_init();
    }
    __syncthreads();

    // By one thread: issues TMA for the tiles at TILE_K · tile, once all warps have read what their stage held.
    auto issue_tma = [&](int tile) {  // lesson: begin
        if (tile >= count) return;
        const int stage = tile % STAGES;
        const unsigned to = shared + stage * STAGE_BYTES, bar = full + stage * 8;
        mbarrier_wait_parity(empty + stage * 8, tile / STAGES + 1 & 1);
        mbarrier_arrive_expect_tx(bar, STAGE_BYTES);
        tma_load_2d(to, &mapA, tile * TILE_K, coord.block_row, bar);
#pragma unroll
        for (int i = 0; i < TILE_N / PANEL; ++i)
            tma_load_2d(to + A_BYTES + i * PANEL_BYTES, &mapB, coord.block_col + i * PANEL, tile * TILE_K, bar);
    };  // lesson: end
    if (warp == 0 && elect_one_sync())
        for (int tile = 0; tile < STAGES - 1; ++tile)
            issue_tma(tile);
    __syncwarp();

    Accumulators accum = {};
    FragmentOffsets offsets = fragment_addresses(shared, coord);
    Fragments fragments[2];
    int stage = 0;
    unsigned phase = 0;  // parity of the phase in which this stage is filled
    mbarrier_wait_parity(full, 0);
    load_fragments(fragments[0], 0, offsets);
    for (int tile = 0; tile < count; ++tile) {
        const bool more = tile + 1 < count;
        bool ready = false;
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            if (step == STEPS - 1) {
                __syncwarp();  // all lanes have the last fragments of these tiles
                if (coord.lane == 0) mbarrier_arrive(empty + stage * 8);
                const bool wraps = stage == STAGES - 1;
                stage = wraps ? 0 : stage + 1, phase ^= wraps;
                const int delta = wraps ? -(STAGES - 1) * STAGE_BYTES : STAGE_BYTES;
#pragma unroll
                for (int i = 0; i < STEPS; ++i)
                    offsets.a[i] += delta;
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    offsets.b[i] += delta;
                if (more && !ready) mbarrier_wait_parity(full + stage * 8, phase);
            }
            if (step < STEPS - 1 || more) load_fragments(fragments[(step + 1) % 2], (step + 1) % STEPS, offsets);
            if (step == TMA_STEP) {
                if (warp == tile % WARPS && elect_one_sync()) issue_tma(tile + STAGES - 1);
                __syncwarp();
            }
            if (step == STEPS - 2)  // an early test, whose answer comes while this step multiplies
                ready = mbarrier_test_wait_parity(full + (stage == STAGES - 1 ? 0 : stage + 1) * 8,
                                                  phase ^ (stage == STAGES - 1));
#pragma unroll
            for (int p = 0; p < MMA_TILES_M * MMA_TILES_N; ++p)
                mma_m16n8(accum[p / MMA_TILES_N][p % MMA_TILES_N], fragments[step % 2].a[p / MMA_TILES_N],
                          fragments[step % 2].b[p % MMA_TILES_N]);
        }
    }
    __syncthreads();  // all warps have read the last tiles
    epilogue(accum, M, N, alpha, beta, C, ldc, tiles, coord, [](int, float*) {}, [](unsigned column) {
        const unsigned chunk = column / 4;  // the inverse of fragment_chunk
        return sizeof(Element) == 2 ? column : (chunk / 8 * 8 + chunk % 4 / 2 * 4 + chunk % 2 * 2 + chunk % 8 / 4) * 4;
    });
}
