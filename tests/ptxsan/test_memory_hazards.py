"""What is said of accesses to global, constant and local memory: where, by whom, and to what."""

from __future__ import annotations

import re

import numpy as np
import pytest

import ptxsan
from ptxsan import Buffer, GlobalMemory, PreparedKernel, Report, parse
from tests.ptxsan.rig import Array, checks, execute, hazards, kernel, notes, numbers, per_lane

# X has 32 rows of 4 words for each of which Y has one of 2; [%rd4] and [%rd6] are the lane's own.
ALONE = "setp.ne.u32 %p1, %r4, 37;\n@%p1 bra $END;\n.loc 1 21 5\n{}\n$END:"  # thread 5 of block 1 alone
WHO = r"thread \(5, 0, 0\) of block \(1, 0, 0\)"
WHERE = r" at k\.cu:21 \(PTX line \d+: {}"


def one_lane(instruction: str, **how: str) -> str:
    """What is said of an instruction that thread 5 of block 1 of 2 executes alone."""
    (said,) = hazards(ALONE.format(instruction), threads=32, blocks=2, **how)
    return said


@pytest.mark.parametrize(
    ("access", "where"),
    [
        # Lane 37 of 64: its row of X is at byte 592 of 1024, its row of Y at 296 of 512.
        (
            "ld.global.u32 %r10, [%rd4+432]",
            rf"reads 4 bytes at 0x{(1 << 50) + 1024:x}, 0 bytes past the end of X \(1024 bytes\)",
        ),
        ("ld.global.u32 %r10, [%rd4+-596]", r"reads 4 bytes at 0x\w+, 4 bytes before the start of X"),
        ("ld.global.v4.u32 {%r10, %r11, %r12, %r13}, [%rd4+432]", r"reads 16 bytes at 0x\w+, 0 bytes past"),
        ("ld.global.u8 %r10, [%rd4+432]", r"reads 1 bytes at 0x\w+, 0 bytes past the end of X"),
        ("ld.global.u8 %r10, [%rd4+440]", r"reads 1 bytes at 0x\w+, 8 bytes past the end of X"),
        (
            "st.global.u32 [%rd6+216], %r10",
            r"writes 4 bytes at 0x\w+, 0 bytes past the end of Y \(512 bytes\)",
        ),
        ("st.global.u32 [%rd6+-300], %r10", r"writes 4 bytes at 0x\w+, 4 bytes before the start of Y"),
        ("ld.global.u32 %r10, [64]", r"reads 4 bytes at 0x40, \d+ bytes before the start of X"),
        ("cp.async.ca.shared.global [cells], [%rd4+432], 16", r"reads 16 bytes at 0x\w+, 0 bytes past"),
    ],
)
def test_out_of_the_bounds_of_a_buffer(access: str, where: str) -> None:
    said = one_lane(f"{access};", inside=".shared .align 16 .b8 cells[16];")
    assert re.match(f"bounds: {WHO} {where}.*{WHERE.format(re.escape(access[:12]))}", said)


@pytest.mark.parametrize(
    "access",
    [
        "ld.global.u32 %r10, [%rd4+428]",
        "ld.global.u32 %r10, [%rd4+-592]",
        "ld.global.v4.u32 {%r10, %r11, %r12, %r13}, [%rd4+416]",
        "st.global.u32 [%rd6+212], %r1",
        "st.global.u32 [%rd6+-296], %r1",
    ],
)
def test_the_first_and_the_last_element_are_within(access: str) -> None:
    assert checks(ALONE.format(f"{access};"), threads=32, blocks=2) == []


@pytest.mark.parametrize(
    ("access", "width"),
    [
        ("ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd4+-8]", 16),
        ("ld.global.v2.f32 {%f1, %f2}, [%rd4+4]", 8),
        ("ld.global.u64 %rd7, [%rd4+4]", 8),
        ("ld.global.u32 %r10, [%rd4+2]", 4),
        ("st.global.v2.f32 [%rd6+-4], {%f1, %f2}", 8),
        ("cp.async.cg.shared.global [cells], [%rd4+-8], 16", 16),
    ],
)
def test_misaligned(access: str, width: int) -> None:
    said = one_lane(f"{access};", inside=".shared .align 16 .b8 cells[16];")
    expected = rf"misaligned: {WHO} {width}-byte access at 0x\w+ is not aligned to {width} bytes"
    assert re.match(expected + WHERE.format(re.escape(access[:12])), said)


