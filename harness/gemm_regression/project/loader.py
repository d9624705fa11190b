"""A project: a root folder with declarations, suites and baselines; and the one loader for all of these.

It loads the suite's own kernels, a user's repository, the base commit of a comparison, and plain folders. The
declarations are a Python package or file that defines ``KERNELS`` and, if it needs suites other than the
default ones, ``SUITES``.
"""

from __future__ import annotations

import contextlib
import importlib.util
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from inspect import signature
from itertools import count
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from gemm_regression.model import BlockShape, Config, DType, Kernel, Problem, TensorMap
from gemm_regression.model.parameters import arguments
from gemm_regression.project.suites import SUITES, Suite
from gemm_regression.project.table import ProjectError, Table, find, read

_INSTALLED = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))


class SourceLoader(SourceFileLoader):
    """Neither reads bytecode nor writes it."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin is None or spec.origin.startswith(_INSTALLED):
            return spec
        if type(spec.loader) is SourceFileLoader:
            spec.loader = SourceLoader(fullname, spec.origin)
        return spec


@contextlib.contextmanager
def sources_alone() -> Iterator[None]:
    """Meanwhile whatever is neither Python's own nor installed is imported so."""
    finder = _Finder()
    sys.meta_path.insert(sys.meta_path.index(PathFinder) if PathFinder in sys.meta_path else 0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


__all__ = ["Project", "ProjectError", "find", "load", "load_kernels"]

_NUMBERS = count()
_NAME = re.compile(r"\w+")


@dataclass(frozen=True)
class Project:
    """``root``: the folder with the table; ``kernels``: in the order of their declaration; ``declarations``:
    the file that declares them; ``suites``: by name; ``table``: its folders; ``baselines``: the folder of
    stored measurements; ``tests``: the folder of the test files."""

    root: Path
    kernels: tuple[Kernel, ...]
    declarations: Path
    suites: Mapping[str, Suite] = field(default_factory=lambda: SUITES)
    table: Table = field(default_factory=Table)

    @property
    def name(self) -> str:
        return self.root.name

    @property
    def baselines(self) -> Path:
        return self.root / self.table.baselines

    @property
    def tests(self) -> Path:
        return self.root / self.table.tests

    @property
    def static(self) -> Path:
        """The folder of the stored compiler metrics and memory counters."""
        return self.baselines / "static"


def load(root: Path, table: Table | None = None) -> Project:
    """The project in a folder, with its own table unless one is given.

    Raises ProjectError, one line with file and kernel, if something cannot be read, imported or launched.
    """
    root = root.resolve()
    found = table or read(root)
    if found is None:
        raise ProjectError(f"{root} is not a project: its pyproject.toml has no table [tool.gemm-regression]")
    kernels, suites, file = load_kernels(root, found.kernels)
    return Project(root, kernels, file, suites, found)


def load_kernels(root: Path, path: str) -> tuple[tuple[Kernel, ...], Mapping[str, Suite], Path]:
    """Kernels, suites and the declaring file, from a package folder or .py file in ``root``. Raises
    ProjectError."""
    file = root / path if path.endswith(".py") else root / path / "__init__.py"
    if not file.is_file():
        raise ProjectError(f"{root} has no {file.relative_to(root)}, which must declare its kernels")
    shown = str(file.relative_to(root))
    module = _imported(file, shown)
    kernels = tuple(_resolved(kernel, file, shown) for kernel in _kernels(module, shown))
    names = [kernel.name for kernel in kernels]
    for name in names:
        if names.count(name) > 1:
            raise ProjectError(f"{shown}: two kernels are named {name!r}")
    return kernels, _suites(module, shown), file


def _imported(file: Path, shown: str) -> ModuleType:
    """The declarations, run in a temporary namespace of their own."""
    name = f"_gemm_declarations_{next(_NUMBERS)}"
    package = [str(file.parent)] if file.name == "__init__.py" else None
    spec = importlib.util.spec_from_file_location(
        name, file, loader=SourceLoader(name, str(file)), submodule_search_locations=package
    )
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        with sources_alone():
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a user's file may raise anything
        raise ProjectError(f"{_place(error, file, shown)}: {type(error).__name__}: {_line(error)}") from None
    finally:
        for loaded in [m for m in sys.modules if m == name or m.startswith(f"{name}.")]:
            del sys.modules[loaded]
    return module


def _place(error: BaseException, file: Path, shown: str) -> str:
    """The line of the declarations where the error occurred."""
    if isinstance(error, SyntaxError) and error.filename == str(file):
        return f"{shown}:{error.lineno}"
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(file)]
    return f"{shown}:{lines[-1]}" if lines else shown


def _line(error: BaseException) -> str:
    said = error.msg if isinstance(error, SyntaxError) else str(error)
    return " ".join(said.split())


def _kernels(module: ModuleType, shown: str) -> Iterator[Kernel]:
    found = getattr(module, "KERNELS", None)
    if not isinstance(found, tuple | list) or not found:
        raise ProjectError(f"{shown}: it must define KERNELS, a tuple of Kernel(...)")
    for number, kernel in enumerate(found, 1):
        if not isinstance(kernel, Kernel):
            raise ProjectError(
                f"{shown}: KERNELS: number {number} is of type {type(kernel).__name__}, not Kernel"
            )
        yield kernel


