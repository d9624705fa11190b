// Values that nobody set. BUG plants one mistake in each kernel.

#include <climits>

extern "C" __global__ void maximum(const int* x, int n, int* y)
{
    const int t = threadIdx.x;
#ifdef BUG
    int top;
    for (int i = t; i < n; i += 64) top = i == t ? x[i] : max(top, x[i]);
#else
    int top = INT_MIN;
    for (int i = t; i < n; i += 64) top = max(top, x[i]);
#endif
    y[t] = top;
}

extern "C" __global__ void tail(const int* x, int n, int* y)
{
    __shared__ int held[64];
    const int t = threadIdx.x;
    if (t < n) held[t] = x[t];
#ifndef BUG
    else held[t] = 0;
#endif
    __syncthreads();
    int sum = 0;
    for (int i = 0; i < 64; ++i) sum += held[i];
    y[t] = sum;
}

extern "C" __global__ void accumulate(const int* x, int* y)
{
    const int t = threadIdx.x;
#ifdef BUG
    y[t] += x[t];
#else
    y[t] = x[t];
#endif
}
