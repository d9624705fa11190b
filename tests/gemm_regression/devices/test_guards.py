"""Bytes that changed around A, B and C are told as what they are."""

from __future__ import annotations

import numpy as np
import pytest

from gemm_regression.devices.work import GUARD, violations
from gemm_regression.model import Array, Finding

BUFFERS: dict[str, Array] = {
    "A": np.zeros((4, 8), np.float32),
    "B": np.zeros((8, 4), np.float16),
    "C": np.zeros((4, 5), np.float32),
}
A, B, C = GUARD, 3 * GUARD, 5 * GUARD


def found_in(changed: list[int]) -> tuple[Finding, ...]:
    before = np.full(6 * GUARD, 0xFF, np.uint8)
    after = before.copy()
    after[changed] = 0
    return violations(before, after, BUFFERS, {"A": A, "B": B, "C": C}, ("C",))


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        pytest.param([A + 4 * 10], "input A was changed at (1, 2), 1 bytes in all", id="A"),
        pytest.param([B + 2 * 5, B + 2 * 5 + 1], "input B was changed at (1, 1), 2 bytes in all", id="B"),
        pytest.param(
            [C + 80, C + 81], "guard band was written, first 0 bytes past the end of C, 2", id="past C"
        ),
        pytest.param(
            [C - 4], "a guard band was written, first 4 bytes before the start of C, 1", id="before C"
        ),
        pytest.param(
            [B + 64 + 8], "a guard band was written, first 8 bytes past the end of B, 1", id="past B"
        ),
        pytest.param(
            [A - 1], "a guard band was written, first 1 bytes before the start of A, 1", id="before A"
        ),
    ],
)
def test_a_changed_byte_is_named_after_its_place(changed: list[int], line: str) -> None:
    (found,) = found_in(changed)
    assert found.check == "guard"
    assert line in found.message


def test_writing_all_of_c_is_no_violation() -> None:
    assert found_in([*range(C, C + 80)]) == ()


def test_an_input_and_a_guard_band_are_two_violations() -> None:
    assert len(found_in([A, C + 80])) == 2
