"""``nox -s lab -- lines``: counts the lines of code, and checks their limits.

A line of code has a token of Python that belongs to no comment and no docstring. ``[tool.lines]`` in
pyproject.toml has the limit of each part. Lower the limits with the code; ``later`` has the targets.

Exit status: 0; 1 if a count is above its limit.
"""

from __future__ import annotations

import argparse
import ast
import io
import sys
import tokenize
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

# Nothing but Python's own: lint runs this where nothing else is installed.

ROOT = Path(__file__).parents[2]
PARTS = {
    "ptxsan": "harness/ptxsan",
    "gemm_regression": "harness/gemm_regression",
    "lab": "harness/lab",
    "tests": "tests",
}
UNITS = {"code": "lines of code", "modules": "modules", "longest": "longest module"}
_NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
}


def code_lines(source: str) -> int:
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            found.update(range(token.start[0], token.end[0] + 1))
    return len(found - set(_docstrings(ast.parse(source))))


def _docstrings(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        match node:
            case (
                ast.Module(body=[ast.Expr(value=ast.Constant(value=str())) as first, *_])
                | ast.ClassDef(body=[ast.Expr(value=ast.Constant(value=str())) as first, *_])
                | ast.FunctionDef(body=[ast.Expr(value=ast.Constant(value=str())) as first, *_])
                | ast.AsyncFunctionDef(body=[ast.Expr(value=ast.Constant(value=str())) as first, *_])
            ):
                yield from range(first.lineno, (first.end_lineno or first.lineno) + 1)


def counted(folder: Path) -> dict[str, tuple[int, str]]:
    """Each count of a part, and the module that it is about, if it is about one."""
    paths = [path for path in folder.rglob("*.py") if "build" not in path.relative_to(folder).parts]
    code = {path: code_lines(path.read_text(encoding="utf-8")) for path in paths}
    longest = max(code, key=code.__getitem__)
    return {
        "code": (sum(code.values()), ""),
        "modules": (len(code), ""),
        "longest": (code[longest], longest.relative_to(folder).as_posix()),
    }


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(
        prog="nox -s lab -- lines",
        description=(__doc__ or "").partition("``: ")[2].replace("``", "`"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.parse_args(arguments)
    limits = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["lines"]
    above = []
    for name, folder in PARTS.items():
        told = []
        for what, (found, module) in counted(root / folder).items():
            told.append(f"{UNITS[what]} {found:,} of {limits[name][what]:,}" + f" ({module})" * bool(module))
            if found > limits[name][what]:
                above.append(f"{name}: {told[-1]}")
        print(f"{name:<16} {', '.join(told)}")
    print(f"later: {', '.join(f'{name} {number:,}' for name, number in limits['later'].items())}")
    for line in above:
        print(f"error: {line}: take it away elsewhere, or say why in the limits' commit", file=sys.stderr)
    return int(bool(above))
