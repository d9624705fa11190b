// Strips at the right and lower edge of C, of too few columns or rows for tiles.
#pragma once

// What is left of a size by whole tiles, if that is at most an eighth of one; else 0: then the rest is a tile, too.
__device__ __forceinline__ int strip_of(int size, int tile)
{
    return size > tile && size % tile <= tile / 8 ? size % tile : 0;
}

// C = alpha · A · B + beta · C in the last `low` rows and the last `right` columns: squares of 8 × 8, each by all
// threads of a block, which share K. A tile would be mostly multiply-adds for nothing; here nothing but the reads of A
// and B counts. `shared`: 64 floats per warp.
template <int THREADS_OF_ALL>
__device__ __forceinline__ void strips_of_squares(int low, int right, float* shared, int thread, int M, int N, int K,
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
        for (int k = thread; k < K; k += THREADS_OF_ALL) {
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
        // Half of a lane's sums to the lane opposite, which keeps the other half; five times, then it has two, of
        // all lanes.
#pragma unroll
        for (int step = 0; step < 5; ++step)
#pragma unroll
            for (int i = 0; i < 32; ++i) {
                const int kept = 32 >> step;
                if (i >= kept) continue;
                const bool upper = lane & (kept / 2);
                const float given = __shfl_xor_sync(0xffffffff, upper ? sum[i] : sum[i + kept], kept / 2);
                sum[i] = (upper ? sum[i + kept] : sum[i]) + given;
            }
        shared[warp * 64 + lane * 2] = sum[0];
        shared[warp * 64 + lane * 2 + 1] = sum[1];
        __syncthreads();  // the sums of all warps are there
        for (int i = thread; i < 64; i += THREADS_OF_ALL) {
            float total = 0.0f;
#pragma unroll
            for (int w = 0; w < THREADS_OF_ALL / 32; ++w)
                total += shared[w * 64 + i];
            const int row = row0 + i / 8, col = col0 + i % 8;
            if (row >= M || col >= N) continue;
            float* const c = C + (size_t)row * ldc + col;
            *c = alpha * total + (beta != 0.0f ? beta * *c : 0.0f);
        }
        __syncthreads();  // no thread still reads `shared` when it is written again
    }
}

// The same for strips of a row or two, a column or two, by lines of 32 elements: the sums of squares, added in the same
// order, without reads for rows and columns that are not there. Of a lower strip, a lane has a column and every 32nd k is
// one sum; of a right one, a lane has a k. So lanes next to each other read neighbours, but of the one column of B.
template <int THREADS_OF_ALL>
__device__ __forceinline__ void strips_of_lines(int low, int right, float* shared, int thread, int M, int N, int K,
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
            for (; k0 + 32 <= K; k0 += THREADS_OF_ALL)
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
            for (int k = thread; k < K; k += THREADS_OF_ALL) {
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
                    const float given = __shfl_xor_sync(0xffffffff, upper ? sum[i] : sum[i + half], half);
                    sum[i] = (upper ? sum[i + half] : sum[i]) + given;
                }
        }
        shared[warp * 32 + lane] = sum[0];
        __syncthreads();  // the sums of a line of all warps are there
        if (thread < 32) {
            float total = 0.0f;
#pragma unroll
            for (int w = 0; w < THREADS_OF_ALL / 32; ++w)
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

// The strips of C. BY_LINES: by lines where they are thin enough, which takes registers.
template <int THREADS_OF_ALL, bool BY_LINES>
__device__ __forceinline__ void strips(int low, int right, float* shared, int thread, int M, int N, int K, float alpha,
                                       const float* A, int lda, const float* B, int ldb, float beta, float* C, int ldc)
{
    if (BY_LINES && low <= 2 && right <= 2)
        strips_of_lines<THREADS_OF_ALL>(low, right, shared, thread, M, N, K, alpha, A, lda, B, ldb, beta, C, ldc);
    else
        strips_of_squares<THREADS_OF_ALL>(low, right, shared, thread, M, N, K, alpha, A, lda, B, ldb, beta, C, ldc);
}
