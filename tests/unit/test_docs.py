"""What the documentation names is there."""

from __future__ import annotations

import re
from pathlib import Path

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
