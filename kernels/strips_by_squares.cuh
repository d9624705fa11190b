// Edge strips of C in squares of 8 × 8.
#pragma once

// C = alpha · A · B + beta · C in the last `low` rows and the last `right` columns. All threads of a block compute a
// square, each for its part of K. A tile would multiply mostly nothing; here only the reads of A and B count.
// `shared`: 64 floats per warp.
template <int BLOCK_THREADS>
__device__ __forceinline__ void strips_by_squares(int low, int right, float* shared, int thread, int M, int N, int K,
                                                  float alpha, const float* A, int lda, const float* B, int ldb,
                                                  float beta, float* C, int ldc)
{
    const int lane = thread % 32, warp = thread / 32;
    const int high = M - low;  // with a lower strip, whole tiles, and so whole squares
    const int across = (N - 1) / 8 + 1, down = (high - 1) / 8 + 1;
    const int lower = (low + 7) / 8 * across, all = lower + down * ((right + 7) / 8);
#pragma unroll 1
    for (int index = blockIdx.x; index < all; index += gridDim.x) {
        const bool is_lower = index < lower;
        const int row0 = is_lower ? high + index / across * 8 : (index - lower) % down * 8;
        const int col0 = is_lower ? index % across * 8 : N - right + (index - lower) / down * 8;
        float sum[64] = {};
        const float *a[8], *b[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) {  // past the edge: the last one again, whose sums are not stored
            a[i] = A + (size_t)min(row0 + i, M - 1) * lda;
            b[i] = B + min(col0 + i, N - 1);
        }
#pragma unroll 2
        for (int k = thread; k < K; k += BLOCK_THREADS) {
            float row[8], col[8];
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                row[i] = a[i][k];
                col[i] = b[i][(size_t)k * ldb];
            }
#pragma unroll
            for (int i = 0; i < 64; ++i)
                sum[i] += row[i / 8] * col[i % 8];
        }
        // Butterfly reduction: a lane sends the half of its sums that its partner keeps. After five steps it holds
        // two, each the sum over all lanes.
#pragma unroll
        for (int step = 0; step < 5; ++step)
#pragma unroll
            for (int i = 0; i < 32; ++i) {
                const int kept = 32 >> step;
                if (i >= kept) continue;
                const bool upper = lane & (kept / 2);
                const float received = __shfl_xor_sync(0xffffffff, upper ? sum[i] : sum[i + kept], kept / 2);
                sum[i] = (upper ? sum[i + kept] : sum[i]) + received;
            }
        shared[warp * 64 + lane * 2] = sum[0];
        shared[warp * 64 + lane * 2 + 1] = sum[1];
        __syncthreads();  // the sums of all warps are there
        for (int i = thread; i < 64; i += BLOCK_THREADS) {
            float total = 0.0f;
#pragma unroll
            for (int w = 0; w < BLOCK_THREADS / 32; ++w)
                total += shared[w * 64 + i];
            const int row = row0 + i / 8, col = col0 + i % 8;
            if (row >= M || col >= N) continue;
            float* const c = C + (size_t)row * ldc + col;
            *c = alpha * total + (beta != 0.0f ? beta * *c : 0.0f);
        }
        __syncthreads();  // no thread still reads `shared` when it is written again
    }
}
