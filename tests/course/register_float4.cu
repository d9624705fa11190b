// The second listing of the note on register tiling: a tile of 64, 256 threads, float4 loads and stores.
#define TILE_SIZE 64
#define THREAD_TILE_M 8
#define THREAD_TILE_N 8
#define BLOCK_THREADS 256

__global__ void gemm_register_tiling_optimized(const float* __restrict__ A, const float* __restrict__ B,
                                               float* __restrict__ C, int M, int N, int K)
{
    __shared__ float As[TILE_SIZE][TILE_SIZE + 1];
    __shared__ float Bs[TILE_SIZE][TILE_SIZE + 1];

    int tid = threadIdx.x;
    int thread_tile_id = tid / (32 / THREAD_TILE_N);
    int thread_row = (thread_tile_id / (TILE_SIZE / THREAD_TILE_N)) * THREAD_TILE_M;
    int thread_col = (thread_tile_id % (TILE_SIZE / THREAD_TILE_N)) * THREAD_TILE_N;
    int row_base = blockIdx.y * TILE_SIZE;
    int col_base = blockIdx.x * TILE_SIZE;

    float results[THREAD_TILE_M][THREAD_TILE_N];
#pragma unroll
    for (int i = 0; i < THREAD_TILE_M; i++) {
#pragma unroll
        for (int j = 0; j < THREAD_TILE_N; j++) {
            results[i][j] = 0.0f;
        }
    }

    for (int t = 0; t < (K + TILE_SIZE - 1) / TILE_SIZE; t++) {
        int num_loads = (TILE_SIZE * TILE_SIZE) / BLOCK_THREADS;
#pragma unroll
        for (int i = 0; i < num_loads / 4; i++) {
            int idx = tid * num_loads + i * 4;
            int y = idx / TILE_SIZE;
            int x = idx % TILE_SIZE;
            float4 a_vec = *((float4*)&A[(row_base + y) * K + t * TILE_SIZE + x]);
            *((float4*)&As[y][x]) = a_vec;
            float4 b_vec = *((float4*)&B[(t * TILE_SIZE + y) * N + col_base + x]);
            *((float4*)&Bs[y][x]) = b_vec;
        }
        __syncthreads();

#pragma unroll
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
        int row = row_base + thread_row + i;
        if (row < M && col_base + thread_col < N) {
            float4 result_vec;
            result_vec.x = results[i][0];
            result_vec.y = results[i][1];
            result_vec.z = results[i][2];
            result_vec.w = results[i][3];
            *((float4*)&C[row * N + col_base + thread_col]) = result_vec;
            for (int j = 4; j < THREAD_TILE_N; j++) {
                int col = col_base + thread_col + j;
                if (col < N) {
                    C[row * N + col] = results[i][j];
                }
            }
        }
    }
}
