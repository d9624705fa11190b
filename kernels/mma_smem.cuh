// Where elements lie in shared memory: swizzled, so that neither cp.async nor ldmatrix conflicts on a bank.
#pragma once

#include "mma_ptx.cuh"
#include "mma_tile.cuh"

// The offset in bytes of a chunk in a tile with CHUNKS of them a row. Eight chunks fill all banks. ldmatrix reads
// eight that lie below one another: an XOR of the chunk with the row spreads them. B of FP32 is read by two
// neighbouring chunks of four rows: XOR_STEP 2.
template <int CHUNKS, int XOR_STEP>
__device__ __forceinline__ unsigned swizzle_offset(unsigned row, unsigned chunk)
{
    const unsigned rows = CHUNKS < 8 ? 8 / CHUNKS : 1;  // that together fill all banks
    const unsigned mask = CHUNKS < 8 ? CHUNKS - 1 : 7;
    return (row * CHUNKS + (chunk ^ (row / rows * XOR_STEP & mask))) * 16;
}
__device__ __forceinline__ unsigned smem_a_offset(unsigned row, unsigned chunk)
{
    return swizzle_offset<A_CHUNKS, 1>(row, chunk);
}
__device__ __forceinline__ unsigned smem_b_offset(unsigned row, unsigned chunk)
{
    return A_BYTES + swizzle_offset<B_CHUNKS, B_XOR_STEP>(row, chunk);
}

// A chunk of which only the first `count` elements exist: the others are zeros, which add nothing.
__device__ __forceinline__ void copy_chunk(unsigned to, const Element* from, int count, bool aligned)
{
    count = max(0, min(count, VECTOR));
    if (aligned) {
        const int bytes = count * (int)sizeof(Element);
        cp_async_16_zfill(to, from, bytes);
        return;
    }
    unsigned words[4] = {};
#pragma unroll
    for (int i = 0; i < VECTOR; ++i) {
        if (i >= count) break;
        if (sizeof(Element) == 4)
            words[i] = reinterpret_cast<const unsigned*>(from)[i];
        else
            words[i / 2] |= (unsigned)from[i] << 16 * (i % 2);
    }
    st_shared_v4(to, words);
}
