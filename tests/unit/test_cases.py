"""Cases by their ids."""

from __future__ import annotations

import pytest

from tests.unit.samples import find_case, select

ALL = select()


def test_every_case_is_found_by_its_id() -> None:
    for case in (*ALL.verify, *ALL.timed):
        assert find_case(case.id, (9, 0)) == case


def test_problem_need_not_be_one_of_the_suite() -> None:
    case = find_case(f"{ALL.timed[0].variant}-12x34x56-beta2", (9, 0))
    assert (case.variant, case.problem.id) == (ALL.timed[0].variant, "12x34x56-beta2")


@pytest.mark.parametrize("text", ["", "tiled", ALL.timed[0].variant, "tyled-f32-tile32-pad0-1x2x3"])
def test_unknown_case_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(
        ValueError, match=r"^unknown case .*`pytest --list-cases` lists the variants"
    ) as refused:
        find_case(text, (9, 0))
    assert "\n" not in str(refused.value)


def test_a_mistyped_case_is_told_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"did you mean 'tiled-f32-tile32-pad0-1x2x3-beta2'\?"):
        find_case("tyled-f32-tile32-pad0-1x2x3-beta2", (9, 0))


def test_problem_of_a_known_variant_must_be_one() -> None:
    with pytest.raises(ValueError, match="write it as MxNxK"):
        find_case(f"{ALL.timed[0].variant}-12x34", (9, 0))
