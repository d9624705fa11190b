"""A matmul in TileLang as a project declares it: for any size, the tiles and the types by a config."""

import tilelang
import tilelang.language as T


def matmul(dtype, output, rows, columns, depth):
    m, n, k = T.dynamic("m"), T.dynamic("n"), T.dynamic("k")

    @T.prim_func
    def kernel(A: T.Tensor((m, k), dtype), B: T.Tensor((k, n), dtype), C: T.Tensor((m, n), output)):
        with T.Kernel(T.ceildiv(n, columns), T.ceildiv(m, rows), threads=128) as (column, row):
            left, right = T.alloc_shared((rows, depth), dtype), T.alloc_shared((depth, columns), dtype)
            total = T.alloc_fragment((rows, columns), "float32")
            T.clear(total)
            for step in T.Pipelined(T.ceildiv(k, depth), num_stages=2):
                T.copy(A[row * rows, step * depth], left)
                T.copy(B[step * depth, column * columns], right)
                T.gemm(left, right, total)
            T.copy(total, C[row * rows, column * columns])

    return kernel


@tilelang.jit(pass_configs={tilelang.PassConfigKey.TL_DISABLE_WARP_SPECIALIZED: True})
def product(A, B, rows, columns, dtype, depth=32, sums="float32"):
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), dtype)
    B: T.Tensor((K, N), dtype)
    C = T.empty((M, N), "float32")
    with T.Kernel(T.ceildiv(N, columns), T.ceildiv(M, rows), threads=128) as (column, row):
        left, right = T.alloc_shared((rows, depth), dtype), T.alloc_shared((depth, columns), dtype)
        total = T.alloc_fragment((rows, columns), sums)
        T.clear(total)
        for step in T.Pipelined(T.ceildiv(K, depth), num_stages=2):
            T.copy(A[row * rows, step * depth], left)
            T.copy(B[step * depth, column * columns], right)
            T.gemm(left, right, total)
        T.copy(total, C[row * rows, column * columns])
    return C
