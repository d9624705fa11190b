// Threads that wait for others: blocks of the grid, and warps of a block. FAULT picks a mistake.
#ifndef FAULT
#define FAULT 0
#endif
#include <cooperative_groups.h>
#include <cuda/atomic>
namespace cg = cooperative_groups;
extern "C" __global__ void grid_sync(int* x, int* y) {
    int i = blockIdx.x*blockDim.x+threadIdx.x, n = gridDim.x*blockDim.x;
    x[i] = i;
    cg::this_grid().sync();
    y[i] = x[n-1-i];
}
// Serial split-K: each block adds to what the one before it left.
extern "C" __global__ void serial(float* sum, volatile int* turn, int last) {
    int t = threadIdx.x, b = last ? gridDim.x-1-blockIdx.x : blockIdx.x;
    if (t == 0) while (*turn != b) {}
    __syncthreads();
    __threadfence();
    sum[t] += b + 1;
    __threadfence();
    __syncthreads();
    if (t == 0) *turn = b + 1;
}
// As CUB's scan: a flag and a value in one word.
extern "C" __global__ void lookback(const int* x, unsigned long long* state, int* out) {
    __shared__ int before;
    int b = blockIdx.x, t = threadIdx.x;
    int s = x[b*32+t];
    for (int d = 16; d; d /= 2) s += __shfl_xor_sync(~0u, s, d);
    if (t == 0) {
        volatile unsigned long long* v = state;
        v[b] = (1ull << 32) | (unsigned)s;
        int sum = 0;
        for (int p = b-1; p >= 0; --p) {
            unsigned long long w;
            do { w = v[p]; } while (w == 0);
            sum += (int)(unsigned)w;
            if (w >> 33) break;
        }
        v[b] = (2ull << 32) | (unsigned)(sum + s);
        before = sum;
    }
    __syncthreads();
    out[b*32+t] = before;
}
// Warp 0 waits for warp 1, by a flag in shared memory.
extern "C" __global__ void flags(int* out) {
    __shared__ volatile int flag; __shared__ int data[32];
    int w = threadIdx.x/32, t = threadIdx.x%32;
    if (threadIdx.x == 0) flag = 0;
    __syncthreads();
    if (w == 1) { 
        data[t] = t + 5;
#if FAULT != 1
        __threadfence_block();
#endif
        __syncwarp();
        if (t == 0) flag = 1;
#if FAULT == 2
        data[t] = 4;
#endif
    }
    else if (w == 0) { if (t == 0) while (flag == 0) {} __threadfence_block(); __syncwarp(); out[t] = data[t]; }
}
extern "C" __global__ void atomic_flags(int* out) {
    __shared__ int flag; __shared__ int data[32];
    int w = threadIdx.x/32, t = threadIdx.x%32;
    if (threadIdx.x == 0) flag = 0;
    __syncthreads();
    cuda::atomic_ref<int, cuda::thread_scope_block> f(flag);
    if (w == 1) { data[t] = t+5; __syncwarp(); if (t == 0) f.store(1, FAULT ? cuda::memory_order_relaxed : cuda::memory_order_release); }
    else if (w == 0) { if (t == 0) while (f.load(cuda::memory_order_acquire) == 0) {} __syncwarp(); out[t] = data[t]; }
}
// A lock that each thread takes for itself.
extern "C" __global__ void lock(int* mutex, int* count) {
    while (atomicCAS(mutex, 0, 1) != 0) {}
    __threadfence();
    *(volatile int*)count += 1;
    __threadfence();
    atomicExch(mutex, 0);
}
