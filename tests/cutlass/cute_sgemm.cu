// FP32 on CUDA cores: cute::gemm of a 16 x 16 grid of threads over tiles in shared memory. Any M, N, K.
#include "views.cuh"

template <int TileM, int TileN, int TileK>
__global__ __launch_bounds__(256) void cute_sgemm(
    int M, int N, int K, float alpha, const float* A, int lda, const float* B, int ldb, float beta, float* C,
    int ldc)
{
    using namespace cute;
    auto tiler = Shape<Int<TileM>, Int<TileN>, Int<TileK>>{};
    auto block = make_coord(blockIdx.y, blockIdx.x, _);
    auto mA = rows(A, M, K, lda);
    auto mB = columns(B, N, K, ldb);
    auto mC = rows(C, M, N, ldc);
    auto gA = local_tile(mA, tiler, block, Step<_1, X, _1>{});  // (TileM, TileK, k)
    auto gB = local_tile(mB, tiler, block, Step<X, _1, _1>{});  // (TileN, TileK, k)
    auto gC = local_tile(mC, tiler, block, Step<_1, _1, X>{});  // (TileM, TileN)
    auto iA = local_tile(make_identity_tensor(shape(mA)), tiler, block, Step<_1, X, _1>{});
    auto iB = local_tile(make_identity_tensor(shape(mB)), tiler, block, Step<X, _1, _1>{});
    auto iC = local_tile(make_identity_tensor(shape(mC)), tiler, block, Step<_1, _1, X>{});

    auto layoutA = Layout<Shape<Int<TileM>, Int<TileK>>, Stride<_1, Int<TileM + 4>>>{};
    auto layoutB = Layout<Shape<Int<TileN>, Int<TileK>>, Stride<_1, Int<TileN + 4>>>{};
    __shared__ float memoryA[cosize_v<decltype(layoutA)>];
    __shared__ float memoryB[cosize_v<decltype(layoutB)>];
    auto sA = make_tensor(make_smem_ptr(memoryA), layoutA);
    auto sB = make_tensor(make_smem_ptr(memoryB), layoutB);

    // Neighbouring threads read neighbouring addresses: along K of A, along N of B.
    auto threadsA = Layout<Shape<Int<256 / TileK>, Int<TileK>>, Stride<Int<TileK>, _1>>{};
    auto threadsB = Layout<Shape<Int<TileN>, Int<256 / TileN>>>{};
    auto tAgA = local_partition(gA, threadsA, threadIdx.x);
    auto tAiA = local_partition(iA, threadsA, threadIdx.x);
    auto tAsA = local_partition(sA, threadsA, threadIdx.x);
    auto tBgB = local_partition(gB, threadsB, threadIdx.x);
    auto tBiB = local_partition(iB, threadsB, threadIdx.x);
    auto tBsB = local_partition(sB, threadsB, threadIdx.x);

    auto mma = make_tiled_mma(UniversalFMA<float>{}, Layout<Shape<_16, _16, _1>>{});
    auto thread = mma.get_slice(threadIdx.x);
    auto tCsA = thread.partition_A(sA);
    auto tCsB = thread.partition_B(sB);
    auto tCgC = thread.partition_C(gC);
    auto tCiC = thread.partition_C(iC);
    auto sums = thread.make_fragment_C(tCgC);
    clear(sums);

    for (int k = 0; k < size<2>(gA); k++) {
        copy_inside(tAgA(_, _, k), tAsA, tAiA(_, _, k), [&](auto at) { return elem_less(at, shape(mA)); });
        copy_inside(tBgB(_, _, k), tBsB, tBiB(_, _, k), [&](auto at) { return elem_less(at, shape(mB)); });
        __syncthreads();
        gemm(mma, tCsA, tCsB, sums);
        __syncthreads();
    }
    CUTE_UNROLL
    for (int i = 0; i < size(sums); i++)
        if (elem_less(tCiC(i), shape(mC))) {
            float value = alpha * sums(i);
            tCgC(i) = beta == 0.0f ? value : value + beta * tCgC(i);
        }
}
