"""wgmma in its forms, boxes of tensor maps, bulk copies: what the kernels in tests/hopper leave, by NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from harness import ptx

KERNELS = Path(__file__).parents[2] / "hopper"
KINDS: dict[str, Any] = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "tf32": np.float32,
    "s8": np.int8,
    "u8": np.uint8,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
}


def form(kind: str, total: str, swizzle: int, *more: str) -> None:
    """A product of small whole numbers, which has one right answer."""
    dtype = np.dtype(KINDS[kind])
    depth = 128 // dtype.itemsize
    random = np.random.default_rng(1)
    low = 0 if kind == "u8" else -3
    a, b = (random.integers(low, 4, (64, depth)).astype(dtype) for _ in range(2))
    want = a.astype(np.float64) @ b.astype(np.float64).T
    if "SIGN=-1" in more:
        want = -want
    defines = [
        f"KIND={kind}",
        f"SUM={total}",
        f"SWIZZLE={swizzle}",
        f"DEPTH={depth}",
        f"STEP={depth // 4}",
        *more,
    ]
    defines += (
        ["WHOLE"] * (total == "s32") + ["HALF_SUM"] * (total == "f16") + ["WIDE"] * (dtype.itemsize != 2)
    )
    row = (swizzle or 16) // dtype.itemsize
    maps = []
    for name, x in (("A", a), ("B", b)):
        stored = np.ascontiguousarray(x.T) if f"TURN_{name}=1" in more else x
        kept = stored.view(np.uint8) if dtype.itemsize == 1 else stored
        maps.append(ptx.Tiled(kept, (64, row), swizzle))
    out = ptx.Empty((64, 64) if total != "f16" else (64, 32), np.int32 if total == "s32" else np.float32)
    if total == "f16":
        out = ptx.Empty((64, 32), np.uint32)
    words = np.ascontiguousarray(a).view(np.uint32)
    result = ptx.run(KERNELS / "forms.cu", grid=1, block=128, arguments=[*maps, words, out], defines=defines)
    assert result.clean, result.hazards
    got = result.arrays[3].view(np.float16) if total == "f16" else result.arrays[3]
    np.testing.assert_array_equal(got.astype(np.float64), want)


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize("turns", [(), ("TURN_A=1",), ("TURN_B=1",), ("TURN_A=1", "TURN_B=1")])
def test_layouts_in_shared_memory(swizzle: int, turns: tuple[str, ...]) -> None:
    form("f16", "f32", swizzle, *turns)


@pytest.mark.parametrize(
    ("kind", "total"),
    [
        ("f16", "f16"),
        ("bf16", "f32"),
        ("tf32", "f32"),
        ("s8", "s32"),
        ("u8", "s32"),
        ("e4m3", "f32"),
        ("e4m3", "f16"),
        ("e5m2", "f32"),
    ],
)
@pytest.mark.parametrize("where", [(), ("A_IN_REGISTERS",)])
def test_types(kind: str, total: str, where: tuple[str, ...]) -> None:
    form(kind, total, 128, *where)


def test_the_sign_of_a_multiplicand_and_a_turned_one_beside_registers() -> None:
    form("f16", "f32", 64, "SIGN=-1", "A_IN_REGISTERS", "TURN_B=1")
    form("bf16", "f32", 32, "SIGN=-1")


# Boxes: shape, box, where from, swizzle, whether outside is NaN, steps. All in the order of NumPy's axes.
BOXES: dict[str, tuple[Any, ...]] = {
    "1d": ((100,), (64,), (7,), 0, False, ()),
    "2d": ((40, 64), (16, 32), (3, 5), 0, False, ()),
    "2d-edge": ((40, 64), (16, 32), (33, 50), 0, False, ()),
    "2d-before": ((40, 64), (16, 32), (-3, -9), 0, False, ()),
    "2d-nan": ((40, 64), (16, 32), (33, 50), 0, True, ()),
    "2d-128": ((40, 64), (16, 32), (3, 5), 128, False, ()),
    "2d-64": ((40, 64), (16, 16), (3, 60), 64, False, ()),
    "2d-32": ((40, 64), (16, 8), (35, 5), 32, False, ()),
    "2d-steps": ((40, 64), (16, 32), (3, 5), 0, False, (3, 1)),
    "3d": ((6, 10, 32), (4, 3, 8), (3, 8, 28), 0, False, ()),
    "4d": ((3, 4, 5, 16), (2, 3, 2, 8), (2, 3, -1, 10), 0, False, ()),
    "5d": ((3, 2, 4, 5, 16), (2, 1, 3, 2, 8), (1, 1, 2, 4, 12), 0, False, ()),
    "5d-128": ((3, 2, 4, 5, 64), (2, 2, 3, 2, 32), (1, -1, 2, 4, 12), 128, False, (1, 1, 2, 1, 1)),
}


def box_of(name: str, dtype: Any, *defines: str) -> tuple[list[Any], dict[str, Any], Any, Any]:
    """Arguments of boxes.cu, how to launch it, and what raw and the tensor stored to must be."""
    shape, box, at, swizzle, nan, steps = BOXES[name]
    random = np.random.default_rng(2)
    x = random.integers(0, 100, shape).astype(dtype)
    y = random.integers(0, 100, shape).astype(dtype)
    steps = steps or (1,) * len(shape)
    counts = [-(-b // s) for b, s in zip(box, steps, strict=True)]
    taken = np.full(counts, np.array(0x7FFFFFFF, np.uint32).view(np.float32) if nan else 0, dtype)
    want, there = y.copy(), tuple(a - 1 for a in at)
    for index in np.ndindex(*counts):
        place = tuple(a + i * s for a, i, s in zip(at, index, steps, strict=True))
        if all(0 <= p < n for p, n in zip(place, shape, strict=True)):
            taken[index] = x[place]
    for index in np.ndindex(*counts):
        place = tuple(a + i * s for a, i, s in zip(there, index, steps, strict=True))
        if all(0 <= p < n for p, n in zip(place, shape, strict=True)):
            want[place] = taken[index] + (y[place] if "ADD" in defines else 0)
    flat = taken.ravel().view(np.uint8)
    row = np.arange(flat.size)
    moved = row ^ ((row >> 7 & {0: 0, 32: 1, 64: 3, 128: 7}[swizzle]) << 4)
    raw = np.empty_like(flat)
    raw[moved] = flat
    maps = [
        ptx.Tiled(x, box, swizzle, nan, steps),
        ptx.Tiled(y, box, swizzle, nan, steps),
    ]
    places = [np.array([*reversed(p), 0, 0, 0, 0][:5], np.int32).tobytes() for p in (at, there)]
    words = flat.size // 4
    arguments = [maps[0], places[0], maps[1], places[1], ptx.Empty(words, np.uint32)]
    how: dict[str, Any] = {"grid": 1, "block": 64, "shared": flat.size}
    how["defines"] = [f"RANK={len(shape)}", f"BYTES={flat.size}", *defines]
    return arguments, how, raw.view(np.uint32), want


@pytest.mark.parametrize("name", BOXES)
def test_a_box(name: str) -> None:
    arguments, how, raw, want = box_of(name, np.float32)
    result = ptx.run(KERNELS / "boxes.cu", arguments=arguments, **how)
    assert result.clean, result.hazards
    np.testing.assert_array_equal(result.arrays[4], raw)
    np.testing.assert_array_equal(result.arrays[2].view(np.uint32), want.view(np.uint32))


@pytest.mark.parametrize("dtype", [np.int32, np.float16, np.uint64])
def test_a_box_is_added(dtype: Any) -> None:
    arguments, how, raw, want = box_of("2d-edge", dtype, "ADD")
    result = ptx.run(KERNELS / "boxes.cu", arguments=arguments, **how)
    assert result.clean, result.hazards
    np.testing.assert_array_equal(result.arrays[4], raw)
    np.testing.assert_array_equal(result.arrays[2], want)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"box": (16, 30)}, "rows of the box that are a multiple of 16 bytes"),
        ({"box": (300, 32)}, "a box of 1 to 256 elements"),
        ({"box": (16, 64), "swizzle": 128}, "rows of the box no longer than the swizzle"),
        ({"box": (16,)}, "1 to 5 dimensions, and a box of as many"),
        ({"box": (16, 32), "swizzle": 48}, "a swizzle of 0, 32, 64 or 128 bytes"),
        ({"box": (16, 32), "steps": (9, 1)}, "steps from 1 to 8"),
    ],
)
def test_what_the_driver_refuses_of_a_tensor_map(wrong: dict[str, Any], said: str) -> None:
    arguments, how, _, _ = box_of("2d", np.float32)
    arguments[0] = ptx.Tiled(arguments[0].array, **wrong)
    with pytest.raises(ptx.PtxError, match=said):
        ptx.run(KERNELS / "boxes.cu", arguments=arguments, **how)


def test_a_tensor_map_is_read_back() -> None:
    made = ptx.TensorMap("float16", 1 << 50, (100, 7, 5), (208, 1456), (8, 3, 2), (1, 2, 1), 32, True)
    assert ptx.TensorMap.decode(made.encode()) == made
    assert len(made.encode()) == 128
