"""What one pytest run knows; the plugins share it through the config's stash."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from harness import baselines, cases
from harness.baselines import Baseline
from harness.devices.cuda.protocol import Plan
from harness.gate import Result
from harness.judge import Policy


@dataclass
class Session:
    """What one pytest run knows: the device or why there is none, the cases, the baseline, the results."""

    device: Any = None
    no_device: str = ""
    selection: cases.Selection = field(default_factory=cases.Selection)
    baseline: Baseline | None = None
    baseline_path: Path | None = None
    policy: Policy = field(default_factory=Policy)
    plan: Plan = field(default_factory=Plan)
    judging: bool = True
    results: list[Result] = field(default_factory=list)
    compile_errors: dict[str, str] = field(default_factory=dict)

    @property
    def slug(self) -> str:
        return baselines.gpu_slug(self.device.info.name) if self.device else "no-gpu"


KEY = pytest.StashKey[Session]()
