"""Tensor core instructions against NumPy's product of integers; fragments as the PTX ISA lays them out."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ptxsan import PtxError
from tests.ptxsan.rig import Array, launch

STORAGE: dict[str, Any] = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "tf32": np.float32,
    "f32": np.float32,
}
SHAPE = {"f16": (16, 16, 16), "bf16": (16, 16, 16), "tf32": (16, 16, 8)}
PAD = 8  # elements past each row or column


def integers(rows: int, columns: int, kind: str, seed: int) -> Array:
    return np.random.default_rng(seed).integers(-9, 10, (rows, columns)).astype(STORAGE[kind])


def laid(matrix: Array, layout: str) -> Array:
    """As it lies in memory by row or by column, with NaN past its end."""
    lines = matrix if layout == "row" else matrix.T
    out = np.full((lines.shape[0], lines.shape[1] + PAD), np.nan, matrix.dtype)
    out[:, : lines.shape[1]] = lines
    return out


def registers(name: str, count: int, first: int = 10) -> str:
    return "{" + ", ".join(f"%{name}{first + i}" for i in range(count)) + "}"


def wmma(kind: str, layouts: tuple[str, str, str, str], accumulator: str) -> tuple[Array, Array]:
    """What wmma makes of integers in the layouts of A, B, C and D; and A·B + C."""
    m, n, k = SHAPE[kind]
    a, b = integers(m, k, kind, 1), integers(k, n, kind, 2)
    c = integers(m, n, accumulator, 3)
    shape, mine = f"m{m}n{n}k{k}", 8 if kind == "f16" else 4
    fragments = [registers("r", mine), registers("r", mine, 20)]
    held = registers("f", 8) if accumulator == "f32" else registers("r", 4, 30)
    lines = [laid(a, layouts[0]), laid(b, layouts[1]), laid(c, layouts[2])]
    types = f"{accumulator}.{accumulator}"
    if kind != "f16":
        types = f"{accumulator}.{kind}.{kind}.{accumulator}"
    body = "".join(
        f"mov.u32 %r50, {line.shape[1]};\n"
        f"wmma.load.{which}.sync.aligned.{layout}.{shape}.global.{of} {into}, [%rd1{i}], %r50;\n"
        for i, which, layout, of, into, line in zip(
            (1, 2, 3), "abc", layouts, (kind, kind, accumulator), (*fragments, held), lines, strict=False
        )
    )
    body += f"wmma.mma.sync.aligned.{layouts[0]}.{layouts[1]}.{shape}.{types} "
    body += f"{held}, {fragments[0]}, {fragments[1]}, {held};\n"
    out = laid(np.zeros((m, n), STORAGE[accumulator]), layouts[3])
    body += f"mov.u32 %r50, {out.shape[1]};\n"
    body += f"wmma.store.d.sync.aligned.{layouts[3]}.{shape}.global.{accumulator} [%rd10], {held}, %r50;"
    found, report = launch(body, lines, out)
    assert report.hazards == []
    assert np.isnan(found[:, -PAD:].astype(np.float32)).all()
    found = found[:, :-PAD]
    want = a.astype(np.float64) @ b.astype(np.float64) + c.astype(np.float64)
    return (found if layouts[3] == "row" else found.T).astype(np.float64), want


@pytest.mark.parametrize(
    ("kind", "accumulator"), [("f16", "f32"), ("f16", "f16"), ("bf16", "f32"), ("tf32", "f32")]
)
@pytest.mark.parametrize("layouts", list(itertools.product(("row", "col"), repeat=4)), ids="-".join)
def test_wmma(kind: str, accumulator: str, layouts: tuple[str, str, str, str]) -> None:
    found, want = wmma(kind, layouts, accumulator)
    assert np.array_equal(found, want)


def test_wmma_in_a_part_of_a_warp() -> None:
    body = "setp.lt.u32 %p1, %r1, 40;\n@!%p1 bra $END;\nmov.u32 %r50, 16;\n"
    load = f"wmma.load.c.sync.aligned.row.m16n16k16.global.f32 {registers('f', 8)}, [%rd11], %r50;"
    _, report = launch(body + load + "\n$END:", [np.zeros((16, 16), np.float32)], np.zeros((1, 1)), 64)
    (hazard,) = report.hazards
    assert hazard.check == "barrier"
    assert hazard.message.startswith(
        "thread (32, 0, 0) of block (0, 0, 0) is executed by a part of its warp at "
    )


@pytest.mark.parametrize(
    ("offset", "stride", "check", "what"),
    [
        (16, 16, "misaligned", "has a matrix that does not start at a multiple of 32 bytes"),
        (0, 12, "misaligned", "is not aligned to 16 bytes"),
        (32, 16, "bounds", "past the end of I0 (512 bytes)"),
    ],
)
def test_a_matrix_that_is_not_where_it_must_be(offset: int, stride: int, check: str, what: str) -> None:
    body = f"mov.u32 %r50, {stride};\nwmma.load.a.sync.aligned.row.m16n16k16.global.f16 {registers('r', 8)}, "
    _, report = launch(body + f"[%rd11+{offset}], %r50;", [np.zeros((16, 16), np.float16)], np.zeros((1, 1)))
    (hazard,) = report.hazards
    assert hazard.check == check
    assert what in hazard.message
    assert "wmma.load.a" in hazard.message


@pytest.mark.parametrize(("offset", "kinds"), [(0, []), (8, ["note"]), (4, ["error"])])
def test_a_matrix_of_bytes_starts_at_a_multiple_of_8_in_ptx_and_of_32_in_cuda(
    offset: int, kinds: list[str]
) -> None:
    """Where a tile of 16 columns of INT8 begins, in the columns of a wider matrix."""
    body = f"mov.u32 %r50, 64;\nwmma.load.b.sync.aligned.row.m16n16k16.global.s8 {registers('r', 2)}, "
    _, report = launch(body + f"[%rd11+{offset}], %r50;", [np.zeros((16, 64), np.int8)], np.zeros((1, 1)))
    assert ["note"] * len(report.notes) + ["error"] * len(report.hazards) == kinds
    for hazard in (*report.notes, *report.hazards):
        unit = 32 if report.notes else 8
        assert hazard.check == "misaligned"
        assert f"has a matrix that does not start at a multiple of {unit} bytes" in hazard.message


def test_a_shape_that_there_is_not_is_told() -> None:
    body = f"wmma.load.b.sync.aligned.row.m32n8k8.global.f16 {registers('r', 8)}, [%rd11], %r50;"
    with pytest.raises(PtxError, match=r"unknown form of wmma.*no shape and type.*PTX line \d+: wmma.load.b"):
        launch(body, [np.zeros((16, 8), np.float16)], np.zeros((1, 1)))


SUM = registers("f", 4)
STORE = f"mul.wide.u32 %rd20, %r1, 16;\nadd.s64 %rd20, %rd20, %rd10;\nst.global.v4.f32 [%rd20], {SUM};"

# mma.sync: fragments of a lane by its group (lane / 4) and its place in it (lane mod 4); PTX ISA, §9.7.14.


def mma_places(kind: str, k: int) -> dict[str, list[tuple[int, int]]]:
    """(row, column) of each element of lane 0, in order; a group is a row further (A, C) or a column (B)."""
    if kind == "tf32":
        a = [(0, 0), (8, 0), (0, 4), (8, 4)][: k // 2]
        return {"a": a, "b": [(0, 0), (4, 0)][: k // 4], "c": [(0, 0), (0, 1), (8, 0), (8, 1)]}
    a = [(0, 0), (0, 1), (8, 0), (8, 1), (0, 8), (0, 9), (8, 8), (8, 9)][: k // 2]
    b = [(0, 0), (1, 0), (8, 0), (9, 0)][: k // 4]
    return {"a": a, "b": b, "c": [(0, 0), (0, 1), (8, 0), (8, 1)]}


def fragment(matrix: Array, which: str, places: list[tuple[int, int]], step: int) -> Array:
    """(32, elements): a lane further in its group is ``step`` further along k, or along the row of C."""
    lanes = []
    for lane in range(32):
        group, along = lane // 4, lane % 4 * step
        row, column = (along, group) if which == "b" else (group, along)
        lanes.append([matrix[r + row, c + column] for r, c in places])
    return np.array(lanes, matrix.dtype)


@pytest.mark.parametrize(
    ("kind", "k"), [("f16", 8), ("f16", 16), ("bf16", 8), ("bf16", 16), ("tf32", 4), ("tf32", 8)]
)
def test_mma(kind: str, k: int) -> None:
    matrices = {"a": integers(16, k, kind, 4), "b": integers(k, 8, kind, 5), "c": integers(16, 8, "f32", 6)}
    places, step = mma_places(kind, k), 1 if kind == "tf32" else 2
    held = [
        fragment(matrix, which, places[which], 2 if which == "c" else step).view(np.uint32)
        for which, matrix in matrices.items()
    ]
    body = ""
    for i, (name, words) in enumerate(zip("rrf", held, strict=True)):
        count, first = words.shape[1], (10, 20, 10)[i]
        body += f"mul.wide.u32 %rd20, %r1, {4 * count};\nadd.s64 %rd20, %rd20, %rd1{i + 1};\n"
        body += "".join(f"ld.global.b32 %{name}{first + j}, [%rd20+{4 * j}];\n" for j in range(count))
    a, b = registers("r", held[0].shape[1]), registers("r", held[1].shape[1], 20)
    body += f"mma.sync.aligned.m16n8k{k}.row.col.f32.{kind}.{kind}.f32 {SUM}, {a}, {b}, {SUM};\n{STORE}"
    found, report = launch(body, held, np.zeros((32, 4), np.float32))
    assert report.hazards == []
    want = matrices["a"].astype(np.float64) @ matrices["b"].astype(np.float64) + matrices["c"]
    assert np.array_equal(found, fragment(want, "c", places["c"], 2))


def test_mma_that_adds_in_f16_rounds_to_it() -> None:
    a, b = np.full((16, 8), 1, np.float16), np.full((8, 8), 1, np.float16)
    a[:, 1:] = 0  # 2048 + 1 is 2048 in FP16
    c = np.tile(np.array([2048, 1], np.float16), (16, 4))
    places = mma_places("f16", 8)
    held = [fragment(m, w, places[w], 2).view(np.uint32) for m, w in ((a, "a"), (b, "b"), (c, "c"))]
    body = ""
    for i, words in enumerate(held):
        count, first = words.shape[1], 10 * (i + 1)
        body += f"mul.wide.u32 %rd20, %r1, {4 * count};\nadd.s64 %rd20, %rd20, %rd1{i + 1};\n"
        body += "".join(f"ld.global.b32 %r{first + j}, [%rd20+{4 * j}];\n" for j in range(count))
    total = "{%r30, %r31}"
    body += f"mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {total}, {{%r10, %r11}}, {{%r20}}, {total};\n"
    body += (
        "mul.wide.u32 %rd20, %r1, 8;\nadd.s64 %rd20, %rd20, %rd10;\nst.global.v2.b32 [%rd20], " + total + ";"
    )
    found, report = launch(body, held, np.zeros((32, 2), np.float32))
    assert report.hazards == []
    want = np.tile(np.array([2048, 2], np.float16), (16, 4))
    assert np.array_equal(found.view(np.float16), fragment(want, "c", places["c"], 2))


def test_tf32_ignores_the_lower_bits_of_a_multiplicand() -> None:
    more = np.full((1, 1), 1 + 2.0**-11, np.float32)
    body = "ld.global.b32 %r10, [%rd11];\n"
    body += f"mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32 {SUM}, {{%r10, %r10}}, {{%r10}}, {SUM};\n"
    found, _ = launch(body + STORE, [more], np.zeros((32, 4), np.float32))
    assert (found == 4).all()


@pytest.mark.parametrize("op", ["m16n8k16.row.row.f32.f16.f16.f32", "m16n8k16.row.col.f16.f16.f16.f32"])
def test_an_mma_that_is_not_supported_is_told(op: str) -> None:
    body = f"mma.sync.aligned.{op} {SUM}, {registers('r', 4)}, {{%r8, %r9}}, {SUM};"
    with pytest.raises(PtxError, match=r"unknown form of mma, .* \(no shape.*\): PTX line \d+: mma.sync"):
        launch(body, [], np.zeros((1, 1)))


# ldmatrix


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("trans", ["", ".trans"])
@pytest.mark.parametrize("space", ["shared", "shared::cta"])
def test_ldmatrix(count: int, trans: str, space: str) -> None:
    """Lane i names the i-th row of 8 elements; lane t gets elements 2·(t mod 4) and the next of row t / 4 of
    each matrix. Rows lie in any order: here the last one first."""
    values = np.arange(32 * 8, dtype=np.uint16).reshape(32, 8) * 5 % 997
    body = "mov.u32 %r50, cells;\nshl.b32 %r51, %r1, 4;\nadd.u32 %r52, %r50, %r51;\n"
    body += "cvt.u64.u32 %rd20, %r51;\nadd.s64 %rd20, %rd20, %rd11;\n"
    row = registers("r", 4)
    body += f"ld.global.v4.u32 {row}, [%rd20];\nst.shared.v4.u32 [%r52], {row};\n"
    body += "bar.sync 0;\nxor.b32 %r51, %r51, 496;\nadd.u32 %r52, %r50, %r51;\n"
    body += f"ldmatrix.sync.aligned.m8n8.x{count}{trans}.{space}.b16 {registers('r', count)}, [%r52];\n"
    body += f"mul.wide.u32 %rd20, %r1, {4 * count};\nadd.s64 %rd20, %rd20, %rd10;\n"
    body += "".join(f"st.global.u32 [%rd20+{4 * j}], %r{10 + j};\n" for j in range(count))
    out, report = launch(
        body,
        [values.view(np.uint32)],
        np.zeros((32, count), np.uint32),
        inside=".shared .align 16 .b8 cells[512];",
    )
    assert report.hazards == []
    rows = values[::-1].reshape(4, 8, 8)
    for lane, j in itertools.product(range(32), range(count)):
        matrix = rows[j].T if trans else rows[j]
        pair = matrix[lane // 4, 2 * (lane % 4) : 2 * (lane % 4) + 2]
        assert list(out[lane : lane + 1, j].view(np.uint16)) == list(pair)


def test_ldmatrix_reads_a_row_that_nobody_wrote() -> None:
    body = (
        "mov.u32 %r50, cells;\nshl.b32 %r51, %r1, 4;\nadd.u32 %r52, %r50, %r51;\nsetp.ne.u32 %p1, %r1, 9;\n"
    )
    body += "@%p1 st.shared.v4.u32 [%r52], {%r1, %r1, %r1, %r1};\nbar.sync 0;\n"
    load = "ldmatrix.sync.aligned.m8n8.x{}.shared.b16 {}, [%r52];"
    inside = ".shared .align 16 .b8 cells[512];"
    _, report = launch(body + load.format(2, registers("r", 2)), [], np.zeros((1, 1)), inside=inside)
    (note,) = report.notes
    assert (note.check, report.hazards) == ("uninit", [])
    assert note.message.startswith("thread (9, 0, 0) of block (0, 0, 0) reads shared memory cells+144")
    # The rows that lanes 8 and up name are no part of one matrix.
    _, report = launch(body + load.format(1, "{%r0}"), [], np.zeros((1, 1)), inside=inside)
    assert (report.hazards, report.notes) == ([], [])
