"""``gemm-regression init``: creates a project in this folder.

Writes a kernel that is correct for all sizes, its declaration, three test files, a noxfile and two workflows,
and appends the project's table to an existing pyproject.toml, and how git merges baselines to .gitattributes.
The noxfile installs what this command itself was installed from, and that is printed.
Exit status: 0; 1 if one of the files already exists, and nothing was written.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from gemm_regression.cli import origin
from gemm_regression.cli.common import about
from gemm_regression.files import write_whole
from gemm_regression.project.table import FILE, TOOL, has_table

# The project's files, and the templates they are written from.
FILES = {
    "kernels/sgemm.cu": "sgemm.cu",
    "kernels/__init__.py": "declarations",
    "tests/test_kernels.py": "test_kernels",
    "tests/test_performance.py": "test_performance",
    "tests/test_static.py": "test_static",
    "noxfile.py": "noxfile",
    ".github/workflows/check.yml": "check.yml",
    ".github/workflows/gpu.yml": "gpu.yml",
}
NEXT = """\
next:  gemm-regression check      check the kernel without a GPU; needs nvcc
       gemm-regression gpu        check and time it on this GPU
       gemm-regression baseline   measure this GPU's baseline, to compare later runs with"""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="gemm-regression init", description=about(__doc__))
    parser.add_argument("--project", type=Path, default=Path(), metavar="PATH", help="default: this folder")
    root = parser.parse_args(arguments).project
    try:
        if has_table(root):
            return _fail(f"{root / FILE} already has the table [tool.{TOOL}]: this is a project")
        if there := [name for name in FILES if (root / name).exists()]:
            return _fail(
                f"{', '.join(there)} already exists and is not overwritten; move it, or use another folder"
            )
        installed, said = _installed()
        for name, template in FILES.items():
            _write(root / name, _template(template).replace("INSTALL = ()", installed))
        _write_table(root / FILE)
        _write_attributes(root / ".gitattributes")
        if not (root / ".gitignore").exists():
            _write(root / ".gitignore", _template("gitignore"))
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}")
    print("\n".join([*said, NEXT]))
    return 0


def _installed() -> tuple[str, list[str]]:
    """What the noxfile installs, as its line of Python; and lines that say so."""
    try:
        found = origin.requirements()
    except origin.UnknownOriginError as error:
        return "INSTALL = ()", [f"to do: fill in INSTALL in noxfile.py: {error}, so nox cannot install it"]
    lines = ["this project installs:", *(f"  {one}" for one in found)]
    if any("file://" in one for one in found):
        lines.append("that is on this machine alone: for others, and for CI, put URLs in noxfile.py")
    return "\n".join(["INSTALL = (", *(f'    "{one}",' for one in found), ")"]), lines


def _template(name: str) -> str:
    return (files("gemm_regression.cli") / "templates" / f"{name}.template").read_text(encoding="utf-8")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text)
    print(f"wrote {os.path.relpath(path)}")


def _write_table(path: Path) -> None:
    """Appends the project's table, and pytest's options if the file has none."""
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    parts = [before.rstrip()] * bool(before.strip()) + [_template("table").rstrip()]
    if "[tool.pytest" not in before:
        parts.append(_template("pytest").rstrip())
    _write(path, "\n\n".join(parts) + "\n")


def _write_attributes(path: Path) -> None:
    """Appends what git is to know of baselines."""
    before = path.read_text(encoding="utf-8").rstrip() if path.exists() else ""
    _write(path, f"{before}\n{_template('gitattributes')}".lstrip())


def _fail(reason: str) -> int:
    print(f"error: {reason}", file=sys.stderr)
    return 1
