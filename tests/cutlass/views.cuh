// Row-major matrices as CuTe sees them, and their tiles; what lies outside of a matrix reads as zero.
#pragma once

#include <cute/tensor.hpp>

template <class T> __device__ auto rows(T* data, int m, int n, int ld)
{
    using namespace cute;
    return make_tensor(make_gmem_ptr(data), make_shape(m, n), make_stride(int64_t(ld), Int<1>{}));
}

template <class T> __device__ auto columns(T* data, int n, int m, int ld)
{
    using namespace cute;
    return make_tensor(make_gmem_ptr(data), make_shape(n, m), make_stride(Int<1>{}, int64_t(ld)));
}

// A thread's part of a tile into shared memory, element by element where `inside` says so.
template <class Source, class Target, class Coordinates, class Inside>
__device__ void copy_inside(Source const& source, Target&& target, Coordinates const& at, Inside inside)
{
    CUTE_UNROLL
    for (int i = 0; i < cute::size(target); i++)
        target(i) = inside(at(i)) ? source(i) : typename cute::remove_cvref_t<Target>::value_type(0);
}
