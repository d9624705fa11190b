"""``python -m tests.reference [--check]``: writes docs/results/ptxsan.md, the public names of ptxsan with
their signatures and docstrings. Exit status: 0 up to date or updated, 1 out of date."""

from __future__ import annotations

import argparse
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ptxsan
from ptxsan.testing import Launcher

FILE = Path(__file__).parents[1] / "docs" / "results" / "ptxsan.md"
_HEAD = """\
# The API of ptxsan

<!-- Made by `python -m tests.reference`: do not edit. -->

What `import ptxsan` has, and what the fixture `ptxsan` of pytest gives. [The package's
page](../../harness/ptxsan/README.md) begins with examples. Names that are not listed here serve the suite,
and may change without notice.
"""
_MADE = (
    "run",
    "load",
    "to_device",
    "device_array",
    "Empty",
    "Tiled",
    "Im2col",
    "Texture",
    "Surface",
    "Stream",
    "Event",
    "synchronize",
)  # by the user, who calls them
_MET = ("Module", "Kernel", "Launch", "LaunchResult", "Hazard", "Tally", "GlobalAccess", "SharedAccess")
_RAISED = ("PtxError", "LaunchError")


def page() -> str:
    parts = [_HEAD]
    for name in (*_MADE, *_MET, "DeviceArray", *_RAISED):
        parts += _section(name, getattr(ptxsan, name))
    parts += _section("Launcher", Launcher, "the fixture ptxsan")
    return "\n".join(parts)


def _section(name: str, what: Any, title: str = "") -> Iterator[str]:
    yield f"## {title or f'ptxsan.{name}'}\n"
    if name in _MADE:
        yield f"```python\n{_signature(name, what)}\n```\n"
    yield f"{_text(what)}\n"
    if name in (*_MET, "DeviceArray", "Stream", "Event", "Launcher"):
        for member, of in vars(what).items():
            of = of.fget if isinstance(of, property) else getattr(of, "__func__", of)
            if inspect.isfunction(of) and _text(of) and (member == "__call__" or not member.startswith("_")):
                yield f"- `{_signature(member, of)}`: {' '.join(_text(of).split())}"
        yield ""


def _signature(name: str, what: Any) -> str:
    try:
        found = str(inspect.signature(what))
    except ValueError:
        return name
    found = re.sub(r"<class '([\w.]+)'>", r"\1", found).replace(" -> None", "")
    found = re.sub(r"(: |-> )'([^']*)'", r"\1\2", found)  # annotations, which are text here
    return f"{name}{re.sub(r'[(]self(, )?', '(', found)}"


def _text(what: Any) -> str:
    return textwrap.dedent(inspect.getdoc(what) or "")


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.reference", description="Writes the API's page.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 if it is stale")
    given, text = parser.parse_args(words), page()
    if FILE.is_file() and FILE.read_text(encoding="utf-8") == text:
        return 0
    if given.check:
        print("error: is out of date", file=sys.stderr)
        return 1
    FILE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
