"""Every shape and type of mma and wmma against NumPy's product of integers, and matrices of 16 bits moved.

What a fragment of mma.sync holds is written out here as the figures of the PTX ISA §9.7.14.5 have it, element
by element; the elements differ, so that one in another's place shows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.ptxsan.rig import Array, launch

RANDOM = np.random.default_rng(8)
TYPES: dict[str, Any] = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "tf32": np.float32,
    "f32": np.float32,
    "f64": np.float64,
    "s32": np.int32,
    "s8": np.int8,
    "u8": np.uint8,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
}
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


# Row and column of element i of a lane; p elements a register.


def place_a(p: int) -> Callable[[int, int, int], tuple[int, int]]:
    def place(lane: int, i: int, rows: int) -> tuple[int, int]:
        register, within = divmod(i, p)
        halves = rows // 8
        return lane // 4 + 8 * (register % halves), lane % 4 * p + within + 4 * p * (register // halves)

    return place


def place_b(p: int) -> Callable[[int, int, int], tuple[int, int]]:
    def place(lane: int, i: int, rows: int) -> tuple[int, int]:
        register, within = divmod(i, p)
        return lane % 4 * p + within + 4 * p * register, lane // 4

    return place


def place_c(lane: int, i: int, rows: int) -> tuple[int, int]:
    return lane // 4 + 8 * (i // 2), lane % 4 * 2 + i % 2


def fragment(values: Array, place: Callable[[int, int, int], tuple[int, int]], rows: int) -> Array:
    """(32, elements)"""
    count = values.size // 32
    where = [[place(lane, i, rows) for i in range(count)] for lane in range(32)]
    return np.array([[values[at] for at in of_lane] for of_lane in where])


def run_mma(op: str, held: list[tuple[Array, str]], result: str, count: int) -> Array:
    """Fragments (32, elements) and types of A, B and C; the result (32, count)."""
    body, operands = "", []
    for i, (values, kind) in enumerate(held):
        octets = packed(values, kind)
        wide = kind == "f64"
        words = octets.shape[1] // (8 if wide else 4)
        body += f"mul.wide.u32 %rd20, %r1, {octets.shape[1]};\nadd.s64 %rd20, %rd20, %rd1{i + 1};\n"
        name, size = ("fd", 8) if wide else ("f" if kind == "f32" else "r", 4)
        names = [f"%{name}{10 * (i + 1) + j}" for j in range(words)]
        body += "".join(f"ld.global.b{8 * size} {r}, [%rd20+{size * j}];\n" for j, r in enumerate(names))
        operands.append("{" + ", ".join(names) + "}")
    size = bits_of(result) * count // 8
    wide = result == "f64"
    words = size // (8 if wide else 4)
    names = [f"%{'fd' if wide else 'f' if result == 'f32' else 'r'}{40 + j}" for j in range(words)]
    body += f"{op} {{{', '.join(names)}}}, {', '.join(operands)};\n"
    body += f"mul.wide.u32 %rd20, %r1, {size};\nadd.s64 %rd20, %rd20, %rd10;\n"
    step = 8 if wide else 4
    body += "".join(f"st.global.b{8 * step} [%rd20+{step * j}], {r};\n" for j, r in enumerate(names))
    inputs = [np.ascontiguousarray(packed(v, k)).view(np.uint32) for v, k in held]
    inside = ".reg .f64 %fd<50>;"
    out, report = launch(body, inputs, np.zeros((32, size // 4), np.uint32), inside=inside)
    assert report.hazards == []
    return np.ascontiguousarray(out).view(TYPES[result])


def kinds(*names: str) -> list[tuple[str, str]]:
    return [(one, other) for one in names for other in names]


MMA = [
    *((shape, "f16", "f16", d) for shape in ("m16n8k8", "m16n8k16") for d in ("f16", "f32")),
    *((shape, "bf16", "bf16", "f32") for shape in ("m16n8k8", "m16n8k16")),
    *((shape, "tf32", "tf32", "f32") for shape in ("m16n8k4", "m16n8k8")),
    *(("m16n8k32", a, b, d) for a, b in kinds("e4m3", "e5m2") for d in ("f16", "f32")),
    ("m16n8k16", "e4m3", "e5m2", "f32"),
    *((s, a, b, "s32") for s in ("m8n8k16", "m16n8k16", "m16n8k32") for a, b in kinds("s8", "u8")),
    *((s, a, b, "s32") for s in ("m8n8k32", "m16n8k32", "m16n8k64") for a, b in kinds("s4", "u4")),
    *((s, "f64", "f64", "f64") for s in ("m8n8k4", "m16n8k4", "m16n8k8", "m16n8k16")),
]


def sizes(shape: str) -> tuple[int, int, int]:
    m, rest = shape[1:].split("n")
    n, k = rest.split("k")
    return int(m), int(n), int(k)


@pytest.mark.parametrize(("shape", "a", "b", "d"), MMA, ids="-".join)
def test_mma(shape: str, a: str, b: str, d: str) -> None:
    m, n, k = sizes(shape)
    x, y, z = matrix(m, k, a), matrix(k, n, b), matrix(m, n, d)
    p, q = max(1, 32 // bits_of(a)), max(1, 32 // bits_of(b))
    held = [(fragment(x, place_a(p), m), a), (fragment(y, place_b(q), m), b), (fragment(z, place_c, m), d)]
    got = run_mma(f"mma.sync.aligned.{shape}.row.col.{d}.{a}.{b}.{d}", held, d, m * n // 32)
    assert np.array_equal(got.astype(np.float64), fragment(x @ y + z, place_c, m))


@pytest.mark.parametrize("shape", ["m8n8k128", "m16n8k128", "m16n8k256"])
@pytest.mark.parametrize("operation", ["xor", "and"])
def test_mma_of_bits(shape: str, operation: str) -> None:
    m, n, k = sizes(shape)
    x, y, z = matrix(m, k, "b1"), matrix(k, n, "b1"), matrix(m, n, "s32")
    held = [
        (fragment(x, place_a(32), m), "b1"),
        (fragment(y, place_b(32), m), "b1"),
        (fragment(z, place_c, m), "s32"),
    ]
    got = run_mma(
        f"mma.sync.aligned.{shape}.row.col.s32.b1.b1.s32.{operation}.popc", held, "s32", m * n // 32
    )
    pairs = x[:, :, None] ^ y[None] if operation == "xor" else x[:, :, None] & y[None]
    assert np.array_equal(got, fragment(pairs.sum(axis=1) + z, place_c, m))


@pytest.mark.parametrize("saturates", [False, True])
def test_integer_sums_wrap_or_saturate(saturates: bool) -> None:
    x, y = np.full((16, 32), 127), np.full((32, 8), 127)
    z = np.full((16, 8), 2**31 - 1000)
    held = [
        (fragment(x, place_a(4), 16), "s8"),
        (fragment(y, place_b(4), 16), "s8"),
        (fragment(z, place_c, 16), "s32"),
    ]
    op = f"mma.sync.aligned.m16n8k32.row.col{'.satfinite' * saturates}.s32.s8.s8.s32"
    got = run_mma(op, held, "s32", 4)
    assert set(got.ravel().tolist()) == {2**31 - 1 if saturates else 127 * 127 * 32 - 2**31 - 1000}


def quad(which: str, layout: str, kind: str, lane: int, i: int) -> tuple[int, int]:
    """m8n8k4, as §9.7.14.5.1 writes it."""
    low, four = lane < 16, lane % 4
    if which == "a":
        return (four if low else four + 4, i) if layout == "row" else (i if low else i + 4, four)
    if which == "b":
        return (four, i if low else i + 4) if layout == "row" else (i, four if low else four + 4)
    if kind == "f16":
        return four if low else four + 4, i
    x = (lane & 1) + (i & 2)
    return x if low else x + 4, (i & 4) + (lane & 2) + (i & 1)


@pytest.mark.parametrize("layouts", list(itertools.product(("row", "col"), repeat=2)), ids="-".join)
@pytest.mark.parametrize(("d", "c"), [("f32", "f32"), ("f16", "f16"), ("f32", "f16")])
def test_four_products_of_quads(layouts: tuple[str, str], d: str, c: str) -> None:
    x, y, z = (
        RANDOM.integers(-9, 10, (4, 8, 4)),
        RANDOM.integers(-9, 10, (4, 4, 8)),
        RANDOM.integers(-9, 10, (4, 8, 8)),
    )

    def held(values: Array, which: str, layout: str, kind: str) -> Array:
        count = 8 if which == "c" else 4
        lanes = range(32)
        return np.array(
            [[values[(n % 16 // 4, *quad(which, layout, kind, n, i))] for i in range(count)] for n in lanes]
        )

    fragments = [
        (held(x, "a", layouts[0], "f16"), "f16"),
        (held(y, "b", layouts[1], "f16"), "f16"),
        (held(z, "c", "", c), c),
    ]
    got = run_mma(f"mma.sync.aligned.m8n8k4.{layouts[0]}.{layouts[1]}.{d}.f16.f16.{c}", fragments, d, 8)
    assert np.array_equal(got.astype(np.int64), held(x @ y + z, "c", "", d))


HALF = ("m16n16k16", "m32n8k16", "m8n32k16")
# Registers of A and B by shape, of C and D: PTX ISA §9.7.14.4.1.
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


@pytest.mark.parametrize(("kind", "shape"), COUNTS, ids="-".join)
@pytest.mark.parametrize(
    "layouts", [("row", "col", "row", "col"), ("col", "row", "col", "row")], ids="-".join
)
def test_wmma(kind: str, shape: str, layouts: tuple[str, str, str, str]) -> None:
    m, n, k = sizes(shape)
    if bits_of(kind) < 8:
        layouts = ("row", "col", *layouts[2:])
    total = SUMS.get(kind, "s32")
    x, y, z = matrix(m, k, kind), matrix(k, n, kind), matrix(m, n, total)
    lines = [v if layout == "row" else v.T for v, layout in zip((x, y, z), layouts, strict=False)]
    wide = "fd" if kind == "f64" else "r"
    many = m * n // 32
    operands = []
    for name, first, count in ((wide, 10, COUNTS[kind, shape][0]), (wide, 20, COUNTS[kind, shape][1])):
        operands.append("{" + ", ".join(f"%{name}{first + j}" for j in range(count)) + "}")
    name = {"f32": "f", "f64": "fd", "s32": "r"}[total]
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


CELLS = ".shared .align 16 .b8 cells[512];"


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("trans", ["", ".trans"])
def test_stmatrix_is_ldmatrix_the_other_way(count: int, trans: str) -> None:
    """Lane t holds elements 2·(t mod 4) and the next of row t / 4 of each matrix; lane i names row i."""
    words = RANDOM.integers(0, 2**32, (32, count), dtype=np.uint32)
    body = f"mov.u32 %r50, cells;\nmul.wide.u32 %rd20, %r1, {4 * count};\nadd.s64 %rd20, %rd20, %rd11;\n"
    body += "".join(f"ld.global.u32 %r{10 + j}, [%rd20+{4 * j}];\n" for j in range(count))
    body += (
        "and.b32 %r51, %r1, " + str(8 * count - 1) + ";\nshl.b32 %r51, %r51, 4;\nadd.u32 %r52, %r50, %r51;\n"
    )
    names = "{" + ", ".join(f"%r{10 + j}" for j in range(count)) + "}"
    body += f"stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [%r52], {names};\nbar.sync 0;\n"
    body += f"setp.ge.u32 %p1, %r1, {8 * count};\n@%p1 bra END;\n"
    body += "ld.shared.v4.u32 {%r20, %r21, %r22, %r23}, [%r52];\n"
    body += "mul.wide.u32 %rd20, %r1, 16;\nadd.s64 %rd20, %rd20, %rd10;\n"
    body += "st.global.v4.u32 [%rd20], {%r20, %r21, %r22, %r23};\nEND:\n"
    out, report = launch(body, [words], np.zeros((8 * count, 4), np.uint32), inside=CELLS)
    assert report.hazards == []
    rows = out.view(np.uint16).reshape(count, 8, 8)
    for lane, j in itertools.product(range(32), range(count)):
        pair = (rows[j].T if trans else rows[j])[lane // 4, 2 * (lane % 4) : 2 * (lane % 4) + 2]
        assert list(pair) == list(words[lane, j : j + 1].view(np.uint16))


def test_movmatrix_transposes() -> None:
    words = RANDOM.integers(0, 2**32, (32, 1), dtype=np.uint32)
    body = "mul.wide.u32 %rd20, %r1, 4;\nadd.s64 %rd21, %rd20, %rd11;\nld.global.u32 %r10, [%rd21];\n"
    body += "movmatrix.sync.aligned.m8n8.trans.b16 %r11, %r10;\nadd.s64 %rd21, %rd20, %rd10;\n"
    out, report = launch(body + "st.global.u32 [%rd21], %r11;", [words], np.zeros((32, 1), np.uint32))
    assert report.hazards == []
    assert np.array_equal(out.view(np.uint16).reshape(8, 8), words.view(np.uint16).reshape(8, 8).T)
