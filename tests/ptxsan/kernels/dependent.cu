// Two launches of which the second one may begin before the first one has ended (programmatic dependent launch).
extern "C" __global__ void first(const float* x, float* y, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2.0f * x[i];
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

extern "C" __global__ void second(const float* x, const float* y, float* z)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float other = x[i];  // of no launch
#ifdef EARLY
    other += y[i];
#endif
#ifdef ONE_WAITS
    if (threadIdx.x == 0) asm volatile("griddepcontrol.wait;" ::: "memory");
#ifndef NO_BARRIER
    __syncthreads();
#endif
#else
#ifndef NO_WAIT
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
#endif
    z[i] = other + y[i];
}
