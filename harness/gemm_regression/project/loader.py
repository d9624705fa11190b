"""A project: a root folder with declarations, suites and baselines; and the one loader for all of these.

It loads the suite's own kernels, a user's repository, the base commit of a comparison, and plain folders. The
declarations are a Python package or file that defines ``KERNELS`` and, if it needs suites other than the
default ones, ``SUITES``.
"""

from __future__ import annotations

import importlib.util
import re
import sys
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from types import ModuleType

from gemm_regression.files import without_bytecode
from gemm_regression.model import BlockShape, Case, Config, DType, Kernel, Problem
from gemm_regression.project.suites import SUITES, Suite
from gemm_regression.project.table import ProjectError, ProjectTable, find, read

__all__ = ["Project", "ProjectError", "find", "load"]

_NUMBERS = count()


@dataclass(frozen=True)
class Project:
    """``root``: the folder with the table; ``kernels``: in the order of their declaration; ``declarations``:
    the file that declares them; ``suites``: by name; ``table``: its folders; ``baselines``: the folder of
    stored measurements; ``tests``: the folder of the test files."""

    root: Path
    kernels: tuple[Kernel, ...]
    declarations: Path
    suites: Mapping[str, Suite] = field(default_factory=lambda: SUITES)
    table: ProjectTable = field(default_factory=ProjectTable)

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


def load(root: Path, table: ProjectTable | None = None) -> Project:
    """The project in a folder, with its own table unless one is given.

    Raises ProjectError, one line with file and kernel, if something cannot be read, imported or launched.
    """
    root = root.resolve()
    table = table or read(root)
    if table is None:
        raise ProjectError(f"{root} is not a project: its pyproject.toml has no table [tool.gemm-regression]")
    path = table.kernels
    file = root / path if path.endswith(".py") else root / path / "__init__.py"
    shown = str(file.relative_to(root))
    if not file.is_file():
        raise ProjectError(f"{root} has no {shown}, which must declare its kernels")
    module = _imported(file, shown)
    declared, suites = getattr(module, "KERNELS", None), getattr(module, "SUITES", ())
    if not isinstance(declared, tuple | list) or not declared:
        raise ProjectError(f"{shown}: it must define KERNELS, a tuple of Kernel(...)")
    for name, values, kind in (("KERNELS", declared, Kernel), ("SUITES", suites, Suite)):
        if wrong := next((value for value in values if not isinstance(value, kind)), None):
            raise ProjectError(f"{shown}: {name}: {wrong!r} is not a {kind.__name__}")
    kernels = tuple(_resolved(kernel, file.parent, shown) for kernel in declared)
    if twice := _twice(kernel.name for kernel in kernels):
        raise ProjectError(f"{shown}: two kernels are named {twice[0]!r}")
    return Project(root, kernels, file, {**SUITES, **{suite.name: suite for suite in suites}}, table)


def _twice(names: Iterable[str]) -> list[str]:
    """Those of these that are there more than once."""
    return [name for name, count in Counter(names).items() if count > 1]


def _imported(file: Path, shown: str) -> ModuleType:
    """The declarations, run in a temporary namespace of their own."""
    name = f"_gemm_declarations_{next(_NUMBERS)}"
    package = [str(file.parent)] if file.name == "__init__.py" else None
    spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=package)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        with without_bytecode():
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a user's file may raise anything
        if isinstance(error, SyntaxError) and error.filename == str(file):
            lines = [error.lineno]
        else:
            lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(file)]
        place = f"{shown}:{lines[-1]}" if lines else shown
        raise ProjectError(f"{place}: {_told(error)}") from None
    finally:
        for loaded in [m for m in sys.modules if m == name or m.startswith(f"{name}.")]:
            del sys.modules[loaded]
    return module


def _told(error: BaseException) -> str:
    said = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {' '.join(said.split())}"


def _resolved(kernel: Kernel, folder: Path, shown: str) -> Kernel:
    """The validated kernel, with absolute paths. Raises ProjectError."""
    if reason := next(_faults(kernel, folder), ""):
        raise ProjectError(f"{shown}: kernel {kernel.name!r}: {reason}")
    include = tuple(folder / path for path in kernel.include)
    return replace(kernel, source=kernel.source and folder / kernel.source, include=include)


