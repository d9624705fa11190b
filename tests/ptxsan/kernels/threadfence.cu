// The example of __threadfence() in the CUDA C++ Programming Guide: one partial sum a block, a counter in a
// __device__ variable, volatile partial sums. Right as it is; NO_FENCE plants the fault that the guide names.
__device__ unsigned int count = 0;
__shared__ bool isLastBlockDone;

extern "C" __global__ void sum(const float* array, unsigned int n, volatile float* result) {
    __shared__ float sums[64];
    int t = threadIdx.x, each = n / gridDim.x;
    sums[t] = 0;
    for (int i = t; i < each; i += blockDim.x) sums[t] += array[blockIdx.x * each + i];
    __syncthreads();
    if (t == 0) {
        float partial = 0;
        for (int i = 0; i < blockDim.x; ++i) partial += sums[i];
        result[blockIdx.x] = partial;
#ifndef NO_FENCE
        __threadfence();
#endif
        unsigned int value = atomicInc(&count, gridDim.x);
        isLastBlockDone = (value == (gridDim.x - 1));
    }
    __syncthreads();
    if (isLastBlockDone && t == 0) {
        float total = 0;
        for (int i = 0; i < gridDim.x; ++i) total += result[i];
        result[0] = total;
        count = 0;
    }
}
