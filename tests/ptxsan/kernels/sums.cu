extern "C" __global__ void BOUNDS
sums(const int* x, int* blocks, unsigned* ballots)
{
    __shared__ int cells[64];
    int t = threadIdx.y * blockDim.x + threadIdx.x, n = blockDim.x * blockDim.y;
    cells[t] = x[blockIdx.x * n + t];
    unsigned votes = __ballot_sync(__activemask(), cells[t] % 2);
    __syncthreads();
    int sum = 0;
    for (int i = 0; i < n; i++) sum += cells[i];
    int odd = __syncthreads_count(cells[t] % 2);
    blocks[blockIdx.x * n + t] = 100 * sum + odd;
    ballots[blockIdx.x * n + t] = votes;
}
