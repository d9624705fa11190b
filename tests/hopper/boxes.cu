// A box of a tensor of RANK dimensions to shared memory and, as it lies there, to raw; and from there, ADDed if that is
// defined, to a box of another tensor. BYTES: of a box.

#include "hopper.cuh"

using namespace hopper;

#if RANK == 1
#define DIMENSION "1d"
#define PLACE "{%2}"
#elif RANK == 2
#define DIMENSION "2d"
#define PLACE "{%2, %3}"
#elif RANK == 3
#define DIMENSION "3d"
#define PLACE "{%2, %3, %4}"
#elif RANK == 4
#define DIMENSION "4d"
#define PLACE "{%2, %3, %4, %5}"
#else
#define DIMENSION "5d"
#define PLACE "{%2, %3, %4, %5, %6}"
#endif

struct Place { int x[5]; };

extern "C" __global__ void boxes(const __grid_constant__ CUtensorMap from, Place at, const __grid_constant__ CUtensorMap to,
                                 Place there, uint32_t* raw)
{
    extern __shared__ __align__(1024) unsigned char box[];
    __shared__ uint64_t full;
    if (threadIdx.x == 0) {
        mbarrier_init(&full, 1);
        fence_mbarrier_init();
        mbarrier_arrive_expect_tx(&full, BYTES);
        asm volatile("cp.async.bulk.tensor." DIMENSION ".shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, " PLACE "], [%7];"
                     ::"r"(address(box)), "l"(&from), "r"(at.x[0]), "r"(at.x[1]), "r"(at.x[2]), "r"(at.x[3]), "r"(at.x[4]),
                       "r"(address(&full)) : "memory");
    }
    __syncthreads();
    mbarrier_wait_parity(&full, 0);
    for (int i = threadIdx.x; i < BYTES / 4; i += blockDim.x) raw[i] = reinterpret_cast<uint32_t*>(box)[i];
    if (threadIdx.x == 0) {
#ifdef ADD
        asm volatile("cp.reduce.async.bulk.tensor." DIMENSION ".global.shared::cta.add.bulk_group [%1, " PLACE "], [%0];"
#else
        asm volatile("cp.async.bulk.tensor." DIMENSION ".global.shared::cta.bulk_group [%1, " PLACE "], [%0];"
#endif
                     ::"r"(address(box)), "l"(&to), "r"(there.x[0]), "r"(there.x[1]), "r"(there.x[2]), "r"(there.x[3]),
                       "r"(there.x[4]) : "memory");
        tma_store_commit_group();
        tma_store_wait_group_read<0>();
    }
}
