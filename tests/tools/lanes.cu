// Barriers, lanes of a mask, waits. BUG plants one mistake in each kernel.

extern "C" __global__ void divergent(const int* x, int* y)
{
    __shared__ int held[64];
    const int t = threadIdx.x;
    held[t] = x[t];
#ifdef BUG
    if (t < 40) __syncthreads();
#else
    __syncthreads();
#endif
    const int other = held[63 - t];
    __syncthreads();
    held[t] = other;
    __syncthreads();
    y[t] = held[t ^ 33];
}

extern "C" __global__ void count(const int* x, int* y)
{
    __shared__ int held[64];
    const int t = threadIdx.x;
    held[t] = x[t];
#ifdef BUG
    asm volatile("bar.sync 1, 96;" ::: "memory");
#else
    asm volatile("bar.sync 1, 64;" ::: "memory");
#endif
    y[t] = held[63 - t];
}

extern "C" __global__ void mask(const int* x, int* y)
{
    const int t = threadIdx.x;
    int v = x[t];
    if (t < 16)
#ifdef BUG
        v = __shfl_xor_sync(0xffffffff, v, 1);
#else
        v = __shfl_xor_sync(0x0000ffff, v, 1);
#endif
    y[t] = v;
}

extern "C" __global__ void absent_lane(const int* x, int* y)
{
    const int t = threadIdx.x;
    int v = x[t];
    if (t < 16)
#ifdef BUG
        v += __shfl_down_sync(0x0000ffff, v, 8);
#else
        v += __shfl_down_sync(0x0000ffff, v, 8, 16);
#endif
    y[t] = v;
}

// All blocks meet: each adds one, and waits for all.
extern "C" __global__ void meet(int* arrived, int* y)
{
    if (threadIdx.x) return;
#ifdef BUG
    if (blockIdx.x < gridDim.x - 1) atomicAdd(arrived, 1);
#else
    atomicAdd(arrived, 1);
#endif
    while (*static_cast<volatile int*>(arrived) < gridDim.x) {}
    y[blockIdx.x] = blockIdx.x;
}
