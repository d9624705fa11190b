// Vectors of 16 bytes between registers, shared and global memory, and what to do where a row ends within one.
#pragma once

// Whether every row of a matrix starts at a multiple of 16 bytes.
template <typename Element>
__device__ __forceinline__ bool rows_aligned(const Element* p, int ld)
{
    const int vector = 16 / sizeof(Element);
    return reinterpret_cast<size_t>(p) % 16 == 0 && ld % vector == 0;
}

// Elements col … col + 3 of a row, with 0 for those from `width` on. `aligned`: the row is 16-byte aligned.
__device__ __forceinline__ float4 load4(const float* row, int col, int width, bool aligned)
{
    if (aligned && col + 4 <= width) return *reinterpret_cast<const float4*>(row + col);
    float4 v;
    v.x = col < width ? row[col] : 0.0f;
    v.y = col + 1 < width ? row[col + 1] : 0.0f;
    v.z = col + 2 < width ? row[col + 2] : 0.0f;
    v.w = col + 3 < width ? row[col + 3] : 0.0f;
    return v;
}

// c[0 … 3] = alpha · sum + beta · c, of which only the first `count` exist. beta = 0 does not read c.
__device__ __forceinline__ void store4(float* c, int count, bool aligned, float alpha, const float* sum,
                                       float beta)
{
    float v[4];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
        v[n] = alpha * sum[n];
        if (beta != 0.0f && n < count) v[n] += beta * c[n];
    }
    if (aligned && count >= 4) {
        *reinterpret_cast<float4*>(c) = make_float4(v[0], v[1], v[2], v[3]);
        return;
    }
#pragma unroll
    for (int n = 0; n < 4; ++n)
        if (n < count) c[n] = v[n];
}

// Copies from global into shared memory that need no registers, and go on while the thread does.
__device__ __forceinline__ void cp_async_4(float* shared, const float* global)
{
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(global) : "memory");
}

__device__ __forceinline__ void cp_async_16(float* shared, const float* global)
{
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
}

// The same where `wanted`, without a branch.
__device__ __forceinline__ void cp_async_4_if(bool wanted, float* shared, const float* global)
{
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %0, 0; @p cp.async.ca.shared.global [%1], [%2], 4; }"
                 ::"r"((int)wanted), "r"(to), "l"(global) : "memory");
}

__device__ __forceinline__ void cp_async_16_if(bool wanted, float* shared, const float* global)
{
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %0, 0; @p cp.async.cg.shared.global [%1], [%2], 16; }"
                 ::"r"((int)wanted), "r"(to), "l"(global) : "memory");
}

// Closes a group of copies; groups complete in order.
__device__ __forceinline__ void cp_async_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most PENDING of this thread's groups are in flight.
template <int PENDING>
__device__ __forceinline__ void cp_async_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
