"""Products of tensor cores: C gives the bits of NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ptxsan
from ptxsan import native as build
from ptxsan.isa.fragments import tile_products
from ptxsan.machine.table import shape
from tests.blackwell import cases as blackwell
from tests.hopper import cases as hopper
from tests.hopper.cases import Launch
from tests.ptxsan.rig import program
from tests.ptxsan.test_native import GLOBAL, both, needs_c, on_numpy

_BITS = {"f16": 16, "bf16": 16, "tf32": 32, "f32": 32, "s32": 32, "s4": 4, "u4": 4}
_HALF = ("m16n16k16", "m32n8k16", "m8n32k16")


def _registers(op: str, kinds: tuple[str, ...]) -> list[int]:
    """Of D, A, B and C."""
    m, n, k = shape(op)
    sizes = (m * n, m * k, k * n, m * n)
    return [size * _BITS.get(kind, 8) // 32 // 32 for size, kind in zip(sizes, kinds, strict=True)]


def _mma(of: str, kinds: str, words: str = "") -> tuple[str, list[int]]:
    op = f"mma.sync.aligned.{of}.row.col{words}.{kinds}"
    return op, _registers(op, tuple(kinds.split(".")))


def _wmma(of: str, layouts: str, kinds: str, words: str = "") -> tuple[str, list[int]]:
    op = f"wmma.mma.sync.aligned.{layouts}.{of}.{kinds}{words}"
    d, *ab, c = kinds.split(".")
    counts = _registers(op, (d, *(ab or ("f16", "f16")), c))
    return op, counts if ab else [counts[0], 8, 8, counts[3]]


TENSOR = [_mma(f"m16n8k{k}", f"{c}.f16.f16.{c}") for k in (8, 16) for c in ("f16", "f32")]
TENSOR += [_mma(f"m16n8k{k}", "f32.bf16.bf16.f32") for k in (8, 16)]
TENSOR += [_mma(f"m16n8k{k}", "f32.tf32.tf32.f32") for k in (4, 8)]
TENSOR += [_mma("m16n8k32", f"{c}.{ab}.{c}") for ab in ("e4m3.e5m2", "e5m2.e4m3") for c in ("f16", "f32")]
TENSOR += [_mma("m16n8k32", f"s32.{ab}.s32", sat) for ab in ("s8.u8", "u8.s8") for sat in ("", ".satfinite")]
TENSOR += [_mma("m16n8k64", "s32.s4.u4.s32", ".satfinite"), _mma("m8n8k16", "s32.u8.u8.s32")]
TENSOR += [
    (f"mma.sync.aligned.m8n8k4.{ab}.{d}.f16.f16.{c}", [8 if d == "f32" else 4, 2, 2, 8 if c == "f32" else 4])
    for ab in ("row.col", "col.row", "row.row")
    for d, c in (("f32", "f32"), ("f32", "f16"), ("f16", "f16"))
]
TENSOR += [_wmma(of, "row.row", "f32.f32") for of in _HALF] + [
    _wmma(of, "col.row", "f16.f32") for of in _HALF
]
TENSOR += [_wmma(of, "row.col", "f32.f16") for of in _HALF]
TENSOR += [_wmma(of, "row.col", "f32.bf16.bf16.f32") for of in _HALF]
TENSOR += [_wmma("m16n16k8", ab, "f32.tf32.tf32.f32") for ab in ("row.row", "col.col")]
TENSOR += [_wmma("m8n32k16", "row.row", f"s32.{a}.{a}.s32", ".satfinite") for a in ("s8", "u8")]
TENSOR += [_wmma("m8n8k32", "row.col", f"s32.{a}.{a}.s32") for a in ("s4", "u4")]


def one_product(op: str, counts: list[int], masked: bool) -> str:
    """A kernel of one instruction: its registers from arrays of words, 32 bits a thread each; the last one of
    C is the same in all threads. ``masked``: every second warp executes it."""
    names = [[f"%w{sum(counts[:j]) + i}" for i in range(count)] for j, count in enumerate(counts)]
    d, *sources = ("{" + ", ".join(each) + "}" for each in names)
    lines = [
        GLOBAL + "mul.wide.u32 %rd20, %r2, 4;",
        "add.s64 %rd10, %rd10, %rd20;",
        "add.s64 %rd11, %rd11, %rd20;",
    ]
    lines += [
        f"ld.global.b32 {w}, [%rd11+{128 * 4 * 8 * i}];"
        for i, w in enumerate([*names[1], *names[2], *names[3][:-1]])
    ]
    lines += [f"mov.b32 {names[3][-1]}, 0x3c003c00;", *(f"mov.b32 {w}, 7;" for w in names[0])]
    lines += ["and.b32 %r3, %r2, 32;", "setp.ne.u32 %p1, %r3, 0;", "@%p1 bra $END;"] if masked else []
    lines += [f"{op} {d}, {', '.join(sources)};", "$END:"]
    lines += [f"st.global.b32 [%rd10+{128 * 4 * 8 * i}], {w};" for i, w in enumerate(names[0])]
    return program("\n".join(lines), 1, f".reg .b32 %w<{sum(counts) + 1}>;")


@needs_c
@pytest.mark.parametrize(("op", "counts"), TENSOR, ids=[op for op, _ in TENSOR])
def test_a_product_gives_the_bits_of_numpy(
    op: str, counts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of any bits, NaN and infinities among them, and of numbers of all magnitudes."""
    rng = np.random.default_rng(len(op))
    words = rng.integers(0, 1 << 32, (sum(counts[1:]), 8, 128), np.uint32)
    # No NaN and no infinity, which hide all else; then small numbers; those whose sums often lie midway
    # between two others; and those of which a sum depends on the order of its terms.
    words[:, :6] &= np.uint32(0xBFFFBFFF if "f16" in op.split(".")[-4:] else 0xBFFFFFFF)
    words[:, :2] &= np.uint32(0x8FFF8FFF)
    words[:, 2:4] &= np.uint32(0xFFC0FFC0)
    far = np.array([0x7B00, 0xFB00, 0x0401, 0x8402], np.uint32)
    low, high = rng.choice(far, (2, *words[:, 4].shape))
    words[:, 4] = low | high << 16
    for masked in (False, True):
        text, out = one_product(op, counts, masked), ptxsan.Empty(counts[0] * 1024, np.uint32)
        fast, slow = both(monkeypatch, text, 8, 128, out, words.reshape(-1))
        assert fast.hazards == ()
        np.testing.assert_array_equal(fast.arrays[0], slow.arrays[0], err_msg=text)
        assert len(np.unique(fast.arrays[0])) > 8
        assert ((fast.arrays[0] == 7).mean() > 0.4) == masked


