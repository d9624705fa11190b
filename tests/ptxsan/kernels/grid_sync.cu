// Each block sums its elements; past the barrier of the grid each block adds up all sums. NO_SYNC drops it.
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
extern "C" __global__ void shares(const float* x, float* sums, float* shares) {
    cg::grid_group grid = cg::this_grid();
    int i = grid.thread_rank();
    if (threadIdx.x == 0) {
        float sum = 0;
        for (int j = 0; j < blockDim.x; ++j) sum += x[i + j];
        sums[blockIdx.x] = sum;
    }
#ifndef NO_SYNC
    grid.sync();
#endif
    float total = 0;
    for (int block = 0; block < gridDim.x; ++block) total += sums[block];
    grid.sync();
    shares[i] = x[i] / total;
}
