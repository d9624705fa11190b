"""Every timed case against the stored baseline of this GPU."""

from __future__ import annotations

import pytest

from harness.commands.plugin_benchmark import DEVICE_CLOCK, GateFixture
from harness.model import Case
from harness.reports.wording import orphans_text


@pytest.mark.gpu
@pytest.mark.benchmark(timer=DEVICE_CLOCK)
def test_performance(timed_case: Case, gate: GateFixture) -> None:
    gate(timed_case)


@pytest.mark.gpu
def test_no_orphans(orphans: list[str]) -> None:
    if orphans:
        pytest.fail(orphans_text(orphans), pytrace=False)
