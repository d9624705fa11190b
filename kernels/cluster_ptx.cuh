// One function per PTX instruction of clusters: barriers, and the shared memory of other blocks.
#pragma once

__device__ __forceinline__ unsigned cluster_rank()
{
    unsigned rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// All threads of all blocks have come, and see what the others wrote before.
__device__ __forceinline__ void cluster_sync()
{
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Where in the cluster an address of this block's shared memory is in another block.
__device__ __forceinline__ unsigned map_shared_rank(unsigned smem, unsigned rank)
{
    unsigned there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(smem), "r"(rank));
    return there;
}

// Arrives at an mbarrier of any block. Named scopes would flush L1 at each arrival, for which nothing here has a use.
__device__ __forceinline__ void mbarrier_arrive_cluster(unsigned there)
{
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(there) : "memory");
}

__device__ __forceinline__ float4 ld_cluster_v4(unsigned there)
{
    float4 v;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(there) : "memory");
    return v;
}
