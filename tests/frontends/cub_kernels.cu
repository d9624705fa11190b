// Blocks that reduce, scan and sort with CUB.
#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>

template <int N>
__global__ void sums(const int* x, int* totals, int* running, int* sorted) {
    using Reduce = cub::BlockReduce<int, N>;
    using Scan = cub::BlockScan<int, N>;
    using Sort = cub::BlockRadixSort<int, N, 2>;
    __shared__ union {
        typename Reduce::TempStorage reduce;
        typename Scan::TempStorage scan;
        typename Sort::TempStorage sort;
    } memory;
    int i = blockIdx.x * N + threadIdx.x, value = x[i], before;
    int total = Reduce(memory.reduce).Sum(value);
    if (threadIdx.x == 0) totals[blockIdx.x] = total;
    __syncthreads();
    Scan(memory.scan).InclusiveSum(value, before);
    running[i] = before;
    __syncthreads();
    int both[2] = {value, -value};
    Sort(memory.sort).Sort(both);
    sorted[2 * i] = both[0];
    sorted[2 * i + 1] = both[1];
}
