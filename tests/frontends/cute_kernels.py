"""Kernels in the CuTe DSL, which the room compiles and runs: each with the host function that launches it."""

import cutlass
from cutlass import cute
from cutlass.cute.nvgpu import cpasync, warp

TILE, THREADS = 32, 128


@cute.kernel
def scale_kernel(x: cute.Tensor, factor: cutlass.Float32, y: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    i = block * THREADS + thread
    if i < cute.size(x):
        y[i] = x[i] * factor


@cute.jit
def scale(x: cute.Tensor, factor: cutlass.Float32, y: cute.Tensor):
    blocks = (cute.size(x) + THREADS - 1) // THREADS
    scale_kernel(x, factor, y).launch(grid=(blocks, 1, 1), block=(THREADS, 1, 1))


@cute.kernel
def transpose_kernel(x: cute.Tensor, y: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    row, column, _ = cute.arch.block_idx()
    memory = cutlass.memory.SmemAllocator()
    cells = memory.allocate_tensor(cutlass.Float32, cute.make_layout((TILE, TILE), stride=(TILE + 1, 1)), 16)
    source = cute.local_tile(x, (TILE, TILE), (row, column))
    target = cute.local_tile(y, (TILE, TILE), (column, row))
    for step in cutlass.range_constexpr(TILE * TILE // THREADS):
        at = step * THREADS + thread
        cells[at // TILE, at % TILE] = source[at // TILE, at % TILE]
    cute.arch.sync_threads()
    for step in cutlass.range_constexpr(TILE * TILE // THREADS):
        at = step * THREADS + thread
        target[at // TILE, at % TILE] = cells[at % TILE, at // TILE]


@cute.jit
def transpose(x: cute.Tensor, y: cute.Tensor):
    tiles = (x.shape[0] // TILE, x.shape[1] // TILE, 1)
    transpose_kernel(x, y).launch(grid=tiles, block=(THREADS, 1, 1))


@cute.kernel
def block_sum_kernel(x: cute.Tensor, sums: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    memory = cutlass.memory.SmemAllocator()
    parts = memory.allocate_tensor(cutlass.Float32, cute.make_layout(THREADS // 32), 16)
    value = x[block * THREADS + thread]
    value = cute.arch.warp_reduction_sum(value)
    if thread % 32 == 0:
        parts[thread // 32] = value
    cute.arch.sync_threads()
    if thread == 0:
        total = parts[0]
        for i in cutlass.range_constexpr(1, THREADS // 32):
            total += parts[i]
        sums[block] = total


@cute.jit
def block_sum(x: cute.Tensor, sums: cute.Tensor):
    block_sum_kernel(x, sums).launch(grid=(cute.size(sums), 1, 1), block=(THREADS, 1, 1))


@cute.kernel
def gemm_kernel(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, mma: cute.TiledMma, copy: cute.TiledCopy):
    thread, _, _ = cute.arch.thread_idx()
    row, column, _ = cute.arch.block_idx()
    tile_a = cute.local_tile(a, (64, 32), (row, None))
    tile_b = cute.local_tile(b, (64, 32), (column, None))
    tile_c = cute.local_tile(c, (64, 64), (row, column))
    memory = cutlass.memory.SmemAllocator()
    layout = cute.make_layout((64, 32), stride=(40, 1))
    cells_a = memory.allocate_tensor(cutlass.Float16, layout, 16)
    cells_b = memory.allocate_tensor(cutlass.Float16, layout, 16)

    mine = copy.get_slice(thread)
    from_a, to_a = mine.partition_S(tile_a), mine.partition_D(cells_a)
    from_b, to_b = mine.partition_S(tile_b), mine.partition_D(cells_b)
    part = mma.get_slice(thread)
    in_a = part.make_fragment_A(part.partition_A(cells_a))
    in_b = part.make_fragment_B(part.partition_B(cells_b))
    out = part.partition_C(tile_c)
    total = part.make_fragment_C(out)
    total.fill(0.0)
    loads = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(False, 4), cutlass.Float16)
    load_a, load_b = cute.make_tiled_copy_A(loads, mma), cute.make_tiled_copy_B(loads, mma)
    mine_a, mine_b = load_a.get_slice(thread), load_b.get_slice(thread)

    for step in cutlass.range(cute.size(tile_a, mode=[2])):
        cute.copy(copy, from_a[None, None, None, step], to_a)
        cute.copy(copy, from_b[None, None, None, step], to_b)
        cute.arch.cp_async_commit_group()
        cute.arch.cp_async_wait_group(0)
        cute.arch.sync_threads()
        cute.copy(load_a, mine_a.partition_S(cells_a), mine_a.retile(in_a))
        cute.copy(load_b, mine_b.partition_S(cells_b), mine_b.retile(in_b))
        cute.gemm(mma, total, in_a, in_b, total)
        cute.arch.sync_threads()
    cute.autovec_copy(total, out)


@cute.jit
def gemm(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
    op = warp.MmaF16BF16Op(cutlass.Float16, cutlass.Float32, (16, 8, 16))
    mma = cute.make_tiled_mma(op, cute.make_layout((2, 2, 1)), permutation_mnk=(32, 32, 16))
    atom = cute.make_copy_atom(cpasync.CopyG2SOp(), cutlass.Float16, num_bits_per_copy=128)
    threads = cute.make_layout((32, 4), stride=(4, 1))
    copy = cute.make_tiled_copy_tv(atom, threads, cute.make_layout((1, 8)))
    tiles = (c.shape[0] // 64, c.shape[1] // 64, 1)
    gemm_kernel(a, b, c, mma, copy).launch(grid=tiles, block=(THREADS, 1, 1))
