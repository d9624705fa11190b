"""Textures and surfaces: fetches against the guide's formulas, a texel at a time, and mistakes."""

from __future__ import annotations

import math
import re
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ptxsan
from tests.hopper.textures import KINDS

FILE = Path(__file__).with_name("kernels") / "textures.cu"
RNG = np.random.default_rng(0)


def ran(entry: str, *arguments: Any, defines: tuple[str, ...] = (), grid: int = 1, block: int = 64) -> Any:
    options: Any = {"defines": defines, "entry": entry, "grid": grid, "block": block}
    return ptxsan.run(FILE, arguments=arguments, **options)


def texel(array: Any, index: tuple[int, ...], mode: str) -> Any:
    """Axes in the order of the array."""
    where = []
    for i, n in zip(index, array.shape, strict=False):
        if mode == "border" and not 0 <= i < n:
            return np.zeros(array.shape[len(index) :])
        if mode == "wrap":
            i -= n * math.floor(i / n)
        elif mode == "mirror":
            turns, i = divmod(i, n)
            i = n - 1 - i if turns % 2 else i
        where.append(min(max(i, 0), n - 1))
    return array[tuple(where)].astype(np.float64)


def fetched(array: Any, at: Any, texture: dict[str, Any]) -> Any:
    """One fetch by the guide, in the steps of an H100; coordinates in the order of the axes."""
    sizes = array.shape if texture["normalized"] else ()
    x = [math.floor(float(c) * 2**21) / 2**21 * n for c, n in zip(at, sizes, strict=False)] or [
        *map(float, at)
    ]
    if texture["filter"] == "point":
        return texel(array, tuple(math.floor(c) for c in x), texture["address"])
    low = [math.floor(c - 0.5) for c in x]
    weight = [math.floor((c - 0.5 - i) * 256 + 0.5) / 256 for c, i in zip(x, low, strict=True)]
    total = 0
    for corner in product((0, 1), repeat=len(x)):
        factor = math.prod(w if c else 1 - w for c, w in zip(corner, weight, strict=True))
        there = tuple(i + c for i, c in zip(low, corner, strict=True))
        total = total + factor * texel(array, there, texture["address"])
    return total


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: "-".join(map(str, k.values())))
def test_fetches_are_the_guides(kind: dict[str, Any]) -> None:
    def coordinates(*shape: int) -> Any:
        wide = (-1.5, 2.5) if kind["normalized"] else (-4.0, 14.0)
        return RNG.uniform(*wide, (64, len(shape))).astype(np.float32)

    line, plane, solid = (RNG.standard_normal(s).astype(np.float32) for s in ((10,), (7, 9, 4), (3, 5, 6)))
    for entry, array, axes, channels, more in (
        ("line", line, (10,), 1, [ptxsan.Empty(64, np.int32)]),
        ("plane", plane, (7, 9), 4, [ptxsan.Empty(256)]),
        ("solid", solid, (3, 5, 6), 1, []),
    ):
        at = coordinates(*axes)
        given = np.ascontiguousarray(at[:, ::-1])
        texture = ptxsan.Texture(array, channels=channels, **kind)
        result = ran(entry, texture, given, ptxsan.Empty(64 * channels), *more)
        assert (result.hazards, result.notes) == ((), ())
        want = np.array([fetched(array, one, kind) for one in at]).astype(np.float32)
        steps = len(axes) - 1 if kind["filter"] == "linear" else 0  # of several axes weights are rounded
        assert np.allclose(
            result.arrays[2].reshape(want.shape), want, rtol=0, atol=steps * np.ptp(array) / 256
        )
    gathered = ran(
        "plane",
        ptxsan.Texture(plane, channels=4, **kind),
        given[:, :2].copy(),
        ptxsan.Empty(256),
        ptxsan.Empty(256),
    )
    for row, (x, y) in zip(gathered.arrays[3].reshape(64, 4), given[:, :2], strict=True):
        scale = (9, 7) if kind["normalized"] else (1, 1)
        i, j = (
            math.floor((float(c) * n - 0.5) * 256 + 0.5) // 256 for c, n in zip((x, y), scale, strict=True)
        )
        four = [texel(plane, (j + b, i + a), kind["address"])[1] for a, b in ((0, 1), (1, 1), (1, 0), (0, 0))]
        assert np.array_equal(row, np.array(four, np.float32))


