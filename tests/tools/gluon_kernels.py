"""Planted bugs written in Gluon for Triton's ConSan: ``python -m tests.tools.gluon_kernels NAME VARIANT``.

ConSan adds assertions to a program of Triton if TRITON_INSTRUMENTATION_MODE=consan. They watch accesses to
shared and tensor memory by ``cp.async``, TMA, wgmma and tcgen05, and waits for mbarriers, but neither
registers nor global memory. Prints OUTPUT after a launch that ended without an error.
"""

from __future__ import annotations

import sys

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

SIZE = gl.constexpr(64)  # a tile is of so many rows and columns, FP16
REGISTERS = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]))
SHARED = gl.constexpr(gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2))


@gluon.jit
def offsets():
    rows = gl.arange(0, SIZE, gl.SliceLayout(1, REGISTERS))[:, None]
    return rows * SIZE + gl.arange(0, SIZE, gl.SliceLayout(0, REGISTERS))[None, :]


@gluon.jit
def copy_wait(x, y, BUG: gl.constexpr):
    held = gl.allocate_shared_memory(gl.float16, [SIZE, SIZE], SHARED)
    async_copy.async_copy_global_to_shared(held, x + offsets())
    async_copy.commit_group()
    if not BUG:
        async_copy.wait_group(0)
    gl.store(y + offsets(), held.load(REGISTERS))
    async_copy.wait_group(0)


@gluon.jit
def copy_depth(x, y, BUG: gl.constexpr):
    held = gl.allocate_shared_memory(gl.float16, [2, SIZE, SIZE], SHARED)
    total = gl.zeros([SIZE, SIZE], gl.float16, REGISTERS)
    async_copy.async_copy_global_to_shared(held.index(0), x + offsets())
    async_copy.commit_group()
    for i in gl.static_range(4):
        if i < 3:
            async_copy.async_copy_global_to_shared(
                held.index((i + 1) % 2), x + (i + 1) * SIZE * SIZE + offsets()
            )
        async_copy.commit_group()
        async_copy.wait_group(2 if BUG else 1)
        total += held.index(i % 2).load(REGISTERS)
    async_copy.wait_group(0)
    gl.store(y + offsets(), total)


@gluon.jit
def parity(x, y, BUG: gl.constexpr):
    held = gl.allocate_shared_memory(gl.float16, [SIZE, SIZE], x.layout)
    full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(full, count=1)
    total = gl.zeros([SIZE, SIZE], gl.float16, REGISTERS)
    for i in gl.static_range(4):
        mbarrier.expect(full, x.block_type.nbytes)
        tma.async_copy_global_to_shared(x, [i * SIZE, 0], full, held)
        mbarrier.wait(full, 0 if BUG else i % 2, deps=[held])
        total += held.load(REGISTERS)
    gl.store(y + offsets(), total)


@gluon.jit
def expect_tx(x, y, BUG: gl.constexpr):
    held = gl.allocate_shared_memory(gl.float16, [SIZE, SIZE], x.layout)
    full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(full, count=1)
    mbarrier.expect(full, (2 if BUG else 1) * x.block_type.nbytes)
    tma.async_copy_global_to_shared(x, [0, 0], full, held)
    mbarrier.wait(full, 0, deps=[held])
    gl.store(y + offsets(), held.load(REGISTERS))


@gluon.jit
def store_wait(x, y, BUG: gl.constexpr):
    held = gl.allocate_shared_memory(gl.float16, [SIZE, SIZE], y.layout)
    for i in gl.static_range(4):
        held.store(gl.load(x + i * SIZE * SIZE + offsets()))
        fence_async_shared()
        tma.async_copy_shared_to_global(y, [i * SIZE, 0], held)
        if not BUG:
            tma.store_wait(0)
    tma.store_wait(0)


WITH_MAP = {"parity": "x", "expect_tx": "x", "store_wait": "y"}  # the argument that is a tensor map


def main(name: str, variant: str) -> int:
    import torch
    import triton
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    def allocate(size, alignment, stream):
        return torch.zeros(size, dtype=torch.int8, device="cuda")

    triton.set_allocator(allocate)  # ConSan keeps its records there
    size = SIZE.value
    given = {each: torch.ones((4 * size, size), dtype=torch.float16, device="cuda") for each in "xy"}
    if (which := WITH_MAP.get(name)) is not None:
        given[which] = TensorDescriptor.from_tensor(given[which], [size, size], SHARED.value)
    globals()[name][(1,)](given["x"], given["y"], BUG=variant == "bug", num_warps=4)
    torch.cuda.synchronize()
    print("OUTPUT")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
