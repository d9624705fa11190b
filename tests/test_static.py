"""The compiler's figures of every variant are those in baselines/static; no GPU.

A change, for better or worse, is red until it is accepted: ``nox -s static -- --refresh``.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness.static import Check, Entry, StaticFigures, entries
from harness.static.store import StoreError
from harness.toolchain import ToolchainError

pytestmark = pytest.mark.static


@pytest.fixture(scope="session")
def check(request: pytest.FixtureRequest) -> Check:
    """What this run selects, compiled an architecture at a time. Skips without the pinned compiler."""
    selected = (getattr(item, "callspec", None) for item in request.session.items)
    chosen = [spec.params["entry"] for spec in selected if spec and "entry" in spec.params]
    try:
        return Check(chosen)
    except ToolchainError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("entry", entries(), ids=str)
def test_figures(entry: Entry, check: Check, record_property: Callable[[str, object], None]) -> None:
    record_property("variant", entry.name)
    try:
        finding = check.finding(entry)
    except StoreError as error:
        finding = str(error)
    made = check.made(entry.arch).get(entry.name)
    if isinstance(made, StaticFigures):
        record_property("arch", entry.arch)
        record_property("registers", made.registers)
        record_property("occupancy", f"{made.occupancy:.1%} ({made.limited_by})")
        record_property("change", finding)
    if finding:
        pytest.fail(finding, pytrace=False)
