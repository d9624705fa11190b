"""What the probes say a GPU can do, beside its datasheet; our occupancy arithmetic, beside the driver's."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.ladder import PROJECT, importing

# Of the datasheet's arithmetic at the clock of the probe. DRAM loses some to refresh.
LEAST = {"f32": 0.97, "f16": 0.95, "bf16": 0.95, "tf32": 0.95, "shared": 0.95, "dram": 0.8}


@pytest.mark.gpu
def test_the_probes_come_near_the_datasheet_and_never_past_it(device: Any) -> None:
    roofs = device.roofs()
    print(json.dumps(roofs))
    shares = {
        name: _rate(roofs[name]) / roofs[name]["arithmetic"] for name in LEAST if "arithmetic" in roofs[name]
    }
    assert {"f32", "shared", "dram"} <= set(shares)
    if device.info.capability >= (9, 0):  # mma.sync alone reaches less on some of the others
        assert all(LEAST[name] <= share <= 1.005 for name, share in shares.items()), shares
    assert roofs["shared"]["gbps"] > roofs["l2"]["gbps"] > roofs["dram"]["gbps"]
    cycles = roofs["cycles"]
    assert cycles["fma"] < cycles["shared"] <= cycles["l1"] < cycles["l2"] < cycles["dram"]


def _rate(roof: dict[str, float]) -> float:
    return roof.get("gflops") or roof["gbps"]


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
