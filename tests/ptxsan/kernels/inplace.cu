// Kernels that read and write one array: right with a barrier, or with two arrays.
__noinline__ __device__ float next(const float* x, int i) { return x[i + 1]; }

extern "C" __global__ void stencil(float* x, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i + 1 < n) x[i] = 0.5f * (x[i] + x[i + 1]);
}

extern "C" __global__ void called(float* x, int n)
{
    int i = threadIdx.x;
    float v = i + 1 < n ? next(x, i) : 0;
#ifdef SYNC
    __syncthreads();
#endif
    x[i] = v;
}

extern "C" __global__ void transpose(float* x)
{
    float v = x[8 * threadIdx.y + threadIdx.x];
#ifdef SYNC
    __syncthreads();
#endif
    x[8 * threadIdx.x + threadIdx.y] = v;
}

extern "C" __global__ void own(float* x, int n)
{
    for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] = 2 * x[i] + 1;
}

extern "C" __global__ void apart(const float* x, float* y, int n)
{
    int i = threadIdx.x;
    if (i + 1 < n) y[i] = x[i + 1];
}
