"""Cases by their ids."""

from __future__ import annotations

import pytest

from gemm_regression.model import CaseId
from tests.gemm_regression.samples import find_case, select

ALL = select()


def test_every_case_is_found_by_its_id() -> None:
    for case in (*ALL.verify, *ALL.timed):
        assert find_case(case.id, (9, 0)) == case


def test_problem_need_not_be_one_of_the_suite() -> None:
    case = find_case(f"{ALL.timed[0].variant}-12x34x56-beta2", (9, 0))
    assert (case.variant, case.problem.id) == (ALL.timed[0].variant, "12x34x56-beta2")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *((text, "^unknown case '.*`pytest --list-cases` lists the variants") for text in ("", "tiled")),
        (ALL.timed[0].variant, "^unknown case .*: `pytest --list-cases` lists"),
        ("tyled-f32-tile32-pad0-1x2x3-beta2", r"did you mean 'tiled-f32-tile32-pad0-1x2x3-beta2'\?"),
        (f"{ALL.timed[0].variant}-12x34", "write it as MxNxK"),
    ],
)
def test_unknown_case_is_refused_in_one_line(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as refused:
        find_case(text, (9, 0))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("tiled-f32-tile32-pad0-64x64x64-nt-beta-1", ("tiled", "f32", "tile32-pad0", "64x64x64-nt-beta-1")),
        ("cublas-f16_f16-4x4x4", ("cublas", "f16_f16", "", "4x4x4")),
        ("tf32x3-f32-tile64x64x32-warp32x32", ("tf32x3", "f32", "tile64x64x32-warp32x32", "")),
        ("naive", ("naive", "", "", "")),
    ],
)
def test_an_id_is_read_as_it_is_written(text: str, parts: tuple[str, str, str, str]) -> None:
    assert CaseId.parse(text) == CaseId(*parts)
    assert str(CaseId(*parts)) == text
