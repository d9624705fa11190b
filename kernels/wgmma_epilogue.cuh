// The epilogue of operands of 8 bits, for an Output of 32 or 16 bits and a Sum that the includer has named.
#pragma once

#include "vectors.cuh"

// Elements that are moved at once.
template <typename Element, int COUNT>
struct alignas(COUNT * sizeof(Element)) Vector {
    Element at[COUNT];
};

// C = alpha · accum + beta · C for a warp's 16 rows: rounded, staged in its own part of shared memory, whose rows have 128
// bytes, and from there stored by whole vectors.
constexpr int WIDTH = 16 / sizeof(Output), LANES = 8, STAGED = LANES * WIDTH;       // of a vector, and of a row
constexpr int STAGING_STRIDE = STAGED + (sizeof(Output) == 2 ? WIDTH : 2 * WIDTH);  // spreads fragments over the banks

template <bool READS_C, int COUNT>
__device__ __forceinline__ void epilogue(const Sum (&accum)[COUNT], int M, int N, Sum alpha, Sum beta, Output* C,
                                         int ldc, Output* staging, int row0, int col0)
{
    constexpr int COLUMNS = 2 * COUNT;
    const int lane = threadIdx.x % 32, row = lane / LANES, col = lane % LANES * WIDTH;
    const bool whole = rows_aligned(C, ldc) && row0 + 16 <= M && col0 + COLUMNS <= N;
#pragma unroll
    for (int n_block = 0; n_block < COLUMNS; n_block += STAGED) {
        // A lane has columns 2i and 2i + 1 of rows lane / 4 and lane / 4 + 8 of every eight columns.
#pragma unroll
        for (int n = 0; n < STAGED && n_block + n < COLUMNS; n += 8)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int r = lane / 4 + half * 8, c = n + lane % 4 * 2;
                Vector<Output, 2> two;
#pragma unroll
                for (int j = 0; j < 2; ++j) {
                    Sum sum = alpha * accum[(n_block + n) / 2 + half * 2 + j];
                    const int column = col0 + n_block + c + j;
                    if (READS_C && row0 + r < M && column < N)
                        sum += beta * Sum(C[(size_t)(row0 + r) * ldc + column]);
                    two.at[j] = Output(sum);
                }
                *reinterpret_cast<Vector<Output, 2>*>(staging + r * STAGING_STRIDE + c) = two;
            }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 16; i += 32 / LANES) {
            const auto vector = *reinterpret_cast<const Vector<Output, WIDTH>*>(staging + (row + i) * STAGING_STRIDE + col);
            const int column = col0 + n_block + col;
            Output* c = C + (size_t)(row0 + row + i) * ldc + column;
            if (n_block + STAGED > COLUMNS && n_block + col >= COLUMNS) continue;  // of a part of a row
            if (whole) {
                *reinterpret_cast<Vector<Output, WIDTH>*>(c) = vector;
            } else if (row0 + row + i < M) {
#pragma unroll
                for (int j = 0; j < WIDTH; ++j)
                    if (column + j < N) c[j] = vector.at[j];
            }
        }
        __syncwarp();  // the next columns overwrite these
    }
}
