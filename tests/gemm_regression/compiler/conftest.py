"""A compiler's cache of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its folder, which is not there yet."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("GEMM_CACHE_DIR", str(folder))
    return folder
