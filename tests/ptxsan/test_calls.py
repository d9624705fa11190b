"""Calls: functions that are not inlined, printf, assertions, the heap; branches by an index."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

import ptxsan
from ptxsan.api import compile_file
from tests.ptxsan.rig import Array, execute, kernel, per_lane, results

CALLS = Path(__file__).with_name("kernels") / "calls.cu"
SCALE = struct.pack("<fid4i", 2.0, 3, 1.5, 10, 20, 30, 40)


@pytest.fixture(scope="module")
def text() -> str:
    return compile_file(CALLS)


def launch(text: str, n: int) -> ptxsan.LaunchResult:
    arguments = [ptxsan.Empty(32), np.int32(n), SCALE]
    return ptxsan.run(text, entry="calls", grid=1, block=32, arguments=arguments)


def levels(n: int) -> int:
    return 1 if n <= 1 else levels(n - 1) * 2 + (n & 1)


def test_functions_that_are_not_inlined(text: str) -> None:
    """By value and by struct, back by struct, recursive, from both sides of a branch; with variables that
    point to others, and a struct parameter that is indexed."""
    assert "call.uni" in text
    result = launch(text, 7)
    assert result.hazards == ()
    i = np.arange(32)
    want = np.where(i % 2, i, -i) * 2.0 + 3 + np.array([0.5, 1.5, 2.5])[i % 3] + np.array([2, 3])[i % 2]
    want += np.array([10, 20, 30, 40])[i % 4] + i * 0.5 + np.where(i < 4, 1, 2) + levels(7)
    assert list(result.arrays[0]) == list(want)


def test_what_a_thread_prints(text: str) -> None:
    assert launch(text, 7).printed == ("lane 3: 52.50|ab  |123456789012 x% 0xff\n",)


def test_an_assertion_that_fails_is_a_finding_with_its_text(text: str) -> None:
    (hazard,) = launch(text, 100).hazards
    assert hazard.check == "trap"
    assert "fails the assertion n < 100 at calls.cu:38 " in hazard.message


def test_a_function_that_calls_itself_too_often(text: str) -> None:
    (hazard,) = launch(text, 50).hazards
    assert hazard.check == "unsupported"
    assert "which calls itself more often than is supported at calls.cu:" in hazard.message


def test_the_heap_is_refused_with_its_line(text: str) -> None:
    with pytest.raises(
        ptxsan.PtxError, match=r"malloc: .* heap is not supported\): calls.cu:\d+ \(PTX line \d+: call"
    ):
        ptxsan.run(text, entry="heap", grid=1, block=32, arguments=[ptxsan.Empty(32), np.int32(8)])


FUNCTION = """.func (.param .b32 out) pick (.param .b32 in, .param .b32 by)
{
    .reg .pred %p<3>;
    .reg .b32 %r<5>;
    ld.param.u32 %r1, [in];
    ld.param.u32 %r2, [by];
    setp.eq.u32 %p1, %r2, 0;
    @%p1 bra ZERO;
    add.u32 %r1, %r1, %r2;
    setp.gt.u32 %p2, %r1, 30;
    @%p2 exit;
    st.param.b32 [out], %r1;
    ret;
ZERO:
    st.param.b32 [out+0], 77;
    ret;
}
"""


def of_calls(body: str) -> list[int]:
    lanes = np.zeros((32, 4), np.uint32)
    out, report = execute(kernel(body, outside=FUNCTION), lanes)
    assert report.hazards == []
    return [int(v) for v in out[:, 0]]


def test_arguments_in_registers_and_exits_in_a_function() -> None:
    """Twice, one guarded; labels and registers are each call's own."""
    body = "setp.lt.u32 %p1, %r1, 16;\nand.b32 %r10, %r1, 1;\nmov.u32 %r11, 5;\n"
    body += "call (%r12), pick, (%r1, %r10);\n@%p1 call.uni (%r11), pick, (%r12, 0);\n"
    body += "add.u32 %r12, %r12, %r11;\nst.global.u32 [%rd6], %r12;"
    first = [lane + 1 if lane % 2 else 77 for lane in range(32)]
    want = [v + (77 if lane < 16 else 5) for lane, v in enumerate(first)]
    assert of_calls(body) == [0 if lane % 2 and lane + 1 > 30 else v for lane, v in enumerate(want)]


def test_a_function_without_a_body_and_a_pointer_to_one() -> None:
    with pytest.raises(
        ptxsan.PtxError, match=r"elsewhere is a function that the PTX does not have.*PTX line \d+"
    ):
        of_calls("call.uni elsewhere;")
    with pytest.raises(ptxsan.PtxError, match=r"a call through a pointer.*PTX line \d+: call"):
        of_calls("call (%r12), %rd7, (%r1, %r10), proto;")


def test_a_branch_by_an_index() -> None:
    body = "and.b32 %r10, %r1, 3;\nTABLE:\n.branchtargets ONE, TWO, ONE, THREE;\nbrx.idx %r10, TABLE;\n"
    body += "ONE:\nmov.u32 %r11, 1;\nbra END;\nTWO:\nmov.u32 %r11, 2;\nbra END;\nTHREE:\nmov.u32 %r11, 3;\n"
    found = per_lane(body + "END:\nst.global.u32 [%rd6], %r11;")
    assert found == [1, 2, 1, 3] * 8


def test_first_values_that_are_floats_and_addresses() -> None:
    outside = ".global .f32 level = 0f40400000;\n"
    outside += ".global .align 8 .u64 links[2] = {generic(level), generic(level)+4};\n"
    body = "ld.global.u64 %rd7, [links];\nld.f32 %f1, [%rd7];\nld.global.u64 %rd8, [links+8];\n"
    body += "sub.u64 %rd8, %rd8, %rd7;\ncvt.u32.u64 %r10, %rd8;\n"
    body += "cvt.rn.f32.u32 %f2, %r10;\nadd.f32 %f1, %f1, %f2;\n"
    body += "cvt.rzi.u32.f32 %r10, %f1;\nst.global.u32 [%rd6], %r10;"
    out, report = execute(kernel(body, outside=outside), np.zeros((32, 4), np.uint32), launches=2)
    assert report.hazards == []
    assert (out[:, :, 0] == 7).all()


def test_numbers_as_people_write_them() -> None:
    body = "mov.f32 %f1, 2.5;\nmul.f32 %f1, %f1, -4.0;\nst.global.f32 [%rd6], %f1;"
    found: Array = results(body, [0])
    assert found.view(np.float32) == -10
