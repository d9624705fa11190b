"""Accesses beyond plain loads and stores: parts of a cp.async, 32 bytes, atomics on vectors, bytes of an
element, rows that lie far apart."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest

import ptxsan
from ptxsan import Buffer, GlobalMemory, PreparedKernel, Report, parse
from tests.ptxsan.rig import CELLS, Array, execute, kernel, launch, numbers, program

AT = "mov.u32 %r20, cells;\nshl.b32 %r21, %r1, 4;\nadd.u32 %r20, %r20, %r21;\n"


def copied(copy: str, source: Array, column: int) -> list[int]:
    """A word of what a cp.async of 16 bytes a lane leaves in shared memory; %r10 is the lane mod 17."""
    body = AT + "rem.u32 %r10, %r1, 17;\nsetp.gt.u32 %p1, %r10, 8;\nmov.b64 %rd7, 0;\n" + copy
    body += f"\ncp.async.wait_all;\nld.shared.u32 %r11, [%r20+{4 * column}];\nst.global.u32 [%rd6], %r11;"
    out, report = execute(kernel(body, inside=CELLS), source)
    assert report.hazards == []
    return [int(v) for v in out[:, 0]]


def test_cp_async_of_a_part_of_its_bytes() -> None:
    """The first bytes are copied, the rest is zeros; and only the first are read."""
    source = numbers(32) + 0x01020304
    for column in range(4):
        got = copied("cp.async.cg.shared.global [%r20], [%rd4], 16, %r10;", source, column)
        octets = source.view(np.uint8).reshape(32, 16).copy()
        for lane in range(32):
            octets[lane, min(lane % 17, 16) :] = 0
        assert got == octets.view(np.uint32)[:, column].tolist()


def test_cp_async_that_ignores_its_source() -> None:
    source = numbers(32) + 1
    got = copied("cp.async.ca.shared.global.L2::cache_hint [%r20], [%rd4], 16, %p1, %rd7;", source, 1)
    assert got == [0 if lane % 17 > 8 else int(source[lane, 1]) for lane in range(32)]


def test_32_bytes_at_once() -> None:
    source = np.arange(256, dtype=np.uint32).reshape(32, 8)
    names = "{" + ", ".join(f"%r{10 + j}" for j in range(8)) + "}"
    body = "mul.wide.u32 %rd20, %r1, 32;\nadd.s64 %rd21, %rd20, %rd11;\nadd.s64 %rd20, %rd20, %rd10;\n"
    body += f"ld.global.v8.b32 {names}, [%rd21];\nadd.u32 %r17, %r17, %r10;\n"
    body += f"st.global.v8.b32 [%rd20], {names};"
    out, report = launch(body, [source], np.zeros((32, 8), np.uint32))
    assert report.hazards == []
    want = source.copy()
    want[:, 7] += want[:, 0]
    assert np.array_equal(out, want)
    _, report = launch(body.replace("[%rd21]", "[%rd21+16]"), [source], np.zeros((32, 8), np.uint32))
    assert [h.check for h in report.hazards] == ["misaligned"]


@pytest.mark.parametrize(
    ("kind", "width", "dtype", "operation"),
    [
        ("add.v2.f32", 8, np.float32, np.add),
        ("add.v4.f32", 16, np.float32, np.add),
        ("add.noftz.v2.f16", 4, np.float16, np.add),
        ("add.noftz.f16x2", 4, np.float16, np.add),
        ("max.noftz.v4.bf16", 8, ml_dtypes.bfloat16, np.maximum),
        ("add.noftz.v2.bf16x2", 8, ml_dtypes.bfloat16, np.add),
        ("min.noftz.v8.f16", 16, np.float16, np.minimum),
    ],
)
def test_atomics_on_vectors(kind: str, width: int, dtype: type, operation: np.ufunc) -> None:
    """Each lane on a place of its own; then all of a warp on one."""
    item = np.dtype(dtype).itemsize
    values: Array = np.random.default_rng(4).integers(-8, 9, (64, width // item)).astype(dtype)
    element = kind.rsplit(".", 1)[1]
    register, size = ("%f", 4) if element == "f32" else ("%r1", 4) if element.endswith("x2") else ("%rs", 2)
    names = [f"{register}{j}" for j in range(width // size)]
    vector = "{" + ", ".join(names) + "}" if ".v" in kind else names[0]
    body = f"mul.wide.u32 %rd20, %r1, {width};\nadd.s64 %rd21, %rd20, %rd11;\n"
    body += "".join(f"ld.global.b{8 * size} {n}, [%rd21+{size * j}];\n" for j, n in enumerate(names))
    body += f"add.s64 %rd22, %rd20, %rd10;\nred.global.{kind} [%rd22], {vector};\n"
    out, report = launch(body, [values[:32]], values[32:].copy())
    assert report.hazards == []
    assert np.array_equal(out.view(dtype), operation(values[32:], values[:32]))
    one = body.replace("add.s64 %rd22, %rd20, %rd10", "mov.b64 %rd22, %rd10")
    out, report = launch(one, [values[:32]], np.zeros((1, width // item), dtype))
    assert report.hazards == []
    whole = operation.reduce(values[:32].astype(np.float64), axis=0)
    if operation is not np.add:
        whole = operation(whole, 0)
    assert np.array_equal(out.astype(np.float64)[0], whole)


def test_sums_to_global_memory_flush_subnormal_numbers() -> None:
    tiny = np.array([[2.0**-140, 2.0**-126]], np.float32)
    body = "setp.ne.u32 %p1, %r1, 0;\n@%p1 bra END;\nmov.f32 %f1, 0f00000200;\n"
    body += "red.global.add.f32 [%rd10], %f1;\nred.global.add.f32 [%rd10+4], %f1;\nEND:\n"
    out, _ = launch(body, [], tiny.copy())
    assert out.tolist() == [[0, 2.0**-126]]


def test_an_atomic_whose_lanes_mean_several_spaces() -> None:
    body = """
    mov.b64 %rd20, cells;
    cvta.shared.u64 %rd20, %rd20;
    setp.lt.u32 %p1, %r1, 16;
    selp.b64 %rd21, %rd20, %rd10, %p1;
    setp.ne.u32 %p2, %r1, 0;
    @!%p2 st.shared.u32 [cells], %r1;
    bar.sync 0;
    mov.u32 %r10, 1;
    atom.add.u32 %r11, [%rd21], %r10;
    bar.sync 0;
    ld.shared.u32 %r12, [cells];
    @!%p2 st.global.u32 [%rd10+4], %r12;
