"""A matmul for Numba-CUDA as a project declares it: matrices by their addresses, the tile by a config."""

from numba import cuda, float32

TILE = 16


def matmul(a, b, c, m, n, size):
    left = cuda.shared.array((TILE, TILE), float32)
    right = cuda.shared.array((TILE, TILE), float32)
    column, row = cuda.grid(2)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0)
    for start in range(0, size, TILE):
        left[y, x] = 0
        right[y, x] = 0
        if row < m and start + x < size:
            left[y, x] = a[row * size + start + x]
        if column < n and start + y < size:
            right[y, x] = b[(start + y) * n + column]
        cuda.syncthreads()
        for k in range(TILE):
            total += left[y, k] * right[k, x]
        cuda.syncthreads()
    if row < m and column < n:
        c[row * n + column] = total
