"""What each check means: ``ptxsan explain RACE``."""

from __future__ import annotations

import tomllib
from pathlib import Path

CHECKS: dict[str, dict[str, str]] = tomllib.loads(
    Path(__file__).with_name("explanations.toml").read_text(encoding="utf-8")
)


def explain(check: str) -> str:
    """A check by its name, in any case. Raises KeyError for an unknown one."""
    about = CHECKS[check.lower()]
    parts = [f"{check.lower()}\n{about['means'].strip()}"]
    if "wrong" in about:
        parts.append(f"wrong:   {about['wrong'].strip()}\nright:   {about['right'].strip()}")
    return "\n\n".join([*parts, f"To mend it\n{about['mend'].strip()}"])
