"""What the pointers of a kernel in Triton are, by its text alone."""

from __future__ import annotations

import pytest

from gemm_regression.cli.triton_roles import Roles, roles

PLAIN = """
def linear(x, w, bias, y, M, N, K):
    a = tl.load(x + rows[:, None] * K + k, mask)
    b = tl.load(w + k[:, None] * N + columns, mask)
    sums = tl.dot(a, b, sums)
    tl.store(y + rows[:, None] * N + columns, tl.maximum(sums + tl.load(bias + columns), 0.0))
"""
# Addresses that move, in variables; an operand in another type, and turned.
MOVED = """
def moved(x, w, y, n):
    at, other = x + rows, w + columns
    for k in range(0, n, 32):
        left = tl.load(at)
        right = tl.load(other).to(tl.float16)
        sums += tl.dot(left, tl.trans(right))
        at += 32
        other += 32
    out = y + rows
    tl.store(out, sums)
"""
# Descriptors and block pointers.
BLOCKS = """
def blocks(p, q, r):
    left = tl.make_tensor_descriptor(p, shape=[4, 4], strides=[4, 1], block_shape=[2, 2])
    right = tl.make_block_ptr(q, (4, 4), (4, 1), (0, 0), (2, 2), (1, 0))
    total = tl.dot(left.load([0, 0]), tl.load(right))
    r.store([0, 0], total)
"""
NONE = """
def copies(x, y, n):
    tl.store(y + at, tl.load(x + at, at < n))
"""


@pytest.mark.parametrize(
    ("text", "names", "found"),
    [
        (PLAIN, "x w bias y", Roles({"x": "A", "w": "B", "y": "C"}, ["bias"], clamps=True)),
        (MOVED, "x w y", Roles({"x": "A", "w": "B", "y": "C"})),
        (BLOCKS, "p q r", Roles({"p": "A", "q": "B", "r": "C"})),
        (NONE, "x y", Roles({"y": "C"}, ["x"])),
    ],
    ids=["plain", "moved", "blocks", "no product"],
)
def test_pointers_are_what_is_done_with_them(text: str, names: str, found: Roles) -> None:
    assert roles(text, frozenset(names.split())) == found


def test_a_name_that_is_made_of_itself_is_no_endless_way() -> None:
    assert roles("def f(x):\n    a = b + 1\n    b = a + 1\n    tl.store(a, 1)\n", frozenset("x")) == Roles()
