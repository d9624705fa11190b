// FP16 on tensor cores: mma.sync m16n8k16 with ldmatrix from tiles in shared memory, FP32 sums. Any M, N, K.
#include "views.cuh"

#include <cute/atom/copy_traits_sm75.hpp>
#include <cute/atom/mma_traits_sm80.hpp>
#include <cutlass/numeric_types.h>

namespace tensor_cores {

using half = cutlass::half_t;

template <class T, int TileM, int TileN, int TileK>
__global__ __launch_bounds__(128) void gemm(
    int M, int N, int K, float alpha, const T* A, int lda, const T* B, int ldb, float beta, float* C, int ldc)
{
    using namespace cute;
    auto tiler = Shape<Int<TileM>, Int<TileN>, Int<TileK>>{};
    auto block = make_coord(blockIdx.y, blockIdx.x, _);
    auto mA = rows(A, M, K, lda);
    auto mB = columns(B, N, K, ldb);
    auto mC = rows(C, M, N, ldc);
    auto gA = local_tile(mA, tiler, block, Step<_1, X, _1>{});
    auto gB = local_tile(mB, tiler, block, Step<X, _1, _1>{});
    auto gC = local_tile(mC, tiler, block, Step<_1, _1, X>{});
    auto iA = local_tile(make_identity_tensor(shape(mA)), tiler, block, Step<_1, X, _1>{});
    auto iB = local_tile(make_identity_tensor(shape(mB)), tiler, block, Step<X, _1, _1>{});
    auto iC = local_tile(make_identity_tensor(shape(mC)), tiler, block, Step<_1, _1, X>{});

    // Rows 16 bytes longer than the tile: eight of them, as ldmatrix reads them, lie in different banks.
    auto layoutA = Layout<Shape<Int<TileM>, Int<TileK>>, Stride<Int<TileK + 8>, _1>>{};
    auto layoutB = Layout<Shape<Int<TileN>, Int<TileK>>, Stride<_1, Int<TileN + 8>>>{};
    __shared__ __align__(16) T memoryA[cosize_v<decltype(layoutA)>];
    __shared__ __align__(16) T memoryB[cosize_v<decltype(layoutB)>];
    auto sA = make_tensor(make_smem_ptr(memoryA), layoutA);
    auto sB = make_tensor(make_smem_ptr(memoryB), layoutB);

    auto threadsA = Layout<Shape<Int<128 / TileK>, Int<TileK>>, Stride<Int<TileK>, _1>>{};
    auto threadsB = Layout<Shape<Int<TileN>, Int<128 / TileN>>>{};
    auto tAgA = local_partition(gA, threadsA, threadIdx.x);
    auto tAiA = local_partition(iA, threadsA, threadIdx.x);
    auto tAsA = local_partition(sA, threadsA, threadIdx.x);
    auto tBgB = local_partition(gB, threadsB, threadIdx.x);
    auto tBiB = local_partition(iB, threadsB, threadIdx.x);
    auto tBsB = local_partition(sB, threadsB, threadIdx.x);

    auto mma = make_tiled_mma(
        SM80_16x8x16_F32F16F16F32_TN{}, Layout<Shape<_2, _2>>{}, Tile<_32, _32, _16>{});
    auto thread = mma.get_slice(threadIdx.x);
    auto tCrA = thread.partition_fragment_A(sA);
    auto tCrB = thread.partition_fragment_B(sB);
    auto tCgC = thread.partition_C(gC);
    auto tCiC = thread.partition_C(iC);
    auto sums = thread.make_fragment_C(tCgC);
    clear(sums);

    auto loadA = make_tiled_copy_A(Copy_Atom<SM75_U32x4_LDSM_N, T>{}, mma);
    auto loadB = make_tiled_copy_B(Copy_Atom<SM75_U16x8_LDSM_T, T>{}, mma);
    auto tXsA = loadA.get_slice(threadIdx.x).partition_S(sA);
    auto tXrA = loadA.get_slice(threadIdx.x).retile_D(tCrA);
    auto tXsB = loadB.get_slice(threadIdx.x).partition_S(sB);
    auto tXrB = loadB.get_slice(threadIdx.x).retile_D(tCrB);

    for (int k = 0; k < size<2>(gA); k++) {
        copy_inside(tAgA(_, _, k), tAsA, tAiA(_, _, k), [&](auto at) { return elem_less(at, shape(mA)); });
        copy_inside(tBgB(_, _, k), tBsB, tBiB(_, _, k), [&](auto at) { return elem_less(at, shape(mB)); });
        __syncthreads();
        copy(loadA, tXsA, tXrA);
        copy(loadB, tXsB, tXrB);
        cute::gemm(mma, tCrA, tCrB, sums);
        __syncthreads();
    }
    CUTE_UNROLL
    for (int i = 0; i < size(sums); i++)
        if (elem_less(tCiC(i), shape(mC))) {
            float value = alpha * sums(i);
            tCgC(i) = beta == 0.0f ? value : value + beta * tCgC(i);
        }
}

}  // namespace tensor_cores
