"""Tensor maps in im2col mode (PTX ISA §5.5.4) against pixels taken one by one; what is undefined in a box."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ptxsan
from tests.ptxsan.rig import Array

COLUMN = Path(__file__).with_name("kernels") / "column.cu"


def copied(map_: Any, at: tuple[int, ...], by: tuple[int, ...]) -> ptxsan.LaunchResult:
    """A launch that copies one column: ``at`` is (c, w, h, n), ``by`` the offsets of W and H."""
    rank = 2 + len(map_.lower) if isinstance(map_, ptxsan.Im2col) else 4
    sizes = (map_.pixels, map_.channels) if isinstance(map_, ptxsan.Im2col) else (16, 8)
    defines = [f"PIXELS={sizes[0]}", f"CHANNELS={sizes[1]}", f"RANK={rank}"]
    given = [
        map_,
        np.array(at, np.int32).tobytes(),
        np.array(by, np.int16).tobytes(),
        ptxsan.Empty(sizes[0] * sizes[1], np.uint32),
    ]
    return ptxsan.run(COLUMN, grid=1, block=32, arguments=given, defines=defines)


def pixels(x: Array, of: ptxsan.Im2col, at: tuple[int, ...], by: tuple[int, ...]) -> Array:
    """What a column is, pixel by pixel, of (N, H, W, C) or (N, W, C)."""
    steps = of.steps[1:-1] if of.steps else (1,) * len(of.lower)
    ends = [size - 1 + up for size, up in zip(x.shape[1:-1], of.upper, strict=True)]
    axes = [range(low, end + 1, step) for low, end, step in zip(of.lower, ends, steps, strict=True)]
    every = list(itertools.product(range(x.shape[0] + 9), *axes))
    where = (at[3], at[2], at[1]) if len(of.lower) == 2 else (at[3], at[1])
    first = every.index(where)
    offsets = by[::-1] if len(of.lower) == 2 else by[:1]
    found = np.zeros((of.pixels, of.channels), x.dtype)
    for row, (n, *places) in enumerate(every[first : first + of.pixels]):
        spot = [p + o for p, o in zip(places, offsets, strict=True)]
        inside = n < x.shape[0] and all(0 <= p < size for p, size in zip(spot, x.shape[1:-1], strict=True))
        for c in range(of.channels):
            if inside and at[0] + c < x.shape[-1]:
                found[row, c] = x[(n, *spot, at[0] + c)]
    return found


Case = tuple[tuple[int, ...], dict[str, Any], tuple[int, ...], tuple[int, ...]]
PADDED = {"lower": (-1, -1), "upper": (-1, -1)}  # by 1, of a filter of 3 × 3
SECOND = {**PADDED, "pixels": 32, "channels": 16, "steps": (1, 2, 2, 1)}  # the third example of the ISA
CASES: list[Case] = [
    ((2, 5, 7, 12), {**PADDED, "pixels": 24, "channels": 8}, (0, 3, 2, 0), (0, 0)),
    ((2, 5, 7, 12), {**PADDED, "pixels": 24, "channels": 8}, (8, 3, 2, 0), (2, 1)),
    ((2, 5, 7, 12), {**PADDED, "pixels": 24, "channels": 8}, (0, 5, 0, 1), (0, 2)),
    ((2, 5, 7, 8), {"lower": (0, 0), "upper": (-2, -2), "pixels": 20, "channels": 4}, (4, 0, 0, 0), (1, 2)),
    ((2, 14, 8, 16), SECOND, (0, 5, 7, 0), (1, 1)),
    ((3, 9, 8), {"lower": (-2,), "upper": (1,), "pixels": 20, "channels": 8}, (0, 4, 0, 1), (1, 0)),
]


@pytest.mark.parametrize(("shape", "of", "at", "by"), CASES)
def test_a_column(
    shape: tuple[int, ...], of: dict[str, Any], at: tuple[int, ...], by: tuple[int, ...]
) -> None:
    x = np.arange(1, 1 + np.prod(shape), dtype=np.uint32).reshape(shape)
    made = ptxsan.Im2col(x, **of)
    result = copied(made, at, by)
    assert (result.hazards, result.notes) == ((), ())
    want = pixels(x, made, at, by)
    assert np.array_equal(result.arrays[3].reshape(want.shape), want)
    assert want.any()


def test_a_column_is_swizzled() -> None:
    """The chunks of 16 bytes of four rows of 32 bytes change places by the third row on."""
    x = np.arange(1, 1 + 6 * 7 * 8, dtype=np.uint32).reshape(1, 6, 7, 8)
    plain = ptxsan.Im2col(x, (0, 0), (0, 0), 16, 8)
    one, other = (
        copied(each, (0, 0, 0, 0), (0, 0)).arrays[3].reshape(-1, 2, 4)
        for each in (plain, ptxsan.Im2col(x, (0, 0), (0, 0), 16, 8, swizzle=32))
    )
    turned = np.arange(16) // 4 % 2 == 1
    assert np.array_equal(other, np.where(turned[:, None, None], one[:, ::-1], one))


X = np.ones((1, 6, 7, 8), np.uint32)
MADE = ptxsan.Im2col(X, (-1, -1), (-1, -1), 16, 8)


@pytest.mark.parametrize(
    ("made", "at", "said"),
    [
        (MADE, (0, 6, 0, 0), "bounds: …a column of coordinates (0, 6, 0, 0), of no pixel of the"),
        (MADE, (0, -2, 0, 0), "bounds: …of no pixel of the bounding box"),
        (MADE, (2, 0, 0, 0), "misaligned: …copies a box from coordinate 2 of a row on"),
        (ptxsan.Tiled(X, (1, 2, 8, 8)), (0, 0, 0, 0), "bounds: …copies im2col by a tensor map of boxes"),
    ],
)
def test_a_column_that_there_is_not(made: Any, at: tuple[int, ...], said: str) -> None:
    (found,) = copied(made, at, (0, 0)).hazards
    check, _, what = said.partition(": …")
    assert found.check == check
    assert what in found.message


@pytest.mark.parametrize("mode", ["im2col::w", "im2col::w::128"])
def test_wide_modes_are_refused_by_name(mode: str) -> None:
    defines = ["PIXELS=16", "CHANNELS=8", "RANK=4"]
    ptx = ptxsan.load(COLUMN, defines=defines).kernel().compiled.ptx
    assert ".im2col." in ptx
    given = [MADE, bytes(16), bytes(4), ptxsan.Empty(128, np.uint32)]
    with pytest.raises(ptxsan.PtxError, match=f"{mode.replace('::', '_')} is not supported.*PTX line"):
        ptxsan.run(ptx.replace(".im2col.", f".{mode}."), grid=1, block=32, arguments=given)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"lower": (0,)}, "corners of W, H and D, as many as there are"),
        ({"lower": (0, 128)}, "corners from -128 to 127"),
        ({"pixels": 1025}, "channels, and a column of 1 to 1024 pixels"),
        ({"channels": 257}, "a box of 1 to 256 elements"),
        ({"upper": (-6, 0)}, "a bounding box that holds a pixel"),
        ({"array": np.ones((4, 8), np.uint32), "lower": (), "upper": ()}, "3 to 5 dimensions in im2col mode"),
    ],
)
def test_what_the_driver_refuses(wrong: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {"array": X, "lower": (0, 0), "upper": (0, 0), "pixels": 16, "channels": 8}
    with pytest.raises(ptxsan.PtxError, match=said):
        copied(ptxsan.Im2col(**given | wrong), (0, 0, 0, 0), (0, 0))


def test_a_map_is_read_back() -> None:
    made = ptxsan.TensorMapDescriptor(
        "float16",
        1 << 50,
        (100, 7, 5, 3),
        (208, 1456, 7280),
        (8, 64),
        (1, 2, 1, 1),
        32,
        True,
        ((-1, -2), (1, -4)),
    )
    assert ptxsan.TensorMapDescriptor.decode(made.encode()) == made


def test_what_lies_outside_is_not_stored() -> None:
    """Rows of a tile that nobody wrote: stored they are an error, outside the tensor nothing."""
    source = """
