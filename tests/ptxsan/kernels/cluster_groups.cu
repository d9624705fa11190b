// Clusters and bulk copies as CUDA C++ has them: cooperative groups, and cuda::barrier with the functions beside it.

#include <cooperative_groups.h>
#include <cuda/barrier>

namespace cg = cooperative_groups;

// Each block reads the next one's numbers and adds them to a counter of the first; ranks and numbers are told.
extern "C" __global__ void neighbours(const int* x, int* y, int* told)
{
    __shared__ int part[64];
    __shared__ int counter;
    auto cluster = cg::this_cluster();
    const int rank = cluster.block_rank(), at = blockIdx.x * 64 + threadIdx.x;
    part[threadIdx.x] = x[at];
    if (threadIdx.x == 0) counter = 0;
    cluster.sync();
    int* other = cluster.map_shared_rank(part, (rank + 1) % cluster.num_blocks());
    y[at] = other[threadIdx.x];
    atomicAdd(cluster.map_shared_rank(&counter, 0), y[at]);
    cluster.sync();
    if (threadIdx.x == 0) {
        told[4 * blockIdx.x] = counter;
        told[4 * blockIdx.x + 1] = cluster.query_shared_rank(other);
        told[4 * blockIdx.x + 2] = rank;
        told[4 * blockIdx.x + 3] = cluster.block_index().x;
    }
}

extern "C" __global__ void one_more(const int* x, int* y)
{
    using barrier = cuda::barrier<cuda::thread_scope_block>;
    namespace copies = cuda::device::experimental;
    __shared__ alignas(16) int part[128];
#pragma nv_diag_suppress static_var_with_dynamic_init
    __shared__ barrier bar;
    if (threadIdx.x == 0) {
        init(&bar, blockDim.x);
        copies::fence_proxy_async_shared_cta();
    }
    __syncthreads();
    barrier::arrival_token token;
    if (threadIdx.x == 0) {
        copies::cp_async_bulk_global_to_shared(part, x, sizeof part, bar);
        token = cuda::device::barrier_arrive_tx(bar, 1, sizeof part);
    } else {
        token = bar.arrive();
    }
    bar.wait(std::move(token));
    part[threadIdx.x] += 1;
    copies::fence_proxy_async_shared_cta();
    __syncthreads();
    if (threadIdx.x == 0) {
        copies::cp_async_bulk_shared_to_global(y, part, sizeof part);
        copies::cp_async_bulk_commit_group();
        copies::cp_async_bulk_wait_group_read<0>();
    }
}
