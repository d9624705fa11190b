// The last listing of the note on tiling: tiles of 32 with a padded column, the loop over a tile unrolled.
#define TILE_SIZE 32

__global__ void tiled_gemm_optimized(const float* __restrict__ A, const float* __restrict__ B,
                                     float* __restrict__ C, int m, int n, int k)
{
    __shared__ float As[TILE_SIZE][TILE_SIZE + 1];
    __shared__ float Bs[TILE_SIZE][TILE_SIZE + 1];

    int tx = threadIdx.x;
    int ty = threadIdx.y;
    int row = blockIdx.y * TILE_SIZE + ty;
    int col = blockIdx.x * TILE_SIZE + tx;
    float sum = 0.0f;

    int tiles = (k + TILE_SIZE - 1) / TILE_SIZE;
    for (int t = 0; t < tiles; t++) {
        int a_col = t * TILE_SIZE + tx;
        As[ty][tx] = (row < m && a_col < k) ? A[row * k + a_col] : 0.0f;
        int b_row = t * TILE_SIZE + ty;
        Bs[ty][tx] = (b_row < k && col < n) ? B[b_row * n + col] : 0.0f;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < TILE_SIZE; i++) {
            sum += As[ty][i] * Bs[i][tx];
        }
        __syncthreads();
    }

    if (row < m && col < n) {
        C[row * n + col] = sum;
    }
}