def test_an_input_is_not_written() -> None:
    said = one_lane("st.global.u32 [%rd4], %r10;")
    assert re.match(f"bounds: {WHO} writes the input X.37, 0." + WHERE.format("st.global"), said)


def known_but(row: int, column: int) -> Array:
    known = np.ones((64, 4), bool)
    known[row, column] = False
    return known


@pytest.mark.parametrize("load", ["ld.global.u32 %r10, [%rd4+8]", "ld.global.u16 %rs1, [%rd4+10]"])
def test_reading_what_nobody_wrote(load: str) -> None:
    text = kernel(f".loc 1 21 5\n{load};")
    _, report = execute(text, numbers(64), known=known_but(37, 2))
    (note,) = report.notes
    assert (note.check, report.hazards) == ("uninit", [])
    assert re.match(f"{WHO} reads X.37, 2., which holds nothing that the kernel may read; noth", note.message)
    assert "at k.cu:21 (PTX line" in note.message
    assert not report.stopped


def test_a_vector_of_which_one_word_is_unknown() -> None:
    load = "ld.global.v4.u32 {%r10, %r11, %r12, %r13}, [%rd4];"
    _, report = execute(kernel(load), numbers(64), known=known_but(37, 2))
    assert [note.check for note in report.notes] == ["uninit"]
    # Its neighbours in the row are no business of a narrower load.
    for column in (0, 1, 3):
        load = f"ld.global.u32 %r10, [%rd4+{4 * column}];"
        assert execute(kernel(load), numbers(64), known=known_but(37, 2))[1].hazards == []


@pytest.mark.parametrize(
    ("element", "value", "blocks", "whose"),
    [
        ("%r1", "%r2", 2, r"block \(1, 0, 0\)"),
        ("%r1", "7", 2, r"block \(1, 0, 0\)"),
        ("%r10", "%r1", 1, "the same block"),
        ("%r10", "7", 1, "the same block"),
    ],
)
def test_two_threads_that_write_one_element(element: str, value: str, blocks: int, whose: str) -> None:
    """An error where chance leaves one of two values, a note where they are the same."""
    body = f"and.b32 %r10, %r1, 15;\nmul.wide.s32 %rd7, {element}, 8;\nadd.s64 %rd7, %rd2, %rd7;\n"
    body += f"mov.u32 %r11, {value};\n.loc 1 9 0\nst.global.u32 [%rd7], %r11;"
    same = value == "7"
    errors, noted = hazards(body, blocks=blocks), notes(body, blocks=blocks)
    assert (len(errors), len(noted)) == (not same, same)
    expected = r"race: thread \(\d+, 0, 0\) of block \(0, 0, 0\) writes Y\(\d+, 0\), which another thread of "
    expected += f"{whose} wrote too" + ", with the same value" * same + r" at k.cu:9 \(PTX line"
    assert re.match(expected, (errors + noted)[0])


def test_two_threads_that_write_one_shared_word() -> None:
    """As in global memory: within an instruction, and one after the other."""
    shared = ".shared .align 4 .b8 s[64];"
    at_once = "mov.u32 %r10, s;\nst.shared.u32 [%r10], {};"
    for body, threads in (
        (at_once, 32),
        (
            "setp.eq.u32 %p1, %r1, 0;\nsetp.eq.u32 %p2, %r1, 40;\n"
            "mov.u32 %r10, s;\n@%p1 st.shared.u32 [%r10], {0};\n@%p2 st.shared.u32 [%r10], {0};",
            64,
        ),
    ):
        assert [said.split(":")[0] for said in hazards(body.format("%r1"), shared, threads)] == ["race"]
        assert hazards(body.format("7"), shared, threads) == []
        (said,) = notes(body.format("7"), shared, threads)
        assert ", with the same value" in said


