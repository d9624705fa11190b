"""The compiler's figures and the counts of every variant are those in baselines/static; no GPU.

A change, for better or worse, is red until it is accepted: ``nox -s static -- --refresh``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest

from harness.compiler.errors import ToolchainError
from harness.compiler.static import Check, Entry, StaticFigures, entries
from harness.compiler.static.store import ROOT, StoreError
from harness.counters.check import CounterCheck, CounterEntry
from harness.counters.check import entries as counted
from harness.devices import DeviceError
from kernels import LADDER

pytestmark = pytest.mark.static


@pytest.fixture(scope="session")
def check(request: pytest.FixtureRequest) -> Check:
    """What this run selects, compiled an architecture at a time. Skips without the pinned compiler."""
    selected = (getattr(item, "callspec", None) for item in request.session.items)
    entries = [spec.params.get("entry") for spec in selected if spec]
    try:
        return Check([entry for entry in entries if isinstance(entry, Entry)], ROOT)
    except ToolchainError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def counter_check() -> CounterCheck:
    """Skips without the pinned compiler."""
    try:
        return CounterCheck(ROOT)
    except ToolchainError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("entry", entries(LADDER, ROOT), ids=str)
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


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param(entry, id=str(entry), marks=pytest.mark.xdist_group(entry.name))
        for entry in counted(LADDER, ROOT)
    ],
)
def test_counts(
    entry: CounterEntry, counter_check: CounterCheck, record_property: Callable[[str, object], None]
) -> None:
    record_property("variant", entry.name)
    try:
        finding = counter_check.finding(entry)
    except StoreError as error:
        finding = str(error)
    with contextlib.suppress(DeviceError):
        for counts in list(counter_check.made(entry).values())[:1]:
            reads, stores = counts.sectors_per_request("reads"), counts.sectors_per_request("stores")
            record_property("sectors_per_request", f"{reads:.2f}, {stores:.2f}")
            record_property("conflicts", counts.conflicts)
    record_property("arch", "counters")
    record_property("change", finding)
    if finding:
        pytest.fail(finding, pytrace=False)
