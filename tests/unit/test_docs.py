"""What the documentation names is there, and what users meet is in the documentation."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_files_and_folders_of_the_architecture_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    names = set(re.findall(r"`([\w/]+(?:\.py|\.cu|/))`", text))
    assert len(names) > 10
    there = [
        p.relative_to(ROOT).as_posix()
        for top in ("harness", "kernels", "baselines")
        for p in (ROOT / top).rglob("*")
    ]
    there += ["harness", "kernels", "baselines"]
    assert [n for n in sorted(names) if not any(f"/{p}".endswith(f"/{n.rstrip('/')}") for p in there)] == []


def _codes(file: str) -> set[str]:
    """The words in capitals that a module holds as texts: kinds of verdicts, reasons, codes of errors."""
    tree = ast.parse((ROOT / "harness" / file).read_text(encoding="utf-8"))
    texts = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    return {text for text in texts if re.fullmatch(r"[A-Z][A-Z0-9_]{2,}[A-Z]", text)}


_TELLING = [f"verdicts/{name}.py" for name in ("vocabulary", "judge", "paired")]
_TELLING += [f"devices/cuda/{name}.py" for name in ("client", "worker")]


@pytest.mark.parametrize("file", _TELLING)
def test_every_verdict_reason_and_error_is_explained(file: str) -> None:
    codes = _codes(file)
    assert len(codes) >= 4
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert sorted(codes - set(re.findall(r"[A-Z][A-Z0-9_]+", text))) == []
