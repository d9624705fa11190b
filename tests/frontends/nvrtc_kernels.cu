// Templates without a header, which NVRTC instantiates by name expressions.

// Each block's elements in the opposite order, times a.
template <typename T, int N>
__global__ void reverse(const T* x, T a, T* y, int n) {
    __shared__ T cells[N];
    int i = blockIdx.x * N + threadIdx.x;
    cells[threadIdx.x] = i < n ? x[i] : T(0);
    __syncthreads();
    y[i] = a * cells[N - 1 - threadIdx.x];
}

struct Line {
    const float* values;
    int count;
    double factor;
};

// The sum of a line's values, by warps.
template <int N>
__global__ void sum(Line line, float* total) {
    float mine = 0;
    for (int i = threadIdx.x; i < line.count; i += N) mine += line.values[i];
    for (int step = 16; step > 0; step /= 2) mine += __shfl_xor_sync(0xffffffff, mine, step);
    if (threadIdx.x % 32 == 0) atomicAdd(total, float(line.factor * mine));
}

namespace math {
__device__ float square(float x) { return x * x; }
__device__ float cube(float x) { return x * x * x; }

// One of two functions of each element.
template <float (*Function)(float)>
__global__ void map(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i] = Function(x[i]);
}
}  // namespace math
