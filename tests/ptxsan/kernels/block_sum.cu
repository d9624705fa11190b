// The sum of each block's elements: warps add up by shuffles, and the first warp adds the warps' sums.
// NO_BARRIER drops the __syncthreads that the first warp has to wait at.
extern "C" __global__ void block_sum(const float* x, int n, float* sums) {
    __shared__ float partial[32];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;

    float s = i < n ? x[i] : 0.0f;
    for (int offset = 16; offset > 0; offset /= 2) s += __shfl_down_sync(0xffffffff, s, offset);
    if (lane == 0) partial[warp] = s;
#ifndef NO_BARRIER
    __syncthreads();
#endif
    if (warp == 0) {
        s = lane < warps ? partial[lane] : 0.0f;
        for (int offset = 16; offset > 0; offset /= 2) s += __shfl_down_sync(0xffffffff, s, offset);
        if (lane == 0) sums[blockIdx.x] = s;
    }
}
