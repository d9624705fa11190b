"""What the interpreter does not see, so that docs/sees.md says so as long as it is true."""

from __future__ import annotations

import numpy as np
import pytest

import ptxsan
from tests.ptxsan.rig import checks, execute, kernel, notes, numbers


def test_a_write_after_a_read_of_global_memory() -> None:
    body = "st.global.u32 [%rd6], %r1;\nbar.sync 0;\nxor.b64 %rd7, %rd6, 8;\nld.global.u32 %r10, [%rd7];\n"
    assert checks(body + "st.global.u32 [%rd6], %r10;") == []
    assert notes(body + "st.global.u32 [%rd6], %r10;") == []


def test_an_undefined_value_in_a_register_of_128_bits() -> None:
    known = np.ones((32, 4), bool)
    known[5, 0] = False
    body = "{} \nst.global.u64 [%rd6], %rd7;"
    for load, found in (
        ("ld.global.b128 %q1, [%rd4];\nmov.b128 {%rd7, %rd8}, %q1;", []),
        ("ld.global.v2.u64 {%rd7, %rd8}, [%rd4];", ["uninit"]),
    ):
        text = kernel(body.format(load), inside=".reg .b128 %q<3>;")
        _, report = execute(text, numbers(32), known=known)
        assert [hazard.check for hazard in report.hazards] == found
        assert bool(report.notes) == (not found)


@pytest.mark.compile
def test_what_the_compiler_removes() -> None:
    """``s + 1`` of an ``int s;`` becomes a constant, of a float NaN, which values show."""
    source = """extern "C" __global__ void k(float* out) {
    TYPE s;
    out[threadIdx.x] = s + 1;
}
"""
    for kind, value in (("int", 0), ("float", np.nan)):
        text = source.replace("TYPE", kind)
        result = ptxsan.run(text, grid=1, block=32, arguments=[np.ones(32, np.float32)])
        assert (result.hazards, result.notes) == ((), ())
        assert np.array_equal(result.arrays[0], np.full(32, value), equal_nan=True)


def test_what_a_thread_did_before_it_exited() -> None:
    """The barrier orders those that come to it; one that has exited is no more of the block."""
    body = """
    mov.u32 %r10, cells;
    shl.b32 %r11, %r1, 2;
    add.u32 %r12, %r10, %r11;
    st.shared.u32 [%r12], %r1;
    setp.lt.u32 %p1, %r1, 32;
    @%p1 ret;
    bar.sync 0;
    ld.shared.u32 %r14, [%r12+-128];
    st.global.u32 [%rd6], %r14;
"""
    assert checks(body, ".shared .align 4 .b8 cells[256];", 64) == []