def _resolved(kernel: Kernel, file: Path, shown: str) -> Kernel:
    """The validated kernel, with absolute paths."""
    folder = file.parent
    reason = _fault(kernel)
    if not reason and kernel.source is not None and not (folder / kernel.source).is_file():
        reason = f"the source file {kernel.source} does not exist"
    include = tuple(folder / path for path in kernel.include) if not reason else ()
    if missing := [path for path in include if not path.is_dir()]:
        reason = f"the include folder {missing[0]} does not exist"
    if reason:
        raise ProjectError(f"{shown}: kernel {kernel.name!r}: {reason}")
    source = kernel.source and folder / kernel.source
    return replace(kernel, source=source, include=include)


def _fault(kernel: Kernel) -> str:
    """What is wrong with a declaration; empty if nothing is wrong."""
    return next(filter(None, _faults(kernel)), "")


def _faults(kernel: Kernel) -> Iterator[str]:
    if not isinstance(kernel.name, str) or not _NAME.fullmatch(kernel.name):
        yield "its name must consist of letters, digits and _"
    if kernel.source is not None and not isinstance(kernel.source, Path):
        yield f"source is of type {type(kernel.source).__name__}, not a path"
    yield _all_are(kernel.dtypes, DType, "dtypes", "F32")
    yield _all_are(kernel.configs, Config, "configs", "Config(TILE=32)")
    yield _all_are(kernel.declared, Config, "advised", "Config(TILE=32)")
    for configs in (kernel.configs, kernel.advised, kernel.declared):
        labels = [config.label for config in configs]
        if twice := next((label for label in labels if labels.count(label) > 1), None):
            yield f"two configs have the label {twice}"
    if twice := next((d.name for d in kernel.dtypes if kernel.dtypes.count(d) > 1), None):
        yield f"dtype {twice} is listed twice"
    for name in ("include", "features", "flags"):
        if not isinstance(getattr(kernel, name), tuple):
            yield f"{name} is not a tuple: write ({getattr(kernel, name)!r},)"
    if kernel.compiled and kernel.is_dispatcher:
        yield "it chooses among the other kernels, so it has no source"
    if not kernel.compiled:
        return
    try:
        kernel.signature  # noqa: B018
    except ValueError as error:
        yield f"parameters: {error}"
    for name, example in (("shape", "BlockShape(...)"), ("maps", '{"A": TensorMap(...)}')):
        yield _two_parameters(getattr(kernel, name), name, example)
    for dtype in kernel.dtypes:
        for config in kernel.declared:
            try:
                if not isinstance(shape := kernel.shape_of(config, dtype), BlockShape):
                    yield f"shape returns {type(shape).__name__}, not BlockShape"
                kernel.entry_of(config, dtype)
            except Exception as error:
                yield f"shape of config {config.label!r}: {type(error).__name__}: {_line(error)}"
            yield _map_fault(kernel, config, dtype)


def _two_parameters(declared: object, name: str, example: str) -> str:
    """What is wrong with how a function of a config and a dtype is called; empty for what is none."""
    if not callable(declared):
        return ""
    try:
        signature(declared).bind(None, None)
    except ValueError:
        return ""  # of a builtin that does not tell
    except TypeError:
        takes = str(signature(declared))
        return f"{name} takes {takes}, not (config, dtype): write {name}=lambda config, dtype: {example}"
    return ""


def _map_fault(kernel: Kernel, config: Config, dtype: DType) -> str:
    where = f"maps of config {config.label!r}, {dtype}"
    try:
        if not isinstance(maps := kernel.maps_of(config, dtype), Mapping):
            return f"{where}: {type(maps).__name__}, not a dict of TensorMap by operand"
        if wrong := next((name for name, each in maps.items() if not isinstance(each, TensorMap)), None):
            return f"{where}: {wrong!r} is of type {type(maps[wrong]).__name__}, not TensorMap"
        arguments(kernel.signature, kernel.operation, Problem(1, 1, 1), dtype, maps)
    except Exception as error:
        return f"{where}: {f'{type(error).__name__}: ' * (type(error) is not ValueError)}{_line(error)}"
    return ""


def _all_are(values: Any, kind: type, name: str, example: str) -> str:
    if isinstance(values, tuple) and values and all(isinstance(value, kind) for value in values):
        return ""
    return f"{name} must be a tuple such as ({example},)"


def _suites(module: ModuleType, shown: str) -> Mapping[str, Suite]:
    """The default suites, overridden by the declared ones."""
    found = getattr(module, "SUITES", ())
    suites = list(found.values() if isinstance(found, Mapping) else found if _iterable(found) else [found])
    if wrong := next((suite for suite in suites if not isinstance(suite, Suite)), None):
        raise ProjectError(f"{shown}: SUITES: {wrong!r} is not a Suite")
    return {**SUITES, **{suite.name: suite for suite in suites}}


def _iterable(found: object) -> bool:
    return isinstance(found, Iterable)