"""
    out, report = launch(body, [], np.zeros((1, 2), np.uint32), inside=CELLS)
    assert report.hazards == []
    assert out.tolist() == [[16, 16]]


def test_128_bits_at_once() -> None:
    """Exchanged, and compared by all their bits: −0.0 is no 0.0, and a NaN is itself."""
    wide = np.array([[1, 2], [1 << 63, 2], [0x7FF8 << 48, 5], [7, 7]], np.uint64)
    body = """
    .reg .b128 %q<4>;
    rem.u32 %r10, %r1, 4;
    mul.wide.u32 %rd20, %r1, 16;
    add.s64 %rd21, %rd20, %rd10;
    mul.wide.u32 %rd22, %r10, 16;
    add.s64 %rd22, %rd22, %rd11;
    ld.global.b128 %q1, [%rd22];
    atom.global.exch.b128 %q2, [%rd21], %q1;
    mov.b128 {%rd23, %rd24}, %q1;
    setp.eq.u32 %p1, %r10, 1;
    selp.b64 %rd23, 0, %rd23, %p1;
    mov.b128 %q3, {%rd23, %rd24};
    mov.b64 %rd25, 99;
    mov.b128 %q1, {%rd25, %rd25};
    atom.global.cas.b128 %q2, [%rd21], %q3, %q1;
    add.s64 %rd21, %rd21, 512;
    st.global.b128 [%rd21], %q2;
