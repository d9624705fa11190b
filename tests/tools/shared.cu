// Order in shared memory. BUG plants one mistake in each kernel.

extern "C" __global__ void reverse(const int* x, int* y)
{
    __shared__ int held[128];
    const int t = threadIdx.x;
    held[t] = x[t];
#ifndef BUG
    __syncthreads();
#endif
    y[t] = held[127 - t];
}

extern "C" __global__ void tree_sum(const int* x, int* y)
{
    __shared__ int held[128];
    const int t = threadIdx.x;
    held[t] = x[t];
    __syncthreads();
    for (int step = 64; step; step /= 2) {
        if (t < step) held[t] += held[t + step];
#ifndef BUG
        __syncthreads();
#endif
    }
    if (t == 0) *y = held[0];
}

extern "C" __global__ void tiles(const int* x, int count, int* y)
{
    __shared__ int held[128];
    const int t = threadIdx.x;
    int sum = 0;
    for (int i = 0; i < count; ++i) {
        held[t] = x[128 * i + t];
        __syncthreads();
        sum += (i + 1) * held[127 - t];
#ifndef BUG
        __syncthreads();
#endif
    }
    y[t] = sum;
}

extern "C" __global__ void in_a_warp(const int* x, int* y)
{
    __shared__ int held[32];
    const int t = threadIdx.x;
    held[t] = x[t];
#ifndef BUG
    __syncwarp();
#endif
    y[t] = held[t ^ 1];
}

extern "C" __global__ void shuffle(const int* x, int* y)
{
    __shared__ int held[32];
    const int t = threadIdx.x;
    held[t] = x[t];
    const int other = __shfl_xor_sync(0xffffffff, x[t], 1);
#ifndef BUG
    __syncwarp();
#endif
    y[t] = held[t ^ 2] + other;
}

extern "C" __global__ void histogram(const int* x, int* y)
{
    __shared__ int bins[8];
    const int t = threadIdx.x;
    if (t < 8) bins[t] = 0;
    __syncthreads();
#ifdef BUG
    bins[x[t] % 8]++;
#else
    atomicAdd(&bins[x[t] % 8], 1);
#endif
    __syncthreads();
    if (t < 8) y[t] = bins[t];
}

extern "C" __global__ void halves(const int* x, int* y)
{
    __shared__ int held[128];
    const int t = threadIdx.x;
    held[t] = x[t];
#ifdef BUG
    asm volatile("bar.sync %0, 64;" ::"r"(1 + t / 64) : "memory");
#else
    asm volatile("bar.sync 1, 128;" ::: "memory");
#endif
    y[t] = held[127 - t];
}

extern "C" __global__ void overlap(const int* x, int* y)
{
    extern __shared__ int pool[];
    const int t = threadIdx.x;
#ifdef BUG
    int *a = pool, *b = pool + 64;
#else
    int *a = pool, *b = pool + 128;
#endif
    a[t] = x[t];
    b[t] = -x[t];
    __syncthreads();
    y[t] = a[127 - t] + 3 * b[t];
}

extern "C" __global__ void flag(const int* x, int* y)
{
    __shared__ int held;
    __shared__ volatile int ready;
    const int t = threadIdx.x;
    if (t == 0) ready = 0;
    __syncthreads();
    if (t == 0) {
        held = x[0];
#ifndef BUG
        __threadfence_block();
#endif
        ready = 1;
    }
    if (t == 32) {
        while (!ready) {}
        __threadfence_block();
        *y = held;
    }
}
