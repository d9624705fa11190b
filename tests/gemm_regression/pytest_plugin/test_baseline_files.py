"""A baseline that cannot be trusted ends the run before it starts, in one line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gemm_regression.baselines.merge import write_export
from gemm_regression.model import Case
from gemm_regression.timing.plan import Measurement
from tests.gemm_regression.judge.replay import ReplayDevice
from tests.gemm_regression.rig import OURS, Rig

Damage = Callable[[Path], object]


def _edited(file: Path) -> None:
    """The first figure is a tenth of what it was."""
    text = file.read_text()
    file.write_text(re.sub(r'(us\\?":\[)', r"\g<1>0.", text, count=1))
    assert file.read_text() != text


def _directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


def _conflict(file: Path) -> None:
    file.write_text(f"<<<<<<< ours\n{file.read_text()}>>>>>>> theirs\n")


DAMAGES: dict[str, Damage] = {
    "malformed": lambda file: file.write_text("{'not': JSON}"),
    "truncated": lambda file: file.write_text(file.read_text()[:-300]),
    "binary": lambda file: file.write_bytes(b"\xff\xfe\x00GEMM"),
    "other json": lambda file: file.write_text("[1, 2, 3]"),
    "edited": _edited,
    "conflict": _conflict,
    "directory": _directory,
}


def refused(rig: Rig, *options: str, **info: str) -> str:
    """The one line in which a run is refused, before anything is timed."""
    device = ReplayDevice(**info)  # type: ignore[arg-type]
    refusal = rig.run(*OURS, *options, device=device, outputs=False).refusal
    assert device.attempts == {}
    return refusal


@pytest.mark.parametrize("option", [(), ("--benchmark-compare=0001",), ("--baseline-run",)], ids=str)
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_figures_are_refused(rig: Rig, damage: Damage, option: tuple[str, ...]) -> None:
    """Nothing could be stored beside them, either."""
    file = rig.baselines / "figures.jsonl"
    damage(file)
    assert str(file) in refused(rig, *option)
    assert rig.run("--collect-only", outputs=False).status == 0


def test_what_is_stored_while_a_run_is_on_does_not_matter_to_it(rig: Rig) -> None:
    """Such as by `git pull`, or by another GPU's refresh."""

    class Pulled(ReplayDevice):
        def time(self, case: Case, plan: Any) -> Measurement:
            (rig.baselines / "figures.jsonl").write_text("<<<<<<< ours")
            return super().time(case, plan)

    outcome = rig.run(*OURS, device=Pulled(3))
    assert outcome.green
    assert outcome.json["gemm_machines"]["0"]["reason"] == "AS_STORED"


def _no_figures(file: Path) -> None:
    document = json.loads(file.read_text())
    document["gemm_baseline"]["lines"] = []
    file.write_text(json.dumps(document))


@pytest.mark.parametrize("damage", [*DAMAGES.values(), _no_figures])
def test_a_damaged_export_is_refused(rig: Rig, damage: Damage) -> None:
    file = write_export(rig.stored, rig.root / "export.json")
    damage(file)
    assert "export.json" in refused(rig, f"--benchmark-compare={file}")


def test_figures_without_a_line_are_no_baseline(rig: Rig) -> None:
    (rig.baselines / "figures.jsonl").write_text("")
    assert rig.run(*OURS, outputs=False).status == 1
    assert "has nothing" in refused(rig, "--benchmark-compare=0001")


def test_baseline_of_another_gpu_is_refused(rig: Rig) -> None:
    file = write_export(rig.stored, rig.root / "export.json")
    said = "has figures of NVIDIA H200, but this GPU's folder is nvidia-h300"
    assert said in refused(rig, f"--benchmark-compare={file}", name="NVIDIA H300")
    rig.baselines.rename(rig.baselines.with_name("nvidia-h300"))
    assert "has figures of NVIDIA H200" in refused(rig, name="NVIDIA H300")


@pytest.mark.parametrize("option", [(), ("--baseline-run",)], ids=str)
def test_mig_makes_another_gpu_of_it(rig: Rig, option: tuple[str, ...]) -> None:
    outcome = rig.run(*OURS, *option, device=ReplayDevice(mig=True), outputs=False)
    assert outcome.status == 1
    assert "mig is on, was off" in outcome.text
