// Order in global memory, within a block and between blocks. BUG plants one mistake in each kernel.

extern "C" __global__ void exchange(const int* x, int* work, int* y)
{
    const int t = threadIdx.x, first = blockIdx.x * blockDim.x;
    work[first + t] = x[first + t];
#ifndef BUG
    __syncthreads();
#endif
    y[first + t] = work[first + 127 - t];
}

extern "C" __global__ void counter(int* count)
{
    if (threadIdx.x) return;
#ifdef BUG
    *count += 1;
#else
    atomicAdd(count, 1);
#endif
}

extern "C" __global__ void last_block(const int* x, int* partial, int* count, int* y)
{
    if (threadIdx.x) return;
    int sum = 0;
    for (int i = 0; i < 32; ++i) sum += x[32 * blockIdx.x + i];
    partial[blockIdx.x] = sum;
#ifndef BUG
    __threadfence();
#endif
    if (atomicAdd(count, 1) + 1 < gridDim.x) return;
    __threadfence();
    sum = 0;
    for (int i = 0; i < gridDim.x; ++i) sum += partial[i];
    *y = sum;
}

extern "C" __global__ void last_to_arrive(const int* x, int* work, int* count, int* y)
{
    __shared__ bool last;
    const int t = threadIdx.x;
    work[64 * blockIdx.x + t] = 2 * x[64 * blockIdx.x + t];
    __threadfence();
#ifndef BUG
    __syncthreads();
#endif
    if (t == 0) last = atomicAdd(count, 1) + 1 == gridDim.x;
    __syncthreads();
    if (!last) return;
    __threadfence();
    int sum = 0;
    for (int i = 0; i < gridDim.x; ++i) sum += work[64 * i + 63 - t];
    y[t] = sum;
}

extern "C" __global__ void scope(int* count)
{
#ifdef BUG
    atomicAdd_block(count, 1);
#else
    atomicAdd(count, 1);
#endif
}

extern "C" __global__ void hand_over(const int* x, int* data, int* ready, int* y)
{
    if (threadIdx.x) return;
    if (blockIdx.x == 0) {
        *data = x[0];
#ifdef BUG
        asm volatile("st.relaxed.gpu.global.s32 [%0], 1;" ::"l"(ready) : "memory");
#else
        asm volatile("st.release.gpu.global.s32 [%0], 1;" ::"l"(ready) : "memory");
#endif
    } else {
        int seen = 0;
        while (!seen) asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(seen) : "l"(ready) : "memory");
        *y = *data;
    }
}

// In place, a block may read the neighbour's element before or after it has changed.
extern "C" __global__ void in_place(const int* x, int* work, int* y)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x, n = gridDim.x * blockDim.x;
#ifdef BUG
    const int sum = work[i] + work[(i + 1) % n];
    __syncthreads();
    work[i] = sum;
#else
    work[i] = x[i] + x[(i + 1) % n];
#endif
    y[i] = i;
}
