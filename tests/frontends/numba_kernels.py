"""Kernels in Python for Numba-CUDA, which the room compiles and runs."""

from numba import cuda, float32, int32, uint32

THREADS = 128


def axpy(a, x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a * x[i] + y[i]


def block_sum(x, sums):
    cells = cuda.shared.array(THREADS, float32)
    i, thread = cuda.grid(1), cuda.threadIdx.x
    cells[thread] = x[i] if i < x.size else float32(0)
    cuda.syncthreads()
    step = THREADS // 2
    while step > 0:
        if thread < step:
            cells[thread] += cells[thread + step]
        cuda.syncthreads()
        step //= 2
    if thread == 0:
        sums[cuda.blockIdx.x] = cells[0]


def histogram(x, counts):
    bins = cuda.shared.array(16, int32)
    if cuda.threadIdx.x < 16:
        bins[cuda.threadIdx.x] = 0
    cuda.syncthreads()
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        cuda.atomic.add(bins, x[i], 1)
    cuda.syncthreads()
    if cuda.threadIdx.x < 16:
        cuda.atomic.add(counts, cuda.threadIdx.x, bins[cuda.threadIdx.x])


def matmul(a, b, c):
    left = cuda.shared.array((16, 16), float32)
    right = cuda.shared.array((16, 16), float32)
    column, row = cuda.grid(2)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0)
    for start in range(0, a.shape[1], 16):
        left[y, x] = 0
        right[y, x] = 0
        if row < a.shape[0] and start + x < a.shape[1]:
            left[y, x] = a[row, start + x]
        if column < b.shape[1] and start + y < b.shape[0]:
            right[y, x] = b[start + y, column]
        cuda.syncthreads()
        for k in range(16):
            total += left[y, k] * right[k, x]
        cuda.syncthreads()
    if row < c.shape[0] and column < c.shape[1]:
        c[row, column] = total


def move(particles, dt):
    i = cuda.grid(1)
    if i < particles.size:
        particles[i].x += dt * particles[i].speed
        particles[i].steps += 1


def warp_sum(x, sums):
    i = cuda.grid(1)
    value = x[i]
    for step in (16, 8, 4, 2, 1):
        value += cuda.shfl_down_sync(0xFFFFFFFF, value, step)
    if cuda.laneid == 0:
        sums[i // 32] = value
    votes = cuda.ballot_sync(0xFFFFFFFF, x[i] > 0)
    cuda.syncwarp()  # a vote orders no memory
    if cuda.laneid == 1:
        sums[i // 32] += cuda.popc(votes) * 0


def largest(x, out):
    i = cuda.grid(1)
    if i < x.size:
        cuda.atomic.max(out, 0, x[i])


def smooth(x, out):
    i = cuda.grid(1)
    window = cuda.local.array(3, float32)
    for j in range(3):
        at = min(max(i + j - 1, 0), x.size - 1)
        window[j] = x[at]
    if i < out.size:
        out[i] = (window[0] + window[1] + window[2]) / 3


def noise(seed, out):
    i = cuda.grid(1)
    number = uint32(seed + uint32(i))
    for _ in range(3):
        number ^= number << uint32(13)
        number ^= number >> uint32(17)
        number ^= number << uint32(5)
    out[i] = number


def said(x):
    i = cuda.grid(1)
    if i < 2:
        print(i, x[i])
