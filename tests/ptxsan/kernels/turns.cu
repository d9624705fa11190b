// Blocks take turns by a flag: block b adds to what block b − 1 left. FLAG picks how the flag is written.
extern "C" __global__ void turns(float* sum, volatile int* turn) {
    int t = threadIdx.x, b = blockIdx.x;
#ifdef SPIN
    if (t == 0) while (*turn != gridDim.x - 1 - b) {}
#else
    if (t == 0) while (*turn != b) {}
#endif
    __syncthreads();
    sum[t] += b + 1;
#ifndef NO_FENCE
    __threadfence();
#endif
    __syncthreads();
    if (t == 0) *turn = b + 1;
}
