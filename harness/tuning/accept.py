"""Writes a config into the declarations: one more element of a kernel's ``configs``."""

from __future__ import annotations

import ast

from harness.files import write_whole
from harness.model import Config
from harness.project.loader import Project, ProjectError, load

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
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line.encode()))
    data = text.encode()
    begin, end = (
        starts[line - 1] + column
        for line, column in (
            (value.lineno, value.col_offset),
            (value.end_lineno or 0, value.end_col_offset or 0),
        )
    )
    written = data[begin:end].decode()
    indent = " " * (len(lines[value.lineno - 1]) - len(lines[value.lineno - 1].lstrip()))
    if isinstance(value, ast.Tuple) and written.endswith(")"):
        inner = written[1:-1].strip().rstrip(",")
    else:
        inner = f"*{written}"
    inner = "\n".join(inner.splitlines())
    more = _literal(config, indent + "    ")
    made = f"(\n{indent}    {inner},\n{indent}    {more},\n{indent})"
    return (data[:begin] + made.encode() + data[end:]).decode()


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
