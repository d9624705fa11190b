// Running sums of a block's elements: each warp scans its own by shuffles, the first warp scans the warps' totals.
extern "C" __global__ void block_scan(const int* x, int n, int* sums) {
    __shared__ int totals[32];
    int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;

    int s = i < n ? x[i] : 0;
    for (int step = 1; step < 32; step *= 2) {
        int before = __shfl_up_sync(0xffffffff, s, step);
        if (lane >= step) s += before;
    }
    if (lane == 31) totals[warp] = s;
    __syncthreads();
    if (warp == 0) {
        int t = lane < blockDim.x / 32 ? totals[lane] : 0;
        for (int step = 1; step < 32; step *= 2) {
            int before = __shfl_up_sync(0xffffffff, t, step);
            if (lane >= step) t += before;
        }
        totals[lane] = t;
    }
    __syncthreads();
    if (i < n) sums[i] = s + (warp ? totals[warp - 1] : 0);
}
