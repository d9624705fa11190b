"""Writes a config into the declarations: one more element of a kernel's ``configs``."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from gemm_regression.files import write_whole
from gemm_regression.model import Config
from gemm_regression.project.loader import Project, ProjectError, load

_WIDTH = 110


class AcceptError(ValueError):
    """The declaration cannot be edited; one line with what to write by hand."""


def accept(project: Project, kernel: str, config: Config) -> str:
    """Adds a config to a kernel's declaration, and says so in one line; one that is there stays as it is.

    The first config, which is timed at every shape, stays the first. Raises AcceptError, the file unchanged,
    if the declaration has a form that cannot be edited, or cannot be loaded afterwards.
    """
    declared = next(each for each in project.kernels if each.name == kernel)
    if config in declared.configs:
        return f"{kernel} declares {config.label} already"
    path = project.declarations
    before = path.read_text(encoding="utf-8")
    after = edited(before, kernel, config)
    write_whole(path, after)
    try:
        found = next(each for each in load(project.root, project.table).kernels if each.name == kernel)
        if found.configs != (*declared.configs, config):
            raise ProjectError("it is not the last of its configs afterwards")
    except ProjectError as error:
        write_whole(path, before)
        raise AcceptError(f"{path.name} left as it was: {error}; {_by_hand(kernel, config)}") from None
    return f"{path.name}: {kernel} declares {config.label} now; `nox -s static -- --refresh -k {kernel}` next"


def edited(text: str, kernel: str, config: Config) -> str:
    """The declarations with one more config. Raises AcceptError."""
    value = _configs(ast.parse(text), kernel, config)
    lines = text.splitlines(keepends=True)
    first = lines[value.lineno - 1]
    indent = " " * (len(first) - len(first.lstrip()))
    begin, end = _place(lines, value.lineno, value.col_offset), _end(lines, value)
    if isinstance(value, ast.Tuple) and value.elts and text[begin] == "(":
        last = _end(lines, value.elts[-1])
        # A comma, or none, and comments.
        rest = text[last : end - 1].lstrip().removeprefix(",").rstrip()
        known = f"{text[begin + 1 : last].strip()},{rest}"
    else:
        known = f"*{text[begin:end]},"
    more = _literal(config, indent + "    ")
    return f"{text[:begin]}(\n{indent}    {known}\n{indent}    {more},\n{indent}){text[end:]}"


def _place(lines: Sequence[str], line: int, column: int) -> int:
    """Where a place of the syntax tree, whose columns are bytes, is in the text."""
    return sum(map(len, lines[: line - 1])) + len(lines[line - 1].encode()[:column].decode())


def _end(lines: Sequence[str], node: ast.expr) -> int:
    return _place(lines, node.end_lineno or 0, node.end_col_offset or 0)


def _configs(tree: ast.Module, kernel: str, config: Config) -> ast.expr:
    """The value of ``configs=`` in the call that declares the kernel."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        name = given.get("name")
        if isinstance(name, ast.Constant) and name.value == kernel and "configs" in given:
            return given["configs"]
    raise AcceptError(f"no call declares name={kernel!r} together with configs=; {_by_hand(kernel, config)}")


def _literal(config: Config, indent: str) -> str:
    parts = [f"{name}={value}" for name, value in config.items()]
    line = f"Config({', '.join(parts)})"
    if len(indent) + len(line) + 1 <= _WIDTH:
        return line
    return "Config(\n" + "".join(f"{indent}    {part},\n" for part in parts) + f"{indent})"


def _by_hand(kernel: str, config: Config) -> str:
    return f"add {config!r} to the configs of {kernel} by hand"
