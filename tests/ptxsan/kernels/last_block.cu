// Each block leaves partial sums, and the last one to arrive adds them up: the pattern of split-K. Right as it
// is; each macro plants one fault.
#ifdef LATE_FENCE
#define FENCE_OF_ALL
#define FENCE_OF_ONE __threadfence()
#elif defined NO_FENCE
#define FENCE_OF_ALL
#define FENCE_OF_ONE
#else
#define FENCE_OF_ALL __threadfence()
#define FENCE_OF_ONE
#endif
#ifdef SKIP_A_BLOCK
#define FIRST 1
#else
#define FIRST 0
#endif

extern "C" __global__ void last_block(const float* x, int n, float* partial, unsigned* arrived, float* out) {
    __shared__ float sums[128];
    __shared__ bool last;
    int t = threadIdx.x, first = blockIdx.x * blockDim.x + t;
    float s = 0;
    for (int i = first; i < n; i += gridDim.x * blockDim.x) s += x[i];
    if (blockIdx.x >= FIRST) partial[first] = s;
    FENCE_OF_ALL;
#ifndef NO_BARRIER
    __syncthreads();
#endif
    FENCE_OF_ONE;
#ifdef NO_ATOMIC
    if (t == 0) last = blockIdx.x == gridDim.x - 1;
#else
    if (t == 0) last = atomicAdd(arrived, 1) == gridDim.x - 1;
#endif
    __syncthreads();
    if (!last) return;
    s = 0;
    for (int b = 0; b < gridDim.x; ++b) s += partial[b * blockDim.x + t];
    sums[t] = s;
    __syncthreads();
    for (int h = blockDim.x / 2; h > 0; h /= 2) {
        if (t < h) sums[t] += sums[t + h];
        __syncthreads();
    }
    if (t == 0) {
        *out = sums[0];
        *arrived = 0;  // for the next launch
    }
}
