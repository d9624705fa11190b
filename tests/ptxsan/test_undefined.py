"""Undefined values: registers that nothing sets and memory that nobody wrote, told where they matter."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.ptxsan.rig import CELLS, Array, checks, execute, hazards, kernel, launch, notes, numbers, who

OUT = "\nst.global.u32 [%rd6], {};"
# %r20 is undefined where the operand of the lane is: X is not known in column 2 of lane 5.
UNKNOWN = "ld.global.u32 %r20, [%rd4+8];\nld.global.u32 %r21, [%rd4];\n"


def of_lane_5(body: str, inside: str = "") -> tuple[list[str], list[str]]:
    """Errors and notes of a body where lane 5 reads %r20 from what nobody wrote."""
    known = np.ones((64, 4), bool)
    known[5, 2] = False
    _, report = execute(kernel(UNKNOWN + body, inside=inside), numbers(64), 64, known=known)
    return [h.message for h in report.hazards], [n.message for n in report.notes]


def undefined(body: str, inside: str = "") -> bool:
    """Whether what lane 5 stores is undefined, and that of no other lane."""
    errors, _ = of_lane_5(body, inside)
    assert all("thread (5, 0, 0)" in error for error in errors)
    return bool(errors)


# Where it comes from


def test_a_sum_that_starts_from_nothing() -> None:
    body = ".loc 1 7 0\nadd.f32 %f1, %f1, 0f3F800000;\n.loc 1 9 0\nst.global.f32 [%rd6], %f1;"
    (said,) = hazards(body)
    assert re.match(
        r"uninit: thread \(0, 0, 0\) of block \(0, 0, 0\) stores an undefined value to Y\(0, 0\), which "
        r"comes from register %f1, not set before \(k.cu:7 \(PTX line \d+: add.f32 %f1, %f1, 0f3F800000\)\) "
        r"at k.cu:9 \(PTX line \d+: st.global.f32 \[%rd6\], %f1\)",
        said,
    )


def test_a_sum_that_starts_in_some_lanes_only() -> None:
    body = "setp.ne.u32 %p1, %r1, 9;\n@%p1 mov.f32 %f1, 0f00000000;\nadd.f32 %f1, %f1, 0f3F800000;\n"
    (said,) = hazards(body + "st.global.f32 [%rd6], %f1;")
    assert "thread (9, 0, 0)" in said
    assert "Y(9, 0)" in said
    # Not told where that lane does not store it, nor where another way leads past it.
    assert checks(body + "@%p1 st.global.f32 [%rd6], %f1;") == []
    assert notes(body + "@%p1 st.global.f32 [%rd6], %f1;") == []


def test_registers_are_set_on_each_way_through() -> None:
    ways = (
        "setp.lt.u32 %p1, %r1, 8;\n@%p1 bra $LOW;\nmov.u32 %r20, 2;\nbra $END;\n$LOW:\n{}\n$END:"
        + OUT.format("%r20")
    )
    assert checks(ways.format("mov.u32 %r20, 1;")) == []
    assert checks(ways.format("")) == ["uninit"]


def test_the_note_of_a_harmless_neighbour() -> None:
    errors, (note,) = of_lane_5("add.u32 %r20, %r20, 1;")
    assert errors == []
    assert re.match(
        r"thread \(5, 0, 0\) of block \(0, 0, 0\) reads X\(5, 2\), which holds nothing that the kernel "
        r"may read; nothing depends on the value at PTX line",
        note,
    )


def test_what_matters_is_no_note_too() -> None:
    (error,), noted = of_lane_5(OUT.format("%r20"))
    assert "stores an undefined value to Y(5, 0), which comes from X(5, 2), which holds nothing" in error
    assert noted == []


# What instructions make of it

TWO = "setp.lt.s32 %p1, %r20, 5;\nsetp.ne.u32 %p2, %r1, 5;\n"  # undefined in lane 5, and false there
PAIR = "prmt.b32 %r22, %r20, %r21, 0x5410;\n"  # the lower half undefined, the upper one not


@pytest.mark.parametrize(
    ("body", "result"),
    [
        ("mov.u32 %r22, %r20;", True),
        ("add.s32 %r22, %r20, %r21;", True),
        ("sub.s32 %r22, %r20, %r20;", False),
        ("and.b32 %r22, %r20, 0;", False),
        ("and.b32 %r22, %r20, 4;", True),
        ("or.b32 %r22, %r20, -1;", False),
        ("xor.b32 %r22, %r20, %r21;", True),
        ("not.b32 %r22, %r20;", True),
        ("mul.lo.s32 %r22, %r20, 0;", False),
        ("mul.lo.s32 %r22, %r20, 6;", True),
        ("mad.lo.s32 %r22, %r20, 0, %r21;", False),
        ("min.s32 %r22, %r20, 3;", True),
        ("min.u32 %r22, %r20, 0;", False),
        ("shl.b32 %r22, %r20, 32;", False),
        ("shr.u32 %r22, %r20, 31;", True),
        ("prmt.b32 %r22, %r20, %r21, 0x7654;", False),
        ("prmt.b32 %r22, %r20, %r21, 0x7650;", True),
        ("bfe.u32 %r22, %r20, 0, 0;", False),
        ("dp4a.s32.s32 %r22, %r20, 0, %r21;", False),
        ("dp4a.s32.s32 %r22, %r20, %r21, 1;", True),
        ("popc.b32 %r22, %r20;", True),
        ("div.u32 %r22, %r21, %r20;", True),
        # FP: zero times NaN is NaN.
        ("mov.b32 %f1, %r20;\nmul.f32 %f2, %f1, 0f00000000;\nmov.b32 %r22, %f2;", True),
        ("mov.b32 %f1, %r20;\nfma.rn.f32 %f2, %f1, 0f00000000, %f1;\nmov.b32 %r22, %f2;", True),
        ("mov.b32 %f1, %r20;\nsub.f32 %f2, %f1, %f1;\nmov.b32 %r22, %f2;", True),
        ("mov.b32 %f1, %r20;\nmax.f32 %f2, %f1, 0f00000000;\nmov.b32 %r22, %f2;", True),
        ("mov.b32 %f1, %r20;\nrcp.approx.f32 %f2, %f1;\nmov.b32 %r22, %f2;", True),
        ("mov.b32 %f1, %r20;\ncvt.rzi.s32.f32 %r22, %f1;", True),
        # What is chosen
        ("setp.eq.u32 %p1, %r1, 5;\nselp.b32 %r22, %r21, %r20, %p1;", False),
        ("setp.eq.u32 %p1, %r1, 5;\nselp.b32 %r22, %r20, %r21, %p1;", True),
        ("setp.lt.s32 %p1, %r20, 5;\nselp.b32 %r22, %r21, 7, %p1;", True),
        ("setp.lt.s32 %p1, %r20, 5;\nselp.b32 %r22, %r21, %r21, %p1;", False),
        (f"{TWO}and.pred %p3, %p1, %p2;\nselp.b32 %r22, 1, 2, %p3;", False),
        (f"{TWO}or.pred %p3, %p1, %p2;\nselp.b32 %r22, 1, 2, %p3;", True),
        ("or.b32 %r22, %r20, 1;\nsetp.eq.u32 %p1, %r22, 4;\nselp.b32 %r22, 1, 2, %p1;", False),
        ("setp.eq.u32 %p1, %r20, 987654;\nselp.b32 %r22, 1, 2, %p1;", True),
        ("mov.b32 %f1, %r20;\nsetp.gt.f32 %p1, %f1, 0f7F7FFFFF;\nselp.b32 %r22, 1, 2, %p1;", True),
        # Halves of a word
        ("mov.b32 {%rs1, %rs2}, %r20;\nmov.b32 %r22, {%rs1, %rs1};", True),
        ("mov.b32 {%rs1, %rs2}, %r20;\nmov.b32 %r22, {9, %rs2};\nand.b32 %r22, %r22, 65535;", False),
        (f"{PAIR}fma.rn.f16x2 %r22, %r22, %r22, %r22;\nand.b32 %r22, %r22, 0xFFFF;", True),
        (f"{PAIR}fma.rn.f16x2 %r22, %r22, %r22, %r22;\nshr.u32 %r22, %r22, 16;", False),
        ("mov.b32 %f1, %r20;\ncvt.rn.f16x2.f32 %r22, %f1, 0f3F800000;\nand.b32 %r22, %r22, 0xFFFF;", False),
        ("cvt.u64.u32 %rd7, %r20;\nshr.u64 %rd7, %rd7, 32;\ncvt.u32.u64 %r22, %rd7;", False),
        # Overwritten
        ("mov.u32 %r22, %r20;\nmov.u32 %r22, 3;", False),
        ("setp.ne.u32 %p1, %r1, 5;\nmov.u32 %r22, %r20;\n@%p1 mov.u32 %r22, 3;", True),
    ],
)
def test_what_an_instruction_makes_of_it(body: str, result: bool) -> None:
    assert undefined(body + OUT.format("%r22")) == result


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (
            "mul.wide.u32 %rd7, %r20, 4;\nadd.s64 %rd8, %rd4, %rd7;\nld.global.u32 %r22, [%rd8];",
            "accesses memory at an undefined address",
        ),
        (
            "setp.lt.u32 %p1, %r20, 99999;\n@%p1 bra $END;\nmov.u32 %r22, 1;\n$END:",
            "branches on an undefined predicate",
        ),
        (
            "setp.lt.u32 %p1, %r20, 99999;\n@%p1 st.global.u32 [%rd6], %r1;",
            "is executed under an undefined predicate",
        ),
        ("setp.lt.u32 %p1, %r20, 99999;\n@!%p1 exit;", "branches on an undefined predicate"),
        ("shfl.sync.idx.b32 %r22, %r1, 0, 31, %r20;", "has an undefined mask of the warp's members"),
        ("bar.warp.sync %r20;", "has an undefined mask of the warp's members"),
        ("and.b32 %r22, %r20, 1;\nbar.sync %r22;", "is at a barrier with an undefined operand"),
    ],
)
def test_where_it_matters(body: str, what: str) -> None:
    errors, noted = of_lane_5(body)
    said = next(error for error in errors if "undefined" in error)
    assert said.startswith(
        f"thread (5, 0, 0) of block (0, 0, 0) {what}, which comes from X(5, 2), which holds"
    )
    assert noted == []


def test_in_a_loop() -> None:
    """Sums of four rows each, of which row 5 of one column is unknown; then what the loop decides by it."""
    body = "mov.u32 %r22, 0;\nmov.u32 %r23, 0;\n$HEAD:\nadd.u32 %r22, %r22, %r20;\nadd.u32 %r23, %r23, 1;\n"
    body += "setp.lt.u32 %p1, %r23, {};\n@%p1 bra $HEAD;"
    assert not undefined(body.format(4))
    assert undefined(body.format(4) + OUT.format("%r22"))
    assert not undefined(body.format(4) + OUT.format("%r23"))


# Through memory and lanes


PUT = """mov.u32 %r30, cells; shl.b32 %r31, %r1, 2; add.u32 %r32, %r30, %r31; st.shared.u32 [%r32], %r20;
bar.sync 0;
"""


def test_blocks_of_code_that_do_not_meet_it_run_as_ever() -> None:
    """One that sets the register in some lanes leaves it undefined in the others."""
    loop = "mov.u32 %r22, 0;\n$LOOP:\nadd.u32 %r22, %r22, 1;\nsetp.lt.u32 %p1, %r22, 4;\n@%p1 bra $LOOP;\n"
    some = "setp.ne.u32 %p2, %r1, {};\n@%p2 bra $END;\nmov.u32 %r20, 1;\n$END:"
    for sets, left in ((some.format(5), False), (some.format(6), True), ("bra $END;\n$END:", True)):
        assert undefined(loop + sets + OUT.format("%r20")) == left
    assert not undefined(loop + "mov.u32 %r20, 1;\nadd.u32 %r20, %r20, 1;" + OUT.format("%r20"))
    guarded = "setp.ne.u32 %p2, %r1, 6;\nbra $NEXT;\n$NEXT:\n@{}%p2 mov.u32 %r20, 1;\nbra $END;\n$END:"
    assert not undefined(loop + guarded.format("") + OUT.format("%r20"))
    assert undefined(loop + guarded.format("!") + OUT.format("%r20"))


def test_through_shared_memory() -> None:
    """Lane 5 stores it; lane 58 = 63 − 5 reads it."""
    turned = PUT + "xor.b32 %r31, %r31, 252;\nadd.u32 %r33, %r30, %r31;\nld.shared.u32 %r22, [%r33];\n"
    errors, noted = of_lane_5(turned, CELLS)
    assert errors == []
    assert [n.partition(" reads ")[2][:7] for n in noted] == ["X(5, 2)"]
    (error,), _ = of_lane_5(turned + OUT.format("%r22"), CELLS)
    assert f"{who(58)} stores an undefined value to Y(58, 0), which comes from X(5, 2)" in error
    again = turned.replace("bar.sync 0;\n", "bar.sync 0;\nst.shared.u32 [%r32], %r1;\nbar.sync 0;\n")
    assert of_lane_5(again + OUT.format("%r22"), CELLS)[0] == []


def test_half_of_a_word_through_shared_memory() -> None:
    halves = "prmt.b32 %r20, %r20, %r21, 0x5410;\n" + PUT + "ld.shared.u32 %r22, [%r32];\n"
    assert not undefined(halves + "shr.u32 %r22, %r22, 16;" + OUT.format("%r22"), CELLS)
    assert undefined(halves + OUT.format("%r22"), CELLS)


def test_through_global_memory() -> None:
    """Stored to the output, loaded again and stored elsewhere; nothing is left where it is overwritten."""
    body = "st.global.u32 [%rd6], %r20;\nld.global.u32 %r22, [%rd6];\nst.global.u32 [%rd6+4], %r22;\n"
    (error,), _ = of_lane_5(body)  # of two stores the first
    assert "stores an undefined value to Y(5, 0), which comes from X(5, 2)" in error
    (error,), _ = of_lane_5(body + "st.global.u32 [%rd6], %r1;\n")
    assert "stores an undefined value to Y(5, 1), which comes from X(5, 2)" in error
    assert of_lane_5(body + "st.global.v2.u32 [%rd6], {%r1, %r1};\n")[0] == []


def test_through_local_memory() -> None:
    body = "st.local.v2.u32 [mine], {%r20, %r21};\nld.local.v2.u32 {%r22, %r23}, [mine];\n"
    assert undefined(body + OUT.format("%r22"), ".local .align 8 .b8 mine[16];")
    assert not undefined(body + OUT.format("%r23"), ".local .align 8 .b8 mine[16];")


def test_through_an_asynchronous_copy() -> None:
    body = "mov.u32 %r30, cells;\nand.b32 %r31, %r1, 31;\nshl.b32 %r31, %r31, 4;\nadd.u32 %r32, %r30, %r31;\n"
    body += "setp.lt.u32 %p1, %r1, 32;\n@%p1 cp.async.ca.shared.global [%r32], [%rd4], 16;\n"
    body += "cp.async.wait_all;\nbar.sync 0;\nld.shared.v4.u32 {%r22, %r23, %r24, %r25}, [%r32];\n"
    assert of_lane_5(body + OUT.format("%r23"), CELLS)[0] == []
    errors, _ = of_lane_5(body + OUT.format("%r24"), CELLS)
    assert [e[:16] for e in errors] == ["thread (5, 0, 0)"]
    assert "which comes from X(5, 2)" in errors[0]


def test_through_a_shuffle() -> None:
    body = "shfl.sync.bfly.b32 %r22, %r20, 2, 31, -1;\n"
    (error,), _ = of_lane_5(body + OUT.format("%r22"))
    assert f"{who(7)} stores an undefined value to Y(7, 0), which comes from X(5, 2)" in error
    vote = "setp.lt.u32 %p1, %r20, 99999;\nsetp.eq.u32 %p2, %r1, 3;\n{}vote.sync.ballot.b32 %r22, %p1, -1;\n"
    errors, _ = of_lane_5(vote.format("") + OUT.format("%r22"))
    assert "thread (0, 0, 0)" in errors[0]  # the whole warp has it


def test_an_atomic_of_it() -> None:
    body = "setp.eq.u32 %p1, %r1, 0;\n@%p1 st.shared.u32 [cells], 0;\nbar.sync 0;\n"
    body += "red.shared.add.u32 [cells], {};\nbar.sync 0;\nld.shared.u32 %r22, [cells];" + OUT.format("%r22")
    assert of_lane_5(body.format("%r21"), CELLS)[0] == []
    (error,), _ = of_lane_5(body.format("%r20"), CELLS)
    assert "which comes from X(5, 2)" in error


# Tensor cores

REGISTERS = (("r", 10), ("r", 20), ("f", 0), ("f", 10))  # of A, B, C and D


def test_a_wmma_accumulator_that_is_never_filled() -> None:
    a, b, c, d = (", ".join(f"%{name}{i}" for i in range(at, at + 8)) for name, at in REGISTERS)
    load = "wmma.load.{}.sync.aligned.row.m16n16k16.global.f16 {{{}}}, [{}], %r50;\n"
    before = "mov.u32 %r50, 16;\n" + load.format("a", a, "%rd11") + load.format("b", b, "%rd12")
    after = f"wmma.mma.sync.aligned.row.row.m16n16k16.f32.f32 {{{d}}}, {{{a}}}, {{{b}}}, {{{c}}};\n"
    after += f"wmma.store.d.sync.aligned.row.m16n16k16.global.f32 [%rd10], {{{d}}}, %r50;"
    ones = np.ones((16, 16), np.float16)
    fill = "".join(f"mov.f32 %f{i}, 0f00000000;\n" for i in range(8))
    out, report = launch(before + fill + after, [ones, ones], np.zeros((16, 16), np.float32))
    assert (report.hazards, report.notes) == ([], [])
    assert (out == 16).all()
    _, report = launch(before + after, [ones, ones], np.zeros((16, 16), np.float32))
    assert {h.check for h in report.hazards} == {"uninit"}
    assert "which comes from register %f" in report.hazards[0].message
    one_missing = fill.replace("mov.f32 %f3, 0f00000000;\n", "")
    _, report = launch(before + one_missing + after, [ones, ones], np.zeros((16, 16), np.float32))
    assert "which comes from register %f3, not set before" in report.hazards[0].message


@pytest.mark.parametrize(("row", "found"), [(3, [3]), (14, [14])])
def test_mma_leaves_undefined_what_comes_of_it(row: int, found: list[int]) -> None:
    """A row of A is not set: that row of the result, and no other."""
    a: Array = np.ones((16, 8), np.float32)
    body = """
    shr.u32 %r2, %r1, 2; and.b32 %r3, %r1, 3;
    mad.lo.u32 %r4, %r2, 8, %r3; mul.wide.u32 %rd1, %r4, 4; add.s64 %rd2, %rd11, %rd1;
    setp.ne.u32 %p1, %r2, LOW; setp.ne.u32 %p2, %r2, HIGH;
    @%p1 ld.global.u32 %r10, [%rd2]; @%p2 ld.global.u32 %r11, [%rd2+256];
    @%p1 ld.global.u32 %r12, [%rd2+16]; @%p2 ld.global.u32 %r13, [%rd2+272];
    mov.u32 %r14, 0x3F800000; mov.f32 %f1, 0f00000000;
    mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%f2, %f3, %f4, %f5}, {%r10, %r11, %r12, %r13},
        {%r14, %r14}, {%f1, %f1, %f1, %f1};
    shl.b32 %r5, %r3, 1; mad.lo.u32 %r5, %r2, 8, %r5; mul.wide.u32 %rd3, %r5, 4; add.s64 %rd4, %rd10, %rd3;
    st.global.v2.f32 [%rd4], {%f2, %f3}; st.global.v2.f32 [%rd4+256], {%f4, %f5};
    """.replace("LOW", str(row)).replace("HIGH", str(row - 8))
    _, report = launch(body, [a], np.zeros((16, 8), np.float32))
    rows = sorted({int(re.search(r"to R\((\d+)", h.message)[1]) for h in report.hazards})  # type: ignore[index]
    assert rows == found