#include <cuda.h>
#include <cstdint>
extern "C" __global__ void put(const __grid_constant__ CUtensorMap map, int row)
{
    __shared__ alignas(128) uint32_t tile[8 * 8];
    for (int i = threadIdx.x; i < 4 * 8; i += 32) tile[i] = i;  // the first four of eight rows
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];"
                     ::"l"(&map), "r"(0), "r"(row), "r"((uint32_t)__cvta_generic_to_shared(tile)) : "memory");
        asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;" ::: "memory");
    }
}
"""
    kernel = ptxsan.load(source).kernel("put")
    x = np.zeros((12, 8), np.uint32)
    outside = kernel[1, 32](ptxsan.Tiled(x, (8, 8)), 8)
    assert outside.hazards == ()
    assert np.array_equal(outside.arrays[0][8:].ravel(), np.arange(32))
    (found,) = kernel[1, 32](ptxsan.Tiled(x, (8, 8)), 4).hazards
    assert found.check == "uninit"
    assert "stores an undefined value to map[64], which comes from shared memory tile+128" in found.message


def test_a_store_takes_whole_16_bytes_of_a_row() -> None:
    """As an H200 does, with which tests/test_hopper.py compares it."""
    made = ptxsan.TensorMapDescriptor("bfloat16", 0, (9, 2), (48,), (32, 2))
    loaded, stored = (made.elements((0, 0), stores)[1].reshape(2, 32) for stores in (False, True))
    assert (loaded.sum(axis=1).tolist(), stored.sum(axis=1).tolist()) == ([9, 9], [16, 16])
    whole = ptxsan.TensorMapDescriptor("bfloat16", 0, (16, 2), (48,), (32, 2))
    assert np.array_equal(whole.elements((0, 0), True)[1], stored.ravel())
