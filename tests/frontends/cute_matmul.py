"""A matmul in the CuTe DSL as a project declares it: for any size, the tile by a config."""

import cutlass
from cutlass import cute


@cute.kernel
def matmul_kernel(
    a: cute.Tensor,
    b: cute.Tensor,
    c: cute.Tensor,
    alpha: cutlass.Float32,
    beta: cutlass.Float32,
    tile: cutlass.Constexpr,
):
    x, y, _ = cute.arch.thread_idx()
    row, column, _ = cute.arch.block_idx()
    row, column = row * tile + y, column * tile + x
    memory = cutlass.memory.SmemAllocator()
    layout = cute.make_layout((tile, tile), stride=(tile, 1))
    left = memory.allocate_tensor(a.element_type, layout, 16)
    right = memory.allocate_tensor(b.element_type, layout, 16)
    rows, columns, depth = a.shape[0], b.shape[1], a.shape[1]
    total = cutlass.Float32(0)
    for step in cutlass.range((depth + tile - 1) // tile):
        start = step * tile
        left[y, x] = a.element_type(0)
        right[y, x] = b.element_type(0)
        if row < rows and start + x < depth:
            left[y, x] = a[row, start + x]
        if column < columns and start + y < depth:
            right[y, x] = b[start + y, column]
        cute.arch.sync_threads()
        for k in cutlass.range_constexpr(tile):
            total += left[y, k].to(cutlass.Float32) * right[k, x].to(cutlass.Float32)
        cute.arch.sync_threads()
    if row < rows and column < columns:
        total = alpha * total
        if beta != 0:
            total += beta * c[row, column].to(cutlass.Float32)
        c[row, column] = total.to(c.element_type)


@cute.jit
def matmul(
    a: cute.Tensor,
    b: cute.Tensor,
    c: cute.Tensor,
    alpha: cutlass.Float32,
    beta: cutlass.Float32,
    tile: cutlass.Constexpr,
):
    tiles = (*cute.ceil_div(c.shape, (tile, tile)), 1)
    matmul_kernel(a, b, c, alpha, beta, tile).launch(grid=tiles, block=(tile, tile, 1))