def test_texels_and_weights_are_those_of_an_h100() -> None:
    """Which was seen to do this."""
    line, at = np.arange(3, dtype=np.float32), np.zeros(64, np.float32)
    at[:3] = np.float32(1) / 3, np.float32(1) / 3 + 2.0**-22, -1e-44
    more = (at, ptxsan.Empty(64), ptxsan.Empty(64, np.int32))
    result = ran("line", ptxsan.Texture(line, normalized=True, address="wrap"), *more)
    assert result.arrays[2][:3].tolist() == [0, 1, 0]
    for weights, want in (((146, 20), [101, 135, 9, 11]), ((159, 31), [85, 140, 12, 19])):
        plane, at = np.zeros((2, 2, 4), np.float32), np.full((64, 2), 0.5, np.float32)
        plane[0, 0, 0] = plane[0, 1, 1] = plane[1, 0, 2] = plane[1, 1, 3] = 256
        at += np.array(weights, np.float32) / 256
        result = ran(
            "plane",
            ptxsan.Texture(plane, channels=4, filter="linear"),
            at,
            ptxsan.Empty(256),
            ptxsan.Empty(256),
        )
        assert result.arrays[2][:4].tolist() == want


def test_whole_numbers_layers_and_integers() -> None:
    line = np.arange(1, 41, dtype=np.float32)
    result = ran(
        "line", ptxsan.Texture(line), np.zeros(64, np.float32), ptxsan.Empty(64), ptxsan.Empty(64, np.int32)
    )
    assert np.array_equal(result.arrays[3].view(np.float32), np.r_[0, 0, line, np.zeros(22)])
    stack = RNG.standard_normal((4, 4, 4)).astype(np.float32)
    result = ran("layers", ptxsan.Texture(stack, layered=True, filter="linear"), ptxsan.Empty(64))
    assert np.array_equal(result.arrays[1], stack.ravel())
    shorts = RNG.integers(-1000, 1000, (8, 8)).astype(np.int16)
    assert np.array_equal(
        ran("integers", ptxsan.Texture(shorts), ptxsan.Empty(64, np.int32)).arrays[1], shorts.ravel()
    )


def test_integers_as_floats() -> None:
    octets = np.array([-128, -127, -1, 0, 1, 64, 126, 127], np.int8)
    at = np.r_[np.arange(8), np.zeros(56)].astype(np.float32)
    result = ran("undefined", ptxsan.Texture(octets, as_float=True), at, ptxsan.Empty(64))
    want = np.maximum(octets.astype(np.float64) / 127, -1).astype(np.float32)
    assert np.array_equal(result.arrays[2][:8], want)


def surfaces(*defines: str) -> Any:
    x = np.arange(128, dtype=np.float32).reshape(4, 16, 2)
    to = ptxsan.Surface(np.zeros((4, 16, 2), np.float32), channels=2)
    result = ran("scale", ptxsan.Surface(x, channels=2), to, 4, defines=defines, grid=4, block=16)
    return x, result


def test_surfaces() -> None:
    x, result = surfaces()
    assert (result.hazards, result.notes) == ((), ())
    assert np.array_equal(result.arrays[1], x)
    x, result = surfaces("ZERO")
    assert result.clean
    assert np.array_equal(result.arrays[1], np.concatenate([0 * x[:1], x[:3]]))
    x, result = surfaces("CLAMP")
    assert result.clean
    assert np.array_equal(result.arrays[1], x[[1, 2, 3, 3]][:, [0, *range(15)]])


def said(result: Any) -> list[str]:
    return [f"{h.check}: {h.message}" for h in result.hazards]


