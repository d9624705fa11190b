"""Kernels in Triton's language, which the room compiles and runs. Names of their arguments end in nothing but
their meaning; constants are in capitals."""

import triton
import triton.language as tl


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    a = tl.load(x + at, inside)
    b = tl.load(y + at, inside)
    tl.store(out + at, a + b, inside)


@triton.jit
def softmax(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + at, at < columns, other=float("-inf"))
    powers = tl.exp(values - tl.max(values, 0))
    tl.store(out + row * columns + at, powers / tl.sum(powers, 0), at < columns)


@triton.jit
def norm(x, weight, bias, out, means, scales, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.load(x + row * columns + at, at < columns, other=0.0)
    mean = tl.sum(total, 0) / columns
    squares = tl.zeros([BLOCK], tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(x + row * columns + at, at < columns, other=mean) - mean
        squares += value * value
    scale = 1 / tl.sqrt(tl.sum(squares, 0) / columns + eps)
    tl.store(means + row, mean)
    tl.store(scales + row, scale)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < columns
        value = (tl.load(x + row * columns + at, inside) - mean) * scale
        tl.store(
            out + row * columns + at,
            value * tl.load(weight + at, inside) + tl.load(bias + at, inside),
            inside,
        )


@triton.jit
def norm_backward(grad, x, weight, means, scales, dx, dweight, dbias, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    given = tl.load(grad + row * columns + at, inside, other=0.0)
    mean, scale = tl.load(means + row), tl.load(scales + row)
    unit = tl.where(inside, (tl.load(x + row * columns + at, inside, other=0.0) - mean) * scale, 0.0)
    weighted = given * tl.load(weight + at, inside, other=0.0)
    along = tl.sum(unit * weighted, 0) / columns
    level = tl.sum(weighted, 0) / columns
    tl.store(dx + row * columns + at, (weighted - (unit * along + level)) * scale, inside)
    tl.atomic_add(dweight + at, given * unit, inside)
    tl.atomic_add(dbias + at, given, inside)


@triton.jit
def matmul(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    depth = tl.arange(0, BK)
    total = tl.zeros([BM, BN], tl.float32)
    for start in range(0, K, BK):
        k = start + depth
        left = tl.load(a + rows[:, None] * K + k[None, :], (rows[:, None] < M) & (k[None, :] < K), other=0.0)
        right = tl.load(
            b + k[:, None] * N + columns[None, :], (k[:, None] < K) & (columns[None, :] < N), other=0.0
        )
        total = tl.dot(left, right, total)
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    tl.store(c + rows[:, None] * N + columns[None, :], total.to(c.dtype.element_ty), inside)


@triton.jit
def matmul_by_maps(a, b, c, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    total = tl.zeros([BM, BN], tl.float32)
    for start in range(0, K, BK):
        total = tl.dot(a.load([row, start]), b.load([start, column]), total)
    c.store([row, column], total.to(tl.float16))


@triton.jit
def split_matmul(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.program_id(2) * BK + tl.arange(0, BK)
    left = tl.load(a + rows[:, None] * K + k[None, :])
    right = tl.load(b + k[:, None] * N + columns[None, :])
    tl.atomic_add(c + rows[:, None] * N + columns[None, :], tl.dot(left, right), sem="relaxed")


@triton.jit
def attention(q, k, v, out, length, scale, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):
    head = tl.program_id(1) * length * D
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns, wide = tl.arange(0, BN), tl.arange(0, D)
    query = tl.load(q + head + rows[:, None] * D + wide[None, :], rows[:, None] < length, other=0.0)
    top = tl.full([BM], float("-inf"), tl.float32)
    sums = tl.zeros([BM], tl.float32)
    total = tl.zeros([BM, D], tl.float32)
    for start in range(0, (tl.program_id(0) + 1) * BM, BN):
        at = start + columns
        keys = tl.load(k + head + at[None, :] * D + wide[:, None], at[None, :] < length, other=0.0)
        scores = tl.dot(query, keys) * scale
        scores = tl.where((at[None, :] <= rows[:, None]) & (at[None, :] < length), scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        powers = tl.exp2(scores - higher[:, None])
        shrink = tl.exp2(top - higher)
        sums = sums * shrink + tl.sum(powers, 1)
        values = tl.load(v + head + at[:, None] * D + wide[None, :], at[:, None] < length, other=0.0)
        total = tl.dot(powers.to(values.dtype), values, total * shrink[:, None])
        top = higher
    total = total / sums[:, None]
    tl.store(
        out + head + rows[:, None] * D + wide[None, :], total.to(out.dtype.element_ty), rows[:, None] < length
    )


@triton.jit
def histogram(x, counts, n, BLOCK: tl.constexpr, BINS: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + at, at < n, other=0)
    tl.atomic_add(counts + tl.arange(0, BINS), tl.histogram(values, BINS, mask=at < n))


@triton.jit
def running_sum(x, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.cumsum(tl.load(x + at), 0))


@triton.jit
def combine(scale_a, value_a, scale_b, value_b):
    return scale_a * scale_b, value_a * scale_b + value_b


@triton.jit
def recurrence(scale, value, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    _, state = tl.associative_scan((tl.load(scale + at), tl.load(value + at)), 0, combine)
    tl.store(out + at, state)


@triton.jit
def sort(x, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.sort(tl.load(x + at), descending=True))


@triton.jit
def total(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + at, at < n, other=0.0)
    tl.atomic_add(out, tl.sum(values, 0))
    tl.atomic_max(out + 1, tl.max(values, 0))


@triton.jit
def largest(x, values, places, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    value, place = tl.max(
        tl.load(x + row * columns + at, at < columns, other=float("-inf")), 0, return_indices=True
    )
    tl.store(values + row, value)
    tl.store(places + row, place)


@triton.jit
def dropout(x, out, n, seed, p, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    kept = tl.rand(seed, at) > p
    tl.store(out + at, tl.where(kept, tl.load(x + at, at < n) / (1 - p), 0.0), at < n)


@triton.jit
def transpose(x, out, M, N, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    tile = tl.load(x + rows[:, None] * N + columns[None, :], (rows[:, None] < M) & (columns[None, :] < N))
    inside = (columns[:, None] < N) & (rows[None, :] < M)
    tl.store(out + columns[:, None] * M + rows[None, :], tl.trans(tile), inside)


@triton.jit
def checked(x, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at, at < n, other=0.0)
    tl.device_print("value", value)
    tl.device_assert(value < 99, "too large")
