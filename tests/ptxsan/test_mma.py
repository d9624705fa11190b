"""mma.sync of a sparse A (PTX ISA §9.7.14.6), with scales of blocks (§9.7.14.3) and of small floats.

Against NumPy's products of whole numbers; fragments, metadata and scales are laid out here lane by lane."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ptxsan
from ptxsan import Report
from tests.ptxsan.rig import Array, launch

RANDOM = np.random.default_rng(14)
FLOATS: dict[str, tuple[Any, int]] = {  # dtype, and where its bits are in a byte or word
    "f16": (np.float16, 0),
    "bf16": (ml_dtypes.bfloat16, 0),
    "tf32": (np.float32, 0),
    "f32": (np.float32, 0),
    "e4m3": (ml_dtypes.float8_e4m3fn, 0),
    "e5m2": (ml_dtypes.float8_e5m2, 0),
    "e3m2": (ml_dtypes.float6_e3m2fn, 0),
    "e2m3": (ml_dtypes.float6_e2m3fn, 0),
    "e2m1": (ml_dtypes.float4_e2m1fn, 2),
}
LIMITS = {"u8": (0, 256), "s8": (-128, 128), "s4": (-8, 8), "u4": (0, 16), "e2m1": (-2, 3), "e3m2": (-4, 5)}
WIDTHS = {"f16": 16, "bf16": 16, "tf32": 32, "f32": 32, "s32": 32, "s4": 4, "u4": 4, "e2m1x2": 4}


def bits(kind: str, values: Array) -> Array:
    """Whole numbers as the bits of a type, uint32 each."""
    name = kind.removesuffix("x2")
    if name not in FLOATS:
        return values.astype(np.int64).astype(np.uint32) & np.uint32((1 << WIDTHS.get(kind, 8)) - 1)
    dtype, shift = FLOATS[name]
    held = values.astype(dtype)
    raw = held.view(f"u{held.dtype.itemsize}").astype(np.uint32)
    return raw << (0 if kind.endswith("x2") else shift)


def registers(kind: str, held: Array, which: str) -> Array:
    """A matrix as the registers of 32 lanes, (32, words): an element after another."""
    width = WIDTHS.get(kind, 8)
    per, raw = 32 // width, bits(kind, held)
    rows, columns = held.shape
    count = rows * columns // 32 // per
    found = np.zeros((32, count), np.uint32)
    for lane in range(32):
        group, place = divmod(lane, 4)
        for i in range(count * per):
            word, j = divmod(i, per)
            if which == "c":
                row, column = group + 8 * (i // 2), 2 * place + i % 2
            elif which == "a":
                row, column = group + 8 * (word % 2), per * place + j + 4 * per * (word // 2)
            else:
                row, column = per * place + j + 4 * per * word, group
            found[lane, word] |= raw[row, column] << np.uint32(width * j)
    return found


def random(rows: int, columns: int, kind: str) -> Array:
    low, high = LIMITS.get(kind, (-7, 8))
    return RANDOM.integers(low, high, (rows, columns))


def multiplied(
    op: str, a: Array, b: Array, c: Array, more: list[tuple[str, Array]], tail: str, result: str
) -> tuple[Array, Report]:
    """What the lanes of a warp get, (16, 8); ``more``: registers by name of which each lane has its own."""
    body, operands = "", []
    inputs = [a, b, c, *(words.reshape(32, -1) for _, words in more)]
    for n, each in enumerate(inputs):
        count = each.shape[1]
        names = [f"%r{10 + 4 * n + j}" for j in range(count)]
        if n == 2 and result == "f32":
            names = [f"%f{10 + j}" for j in range(count)]
        body += f"mul.wide.u32 %rd20, %r1, {4 * count}; add.s64 %rd20, %rd20, %rd1{n + 1};\n"
        kind = "f32" if n == 2 and result == "f32" else "u32"
        body += "".join(f"ld.global.{kind} {name}, [%rd20+{4 * j}];\n" for j, name in enumerate(names))
        operands.append("{" + ", ".join(names) + "}")
    made = operands[2]
    for (name, _), given in zip(more, operands[3:], strict=True):
        tail = tail.replace(name, given.strip("{}"))
    count = c.shape[1]
    body += f"{op} {made}, {operands[0]}, {operands[1]}, {made}{tail};\n"
    body += f"mul.wide.u32 %rd20, %r1, {4 * count}; add.s64 %rd20, %rd20, %rd10;\n"
    for j, name in enumerate(made.strip("{}").split(", ")):
        body += f"st.global.{'f32' if name[1] == 'f' else 'u32'} [%rd20+{4 * j}], {name};\n"
    return launch(body, [each.astype(np.uint32) for each in inputs], np.zeros((32, count), np.uint32))


def unpacked(kind: str, words: Array) -> Array:
    """Registers of D as a matrix (16, 8) of whole numbers."""
    dtype = {"f16": np.float16, "f32": np.float32, "s32": np.int32}[kind]
    values, found = words.view(dtype), np.zeros((16, 8))
    for lane in range(32):
        for i in range(4):
            found[lane // 4 + 8 * (i // 2), lane % 4 * 2 + i % 2] = values[lane, i]
    return found


# A sparse A

SPARSE = [
    ("f16", 16, "f32"), ("f16", 32, "f32"), ("f16", 32, "f16"), ("bf16", 16, "f32"), ("bf16", 32, "f32"),
    ("tf32", 8, "f32"), ("tf32", 16, "f32"), ("s8", 32, "s32"), ("u8", 64, "s32"), ("s4", 64, "s32"),
    ("u4", 128, "s32"), ("e4m3", 64, "f32"), ("e5m2", 64, "f16"),
]  # fmt: skip
PAIRS = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]


def sparse(kind: str, k: int, selector: int, ordered: bool = True) -> tuple[Array, Array, Array]:
    """A random A of ``k`` columns, what is held of it, and each lane's metadata."""
    size = {"tf32": 2, "s4": 8, "u4": 8}.get(kind, 4)
    whole, kept = np.zeros((16, k), np.int64), random(16, k // 2, kind)
    words, lanes = RANDOM.integers(0, 1 << 32, 32).astype(np.uint32), k // size // 4
    fresh = np.zeros(32, bool)
    for row in range(16):
        for chunk in range(k // size):
            if kind == "tf32":
                place = int(RANDOM.integers(2))
                nibble, columns = (0b0100, 0b1110)[place], [place]
            else:
                one, other = PAIRS[int(RANDOM.integers(6))]
                one, other = (other, one) if not ordered and RANDOM.integers(2) else (one, other)
                nibble = one | other << 2
                columns = [one, other] if size == 4 else [2 * one, 2 * one + 1, 2 * other, 2 * other + 1]
            for j, column in enumerate(columns):
                whole[row, chunk * size + column] = kept[row, chunk * size // 2 + j]
            upper = row // 8
            if kind in ("f16", "bf16", "tf32"):  # 16 bits of each row
                thread, shift = chunk // 4, 16 * upper + chunk % 4 * 4
            else:  # by turns
                thread, shift = chunk // 8 * 2 + upper, chunk % 8 * 4
            lane = row % 8 * 4 + selector * lanes + thread
            words[lane] = (words[lane] if fresh[lane] else 0) | np.uint32(nibble << shift)
            fresh[lane] = True
    return whole, kept, words


def product_of(kind: str, k: int, total: str, selector: int, variant: str) -> None:
    whole, kept, words = sparse(kind, k, selector, variant == "sp::ordered_metadata")
    b, c = random(k, 8, kind), random(16, 8, total)
    types = f"{total}.{kind}.{kind}.{total}"
    op = f"mma.{variant}.sync.aligned.m16n8k{k}.row.col.{types}"
    held = registers(kind, kept, "a"), registers(kind, b, "b"), registers(total, c, "c")
    found, report = multiplied(op, *held, [("META", words)], f", META, {selector}", total)
    assert (report.hazards, report.notes) == ([], [])
    assert np.array_equal(unpacked(total, found), whole @ b + c)


@pytest.mark.parametrize("variant", ["sp", "sp::ordered_metadata"])
@pytest.mark.parametrize(("kind", "k", "total"), SPARSE)
def test_a_sparse_product(kind: str, k: int, total: str, variant: str) -> None:
    lanes = k // {"tf32": 2, "s4": 8, "u4": 8}.get(kind, 4) // 4
    for selector in range(4 // lanes):
        product_of(kind, k, total, selector, variant)


def test_what_a_sparse_matrix_does_not_hold_is_not_multiplied() -> None:
    """A NaN of B that no row of A selects."""
    _, kept, words = sparse("f16", 16, 0)
    words[:] = 0x44444444  # of each chunk the first two
    b = random(16, 8, "f16").astype(np.float64)
    b[2::4], b[3::4] = np.nan, np.inf
    op = "mma.sp::ordered_metadata.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
    held = (
        registers("f16", kept, "a"),
        registers("f16", b, "b"),
        registers("f32", 0 * random(16, 8, "f32"), "c"),
    )
    found, _ = multiplied(op, *held, [("META", words)], ", META, 0", "f32")
    whole = np.zeros((16, 16))
    whole[:, 0::4], whole[:, 1::4] = kept[:, 0::2], kept[:, 1::2]
    assert np.array_equal(unpacked("f32", found), whole @ np.nan_to_num(b, posinf=0.0))


@pytest.mark.parametrize(
    ("variant", "nibble", "wrong"),
    [("sp", 5, True), ("sp", 1, False), ("sp::ordered_metadata", 1, True), ("sp", 15, True)],
)
def test_metadata_that_the_isa_leaves_undefined(variant: str, nibble: int, wrong: bool) -> None:
    _, kept, words = sparse("f16", 16, 1)
    words[4 * 3 + 1] = (int(words[4 * 3 + 1]) & ~0xF0000) | nibble << 16
    op = f"mma.{variant}.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
    held = (
        registers("f16", kept, "a"),
        registers("f16", random(16, 8, "f16"), "b"),
        np.zeros((32, 4), np.uint32),
    )
    _, report = multiplied(op, *held, [("META", words)], ", META, 1", "f32")
    said = [f"{h.check}: {h.message}" for h in report.hazards]
    assert len(said) == wrong
    assert all(
        f"bounds: thread (0, 0, 0) of block (0, 0, 0) has metadata 0b{nibble:04b} of chunk 0 in row 11" in s
        for s in said
    )


# Scales

SCALED = [
    ("mxf8f6f4", "1X", "ue8m0", "e4m3", "e4m3", 32), ("mxf8f6f4", "", "ue8m0", "e2m1", "e5m2", 32),
    ("mxf8f6f4", "1X", "ue8m0", "e3m2", "e2m3", 32), ("mxf4", "2X", "ue8m0", "e2m1", "e2m1", 64),
    ("mxf4", "", "ue8m0", "e2m1", "e2m1", 64), ("mxf4nvf4", "2X", "ue8m0", "e2m1", "e2m1", 64),
    ("mxf4nvf4", "4X", "ue4m3", "e2m1", "e2m1", 64), ("mxf4nvf4", "4X", "ue8m0", "e2m1", "e2m1", 64),
]  # fmt: skip


def scales(kind: str, count: int, rows: int, byte: int, thread: int) -> tuple[Array, Array]:
    """Random factors (rows, count), and each lane's register."""
    factors = 2.0 ** RANDOM.integers(-2, 3, (rows, count))
    raw = factors.astype(ml_dtypes.float8_e8m0fnu if kind == "ue8m0" else ml_dtypes.float8_e4m3fn).view(
        np.uint8
    )
    octets = RANDOM.integers(0, 256, (32, 4)).astype(np.uint8)
    for row in range(rows):
        lane = row % 8 * 4 + (2 * thread + row // 8 if rows == 16 else thread)
        octets[lane, byte : byte + count] = raw[row]
    return factors, octets.view(np.uint32)[:, 0]


@pytest.mark.parametrize("thin", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize(("kind", "size", "scale", "of_a", "of_b", "k"), SCALED)
def test_a_product_with_scales(
    kind: str, size: str, scale: str, of_a: str, of_b: str, k: int, thin: bool
) -> None:
    count, packed = int((size or {"mxf4": "2X"}.get(kind, "1X"))[0]), "x2" if kind != "mxf8f6f4" else ""
    k *= 2 if thin else 1
    for byte, a_thread, b_thread in ((0, 0, 0), (4 - count, 1, 3)):
        meta: list[tuple[str, Array]] = []
        if thin:
            a, kept, words = sparse("s4" if packed else of_a, k, 0)
            if packed:
                a, kept = (np.clip(each, -2, 2) for each in (a, kept))
            meta = [("META", words)]
        else:
            a = kept = random(16, k, of_a)
        b, c = random(k, 8, of_b), random(16, 8, "f32")
        (fa, sa), (fb, sb) = scales(scale, count, 16, byte, a_thread), scales(scale, count, 8, byte, b_thread)
        want = (a * np.repeat(fa, k // count, axis=1)) @ (b * np.repeat(fb, k // count, axis=1).T) + c
        of_size = f".scale_vec::{size}" if size else ""
        op = f"mma.{'sp::ordered_metadata.' * thin}sync.aligned.m16n8k{k}.row.col.kind::{kind}"
        op += f".block_scale{of_size}.f32.{of_a}.{of_b}.f32.{scale}"
        held = registers(of_a + packed, kept, "a"), registers(of_b + packed, b, "b"), registers("f32", c, "c")
        tail = ", META, 0" * thin + f", ONE, {{{byte}, {a_thread}}}, OTHER, {{{byte}, {b_thread}}}"
        found, report = multiplied(op, *held, [*meta, ("ONE", sa), ("OTHER", sb)], tail, "f32")
        assert (report.hazards, report.notes) == ([], [])
        assert np.array_equal(unpacked("f32", found), want)


def test_a_product_of_nvfp4_in_cuda() -> None:
    """For sm_120a, by nvcc."""
    a, b = random(16, 64, "e2m1"), random(64, 8, "e2m1")
    (fa, sa), (fb, sb) = scales("ue4m3", 4, 16, 0, 0), scales("ue4m3", 4, 8, 0, 0)
    given = registers("e2m1x2", a, "a"), registers("e2m1x2", b, "b"), sa, sb, ptxsan.Empty((32, 4))
    file = Path(__file__).with_name("kernels") / "nvfp4.cu"
    result = ptxsan.run(file, grid=1, block=32, arguments=given, arch="sm_120a")
    assert (result.hazards, result.notes) == ((), ())
    want = (a * np.repeat(fa, 16, axis=1)) @ (b * np.repeat(fb, 16, axis=1).T)
    assert np.array_equal(unpacked("f32", result.arrays[4]), want)


@pytest.mark.parametrize("ids", ["{1, 0}, OTHER, {0, 0}", "{0, 2}, OTHER, {0, 0}", "{0, 0}, OTHER, {0, 4}"])
def test_selectors_that_the_isa_leaves_undefined(ids: str) -> None:
    a, b = random(16, 64, "e2m1"), random(64, 8, "e2m1")
    op = "mma.sync.aligned.m16n8k64.row.col.kind::mxf4.block_scale.f32.e2m1.e2m1.f32.ue8m0"
    held = registers("e2m1x2", a, "a"), registers("e2m1x2", b, "b"), np.zeros((32, 4), np.uint32)
    ones = np.full(32, 0x7F7F7F7F, np.uint32)
    _, report = multiplied(op, *held, [("ONE", ones), ("OTHER", ones)], f", ONE, {ids}", "f32")
    (found,) = report.hazards
    assert found.check == "bounds"
    assert "selects scales by {" in found.message


@pytest.mark.parametrize(("of_a", "of_b"), [("e2m1", "e2m1"), ("e3m2", "e4m3"), ("e2m3", "e5m2")])
@pytest.mark.parametrize("total", ["f32", "f16"])
def test_small_floats(of_a: str, of_b: str, total: str) -> None:
    a, b, c = random(16, 32, of_a), random(32, 8, of_b), random(16, 8, total)
    op = f"mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.{total}.{of_a}.{of_b}.{total}"
    held = registers(of_a, a, "a"), registers(of_b, b, "b"), registers(total, c, "c")
    found, report = multiplied(op, *held, [], "", total)
    assert (report.hazards, report.notes) == ([], [])
    assert np.array_equal(unpacked(total, found), a @ b + c)
