"""The scripts of ptxsan's page, with the compilers that they use: what they print is what the page says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.frontends.rig import nvrtc_there

PAGE = Path(__file__).parents[2] / "harness" / "ptxsan" / "README.md"
SCRIPT = r"`(\w+\.py)`[^`](?:(?!\n## ).)*?```python\n(.*?)```\n\n```text\n(.*?)```"
SCRIPTS = re.findall(SCRIPT, PAGE.read_text(encoding="utf-8"), re.DOTALL)
NEEDS = {"triton_add.py": "triton", "numba_sum.py": "numba_cuda", "cute_scale.py": "cutlass"}


@pytest.mark.skipif("GEMM_FRONTENDS" not in os.environ, reason="only where all compilers are asked for")
def test_every_compiler_is_there() -> None:
    assert [name for name in NEEDS.values() if not find_spec(name)] == []
    assert nvrtc_there()
    assert shutil.which("clang")


def test_the_page_has_all_four() -> None:
    assert [name for name, _, _ in SCRIPTS] == [*NEEDS, "nvrtc_twice.py"]


@pytest.mark.parametrize(("name", "script", "said"), SCRIPTS, ids=lambda text: text[:12])
def test_a_script(name: str, script: str, said: str, tmp_path: Path) -> None:
    if not (find_spec(NEEDS[name]) if name in NEEDS else nvrtc_there()):
        pytest.skip("its compiler is not installed")
    (tmp_path / name).write_text(script, encoding="utf-8")
    done = subprocess.run([sys.executable, name], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == said, done.stderr
