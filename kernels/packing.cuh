// Packing: A and B copied to the workspace as the tiles that wgmma reads, each one piece of memory, in the 128-byte
// swizzle and zero past the edges. What it is made of are boxes: 32 rows of 128 bytes.
#pragma once

#include "vectors.cuh"

#if defined(DTYPE_TF32)
using Element = float;
#else
using Element = unsigned short;  // moved as bits: only wgmma knows what they mean
#endif

#define COUNTER_BYTES 256  // of the workspace, before the tiles
#define BOX_ROWS 32
#define BOX_BYTES (BOX_ROWS * 128)
#define BOX_COLUMNS ((int)(128 / sizeof(Element)))
#ifndef BOXES_AT_ONCE
#define BOXES_AT_ONCE 2  // neighbours along a row of the matrix, that a warp takes together
#endif

// Of TF32 wgmma turns no matrix: a row of a box is then a column of B.
#define TURN_B (sizeof(Element) == 4)

static_assert(TILE_M % BOX_ROWS == 0, "TILE_M: whole boxes");
static_assert(TILE_N % BOX_COLUMNS == 0, "TILE_N: whole boxes");

// A matrix as boxes: `down` times `across` of them, with those past its edges that are multiplied.
struct Boxes {
    const Element* matrix;
    int rows, columns, ld, down, across;

    __device__ __forceinline__ int groups() const { return (across - 1) / BOXES_AT_ONCE + 1; }
    __device__ __forceinline__ int tickets() const { return down * groups(); }
};

// An element as tensor cores read it, in the low bits of a register.
__device__ __forceinline__ unsigned rounded(unsigned short element) { return element; }
__device__ __forceinline__ unsigned rounded(float element)
{
    unsigned tf32;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(tf32) : "f"(element));
    return tf32;
}

// The words of a box in which this lane's columns are: one of each row. No element is loaded with its neighbour, so
// that any row may start at any element; all loads are issued before the first one is waited for.
__device__ __forceinline__ void load_box(unsigned (&words)[BOX_ROWS], const Boxes& boxes, int row, int column)
{
    constexpr int EACH = 4 / sizeof(Element);  // elements of a word
    column += threadIdx.x % 32 * EACH;
    const Element* from = boxes.matrix + (size_t)row * boxes.ld + column;
    const int height = boxes.rows - row, width = boxes.columns - column;
    Element elements[BOX_ROWS][EACH];
#pragma unroll
    for (int i = 0; i < BOX_ROWS; ++i, from += boxes.ld)
#pragma unroll
        for (int j = 0; j < EACH; ++j)
            elements[i][j] = i < height && j < width ? __ldg(from + j) : Element(0);
#pragma unroll
    for (int i = 0; i < BOX_ROWS; ++i) {
        words[i] = rounded(elements[i][0]);
        if (EACH == 2) words[i] |= (unsigned)elements[i][EACH - 1] << 16;
    }
}

// Row i of the box is row i of the matrix: a warp stores whole rows, chunk by chunk where the swizzle has them.
__device__ __forceinline__ void store_box(unsigned char* box, const unsigned (&words)[BOX_ROWS])
{
    const unsigned lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < BOX_ROWS; ++i)
        *reinterpret_cast<unsigned*>(box + i * 128 + (lane * 4 ^ i % 8 * 16)) = words[i];
}

// Row i of the box is column i of the matrix, which one lane has. Through shared memory, so that a warp stores 512
// neighbouring bytes.
__device__ __forceinline__ void store_turned_box(unsigned char* box, const unsigned (&words)[BOX_ROWS],
                                                 unsigned char* staging)
{
    const unsigned lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < 8; ++j)
        *reinterpret_cast<uint4*>(staging + lane * 128 + (j ^ lane % 8) * 16) =
            make_uint4(words[j * 4], words[j * 4 + 1], words[j * 4 + 2], words[j * 4 + 3]);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < BOX_BYTES / 512; ++i)
        *reinterpret_cast<uint4*>(box + i * 512 + lane * 16) =
            *reinterpret_cast<const uint4*>(staging + i * 512 + lane * 16);
    __syncwarp();  // the next box overwrites these
}

// Where a box of A lies among the packed tiles: `strip` of 32 rows, `k` steps along K.
__device__ __forceinline__ size_t box_of_a(int strip, int k, int k_tiles)
{
    constexpr int IN_TILE = TILE_M / BOX_ROWS;
    return ((size_t)(strip / IN_TILE) * k_tiles + k) * A_BYTES + strip % IN_TILE * BOX_BYTES;
}

// Of B: `strip` of 32 rows along K, `panel` of columns. A panel of a tile is one box, or two.
__device__ __forceinline__ size_t box_of_b(int strip, int panel, int k_tiles)
{
    constexpr int IN_TILE = TILE_N / BOX_COLUMNS, IN_PANEL = TILE_K / BOX_ROWS;
    return ((size_t)(panel / IN_TILE) * k_tiles + strip / IN_PANEL) * B_BYTES +
           (panel % IN_TILE * IN_PANEL + strip % IN_PANEL) * BOX_BYTES;
}

// The counters at the start of the workspace, zero at every launch and reset for the next.
struct Counters {
    unsigned taken, packed, finished;
};

// The next ticket, in all lanes of a warp.
__device__ __forceinline__ unsigned take_ticket(unsigned* taken)
{
    unsigned ticket = 0;
    if (threadIdx.x % 32 == 0) ticket = atomicAdd(taken, 1u);
    return __shfl_sync(0xffffffff, ticket, 0);
}

// Packs what tickets this warp gets: a ticket is a few neighbouring boxes. As a ticket is taken by a warp that runs,
// whoever waits for its boxes waits for a finite time, however few blocks are there at once.
__device__ __forceinline__ void pack(const Boxes& a, const Boxes& b, int k_tiles, unsigned char* a_tiles,
                                     unsigned char* b_tiles, unsigned char* staging, Counters* counters)
{
    const unsigned first_of_b = a.tickets(), tickets = first_of_b + b.tickets();
    unsigned done = 0;
    for (unsigned ticket = take_ticket(&counters->taken); ticket < tickets; ++done) {
        const unsigned next = take_ticket(&counters->taken);  // it is there when this one is done
        const bool of_b = ticket >= first_of_b;
        const Boxes boxes = of_b ? b : a;
        const int number = of_b ? ticket - first_of_b : ticket, groups = boxes.groups();
        const int strip = number / groups, first = number % groups * BOXES_AT_ONCE;
        const int last = min(first + BOXES_AT_ONCE, boxes.across);
#pragma unroll 1
        for (int i = first; i < last; ++i) {  // lesson: begin
            unsigned words[BOX_ROWS];
            load_box(words, boxes, strip * BOX_ROWS, i * BOX_COLUMNS);
            if (!of_b)
                store_box(a_tiles + box_of_a(strip, i, k_tiles), words);
            else if (TURN_B)
                store_turned_box(b_tiles + box_of_b(strip, i, k_tiles), words, staging);
            else
                store_box(b_tiles + box_of_b(strip, i, k_tiles), words);  // lesson: end
        }
        ticket = next;
    }
    fence_proxy_async();  // bulk copies read what was stored, and write where boxes were staged
    __syncwarp();
    if (threadIdx.x % 32 == 0 && done > 0) red_release(&counters->packed, done);
}
