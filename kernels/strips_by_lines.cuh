// Edge strips of C of one or two rows or columns, in lines of 32 elements.
#pragma once

// The same sums as strips_by_squares, added in the same order, without reads for rows and columns that are not there.
// In a lower strip a lane has a column, and every 32nd k goes to one sum; in a right strip a lane has a k. So
// neighbouring lanes read neighbouring elements, except in the one column of B.
template <int BLOCK_THREADS>
__device__ __forceinline__ void strips_by_lines(int low, int right, float* shared, int thread, int M, int N, int K,
                                                float alpha, const float* A, int lda, const float* B, int ldb,
                                                float beta, float* C, int ldc)
{
    const int lane = thread % 32, warp = thread / 32;
    const int high = M - low, across = (N - 1) / 32 + 1, down = (high - 1) / 32 + 1;
    const int lower = low * across, all = lower + down * right;
#pragma unroll 1
    for (int index = blockIdx.x; index < all; index += gridDim.x) {
        const bool is_lower = index < lower;
        const int row0 = is_lower ? high + index / across : (index - lower) % down * 32;
        const int col0 = is_lower ? index % across * 32 : N - right + (index - lower) / down;
        float sum[32] = {};
        if (is_lower) {
            const float* const a = A + (size_t)row0 * lda;
            const float* const b = B + min(col0 + lane, N - 1);
            int k0 = warp * 32;
#pragma unroll 2
            for (; k0 + 32 <= K; k0 += BLOCK_THREADS)
#pragma unroll
                for (int i = 0; i < 32; ++i)
                    sum[i] += a[k0 + i] * b[(size_t)(k0 + i) * ldb];
#pragma unroll
            for (int i = 0; i < 32; ++i)
                if (k0 + i < K) sum[i] += a[k0 + i] * b[(size_t)(k0 + i) * ldb];
#pragma unroll
            for (int half = 16; half > 0; half /= 2)
#pragma unroll
                for (int i = 0; i < 16; ++i)
                    if (i < half) sum[i] += sum[i + half];
        } else {
            const float* const a = A + (size_t)row0 * lda;
            const float* const b = B + col0;
#pragma unroll 2
            for (int k = thread; k < K; k += BLOCK_THREADS) {
                const float col = b[(size_t)k * ldb];
#pragma unroll
                for (int i = 0; i < 32; ++i)  // past the edge: the last one again, whose sum is not stored
                    sum[i] += a[(size_t)min(i, M - 1 - row0) * lda + k] * col;
            }
#pragma unroll
            for (int half = 16; half > 0; half /= 2)
#pragma unroll
                for (int i = 0; i < 16; ++i) {
                    if (i >= half) continue;
                    const bool upper = lane & half;
                    const float received = __shfl_xor_sync(0xffffffff, upper ? sum[i] : sum[i + half], half);
                    sum[i] = (upper ? sum[i + half] : sum[i]) + received;
                }
        }
        shared[warp * 32 + lane] = sum[0];
        __syncthreads();  // the sums of a line of all warps are there
        if (thread < 32) {
            float total = 0.0f;
#pragma unroll
            for (int w = 0; w < BLOCK_THREADS / 32; ++w)
                total += shared[w * 32 + thread];
            const int row = row0 + (is_lower ? 0 : thread), col = col0 + (is_lower ? thread : 0);
            if (row < (is_lower ? M : high) && col < N) {
                float* const c = C + (size_t)row * ldc + col;
                *c = alpha * total + (beta != 0.0f ? beta * *c : 0.0f);
            }
        }
        __syncthreads();  // no thread still reads a line when `shared` is written again
    }
}
