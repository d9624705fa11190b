"""A checkout of the suite for each test that runs it, with a baseline made of five recorded runs."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gemm_regression.baselines import append, load_run, merge_runs
from ptxsan import native
from tests.gemm_regression.judge.replay import ReplayDevice
from tests.gemm_regression.rig import EVERY_KERNEL, Printed, Rig
from tests.gemm_regression.samples import select


@pytest.fixture(scope="session")
def recorded_baseline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of baselines that the suite itself makes of five recorded runs."""
    rig = Rig(tmp_path_factory.mktemp("recorded") / "checkout")
    runs = []
    for number in range(5):
        outcome = rig.run("--baseline-run", *EVERY_KERNEL, device=ReplayDevice(number))
        assert outcome.status == 0, outcome.text
        runs.append((rig.root / "out.json").rename(rig.root / f"run_{number}.json"))
    device, root = ReplayDevice(), rig.root / "baselines"
    measured = merge_runs([load_run(run) for run in runs])
    cases = {case.id: case for case in select("smoke").timed}
    kept = {case: binary for case in measured.entries if (binary := device.binary(cases[case]))}
    append(root, measured, kept)
    return root


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Printed:
    return Printed(capsys)


@pytest.fixture
def empty_rig(tmp_path: Path) -> Rig:
    """A checkout without a baseline."""
    return Rig(tmp_path / "checkout")


@pytest.fixture
def rig(empty_rig: Rig, recorded_baseline: Path) -> Rig:
    """A checkout with the baseline of the recorded GPU."""
    shutil.copytree(recorded_baseline, empty_rig.root / "baselines")
    return empty_rig


@pytest.fixture(scope="session")
def keep_library() -> Callable[[Path], None]:
    """Puts the interpreter's C code, as compiled, into a new cache: eight seconds, and not what is tested."""
    made = native._built()[0] if native.library() else None

    def keep(cache: Path) -> None:
        cache.mkdir(exist_ok=True)
        if made:
            shutil.copy(made, cache)

    return keep


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a compiler's cache of the test's own, which is not there yet."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("GEMM_CACHE_DIR", str(folder))
    return folder
