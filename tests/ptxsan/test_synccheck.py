"""The patterns of barriers that docs/results/synccheck.md compares with a GPU."""

from __future__ import annotations

import pytest

from tests.mutants import synccheck

pytestmark = pytest.mark.compile


@pytest.mark.parametrize("name", synccheck.PATTERNS)
def test_a_pattern_of_barriers(name: str) -> None:
    assert synccheck.checks(name).partition(":")[0] == synccheck.PATTERNS[name].verdict


def test_the_page_says_what_is_told() -> None:
    assert synccheck.PAGE.read_text(encoding="utf-8") == synccheck.render(synccheck.load())
