"""wmma of every shape and type against NumPy's product of integers; what is said of matrices; ldmatrix.
Products of mma, whose fragments the PTX ISA lays out, are compared with a GPU's by test_instructions.py."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest

from tests.ptxsan.rig import CELLS, TYPES, Array, launch


def registers(name: str, count: int, first: int = 10) -> str:
    return "{" + ", ".join(f"%{name}{first + i}" for i in range(count)) + "}"


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


RANDOM = np.random.default_rng(8)


LIMITS = {"u8": (0, 256), "s8": (-128, 128), "s4": (-8, 8), "u4": (0, 16), "b1": (0, 2), "e5m2": (-4, 5)}


def matrix(rows: int, columns: int, kind: str) -> Array:
    low, high = LIMITS.get(kind, (-9, 10))
    return RANDOM.integers(low, high, (rows, columns))


def bits_of(kind: str) -> int:
    return {"s4": 4, "u4": 4, "b1": 1}.get(kind) or 8 * np.dtype(TYPES[kind]).itemsize


def packed(values: Array, kind: str) -> Array:
    """(..., n) integers as (..., bytes)."""
    if kind == "b1":
        return np.packbits(values.astype(np.uint8), axis=-1, bitorder="little")
    if kind in ("s4", "u4"):
        low, high = (values[..., i::2].astype(np.int64) & 15 for i in (0, 1))
        return (low | high << 4).astype(np.uint8)
    return np.ascontiguousarray(values.astype(TYPES[kind])).view(np.uint8)


def sizes(shape: str) -> tuple[int, int, int]:
    m, rest = shape[1:].split("n")
    n, k = rest.split("k")
    return int(m), int(n), int(k)


HALF = ("m16n16k16", "m32n8k16", "m8n32k16")


COUNTS = {
    **{("f16", shape): (8, 8) for shape in HALF},
    **{("bf16", shape): counts for shape, counts in zip(HALF, ((4, 4), (8, 2), (2, 8)), strict=True)},
    **{
        (kind, shape): c
        for kind in ("s8", "u8")
        for shape, c in zip(HALF, ((2, 2), (4, 1), (1, 4)), strict=True)
    },
    ("tf32", "m16n16k8"): (4, 4),
    ("f64", "m8n8k4"): (1, 1),
    ("s4", "m8n8k32"): (1, 1),
    ("u4", "m8n8k32"): (1, 1),
    ("b1", "m8n8k128"): (1, 1),
}


SUMS = {"f16": "f32", "bf16": "f32", "tf32": "f32", "f64": "f64"}


LAYOUTS = list(itertools.product(("row", "col"), repeat=4))  # of A, B, C and D
EVERY = [
    (kind, shape, SUMS.get(kind, "s32"), layouts) for kind, shape in COUNTS for layouts in LAYOUTS[5:11:5]
]
EVERY += [("f16", shape, total, layouts) for shape in HALF for total in ("f16", "f32") for layouts in LAYOUTS]


@pytest.mark.parametrize(("kind", "shape", "total", "layouts"), EVERY)
def test_wmma(kind: str, shape: str, total: str, layouts: tuple[str, str, str, str]) -> None:
    m, n, k = sizes(shape)
    if bits_of(kind) < 8:
        layouts = ("row", "col", *layouts[2:])
    x, y, z = matrix(m, k, kind), matrix(k, n, kind), matrix(m, n, total)
    lines = [v if layout == "row" else v.T for v, layout in zip((x, y, z), layouts, strict=False)]
    wide = "fd" if kind == "f64" else "r"
    many = m * n // 32 // (2 if total == "f16" else 1)
    operands = []
    for name, first, count in ((wide, 10, COUNTS[kind, shape][0]), (wide, 20, COUNTS[kind, shape][1])):
        operands.append("{" + ", ".join(f"%{name}{first + j}" for j in range(count)) + "}")
    name = {"f32": "f", "f64": "fd"}.get(total, "r")
    operands.append("{" + ", ".join(f"%{name}{30 + j}" for j in range(many)) + "}")
    body = ""
    for i, (which, line, of) in enumerate(zip("abc", lines, (kind, kind, total), strict=True)):
        body += f"mov.u32 %r50, {line.shape[1]};\nwmma.load.{which}.sync.aligned.{layouts[i]}.{shape}."
        body += f"global.{of} {operands[i]}, [%rd1{i + 1}], %r50;\n"
    types = f"{total}.{total}" if kind == "f16" else f"{total}.{kind}.{kind}.{total}"
    bits = ".xor.popc" if kind == "b1" else ""
    body += f"wmma.mma{bits}.sync.aligned.{layouts[0]}.{layouts[1]}.{shape}.{types} "
    body += f"{operands[2]}, {', '.join(operands)};\nmov.u32 %r50, {n if layouts[3] == 'row' else m};\n"
    body += f"wmma.store.d.sync.aligned.{layouts[3]}.{shape}.global.{total} [%rd10], {operands[2]}, %r50;"
    inputs = [packed(line, of) for line, of in zip(lines, (kind, kind, total), strict=True)]
    out = np.zeros((m, n) if layouts[3] == "row" else (n, m), TYPES[total])
    found, report = launch(body, inputs, out, inside=".reg .f64 %fd<50>;")
    assert report.hazards == []
    want = (x[:, :, None] ^ y[None]).sum(axis=1) + z if kind == "b1" else x @ y + z
    assert np.array_equal((found if layouts[3] == "row" else found.T).astype(np.int64), want)


@pytest.mark.parametrize("loaded", ["row", "col"])
def test_wmma_that_takes_a_matrix_in_another_layout_than_it_was_loaded_in(loaded: str) -> None:
    """PTX leaves it undefined (§9.7.14.4.5): it is no product of what lies in memory."""
    a, b, d = registers("r", 8), registers("r", 8, 20), registers("f", 8)
    load = "wmma.load.{}.sync.aligned.{}.m16n16k16.global.f16 {}, [{}], %r50;\n"
    body = "".join(f"mov.f32 %f{10 + i}, 0f00000000;\n" for i in range(8)) + "mov.u32 %r50, 16;\n"
    body += load.format("a", loaded, a, "%rd11") + load.format("b", "row", b, "%rd12")
    body += f"wmma.mma.sync.aligned.row.row.m16n16k16.f32.f32 {d}, {a}, {b}, {d};\n"
    body += f"wmma.store.d.sync.aligned.row.m16n16k16.global.f32 [%rd10], {d}, %r50;"
    x, y = matrix(16, 16, "f16").astype(np.float16), matrix(16, 16, "f16").astype(np.float16)
    found, _ = launch(body, [x, y], np.zeros((16, 16), np.float32))
    assert [np.array_equal(found, z @ y) for z in (x, x.T)] == [loaded == "row", False]


SUM = registers("f", 4)
STORE = f"mul.wide.u32 %rd20, %r1, 16;\nadd.s64 %rd20, %rd20, %rd10;\nst.global.v4.f32 [%rd20], {SUM};"


def test_tf32_ignores_the_lower_bits_of_a_multiplicand() -> None:
    more = np.full((1, 1), 1 + 2.0**-11, np.float32)
    body = "ld.global.b32 %r10, [%rd11];\n"
    body += f"mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32 {SUM}, {{%r10, %r10}}, {{%r10}}, {SUM};\n"
    found, _ = launch(body + STORE, [more], np.zeros((32, 4), np.float32))
    assert (found == 4).all()


# What is undefined


def test_a_wmma_accumulator_that_is_never_filled() -> None:
    a, b, c, d = registers("r", 8), registers("r", 8, 20), registers("f", 8, 0), registers("f", 8)
    load = "wmma.load.{}.sync.aligned.row.m16n16k16.global.f16 {}, [{}], %r50;\n"
    before = "mov.u32 %r50, 16;\n" + load.format("a", a, "%rd11") + load.format("b", b, "%rd12")
    after = f"wmma.mma.sync.aligned.row.row.m16n16k16.f32.f32 {d}, {a}, {b}, {c};\n"
    after += f"wmma.store.d.sync.aligned.row.m16n16k16.global.f32 [%rd10], {d}, %r50;"
    ones = np.ones((16, 16), np.float16)
    fill = [f"mov.f32 %f{i}, 0f00000000;\n" for i in range(8)]
    for filled, said in (
        (fill, ""),
        ([], "which comes from register %f"),
        (fill[:3] + fill[4:], "which comes from register %f3, not set before"),
    ):
        body = before + "".join(filled) + after
        out, report = launch(body, [ones, ones], np.zeros((16, 16), np.float32))
        assert {h.check for h in report.hazards} == ({"uninit"} if said else set())
        assert all(said in h.message for h in report.hazards[:1])
        assert said or ((out == 16).all() and not report.notes)


@pytest.mark.parametrize("row", [3, 14])
def test_mma_leaves_undefined_what_comes_of_it(row: int) -> None:
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
    assert {row_of for h in report.hazards for row_of in re.findall(r"to R\((\d+)", h.message)} == {str(row)}


# ldmatrix


def test_ldmatrix_reads_a_row_that_nobody_wrote() -> None:
    body = "mov.u32 %r50, cells;\nshl.b32 %r51, %r1, 4;\nadd.u32 %r52, %r50, %r51;\n"
    body += "setp.ne.u32 %p1, %r1, 9;\n"
    body += "@%p1 st.shared.v4.u32 [%r52], {%r1, %r1, %r1, %r1};\nbar.sync 0;\n"
    load = "ldmatrix.sync.aligned.m8n8.x{}.shared::cta.b16 {}, [%r52];"
    _, report = launch(body + load.format(2, registers("r", 2)), [], np.zeros((1, 1)), inside=CELLS)
    (note,) = report.notes
    assert (note.check, report.hazards) == ("uninit", [])
    assert note.message.startswith("thread (9, 0, 0) of block (0, 0, 0) reads shared memory cells+144")
    # The rows that lanes 8 and up name are no part of one matrix.
    _, report = launch(body + load.format(1, "{%r0}"), [], np.zeros((1, 1)), inside=CELLS)
    assert (report.hazards, report.notes) == ([], [])
