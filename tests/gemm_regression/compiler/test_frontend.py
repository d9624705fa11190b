"""What the adapters of other compilers share."""

from __future__ import annotations

import os
import py_compile
import sys
from pathlib import Path

import pytest

from gemm_regression.compiler.frontend import _module, functions_of


def test_an_edit_of_the_same_size_and_second_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own bytecode would be taken for that of the file."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    source = tmp_path / "mine.py"
    source.write_text("TILE = 32\n")
    os.utime(source, (1e9, 1e9))
    py_compile.compile(str(source), doraise=True)
    source.write_text("TILE = 16\n")
    os.utime(source, (1e9, 1e9))
    assert functions_of(source)["TILE"] == 16


def test_nothing_is_written_beside_a_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    (tmp_path / "mine.py").write_text("TILE = 32\n")
    functions_of(tmp_path / "mine.py")
    assert os.listdir(tmp_path) == ["mine.py"]


@pytest.fixture(autouse=True)
def _forgotten() -> None:
    _module.cache_clear()
