"""A stage of the ladder can be renamed: tests use declarations of their own, or those that there are."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.ladder import LADDER, PROJECT

ROOT = PROJECT.root


def test_with_every_stage_renamed_the_tests_are_collected(tmp_path: Path) -> None:
    ignored = {".git", ".nox", ".venv", "tests", "kernels"}
    for path in ROOT.iterdir():
        if path.name not in ignored:
            (tmp_path / path.name).symlink_to(path)
    for name in ("kernels", "tests"):
        subprocess.run(["cp", "-r", str(ROOT / name), str(tmp_path / name)], check=True)
    for file in (tmp_path / "kernels").glob("*.py"):
        text = file.read_text(encoding="utf-8")
        for kernel in LADDER:
            text = re.sub(rf'"{kernel.name}"', f'"renamed_{kernel.name}"', text)
        file.write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    command += ["tests", "--ignore=tests/browser", "--assert=plain"]  # none runs
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert "[renamed_" in done.stdout
