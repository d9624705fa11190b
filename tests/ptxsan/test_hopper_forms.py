"""wgmma in its forms, boxes of tensor maps: what the kernels in tests/hopper leave, by NumPy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import ptxsan
from tests.hopper import together
from tests.hopper.cases import ADDED, BOXES, FORMS, NANS, SPARSE, TF32_BOXES, Launch, box, form, sparse


@pytest.fixture(scope="module", autouse=True)
def compiled_together(request: pytest.FixtureRequest) -> None:
    for given in together.needed(request):
        if "given" in given:
            form(*given["given"]).expect()
        elif "of_sparse" in given:
            sparse(*given["of_sparse"]).expect()
        elif "name" in given:
            box(given["name"]).expect()


def check(launch: Launch) -> None:
    result = launch.emulate()
    assert result.clean, result.hazards
    off = any(define.startswith("OFF") for define in launch.defines)
    assert bool(result.notes) == off, result.notes
    assert all("within the pattern of a" in note.message for note in result.notes)
    assert launch.right(result.arrays)


@pytest.mark.turns
@pytest.mark.parametrize("given", FORMS, ids=lambda given: "-".join(map(str, given)))
def test_a_form_of_wgmma(given: tuple[Any, ...]) -> None:
    check(form(*given))


@pytest.mark.turns
@pytest.mark.parametrize("of_sparse", SPARSE, ids=lambda given: "-".join(map(str, given)))
def test_a_product_of_a_sparse_matrix(of_sparse: tuple[Any, ...]) -> None:
    check(sparse(*of_sparse))


def test_metadata_that_the_isa_leaves_undefined() -> None:
    """The second place of a chunk is not behind the first one; of other threads than the selector names
    nothing is read."""
    launch = sparse("f16", "f32")
    metadata = launch.arguments[3].copy()
    metadata[1, 33] &= 0xFFF0  # chunk 0 of the second lane's, row 16 + 0
    (found,) = launch.given(3, metadata).emulate().hazards
    assert found.check == "bounds"
    assert "has metadata 0b0000 of chunk 4 in row" in found.message


@pytest.mark.turns
@pytest.mark.parametrize("name", BOXES)
def test_a_box(name: str) -> None:
    check(box(name))


@pytest.mark.parametrize("dtype", NANS)
def test_a_box_is_filled_with_nan(dtype: Any) -> None:
    check(box("2d-nan", dtype))


@pytest.mark.parametrize("dtype", ADDED)
def test_a_box_is_added(dtype: Any) -> None:
    check(box("2d-edge", dtype, "ADD"))


@pytest.mark.turns
@pytest.mark.parametrize("name", TF32_BOXES)
def test_a_box_is_rounded_to_tf32(name: str) -> None:
    launch = box(name, tf32=True)
    check(launch)
    assert not np.array_equal(launch.want[4], box(name).want[4])


@pytest.mark.parametrize("defines", [(), ("ADD",)], ids=["store", "reduction"])
def test_a_store_by_a_map_that_rounds_is_not_supported(defines: tuple[str, ...]) -> None:
    launch = box("2d", np.float32, *defines)
    (found,) = launch.given(2, replace(launch.arguments[2], tf32=True)).emulate().hazards
    assert found.check == "unsupported"
    assert "a store or reduction by a tensor map that rounds to TF32 (not measured)" in found.message


def test_what_else_does_not_round() -> None:
    for launch, said in (
        (box("2d", np.float16), "a tensor map rounds float32 to TF32, and not float16"),
        (box("2d-nan"), "a fill of NaN for real elements but tfloat32"),
    ):
        rounding = replace(launch.arguments[0], tf32=True)
        with pytest.raises(ptxsan.PtxError, match=said):
            launch.given(0, rounding).emulate()


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
    with pytest.raises(ptxsan.PtxError, match=said):
        launch.given(0, ptxsan.Tiled(launch.arguments[0].array, **wrong)).emulate()


@pytest.mark.parametrize(
    ("which", "place", "check", "said"),
    [
        (1, (5, 3), "misaligned", "from coordinate 5 of a row on, byte 20: no multiple of 16"),
        (3, (5, 3), "misaligned", "from coordinate 5 of a row on, byte 20: no multiple of 16"),
        (3, (-4, 3), "bounds", r"from coordinates (-4, 3) on: none may be negative"),
        (3, (4, -1), "bounds", r"from coordinates (4, -1) on: none may be negative"),
    ],
)
def test_where_a_box_may_begin(which: int, place: tuple[int, int], check: str, said: str) -> None:
    launch = box("2d").given(which, np.array([*place, 0, 0, 0], np.int32).tobytes())
    (found,) = launch.emulate().hazards
    assert found.check == check
    assert said in found.message


def test_a_tensor_map_is_read_back() -> None:
    made = ptxsan.TensorMapDescriptor(
        "float16", 1 << 50, (100, 7, 5), (208, 1456), (8, 3, 2), (1, 2, 1), 32, True
    )
    assert ptxsan.TensorMapDescriptor.decode(made.encode()) == made
    rounding = ptxsan.TensorMapDescriptor("tfloat32", 1 << 50, (100, 7), (400,), (8, 3))
    assert ptxsan.TensorMapDescriptor.decode(rounding.encode()) == rounding
    assert len(made.encode()) == 128
