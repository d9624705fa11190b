// One function per PTX instruction of bulk stores: TMA copies from shared memory to global memory.
#pragma once

#include "tma_ptx.cuh"

// Before a thread asks for a bulk store: what it wrote to shared memory comes before what TMA reads there.
__device__ __forceinline__ void fence_proxy_async()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// If `issues`: copies a box from shared memory to (row, column) of a tensor map. What lies past its edges is not written,
// but for the rest of 16 bytes of a row of which one is inside. By a predicate, since after a branch of some lanes ptxas
// plans the instructions around it less well.
__device__ __forceinline__ void tma_store_2d(const CUtensorMap* map, int column, int row, unsigned smem, bool issues)
{
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %4, 0;"
                 " @p cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3]; }" ::"l"(map),
                 "r"(column), "r"(row), "r"(smem), "r"((int)issues)
                 : "memory");
}

// Closes a group of this thread's bulk stores.
__device__ __forceinline__ void bulk_commit_group()
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Waits until at most PENDING groups of this thread still read shared memory.
template <int PENDING>
__device__ __forceinline__ void bulk_wait_group_read()
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}
