// Boxes of C in shared memory, before TMA stores them: rows of 32 columns, 128 bytes, in the 128-byte swizzle.
#pragma once

__device__ __forceinline__ unsigned swizzled(unsigned box, unsigned row, unsigned column)
{
    return box + row * 128 + (column * 4 ^ row % 8 << 4);
}

__device__ __forceinline__ void st_shared(unsigned smem, float value)
{
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(smem), "f"(value) : "memory");
}

__device__ __forceinline__ float ld_shared(unsigned smem)
{
    float value;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(smem) : "memory");
    return value;
}

// What is added to alpha · A · B, of a C of M rows and N columns: beta times what C was.
struct Addend {
    float beta;
    const float* C;
    int ldc, M, N;

    // A box, whose first element is at (row, column) of C, += beta · C, by `threads` threads, of which this one is `thread`.
    __device__ __forceinline__ void add(unsigned box, int rows, int row, int column, int thread, int threads) const
    {
#pragma unroll 1
        for (int i = thread; i < rows * 32; i += threads) {
            const int r = i / 32, c = i % 32;
            if (row + r >= M || column + c >= N) continue;
            const unsigned at = swizzled(box, r, c);
            st_shared(at, fmaf(beta, C[(size_t)(row + r) * ldc + column + c], ld_shared(at)));
        }
    }
};
