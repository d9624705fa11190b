"""A baseline that cannot be trusted ends the run before it starts, in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.replay import ReplayDevice
from tests.unit.rig import OURS, Rig


def _malformed(file: Path) -> None:
    file.write_text("{'not': JSON}")


def _truncated(file: Path) -> None:
    file.write_text(file.read_text()[:-300])


def _empty(file: Path) -> None:
    file.write_text("")


def _binary(file: Path) -> None:
    file.write_bytes(b"\xff\xfe\x00GEMM")


def _other_json(file: Path) -> None:
    file.write_text("[1, 2, 3]")


def _foreign(file: Path) -> None:
    document = json.loads(file.read_text())
    del document["gemm_baseline"]
    file.write_text(json.dumps(document))


def _edited(file: Path) -> None:
    document = json.loads(file.read_text())
    document["benchmarks"][0]["extra_info"]["median_s"] *= 2
    file.write_text(json.dumps(document))


DAMAGES = pytest.mark.parametrize(
    "damage",
    [_malformed, _truncated, _empty, _binary, _other_json, _foreign, _edited],
    ids=lambda damage: damage.__name__.strip("_"),
)


@DAMAGES
@pytest.mark.parametrize("how", ["current", "number", "path"])
def test_damaged_baseline_is_refused(rig: Rig, damage: Callable[[Path], None], how: str) -> None:
    (file,) = rig.baselines.iterdir()
    damage(file)
    option = {
        "current": (),
        "number": ("--benchmark-compare=0001",),
        "path": (f"--benchmark-compare={file}",),
    }
    device = ReplayDevice()
    outcome = rig.run(*OURS, *option[how], device=device, outputs=False)
    assert outcome.status == 4
    (error,) = outcome.errors
    assert str(file) in error
    assert "nox -s baseline" in error
    assert device.attempts == {}


@DAMAGES
def test_damaged_baseline_does_not_keep_one_from_measuring_again(
    rig: Rig, damage: Callable[[Path], None]
) -> None:
    damage(next(rig.baselines.iterdir()))
    assert rig.run(*OURS, "--baseline-run").status == 0
    assert rig.run("--collect-only", outputs=False).status == 0


def test_baseline_of_another_gpu_is_refused(rig: Rig) -> None:
    (file,) = rig.baselines.iterdir()
    device: Any = ReplayDevice(gpu="NVIDIA H300")
    outcome = rig.run(*OURS, f"--benchmark-compare={file}", device=device, outputs=False)
    assert outcome.status == 4
    (error,) = outcome.errors
    assert "the baseline of NVIDIA H200, but this GPU is NVIDIA H300" in error
    assert device.attempts == {}


def test_baseline_of_another_gpu_under_this_one_s_name_is_refused(rig: Rig) -> None:
    rig.baselines.rename(rig.baselines.with_name("nvidia-h300"))
    outcome = rig.run(*OURS, device=ReplayDevice(gpu="NVIDIA H300"), outputs=False)
    assert outcome.status == 4
    assert "the baseline of NVIDIA H200, but this GPU is NVIDIA H300" in outcome.errors[0]


def test_baseline_that_cannot_be_read_is_refused(rig: Rig) -> None:
    (file,) = rig.baselines.iterdir()
    file.unlink()
    file.mkdir()
    assert str(file) in rig.run(*OURS, outputs=False).errors[0]
