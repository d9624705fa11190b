"""The conditions of a kernel that its parameters decide, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

import ptxsan
from ptxsan.conditions import Conditions

CODE = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u32 m, .param .u32 n, .param .u64 p) {
    .reg .b32 %r<9>; .reg .b64 %rd<4>; .reg .pred %p<9>;
    ld.param.u32 %r1, [m];
    ld.param.u32 %r2, [n];
    ld.param.u64 %rd1, [p];
    and.b32 %r3, %r1, 3;
    setp.ne.u32 %p1, %r3, 0;
    cvt.u32.u64 %r4, %rd1;
    and.b32 %r5, %r4, 15;
    setp.eq.u32 %p2, %r5, 0;
    mov.u32 %r6, %tid.x;
    setp.lt.u32 %p3, %r6, %r1;
    mov.pred %p4, 0;
    @%p1 bra NEXT;
    setp.eq.u32 %p4, %r2, 7;
NEXT:
    and.pred %p5, %p4, %p2;
    and.pred %p6, %p5, %p3;
    @%p6 st.global.u32 [%rd1], %r1;
    ret;
}
"""


def test_what_the_parameters_decide() -> None:
    """Whether m is a multiple of 4, p aligned, n 7; the thread is no part of it."""
    conditions = Conditions(ptxsan.parse(CODE, "k"))
    values = [(m, n, p) for m in (4, 5) for n in (7, 8) for p in (256, 260)]
    found = conditions.of([(np.int32(m), np.int32(n), np.int64(p)) for m, n, p in values])
    columns = {tuple(column) for column in found.T.tolist()}
    assert columns == {
        tuple(m % 4 != 0 for m, _, _ in values),
        tuple(p % 16 == 0 for _, _, p in values),
        tuple(n == 7 for _, n, _ in values),
    }


@pytest.mark.parametrize("count", [0, 1, 2500])
def test_many_launches_at_once(count: int) -> None:
    launches = [(np.int32(m), np.int32(7), np.int64(256)) for m in range(count)]
    found = Conditions(ptxsan.parse(CODE, "k")).of(launches)
    assert len(found) == count
    varying = found[:, found.any(axis=0) & ~found.all(axis=0)] if count > 1 else found[:, :0]
    assert all((column == (np.arange(count) % 4 != 0)).all() for column in varying.T)


def test_a_predicate_of_inline_assembly() -> None:
    """Its name has no percent sign, and each copy of the code writes it."""
    text = CODE.replace(
        "mov.pred %p4, 0;", "{ .reg .pred p; setp.eq.u32 p, %r2, 9; @p mov.u32 %r7, 1; }\n" * 2
    )
    found = Conditions(ptxsan.parse(text, "k")).of([(np.int32(4), np.int32(n), np.int64(1)) for n in (9, 8)])
    assert [True, False] in found.T.tolist()


def test_a_kernel_without_any() -> None:
    text = CODE.partition("{")[0] + "{ ret; }\n"
    assert Conditions(ptxsan.parse(text, "k")).of([(1, 2, 3)] * 3).shape == (3, 0)
