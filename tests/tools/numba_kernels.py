"""Planted bugs written for Numba's CUDA simulator: ``python -m tests.tools.numba_kernels NAME VARIANT``.

The simulator executes each thread of a block as a thread of Python, one block after another, on NumPy
arrays. It has no lanes, no mbarriers and no fences that do anything, so few of the bugs can be written for
it. Prints the outputs' SHA-256, or the exception that ends the launch. Run in a process of its own with
NUMBA_ENABLE_CUDASIM=1.
"""

from __future__ import annotations

import hashlib
import sys

import numpy as np
from numba import cuda, int32

from tests.tools.bugs import BUGS, array, shape_of

BUG = sys.argv[2] == "bug"


@cuda.jit
def reverse(x, y):
    held = cuda.shared.array(128, int32)
    t = cuda.threadIdx.x
    held[t] = x[t]
    if not BUG:
        cuda.syncthreads()
    y[t] = held[127 - t]


@cuda.jit
def tree_sum(x, y):
    held = cuda.shared.array(128, int32)
    t = cuda.threadIdx.x
    held[t] = x[t]
    cuda.syncthreads()
    step = 64
    while step:
        if t < step:
            held[t] += held[t + step]
        if not BUG:
            cuda.syncthreads()
        step //= 2
    if t == 0:
        y[0] = held[0]


@cuda.jit
def tiles(x, count, y):
    held = cuda.shared.array(128, int32)
    t = cuda.threadIdx.x
    total = 0
    for i in range(count):
        held[t] = x[128 * i + t]
        cuda.syncthreads()
        total += (i + 1) * held[127 - t]
        if not BUG:
            cuda.syncthreads()
    y[t] = total


@cuda.jit
def histogram(x, y):
    bins = cuda.shared.array(8, int32)
    t = cuda.threadIdx.x
    if t < 8:
        bins[t] = 0
    cuda.syncthreads()
    if BUG:
        bins[x[t] % 8] += 1
    else:
        cuda.atomic.add(bins, x[t] % 8, 1)
    cuda.syncthreads()
    if t < 8:
        y[t] = bins[t]


@cuda.jit
def exchange(x, work, y):
    t = cuda.threadIdx.x
    first = cuda.blockIdx.x * cuda.blockDim.x
    work[first + t] = x[first + t]
    if not BUG:
        cuda.syncthreads()
    y[first + t] = work[first + 127 - t]


@cuda.jit
def counter(count):
    if cuda.threadIdx.x == 0:
        if BUG:
            count[0] += 1
        else:
            cuda.atomic.add(count, 0, 1)


@cuda.jit
def last_block(x, partial, count, y):
    if cuda.threadIdx.x:
        return
    total = 0
    for i in range(32):
        total += x[32 * cuda.blockIdx.x + i]
    partial[cuda.blockIdx.x] = total
    if not BUG:
        cuda.threadfence()
    if cuda.atomic.add(count, 0, 1) + 1 < cuda.gridDim.x:
        return
    total = 0
    for i in range(cuda.gridDim.x):
        total += partial[i]
    y[0] = total


@cuda.jit
def last_to_arrive(x, work, count, y):
    last = cuda.shared.array(1, int32)
    t = cuda.threadIdx.x
    work[64 * cuda.blockIdx.x + t] = 2 * x[64 * cuda.blockIdx.x + t]
    cuda.threadfence()
    if not BUG:
        cuda.syncthreads()
    if t == 0:
        last[0] = cuda.atomic.add(count, 0, 1) + 1 == cuda.gridDim.x
    cuda.syncthreads()
    if last[0]:
        total = 0
        for i in range(cuda.gridDim.x):
            total += work[64 * i + 63 - t]
        y[t] = total


@cuda.jit
def in_place(x, work, y):
    i = cuda.grid(1)
    n = cuda.gridsize(1)
    if BUG:
        total = work[i] + work[(i + 1) % n]
        cuda.syncthreads()
        work[i] = total
    else:
        work[i] = x[i] + x[(i + 1) % n]
    y[i] = i


@cuda.jit
def one_past(x, n, y):
    i = cuda.grid(1)
    if (i <= n) if BUG else (i < n):
        y[i] = 2 * x[i]


@cuda.jit
def next_variable(x, y):
    a = cuda.shared.array(64, int32)
    b = cuda.shared.array(64, int32)
    t = cuda.threadIdx.x
    a[t] = x[t]
    b[t] = -x[t]
    cuda.syncthreads()
    y[t] = a[t + 1 if BUG else (t + 1) % 64] + b[63 - t]


@cuda.jit
def local_array(x, n, y):
    last = cuda.local.array(8, int32)
    for i in range(n + 1 if BUG else n):
        last[i] = x[i]
    total = 0
    for i in range(n):
        total += (i + 1) * last[x[i] % n]
    y[0] = total


@cuda.jit
def tail(x, n, y):
    held = cuda.shared.array(64, int32)
    t = cuda.threadIdx.x
    if t < n:
        held[t] = x[t]
    elif not BUG:
        held[t] = 0
    cuda.syncthreads()
    total = 0
    for i in range(64):
        total += held[i]
    y[t] = total


@cuda.jit
def accumulate(x, y):
    t = cuda.threadIdx.x
    if BUG:
        y[t] += x[t]
    else:
        y[t] = x[t]


@cuda.jit
def divergent(x, y):
    held = cuda.shared.array(64, int32)
    t = cuda.threadIdx.x
    held[t] = x[t]
    if not BUG or t < 40:
        cuda.syncthreads()
    other = held[63 - t]
    cuda.syncthreads()
    held[t] = other
    cuda.syncthreads()
    y[t] = held[t ^ 33]


def main() -> int:
    (bug,) = (bug for bug in BUGS if bug.name == sys.argv[1])
    given, arrays = [], []
    for argument in bug.arguments:
        if isinstance(argument, int):
            given.append(argument)
            continue
        before = array(argument)
        if before is None:
            elements, dtype = shape_of(argument)
            before = np.frombuffer(b"\xa5" * elements * dtype.itemsize, dtype).copy()
        arrays.append(before)
        given.append(before)
    try:
        globals()[bug.name][bug.grid, bug.block](*given)
    except Exception as error:
        print(f"{type(error).__name__}: {str(error).splitlines()[-1]}")
        return 3
    print(hashlib.sha256(b"".join(each.tobytes() for each in arrays)).hexdigest())
    return 0


if __name__ == "__main__":
    sys.exit(main())
