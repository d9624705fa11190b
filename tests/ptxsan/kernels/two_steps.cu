// A scaled sum in two launches: of each block's elements, then of the blocks' sums.
__constant__ float scale = 1.0f;
__device__ int launches;

extern "C" __global__ void sums(const float* x, float* partial) {
    __shared__ float sum;
    if (threadIdx.x == 0) sum = 0.0f;
    __syncthreads();
    atomicAdd(&sum, x[blockIdx.x * blockDim.x + threadIdx.x]);
    __syncthreads();
    if (threadIdx.x == 0) partial[blockIdx.x] = scale * sum;
}

extern "C" __global__ void total(const float* partial, int n, float* result) {
    float sum = 0.0f;
    for (int i = 0; i < n; i++) sum += partial[i];
    if (threadIdx.x == 0) {
        *result = sum;
        launches++;
    }
}
