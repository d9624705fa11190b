"""Our occupancy arithmetic says what the driver says, for every variant on the GPU at hand."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.ladder import PROJECT, importing


@pytest.mark.gpu
def test_occupancy_is_the_drivers_own(device: Any) -> None:
    command = [sys.executable, "-m", "tests.occupancy", str(PROJECT.root)]
    environment = importing(PROJECT.root / "harness", PROJECT.root)
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) > 50
    assert {name: each for name, each in found.items() if each["driver"] != each["own"]} == {}
    suggested = {name: each for name, each in found.items() if "suggested" in each}
    assert len(suggested) >= 2
    assert {n: each for n, each in suggested.items() if each["suggested"] != each["own_suggestion"]} == {}
