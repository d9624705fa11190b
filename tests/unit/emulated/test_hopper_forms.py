"""wgmma in its forms, boxes of tensor maps: what the kernels in tests/hopper leave, by NumPy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from harness import ptx
from tests.hopper.cases import BOXES, FORMS, Launch, box, form


def check(launch: Launch) -> None:
    result = launch.emulate()
    assert result.clean, result.hazards
    off = any(define.startswith("OFF") for define in launch.defines)
    assert bool(result.notes) == off, result.notes
    assert all("within the pattern of a" in note.message for note in result.notes)
    assert launch.right(result.arrays)


@pytest.mark.parametrize("given", FORMS, ids=lambda given: "-".join(map(str, given)))
def test_a_form_of_wgmma(given: tuple[Any, ...]) -> None:
    check(form(*given))


@pytest.mark.parametrize("name", BOXES)
def test_a_box(name: str) -> None:
    check(box(name))


@pytest.mark.parametrize("dtype", [np.int32, np.float16, np.uint64])
def test_a_box_is_added(dtype: Any) -> None:
    check(box("2d-edge", dtype, "ADD"))


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
    launch = box("2d")
    tiled = ptx.Tiled(launch.arguments[0].array, **wrong)
    with pytest.raises(ptx.PtxError, match=said):
        replace(launch, arguments=(tiled, *launch.arguments[1:])).emulate()


def test_a_tensor_map_is_read_back() -> None:
    made = ptx.TensorMap("float16", 1 << 50, (100, 7, 5), (208, 1456), (8, 3, 2), (1, 2, 1), 32, True)
    assert ptx.TensorMap.decode(made.encode()) == made
    assert len(made.encode()) == 128
