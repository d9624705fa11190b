"""``cache``, and ``check --watch``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gemm_regression.cli import cache, init, watch
from gemm_regression.project.loader import load
from tests.gemm_regression.rig import Printed
from tests.ladder import PROJECT, importing


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with files of each kind; those of a folder are ten days old."""
    monkeypatch.setenv("GEMM_CACHE_DIR", str(tmp_path / "kept"))
    for name, size in {"a.zip": 3_000_000, "ptx-1.so": 100_000, "sources/1/a.cu": 80_000, "x.tmp": 0}.items():
        file = tmp_path / "kept" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(bytes(size))
        if "/" in name:
            os.utime(file, (time.time() - 864_000,) * 2)
    return tmp_path / "kept"


def test_what_is_kept_is_told_by_kind(kept: Path, printed: Printed) -> None:
    assert cache.main([]) == 0
    lines = [line.split("  ") for line in printed.out.splitlines()]
    assert "".join(lines[0]) == f"{kept}: 3.2 MB in 4 files"
    told = [[cell.strip() for cell in line if cell.strip()] for line in lines[1:]]
    assert told == [
        ["compiled kernels and passed tests", "1", "3.0 MB"],
        ["the interpreter's compiled code", "1", "0.1 MB"],
        ["copies of sources", "1", "0.1 MB"],
        ["other files", "1", "0.0 MB"],
    ]


def test_what_is_old_or_all_of_it_is_removed(kept: Path, printed: Printed) -> None:
    assert cache.main(["clear", "--older", "9"]) == 0
    assert printed.out == f"removed 1 file, 0.1 MB, from {kept}\n"
    assert sorted(path.name for path in kept.rglob("*")) == ["a.zip", "ptx-1.so", "x.tmp"]
    assert cache.main(["clear"]) == 0
    assert list(kept.iterdir()) == []
    assert cache.main(["clear", "--older", "-1"]) == 2
    assert printed.err == "error: --older -1: must not be below 0\n"


def test_no_cache_is_an_empty_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: Printed) -> None:
    monkeypatch.setenv("GEMM_CACHE_DIR", str(tmp_path / "none"))
    assert cache.main([]) == cache.main(["clear"]) == 0
    assert f"{tmp_path / 'none'}: 0.0 MB in 0 files\n" in printed.out


def test_a_run_follows_each_change_and_ctrl_c_ends_with_the_last_status(printed: Printed) -> None:
    states = iter([{"a": (1, 1)}, {"a": (1, 1)}, {"a": (2, 1), "b": (1, 1)}, {"a": (2, 1), "b": (1, 1)}])
    statuses, slept = iter([0, 1]), list[float]()

    def look() -> watch.State:
        try:
            return next(states)
        except StopIteration:
            raise KeyboardInterrupt from None

    assert watch.watch(lambda: next(statuses), look, slept.append) == 1
    assert len(slept) == 2
    assert printed.out.splitlines() == [
        "watching 1 file; Ctrl-C ends",
        "changed: a, b",
        "watching 2 files; Ctrl-C ends",
    ]


def test_what_is_watched_is_what_a_project_is_made_of(tmp_path: Path) -> None:
    assert init.main(["--project", str(tmp_path)]) == 0
    for name in ("kernels/more/x.cuh", "kernels/.hidden/x.cu", "kernels/notes.txt", "other/x.cu"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    found = watch.state(watch.folders(load(tmp_path)))
    names = {Path(name).relative_to(tmp_path).as_posix() for name in found}
    tests = {f"tests/test_{name}.py" for name in ("kernels", "performance", "static")}
    assert names == {"kernels/__init__.py", "kernels/sgemm.cu", "kernels/more/x.cuh", *tests}
    assert watch.folders(PROJECT)


@pytest.mark.compile
def test_a_check_watches_until_it_is_stopped(tmp_path: Path) -> None:
    """A mistake that is saved is found, and its mend passes."""
    assert init.main(["--project", str(tmp_path)]) == 0
    source = tmp_path / "kernels" / "sgemm.cu"
    right = source.read_text()
    heeds = (
        "import signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it\n"
        "from gemm_regression.__main__ import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    words = [sys.executable, "-c", heeds, "check", "--watch", "-n", "0", "-k", "tile16-1x1x1"]
    with subprocess.Popen(
        words,
        cwd=tmp_path,
        env=importing(PROJECT.root / "harness"),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as running:
        assert running.stdout

        def until_it_waits() -> str:
            assert running.stdout
            said = []
            for line in running.stdout:
                said.append(line)
                if line.startswith("watching"):
                    return "".join(said)
            raise AssertionError("".join(said))

        try:
            assert "1 PASS" in until_it_waits()
            source.write_text(right.replace("= alpha * sum", "= 2 * alpha * sum"))
            assert "1 WRONG" in until_it_waits()
            source.write_text(right)
            told = until_it_waits()
            assert "changed: kernels/sgemm.cu" in told
            assert "1 PASS" in told
            os.killpg(running.pid, signal.SIGINT)
            assert running.wait(20) == 0
        finally:
            running.kill()
