"""``nox -s lab -- lines``: how much code there is, and whether it grew.

A line of code has a token of Python that belongs to no comment and no docstring; the longest module is the
file with the most lines of any kind. ``[tool.lines]`` in pyproject.toml has the limits: what each part had
when they were last lowered. Lower them with the code; ``later`` is where they are to end.

Exit status: 0; 1 if a figure is above its limit.
"""

from __future__ import annotations

import argparse
import ast
import io
import sys
import tokenize
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# Nothing but Python's own: lint runs this where nothing else is installed.

ROOT = Path(__file__).parents[2]
PARTS = {
    "ptxsan": "harness/ptxsan",
    "gemm_regression": "harness/gemm_regression",
    "lab": "harness/lab",
    "tests": "tests",
}
_NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
}


@dataclass(frozen=True)
class Module:
    """``path`` from the repository's root; ``code``: its lines of code; ``lines``: all of them."""

    path: str
    code: int
    lines: int


@dataclass(frozen=True)
class Part:
    """A package, or the tests."""

    name: str
    modules: tuple[Module, ...]

    @property
    def longest(self) -> Module:
        return max(self.modules, key=lambda module: module.lines)

    @property
    def figures(self) -> dict[str, int]:
        code = sum(module.code for module in self.modules)
        return {"code": code, "modules": len(self.modules), "longest": self.longest.lines}


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


def counted(root: Path) -> list[Part]:
    """The parts of a repository, in the order of PARTS."""
    parts = []
    for name, folder in PARTS.items():
        modules = []
        for path in sorted((root / folder).rglob("*.py")):
            if "build" not in path.relative_to(root).parts:  # of a wheel
                text = path.read_text(encoding="utf-8")
                shown = path.relative_to(root).as_posix()
                modules.append(Module(shown, code_lines(text), len(text.splitlines())))
        parts.append(Part(name, tuple(modules)))
    return parts


def grown(parts: Sequence[Part], limits: Mapping[str, Mapping[str, int]]) -> list[str]:
    """What is above its limit, a line each."""
    units = {"code": "lines of code", "modules": "modules", "longest": "lines in one module"}
    return [
        f"{part.name}: {found:,} {units[what]}, more than {limits[part.name][what]:,}"
        + f" ({part.longest.path})" * (what == "longest")
        for part in parts
        for what, found in part.figures.items()
        if found > limits[part.name][what]
    ]


def table(parts: Sequence[Part], limits: Mapping[str, Mapping[str, int]]) -> str:
    """Each figure, with what it may be at most."""
    rows = [("", "lines of code", "modules", "longest module", "")]
    for part in parts:
        told = (f"{found:,} of {limits[part.name][what]:,}" for what, found in part.figures.items())
        rows.append((part.name, *told, part.longest.path))  # type: ignore[arg-type]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    later = ", ".join(f"{name} {number:,}" for name, number in limits["later"].items())
    return "\n".join([*lines, f"later: {later}"])


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(
        prog="nox -s lab -- lines",
        description=(__doc__ or "").partition("``: ")[2].replace("``", "`"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.parse_args(arguments)
    limits = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["lines"]
    parts = counted(root)
    print(table(parts, limits))
    for line in (above := grown(parts, limits)):
        print(f"error: {line}; take it away elsewhere, or say why in the limits' commit", file=sys.stderr)
    return 1 if above else 0
