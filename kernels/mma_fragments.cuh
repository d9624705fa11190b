// From shared memory to registers: the fragments of a warp for one step of MMA_K.
#pragma once

#include "mma_smem.cuh"

// Where in a tile a lane begins to read. All else is a constant away: the swizzle repeats every eight rows or chunks.
struct FragmentOffsets {
    unsigned a[STEPS], b[4];
};
__device__ __forceinline__ FragmentOffsets fragment_offsets(const WarpCoord& coord)
{
    const bool halves = !SWAP_AB;
    const unsigned lane = coord.lane;
    FragmentOffsets offsets;
#pragma unroll
    for (int i = 0; i < STEPS; ++i)
        offsets.a[i] = halves ? smem_a_offset(coord.warp_row + lane % 16, i * 2 + lane / 16)
                              : smem_a_offset(coord.warp_row + lane / 16 * 8 + lane % 8, i * 2 + lane / 8 % 2);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const unsigned chunk = coord.warp_col / VECTOR + i * 2;
        offsets.b[i] = halves           ? smem_b_offset(lane % 16, chunk + lane / 16)
                       : B_COLUMNS == 4 ? smem_b_offset(lane % 4, coord.warp_col / VECTOR + lane / 4)
                                        : smem_b_offset(lane % 4, chunk + i * 2 + lane / 8) + lane / 4 % 2 * 8;
    }
    if (B_COLUMNS == 4)
#pragma unroll
        for (int i = 0; i < STEPS; ++i)  // keeps them in registers; else ptxas computes them in every step
            asm volatile("" : "+r"(offsets.a[i]), "+r"(offsets.b[0]));
    return offsets;
}

// load_fragments of FP32 with B_COLUMNS of 4; `a` and `b`: the addresses where the lane begins to read.
__device__ __forceinline__ void load_fragments_v4(Fragments& f, unsigned a, unsigned b, bool pred)
{
#pragma unroll
    for (int m = 0; m < MMA_TILES_N; m += 2)  // eight rows, four k in each; another four; and eight rows more
        LOAD_X4_IF(pred, "ldmatrix.sync.aligned.m8n8.x4.shared.b16", f.b[m][0], f.b[m][1], f.b[m + 1][0],
                   f.b[m + 1][1], a + m * 8 * A_CHUNKS * 16);
#pragma unroll
    for (int n = 0; n < MMA_TILES_M; n += 2)
#pragma unroll
        for (int k = 0; k < 2; ++k)  // columns 4i … 4i + 3, for rows i and i + 8, of two mma
            LOAD_X4_IF(pred, "ld.shared.v4.b32", f.a[n][k * 2], f.a[n][k * 2 + 1], f.a[n + 1][k * 2],
                       f.a[n + 1][k * 2 + 1], b + (k * 4 * B_CHUNKS + n * 4) * 16);
}

// 16 rows of A. Of FP32 a matrix of ldmatrix is eight rows of four k, so two of them make one operand b.
__device__ __forceinline__ void load_a_ldmatrix(Fragments& f, int m, unsigned from)
{
    if (!SWAP_AB) {
        ldmatrix_x4(f.a[m], from);
        return;
    }
    unsigned regs[4];  // rows 0 to 7: k 0 to 3, k 4 to 7; then rows 8 to 15
    ldmatrix_x4(regs, from);
    f.b[m * 2][0] = regs[0], f.b[m * 2][1] = regs[1];
    f.b[m * 2 + 1][0] = regs[2], f.b[m * 2 + 1][1] = regs[3];
}

// 16 columns of B of 16 bits. A register holds neighbouring k, a row of B neighbouring columns: ldmatrix transposes.
__device__ __forceinline__ void load_b_ldmatrix(Fragments& f, int n, unsigned from)
{
    unsigned regs[4];
    ldmatrix_x4_trans(regs, from);
    f.b[n * 2][0] = regs[0], f.b[n * 2][1] = regs[1];
    f.b[n * 2 + 1][0] = regs[2], f.b[n * 2 + 1][1] = regs[3];
}

// 16 columns of B of FP32, which ldmatrix cannot transpose: a lane takes columns 2i and 2i + 1 of half `i` of the rows.
__device__ __forceinline__ void load_b_lds(Fragments& f, int n, int i, unsigned from)
{
    ld_shared_v2(f.a[n][i * 2], f.a[n][i * 2 + 1], from);
}

// The fragments of step `step` of a tile, where `pred` is true.
__device__ __forceinline__ void load_fragments(Fragments& f, unsigned tile, int step, const FragmentOffsets& offsets,
                                               bool pred)
{
    const unsigned row = tile + step * MMA_K * B_CHUNKS * 16;
    if (B_COLUMNS == 4) {
        load_fragments_v4(f, tile + offsets.a[step], row + offsets.b[0], pred);
        return;
    }
    if (!pred) return;
#pragma unroll
    for (int m = 0; m < WARP_TILE_M / 16; ++m)
        load_a_ldmatrix(f, m, tile + offsets.a[step] + m * 16 * A_CHUNKS * 16);
#pragma unroll
    for (int n = 0; n < WARP_TILE_N / 16; ++n) {
        if (!SWAP_AB) load_b_ldmatrix(f, n, row + offsets.b[n % 4] + n / 4 * 128);
#pragma unroll
        for (int i = 0; i < (SWAP_AB ? 2 : 0); ++i)  // rows i and i + 8
            load_b_lds(f, n, i, row + i * 4 * B_CHUNKS * 16 + offsets.b[n % 2] + n / 2 * 128);
    }
}