def test_blocks_of_different_chunks_that_write_one_element(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ptxsan.kernel.LANES", 32)
    body = "mul.wide.s32 %rd7, %r1, 8;\nadd.s64 %rd7, %rd2, %rd7;\nst.global.u32 [%rd7], %r2;"
    (said,) = hazards(body, blocks=3)
    assert "of block (1, 0, 0) writes Y(0, 0), which another thread of block (0, 0, 0) wrote too" in said


def test_a_thread_may_write_its_element_again() -> None:
    body = "st.global.u32 [%rd6], %r1;\n" * 2 + "st.global.v2.u32 [%rd6], {%r1, %r2};"
    assert checks(body, blocks=2) == []


def test_launches_of_a_batch_have_buffers_of_their_own() -> None:
    assert checks("st.global.u32 [%rd6], %r1;", blocks=2, launches=2) == []


def test_reading_what_another_block_wrote() -> None:
    other = "xor.b32 %r10, %r4, {};\nmul.wide.s32 %rd7, %r10, 8;\nadd.s64 %rd7, %rd2, %rd7;\n"
    body = "st.global.u32 [%rd6], %r1;\nbar.sync 0;\n" + other + "ld.global.u32 %r11, [%rd7];"
    assert checks(body.format(1), blocks=2) == []
    (said,) = hazards(body.format(32), blocks=2)
    expected = (
        r"race: thread \(0, 0, 0\) of block \(0, 0, 0\) reads Y\(32, 0\), which block \(1, 0, 0\) "
        r"wrote in this launch with no fence and atomic between"
    )
    assert re.match(expected, said)


TABLE = ".const .align 4 .u32 table[5] = {10, 20, 30, 40, 50};"


def test_constants_and_their_bounds() -> None:
    body = "mov.u32 %r10, table;\nand.b32 %r11, %r1, 3;\nshl.b32 %r11, %r11, 2;\nadd.u32 %r10, %r10, %r11;\n"
    text = kernel(body + "ld.const.u32 %r12, [%r10+4];\nst.global.u32 [%rd6], %r12;", TABLE)
    out, report = execute(text, numbers(32))
    assert report.hazards == []
    assert list(out[:, 0]) == [20, 30, 40, 50] * 8
    said = one_lane(body + "ld.const.u32 %r12, [%r10+16];", outside=TABLE)  # element 1 + 4
    place = r"reads 4 bytes of constant memory at table\+20, out of the bounds of its variable"
    assert re.match(f"bounds: {WHO} {place}" + WHERE.format("ld.const"), said)
    said = one_lane("ld.const.u32 %r12, [table+6];", outside=TABLE)
    assert re.match(rf"misaligned: {WHO} .*table\+6, not aligned to 4 bytes", said)
    assert checks("ld.const.u32 %r12, [table+-4];", outside=TABLE) == ["bounds"]


LOCAL = ".local .align 4 .b8 mine[20];"


def test_local_memory_is_the_threads_own() -> None:
    body = "st.local.u32 [mine+16], %r1;\nld.local.u32 %r10, [mine+16];\nst.global.u32 [%rd6], %r10;"
    assert per_lane(body, LOCAL) == list(range(32))


@pytest.mark.parametrize(
    ("access", "check", "what"),
    [
        ("st.local.u32 [mine+20], %r1", "bounds", "4-byte access at local address 20 is out of the bounds"),
        ("st.local.u32 [mine+-4], %r1", "bounds", "4-byte access at local address -4 is out of the bounds"),
        ("ld.local.u32 %r10, [mine+40]", "bounds", "4-byte access at local address 40 is out of the bounds"),
        ("st.local.u32 [mine+2], %r1", "misaligned", "4-byte access at local address 2 is not aligned"),
    ],
)
def test_local_memory(access: str, check: str, what: str) -> None:
    said = one_lane(f"{access};", inside=LOCAL)
    assert re.match(f"{check}: {WHO} {re.escape(what)}.*" + WHERE.format(re.escape(access[:8])), said)


def test_a_half_written_word_of_local_memory() -> None:
    body = "mov.u16 %rs1, 3;\nst.local.u16 [mine], %rs1;\nld.local.{} %r10, [mine];"
    assert notes(body.format("u16"), LOCAL) == []
    (note,) = notes(body.format("u32"), LOCAL)
    assert " reads local memory that the thread never wrote; nothing depends on the value" in note
    (said,) = hazards(body.format("u32") + "st.global.u32 [%rd6], %r10;", LOCAL)
    assert re.search(
        r"stores an undefined value to Y\(0, 0\), which comes from local memory that the thr", said
    )


def sparse(body: str, rows: int, columns: int, pitch: int) -> tuple[Array, Report]:
    """A body over a matrix Z of which rows lie ``pitch`` elements apart, at [%rd2]; block 0 alone."""
    values = np.arange(rows * columns, dtype=np.uint32).reshape(rows, columns)
    z = Buffer("Z", 0, [values], 4 * pitch, writable=True)
    parameters = [[np.int64(0), np.int64(z.address(0)), np.int32(pitch)]]
    machine = PreparedKernel(parse(kernel(body), "k"), "k.cu")
    report = machine.run((1, 1, 1), (32, 1, 1), 0, parameters, GlobalMemory([z]), 1000)
    return z.values(0), report


PITCH = 100_000_000  # of which 22 are more than 2³¹ elements
INDEX = "and.b32 %r10, %r1, 3;\nshr.u32 %r11, %r1, 2;\nmul.lo.s32 %r11, %r11, 8;\n"  # column, row 0, 8, 16 …
STORE = "mul.lo.s64 %rd7, %rd7, 4;\nadd.s64 %rd7, %rd2, %rd7;\nst.global.u32 [%rd7], 777;"
LONG = "mul.wide.s32 %rd7, %r11, %r9;\ncvt.u64.u32 %rd8, %r10;\nadd.s64 %rd7, %rd7, %rd8;\n"
SHORT = "mad.lo.s32 %r12, %r11, %r9, %r10;\ncvt.s64.s32 %rd7, %r12;\n"


def test_an_index_that_overflows_over_a_sparse_matrix() -> None:
    out, report = sparse(INDEX + LONG + STORE, 57, 4, PITCH)
    assert report.hazards == []
    assert np.flatnonzero((out == 777).all(axis=1)).tolist() == list(range(0, 57, 8))
    # 24 · 10⁸ is more than 2³¹ − 1: with 32 bits the index is negative.
    _, report = sparse(INDEX + SHORT + STORE, 57, 4, PITCH)
    (hazard,) = report.hazards
    assert hazard.check == "bounds"
    assert re.match(r"thread \(12, 0, 0\) of block \(0, 0, 0\) writes 4 bytes at ", hazard.message)
    assert f"{4 * (2**32 - 24 * PITCH)} bytes before the start of Z" in hazard.message


@pytest.mark.parametrize(
    ("rows", "columns", "said"),
    [
        (
            "neg.s32 %r11, %r11;\n",
            4,
            rf"4, 0, 0\) .* writes 4 bytes at .* {4 * 8 * PITCH} bytes before the start",
        ),
        ("", 3, r"3, 0, 0\).* Z, row 0, 0 bytes past the end of the row"),
    ],
)
def test_columns_past_the_row_of_a_sparse_matrix(rows: str, columns: int, said: str) -> None:
    """And rows 0, −8, −16 …"""
    _, report = sparse(INDEX + rows + LONG + STORE, 57, columns, PITCH)
    (hazard,) = report.hazards
    assert hazard.check == "bounds"
    assert re.match(r"thread \(" + said, hazard.message)


def test_elements_that_no_thread_wrote() -> None:
    text = kernel("setp.eq.u32 %p1, %r1, 9;\n@!%p1 st.global.u32 [%rd6], %r1;")
    machine = PreparedKernel(parse(text, "k"), "k.cu")
    x = Buffer("X", 0, [numbers(32)] * 2)
    y = Buffer("Y", 1, [np.zeros((32, 2), np.uint32)] * 2, writable=True)
    parameters = [[np.int64(x.address(i)), np.int64(y.address(i)), np.int32(0)] for i in range(2)]
    assert not y.written(0).any()
    machine.run((1, 1, 1), (32, 1, 1), 0, parameters, GlobalMemory([x, y]), 100)
    for launch in (0, 1):
        assert [tuple(at) for at in np.argwhere(~y.written(launch)[:, :1])] == [(9, 0)]
        assert not y.written(launch)[:, 1].any()


CHOOSE = "setp.lt.u32 %p1, %r1, 20;\nselp.b64 %rd7, %rd4, %rd6, %p1;\n"  # its row of X, or that of Y


@pytest.mark.parametrize("load", ["ld.global.u32", "ld.u32"])
def test_lanes_that_read_from_different_buffers(load: str) -> None:
    body = f"st.global.u32 [%rd6], 5;\n{CHOOSE}{load} %r10, [%rd7];\nst.global.u32 [%rd6], %r10;"
    assert per_lane(body) == [4 * t for t in range(20)] + [5] * 12
    guarded = body.replace(f"{load} ", f"mov.u32 %r10, 0;\nsetp.ne.u32 %p2, %r1, 30;\n@%p2 {load} ")
    assert per_lane(guarded) == [4 * t for t in range(20)] + [5] * 10 + [0, 5]


def test_lanes_that_write_to_different_buffers() -> None:
    """Where one of them is an input."""
    (said,) = hazards(CHOOSE + "st.global.u32 [%rd7], %r10;")
    assert re.match(r"bounds: thread \(0, 0, 0\) .* writes the input X\(0, 0\)", said)


def test_a_lane_past_the_end_of_another_buffer_than_the_first_lane() -> None:
    (said,) = hazards(CHOOSE + "ld.global.u32 %r10, [%rd7+60];")
    assert re.match(r"bounds: thread \(25, 0, 0\).* 4 bytes past the end of Y \(256 bytes\)", said)


def test_lanes_that_write_to_different_spaces() -> None:
    """A generic address is that of a buffer for some lanes, of shared or local memory for others."""
    body = """
    setp.lt.u32 %p1, %r1, 8;
    setp.lt.u32 %p2, %r1, 16;
    mov.u64 %rd7, cells;
    cvta.shared.u64 %rd7, %rd7;
    mul.wide.u32 %rd8, %r1, 4;
    add.s64 %rd7, %rd7, %rd8;
    mov.u64 %rd8, mine;
    cvta.local.u64 %rd8, %rd8;
    selp.b64 %rd7, %rd7, %rd8, %p2;
    selp.b64 %rd7, %rd6, %rd7, %p1;
    st.u32 [%rd7], %r1;
    ld.u32 %r10, [%rd7];
    @!%p1 st.global.u32 [%rd6], %r10;
"""
    assert per_lane(body, LOCAL + "\n.shared .align 4 .b8 cells[128];") == list(range(32))


BYTES = """
.version 9.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 k_words, .param .u64 k_out)
{{
.reg .b32 %r<4>;
.reg .b64 %rd<8>;
ld.param.u64 %rd1, [k_words];
ld.param.u64 %rd2, [k_out];
mov.u32 %r1, %tid.x;
mul.wide.u32 %rd3, %r1, 4;
add.s64 %rd1, %rd1, %rd3;
add.s64 %rd2, %rd2, %rd3;
{stores}
{load}
st.global.u32 [%rd2], %r2;
ret;
}}
"""


@pytest.mark.parametrize(
    ("offsets", "load", "defined"),
    [
        ((0,), "ld.global.u32 %r2, [%rd1];", False),
        ((0, 1, 3), "ld.global.u32 %r2, [%rd1];", False),
        ((0, 1, 2, 3), "ld.global.u32 %r2, [%rd1];", True),
        ((2,), "ld.global.u8 %r2, [%rd1 + 2];", True),
        ((2,), "ld.global.u8 %r2, [%rd1 + 1];", False),
        ((2, 3), "ld.global.u16 %r2, [%rd1 + 2];", True),
    ],
)
def test_a_store_to_some_bytes_of_an_element_is_of_these_bytes(
    offsets: tuple[int, ...], load: str, defined: bool
) -> None:
    stores = "\n".join(f"st.global.u8 [%rd1 + {offset}], %r1;" for offset in offsets)
    words = [ptxsan.Empty(32, np.int32), ptxsan.Empty(32, np.int32)]
    result = ptxsan.run(BYTES.format(stores=stores, load=load), grid=1, block=32, arguments=words)
    assert [hazard.check for hazard in result.hazards] == ([] if defined else ["uninit"])
    if not defined:
        assert "arg0[0]" in result.hazards[0].message