@pytest.mark.parametrize(
    ("define", "want"),
    [
        ("TRAP", "bounds: .* sust at byte and row \\(0, 4\\)"),
        ("ODD", "misaligned: .* 8-byte access at byte 4 "),
    ],
)
def test_a_mistake_with_a_surface_is_found(define: str, want: str) -> None:
    (found,) = said(surfaces(define)[1])
    assert re.match(want, found), found


def coherent(*defines: str) -> Any:
    image = ptxsan.device_array((2, 64))
    image.initialised[...] = True
    return ran("coherent", ptxsan.Texture(image), ptxsan.Surface(image), ptxsan.Empty(64), defines=defines)


@pytest.mark.parametrize("define", ["", "SURFACE"])
def test_reading_what_the_launch_wrote_is_found(define: str) -> None:
    (found,) = said(coherent(define or "NONE"))
    assert found.startswith("race: ")
    assert "through a texture or surface, which this launch wrote" in found
    assert said(coherent("OTHER_ROW")) == []


def test_undefined_texels_and_coordinates_are_found() -> None:
    image, at = ptxsan.device_array(8), np.zeros(64, np.float32)
    (found,) = said(ran("undefined", ptxsan.Texture(image), at, ptxsan.Empty(64)))
    assert found.startswith("uninit: ")
    image.initialised[...] = True
    (found,) = said(ran("undefined", ptxsan.Texture(image), ptxsan.Empty(64), ptxsan.Empty(64)))
    assert "accesses memory at an undefined address" in found


def test_what_is_no_texture_is_refused() -> None:
    x = np.zeros(8, np.float32)
    (found,) = said(ran("undefined", np.uint64(7), x, ptxsan.Empty(64), block=8))
    assert "0x7 is no texture object" in found
    (found,) = said(
        ran("undefined", ptxsan.Texture(np.zeros((2, 4), np.float32)), x, ptxsan.Empty(64), block=8)
    )
    assert "an object of 2 axes" in found
    (found,) = said(ran("undefined", ptxsan.Texture(np.zeros(8, np.int32)), x, ptxsan.Empty(64), block=8))
    assert "a fetch of .f32 from a texture of int32" in found
    for more in ({"address": "wrap"}, {"filter": "cubic"}, {"channels": 3}, {"as_float": True}):
        with pytest.raises(ptxsan.PtxError, match="a texture or surface takes"):
            ran("undefined", ptxsan.Texture(x, **more), x, ptxsan.Empty(64))


QUERIES = """.version 9.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 t, .param .u64 s, .param .u64 out)
{
.reg .b32 %r<9>;
.reg .b64 %rd<4>;
ld.param.u64 %rd1, [t];
ld.param.u64 %rd2, [s];
ld.param.u64 %rd3, [out];
txq.width.b32 %r1, [%rd1];
txq.height.b32 %r2, [%rd1];
txq.normalized_coords.b32 %r3, [%rd1];
suq.array_size.b32 %r4, [%rd2];
st.global.v4.b32 [%rd3], {%r1, %r2, %r3, %r4};
mov.u32 %r5, %tid.x;
and.b32 %r6, %r5, 3;
shl.b32 %r6, %r6, 2;
mov.u32 %r7, 1;
mov.u32 %r8, 0;
sured.b.add.a2d.u32.trap [%rd2, {%r7, %r6, %r8, %r8}], %r5;
ret;
}
"""


def test_queries_and_reductions() -> None:
    texture = ptxsan.Texture(np.zeros((5, 3), np.float32), normalized=True)
    surface = ptxsan.Surface(np.ones((2, 1, 4), np.uint32), layered=True)
    arguments = [texture, surface, ptxsan.Empty(4, np.uint32)]
    result = ptxsan.run(QUERIES, grid=1, block=32, arguments=arguments)
    assert result.clean
    assert result.arrays[2].tolist() == [3, 5, 1, 2]
    sums = [1 + sum(range(lane, 32, 4)) for lane in range(4)]
    assert result.arrays[1].tolist() == [[[1] * 4], [sums]]
