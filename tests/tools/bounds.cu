// Accesses out of bounds, and misaligned ones. BUG plants one mistake in each kernel.

extern "C" __global__ void one_past(const int* x, int n, int* y)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
#ifdef BUG
    if (i <= n) y[i] = 2 * x[i];
#else
    if (i < n) y[i] = 2 * x[i];
#endif
}

extern "C" __global__ void next_variable(const int* x, int* y)
{
    __shared__ int a[64], b[64];
    const int t = threadIdx.x;
    a[t] = x[t];
    b[t] = -x[t];
    __syncthreads();
#ifdef BUG
    y[t] = a[t + 1] + b[63 - t];
#else
    y[t] = a[(t + 1) % 64] + b[63 - t];
#endif
}

extern "C" __global__ void local_array(const int* x, int n, int* y)
{
    int last[8];
#ifdef BUG
    for (int i = 0; i <= n; ++i) last[i] = x[i];
#else
    for (int i = 0; i < n; ++i) last[i] = x[i];
#endif
    int sum = 0;
    for (int i = 0; i < n; ++i) sum += (i + 1) * last[x[i] % n];
    *y = sum;
}

__device__ int table[32], after[32];

extern "C" __global__ void device_variable(const int* x, int* y)
{
    const int t = threadIdx.x;
    table[t] = x[t];
    after[t] = -x[t];
    __syncthreads();
#ifdef BUG
    y[t] = table[t + 1] + after[31 - t];
#else
    y[t] = table[(t + 1) % 32] + after[31 - t];
#endif
}

// value * bins passes 2³¹ before it is divided.
extern "C" __global__ void overflow(const int* x, int bins, int range, int* y)
{
    const int value = x[threadIdx.x];
#ifdef BUG
    const int bin = value * bins / range;
#else
    const int bin = static_cast<int>(static_cast<long long>(value) * bins / range);
#endif
    atomicAdd(y + bin, 1);
}

extern "C" __global__ void vectors(const float* x, float* y)
{
#ifdef BUG
    const float* from = x + 1;
#else
    const float* from = x + 4;
#endif
    const float4 v = reinterpret_cast<const float4*>(from)[threadIdx.x];
    y[threadIdx.x] = v.x + v.y + v.z + v.w;
}