def _pairs(shape: BlockShape) -> Iterator[str]:
    """Which extents of a block are no numbers of what they count."""
    of_tile = ((2,), "(rows, columns)")
    all_of = {"threads": ((2, 3), "(x, y) or (x, y, z)"), "tile": of_tile}
    all_of |= {"thread_tile": of_tile} if shape.thread_tile is not None else {}
    for name, (counts, form) in all_of.items():
        value = getattr(shape, name)
        whole = isinstance(value, tuple | list) and all(isinstance(each, int) for each in value)
        if not whole or len(value) not in counts:
            yield f"{name} is {value!r}: must be {form}, whole numbers"


def _faults(kernel: Kernel, folder: Path) -> Iterator[str]:
    """What is wrong with a declaration; what follows a fault may need that it is not there."""
    if not isinstance(kernel.name, str) or not re.fullmatch(r"\w+", kernel.name):
        yield "its name must consist of letters, digits and _"
    if kernel.source is not None and not isinstance(kernel.source, Path):
        yield f"source is of type {type(kernel.source).__name__}, not a path"
    some = (Config, "Config(TILE=32)")
    examples = {"dtypes": (DType, "F32"), "configs": some, "advised": some}
    for name, (kind, example) in examples.items():
        values = getattr(kernel, name)
        right = isinstance(values, tuple) and all(isinstance(value, kind) for value in values)
        if not right or not (values or name == "advised"):
            yield f"{name} must be a tuple such as ({example},)"
    for configs in (kernel.configs, kernel.advised, kernel.declared):
        if twice := _twice(config.label for config in configs):
            yield f"two configs have the label {twice[0]}"
    if twice := _twice(dtype.name for dtype in kernel.dtypes):
        yield f"dtype {twice[0]} is listed twice"
    for name in ("include", "features", "flags"):
        if not isinstance(getattr(kernel, name), tuple):
            yield f"{name} is not a tuple: write ({getattr(kernel, name)!r},)"
    for path in kernel.include:
        if not (folder / path).is_dir():
            yield f"the include folder {folder / path} does not exist"
    if kernel.compiled and kernel.is_dispatcher:
        yield "it chooses among the other kernels, so it has no source"
    if not kernel.compiled:
        return
    try:
        what = "parameters"
        kernel.signature  # noqa: B018
        for dtype in kernel.dtypes:
            for config in kernel.declared:
                what = f"shape of config {config.label!r}"
                if not isinstance(shape := kernel.shape_of(config, dtype), BlockShape):
                    yield f"shape returns {type(shape).__name__}, not BlockShape"
                yield from (f"{what}: {fault}" for fault in _pairs(shape))
                if min(*shape.block, *shape.tile, shape.batch, shape.split) < 1:
                    given = f"threads {shape.threads}, tile {shape.tile}, batch {shape.batch}"
                    yield f"{what}: {given}, split {shape.split}: each must be 1 or more"
                kernel.entry_of(config, dtype)
                what = f"maps of config {config.label!r}, {dtype}"
                dict(kernel.maps_of(config, dtype))
                what = f"parameters of config {config.label!r}, {dtype}"
                case = Case(kernel, dtype, config, Problem(1, 1, 1))
                case.arguments  # noqa: B018
                pointers = (each for each in kernel.signature if each.means in case.storages)
                faults = (one.element_fault(case.storages[one.means]) for one in pointers)
                yield from (f"parameters, {dtype}: {fault}" for fault in faults if fault)
                if kernel.workspace:
                    what = "workspace, which is asked with (config, dtype, problem)"
                    kernel.workspace.bytes(config, dtype, Problem(1, 1, 1))
                    kernel.workspace.zeroed(config, dtype, Problem(1, 1, 1))
    except Exception as error:  # a user's function may raise anything
        yield f"{what}: {error if type(error) is ValueError else _told(error)}"
    if kernel.source and not (folder / kernel.source).is_file():
        yield f"the source file {kernel.source} does not exist"