"""
    out, report = launch(body, [wide], np.zeros((64, 2), np.uint64))
    assert report.hazards == []
    held = np.tile(wide, (8, 1))
    assert np.array_equal(out[32:], held)
    held[np.arange(32) % 4 != 1] = 99
    assert np.array_equal(out[:32], held)


# Rows that lie far apart


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


def test_an_index_that_does_not_overflow_over_a_sparse_matrix() -> None:
    out, report = sparse(INDEX + LONG + STORE, 57, 4, PITCH)
    assert report.hazards == []
    assert np.flatnonzero((out == 777).all(axis=1)).tolist() == list(range(0, 57, 8))


@pytest.mark.parametrize(
    ("index", "columns", "said"),
    [
        # 24 · 10⁸ is more than 2³¹ − 1: with 32 bits the index is negative.
        (SHORT, 4, rf"12, 0, 0\) .* 4 bytes at .* {4 * (2**32 - 24 * PITCH)} bytes before the start of Z"),
        # Rows 0, −8, −16 …
        (
            f"neg.s32 %r11, %r11;\n{LONG}",
            4,
            rf"4, 0, 0\) .* 4 bytes at .* {32 * PITCH} bytes before the start",
        ),
        (LONG, 3, r"3, 0, 0\).* Z, row 0, 0 bytes past the end of the row"),
    ],
    ids=["an index that overflows", "rows before the first", "columns past the row"],
)
def test_out_of_the_bounds_of_a_sparse_matrix(index: str, columns: int, said: str) -> None:
    (hazard,) = sparse(INDEX + index + STORE, 57, columns, PITCH)[1].hazards
    assert hazard.check == "bounds"
    assert re.match(r"thread \(" + said, hazard.message)


@pytest.mark.parametrize(
    ("offsets", "load", "defined"),
    [
        ((0,), "ld.global.u32 %r2, [%rd11];", False),
        ((0, 1, 3), "ld.global.u32 %r2, [%rd11];", False),
        ((0, 1, 2, 3), "ld.global.u32 %r2, [%rd11];", True),
        ((2,), "ld.global.u8 %r2, [%rd11 + 2];", True),
        ((2,), "ld.global.u8 %r2, [%rd11 + 1];", False),
        ((2, 3), "ld.global.u16 %r2, [%rd11 + 2];", True),
    ],
)
def test_a_store_to_some_bytes_of_an_element_is_of_these_bytes(
    offsets: tuple[int, ...], load: str, defined: bool
) -> None:
    stores = "".join(f"st.global.u8 [%rd11 + {offset}], %r1;\n" for offset in offsets)
    own = "mul.wide.u32 %rd3, %r1, 4;\nadd.s64 %rd10, %rd10, %rd3;\nadd.s64 %rd11, %rd11, %rd3;\n"
    text = program(f"{own}{stores}{load}\nst.global.u32 [%rd10], %r2;", 1)
    words = [ptxsan.Empty(32, np.int32), ptxsan.Empty(32, np.int32)]
    result = ptxsan.run(text, grid=1, block=32, arguments=words)
    assert [hazard.check for hazard in result.hazards] == ([] if defined else ["uninit"])
    assert all("arg1[0]" in hazard.message for hazard in result.hazards)


# Two lanes of a warp read one word, by instructions of their own; the one that reads last arrives, or both.
TWO_READ = """setp.eq.u32 %p1, %r1, 0;
setp.eq.u32 %p2, %r1, 1;
@%p1 mbarrier.init.shared.b64 [full], ARRIVE;
@%p1 st.shared.b32 [held], 7;
bar.sync 0;
@%p1 ld.shared.b32 %r6, [held];
@%p2 ld.shared.b32 %r7, [held];
@%pWHO mbarrier.arrive.shared.b64 %rd20, [full];
setp.ne.u32 %p3, %r1, 32;
@%p3 bra $END;
$WAIT:
mbarrier.test_wait.parity.shared.b64 %p3, [full], 0;
@!%p3 bra $WAIT;
st.shared.b32 [held], 9;
$END:"""


@pytest.mark.parametrize("numpy_alone", [False, True])
@pytest.mark.parametrize("both", [False, True])
def test_each_lane_that_read_a_word_is_remembered(
    both: bool, numpy_alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if numpy_alone:
        monkeypatch.setattr("ptxsan.native._found", lambda: "the test asks for it")
    body = TWO_READ.replace("ARRIVE", "2" if both else "1").replace("%pWHO", "%p3" if both else "%p2")
    body = body.replace("bar.sync 0;", "bar.sync 0;\nsetp.lt.u32 %p3, %r1, 2;")
    text = program(body, 0, ".shared .align 8 .b64 full; .shared .align 4 .b32 held[4];")
    found = ptxsan.run(text, grid=1, block=64, arguments=[ptxsan.Empty(4, np.uint32)])
    assert [h.check for h in found.hazards] == ([] if both else ["race"])
    assert both or "which thread 0 read" in found.hazards[0].message
