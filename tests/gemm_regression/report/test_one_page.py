"""What a red run prints is a page: how many lines of one dropped barrier, one syntax error, a template's."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemm_regression.cli import init
from gemm_regression.cli.common import SHOWN
from tests.gemm_regression.cli.repo import harness
from tests.gemm_regression.rig import OURS, Rig
from tests.gemm_regression.simulated import SimulatedDevice


def edited(folder: Path, old: str, new: str, workers: int = 0) -> list[str]:
    """The lines of a check of a new project whose kernel was edited."""
    assert init.main(["--project", str(folder)]) == 0
    kernel = folder / "kernels" / "sgemm.cu"
    text = kernel.read_text()
    assert old in text
    kernel.write_text(text.replace(old, new))
    several = ("-n", str(workers), "--dist", "loadgroup" if workers else "no")
    done = harness(folder, "check", *several, "--time-limit", "300")
    assert done.returncode == 1, done.stdout + done.stderr
    # Lines of progress are as many as the machine is slow.
    return [line for line in (done.stdout + done.stderr).splitlines() if not line.startswith("check: ")]


@pytest.mark.compile
def test_a_dropped_barrier(tmp_path: Path) -> None:
    lines = edited(tmp_path, "__syncthreads();  // No thread reads them any more.", "", 2)
    assert len(lines) <= 40, "\n".join(lines)
    first = next(number for number, line in enumerate(lines) if line.startswith("sgemm: race at sgemm.cu:"))
    assert "which other threads read with no barrier between" in lines[first + 1]
    table = next(number for number, line in enumerate(lines) if "2 WRONG" in line)
    assert "race at sgemm.cu:" in next(line for line in lines[table:] if line.startswith("FAILED"))


@pytest.mark.compile
def test_a_syntax_error(tmp_path: Path) -> None:
    lines = edited(tmp_path, "Bs[TILE][TILE];", "Bs[TILE][TILE]")  # and more errors for what follows
    assert len(lines) <= 25, "\n".join(lines)
    assert any('sgemm.cu(12): error: expected a ";"' in line for line in lines)
    (failed,) = [line for line in lines if line.startswith("FAILED")]
    assert failed.endswith("does not compile at sgemm.cu:12")


def test_cases_without_a_baseline(tmp_path_factory: pytest.TempPathFactory) -> None:
    """52 of three problems are 71 lines: a row each, a heading a problem, and 16 more."""
    rig = Rig(tmp_path_factory.mktemp("run"))
    shapes = [f"{256 * m}x256x256" for m in range(1, 10)]
    options = [word for shape in shapes for word in ("--shape", shape)]
    outcome = rig.run(*OURS, *options, *SHOWN, "gpu", device=SimulatedDevice(), suite="full", outputs=False)
    rows = outcome.text.count(" NO_BASELINE\n")
    assert rows >= 52
    lines = [line for line in outcome.text.splitlines() if not line.startswith(("gpu: 0", "gpu: 1"))]
    assert len(lines) - rows - len(shapes) <= 16, outcome.text
    assert outcome.text.count("\nFAILED ") == 1
