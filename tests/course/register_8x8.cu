// The first listing of the note on register tiling: a tile of 32 by 16 threads, each with 8 by 8 elements.
#define TILE_SIZE 32
#define THREAD_TILE_M 8
#define THREAD_TILE_N 8

__global__ void gemm_register_tiling(const float* __restrict__ A, const float* __restrict__ B,
                                     float* __restrict__ C, int M, int N, int K)
{
    __shared__ float As[TILE_SIZE][TILE_SIZE + 1];
    __shared__ float Bs[TILE_SIZE][TILE_SIZE + 1];

    int tx = threadIdx.x;
    int ty = threadIdx.y;
    int thread_row = ty * THREAD_TILE_M;
    int thread_col = tx * THREAD_TILE_N;
    int row_base = blockIdx.y * TILE_SIZE;
    int col_base = blockIdx.x * TILE_SIZE;
    float results[THREAD_TILE_M][THREAD_TILE_N] = {0.0f};

    for (int t = 0; t < (K + TILE_SIZE - 1) / TILE_SIZE; t++) {
        int load_count = (TILE_SIZE * TILE_SIZE) / (blockDim.x * blockDim.y);
        for (int i = 0; i < load_count; i++) {
            int linear = (ty * blockDim.x + tx) * load_count + i;
            int load_y = linear / TILE_SIZE;
            int load_x = linear % TILE_SIZE;
            int a_row = row_base + load_y;
            int a_col = t * TILE_SIZE + load_x;
            As[load_y][load_x] = (a_row < M && a_col < K) ? A[a_row * K + a_col] : 0.0f;
            int b_row = t * TILE_SIZE + load_y;
            int b_col = col_base + load_x;
            Bs[load_y][load_x] = (b_row < K && b_col < N) ? B[b_row * N + b_col] : 0.0f;
        }
        __syncthreads();

        for (int k = 0; k < TILE_SIZE; k++) {
            float reg_a[THREAD_TILE_M];
            float reg_b[THREAD_TILE_N];
#pragma unroll
            for (int i = 0; i < THREAD_TILE_M; i++) {
                reg_a[i] = As[thread_row + i][k];
            }
#pragma unroll
            for (int j = 0; j < THREAD_TILE_N; j++) {
                reg_b[j] = Bs[k][thread_col + j];
            }
#pragma unroll
            for (int i = 0; i < THREAD_TILE_M; i++) {
#pragma unroll
                for (int j = 0; j < THREAD_TILE_N; j++) {
                    results[i][j] += reg_a[i] * reg_b[j];
                }
            }
        }
        __syncthreads();
    }

#pragma unroll
    for (int i = 0; i < THREAD_TILE_M; i++) {
#pragma unroll
        for (int j = 0; j < THREAD_TILE_N; j++) {
            int row = row_base + thread_row + i;
            int col = col_base + thread_col + j;
            if (row < M && col < N) {
                C[row * N + col] = results[i][j];
            }
        }
    }
}
