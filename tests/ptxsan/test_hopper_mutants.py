"""The rules of mbarriers, the async proxy and wgmma: our kernels run clean, planted mistakes are found."""

from __future__ import annotations

import re
import tomllib

import pytest

import ptxsan
from tests.hopper import cases

# By the kernel, what is said of each mistake.
MISTAKES = tomllib.loads((cases.HERE / "mistakes.toml").read_text(encoding="utf-8"))
LEGAL = [("bulk", "FENCE_AFTER_BARRIER"), ("bulk", "WAITS_ENOUGH"), ("multicast", "RELAXED_AFTER_FENCE")]


def ran(kernel: str, *defines: str) -> tuple[ptxsan.Result, bool]:
    """What the emulated device says of a launch, and whether it is right."""
    launch: cases.Launch = getattr(cases, kernel)(*defines)
    result = launch.emulate()
    return result, launch.right(result.arrays)


@pytest.mark.turns
@pytest.mark.parametrize(
    ("kernel", "mistake"), [(kernel, mistake) for kernel, of in MISTAKES.items() for mistake in of]
)
def test_a_mistake_is_found(kernel: str, mistake: str) -> None:
    wanted = MISTAKES[kernel][mistake]
    result, right = ran(kernel, mistake)
    if not wanted:
        assert not right
        return
    found = result.notes if wanted.startswith("note: ") else result.hazards
    said = [f"{h.check}: {h.message}" for h in found]
    assert any(re.search(wanted.removeprefix("note: "), one) for one in said), said


@pytest.mark.parametrize(
    ("kernel", "defines"),
    [*((kernel, ()) for kernel in MISTAKES), *((kernel, (legal,)) for kernel, legal in LEGAL)],
)
def test_what_is_right_and_legal_is_not_reported(kernel: str, defines: tuple[str, ...]) -> None:
    result, right = ran(kernel, *defines)
    assert right
    assert result.clean, result.hazards
    assert defines or not result.notes


def test_stores_that_nobody_waits_for_are_noted() -> None:
    for mistake in ("NO_STORE_WAIT", "NO_STORE_COMMIT"):
        result, right = ran("pipeline", mistake)
        assert right
        assert any("exits while its bulk copy may still read" in note.message for note in result.notes)
