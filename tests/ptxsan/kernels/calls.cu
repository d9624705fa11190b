// Functions that are not inlined, printf, an assertion, variables that point to others: calls.
#include <cassert>
#include <cstdio>

struct Scale {
    float factor;
    int offset;
    double wide;
    int steps[4];
};

__device__ float samples[4] = {1, 2, 3, 4};
__device__ float* first = samples + 1;
__constant__ float weights[3] = {0.5f, 1.5f, 2.5f};

__noinline__ __device__ float scaled(float v, Scale s) { return v * s.factor + s.offset; }

__noinline__ __device__ Scale half_of(int n) {
    Scale s = {};
    s.wide = n * 0.5;
    s.offset = n < 4 ? 1 : 2;
    return s;
}

__noinline__ __device__ int levels(int n) {
    if (n <= 1) return 1;
    int rest = levels(n - 1);
    __syncwarp();
    return rest * 2 + (n & 1);
}

extern "C" __global__ void calls(float* out, int n, Scale s) {
    int i = threadIdx.x;
    float v = i % 2 ? scaled(i, s) : scaled(-i, s);
    v += weights[i % 3] + first[i % 2] + s.steps[i % 4];
    Scale h = half_of(i);
    if (i == 3) printf("lane %d: %5.2f|%-4s|%lld %c%% %#x\n", i, v, "ab", 123456789012LL, 'x', 255);
    assert(n < 100);
    out[i] = v + h.wide + h.offset + levels(n);
}