@needs_c
@pytest.mark.parametrize("shape", [(3, 64, 8, 16), (1, 64, 256, 32), (2, 128, 24, 8)])
def test_a_product_of_tiles_gives_the_bits_of_numpy(
    shape: tuple[int, int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of numbers of which a sum depends on the order of its terms; infinities make NaN in some."""
    tiles, rows, columns, k = shape
    rng = np.random.default_rng(k)
    held = np.array([65504, -65504, 1, -3, 2.0**-14, -(2.0**-24), 1.0009765625])
    a, b = rng.choice(held, (tiles, rows, k)), rng.choice(held, (tiles, columns, k))
    a[0, 0, :2], b[0, 0, :2] = (np.inf, -np.inf), (1, 1)
    fast, backwards = tile_products(a, b), tile_products(a[..., ::-1], b[..., ::-1])
    with monkeypatch.context() as patch:
        on_numpy(patch)
        slow = tile_products(a, b)
    np.testing.assert_array_equal(fast, slow)
    assert (fast != backwards).mean() > 0.01
    assert np.isnan(fast[0, 0, 0])


@needs_c
@pytest.mark.parametrize(
    "launch",
    [hopper.pipeline(), hopper.form("f16", "f32", 128), blackwell.gemm(), blackwell.pair()],
    ids=["pipeline", "form", "gemm", "pair"],
)
def test_tiles_in_shared_memory_give_the_bits_of_numpy(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """wgmma and tcgen05.mma."""
    calls: list[Any] = []
    library = build.library()
    assert library is not None

    def multiply(*given: Any, does: Any = library.multiply_tiles) -> int:
        calls.append(given)
        return int(does(*given))

    monkeypatch.setattr(library, "multiply_tiles", multiply)
    fast = launch.emulate()
    with monkeypatch.context() as patch:
        on_numpy(patch)
        slow = launch.emulate()
    assert calls
    assert (fast.hazards, fast.notes) == ((), ())
    assert (slow.hazards, slow.notes, slow.counts) == ((), (), fast.counts)
    for one, other in zip(fast.arrays, slow.arrays, strict=True):
        if isinstance(one, np.ndarray):
            assert one.tobytes() == other.tobytes()
