"""What passed without a GPU, kept on disk: kernels of which nothing changed need not run again.

A test is found again under a key of all that its result depends on: the kernel's sources with their headers,
what its case hands to the compiler and to the launch, the stored metrics that it is compared with; the
declarations and whatever Python they import, the project's tests and their configuration; the harness itself,
in Python and C; compiler, Python and installed packages; the run's options. Only passes are kept, with what
their tests recorded, and none of a run during which one of these files changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import sys
import sysconfig
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import gemm_regression
import ptxsan
from gemm_regression.compiler import tools
from gemm_regression.compiler.nvcc import Variant
from gemm_regression.compiler.sources import sources
from gemm_regression.compiler.static import StaticEntry
from gemm_regression.compiler.static import store as figures
from gemm_regression.compiler.static.store import StoreError
from gemm_regression.compiler.tools import CompileError, ToolchainError
from gemm_regression.compiler.units import compile_options
from gemm_regression.counters import check as counters
from gemm_regression.counters.check import CounterEntry
from gemm_regression.model import Case, Kernel
from gemm_regression.project.loader import Project
from gemm_regression.run.paths import PathsEntry
from ptxsan.native import alone, identity

Records = list[tuple[str, Any]]  # what a test recorded: name and value
_CONFIGURATION = ("pyproject.toml", "pytest.ini", "pytest.toml", "tox.ini", "setup.cfg", "conftest.py")
_SOURCES = frozenset((".cu", ".cubin", ".cuh", ".h", ".hpp", ".hh", ".inl", ".inc"))  # told by each kernel


@dataclass(frozen=True)
class Dependencies:
    """What something depends on: the ``key`` of the contents, and the ``files`` as (path, inode, size,
    nanoseconds of the last change)."""

    key: str
    files: tuple[tuple[str, int, int, int], ...]

    @property
    def changed(self) -> float:
        """When the last of the files was changed, in seconds since the epoch."""
        return max((file[3] for file in self.files), default=0) / 1e9

    def holds(self) -> bool:
        """Whether the files are still those of then."""
        return self.files == tuple(_times(path) for path, *_ in self.files)


class Passed:
    """What is known of a project's kernels for these ``settings`` of a run, the options that decide a
    verdict."""

    def __init__(self, project: Project, settings: Sequence[object]) -> None:
        self._common = _surroundings(project, settings)
        self._kernels = {kernel.name: kernel for kernel in project.kernels}
        states = ((name, _of_kernel(kernel, self._common)) for name, kernel in self._kernels.items())
        self._states = {name: state for name, state in states if state}
        self.keys = {name: state.key for name, state in self._states.items()}
        self.answers: dict[str, Records] = {}
        for state in self._states.values():
            self.answers.update(_load(state))

    def keep(self, passed: Mapping[str, Records], failed: Iterable[str]) -> None:
        """Keeps the records of tests that passed, by key, and forgets those that failed. Nothing is kept
        where a file changed since this process began: one cannot tell what of it has run."""
        failed, kept = set(failed), defaultdict[str, dict[str, Records]](dict)
        steady = self._common.holds() and self._common.changed < gemm_regression.BEGAN
        for key, records in passed.items():
            if steady:
                kept[key.partition(":")[0]][key] = records
        for name in {*kept, *(key.partition(":")[0] for key in failed)}:
            state = self._states[name]
            same = _of_kernel(self._kernels[name], self._common) == state
            _store(state, kept[name] if same else {}, failed)


class Keys:
    """The keys of tests, from those of the kernels' states, the same in each process of a run."""

    def __init__(self, states: Mapping[str, str], project: Project) -> None:
        self._states, self._root = states, project.static
        self._stored: dict[str, Any] = {}

    def of(self, given: object) -> str:
        """Of the test of this parameter: it checks a case or a variant's paths, or compares its compiler
        metrics or memory counters with the stored ones; empty if it cannot be told, or of no test."""
        if isinstance(given, Case):
            variant = given.kernel, given.config, given.dtype
            return self._key("case", variant, given.problem, given.launch, given.arguments)
        if isinstance(given, PathsEntry):
            return self._key("paths", given.variant, [case.problem for case in given.cases])
        if isinstance(given, StaticEntry):
            test, files = "figures", [given.arch]
        elif isinstance(given, CounterEntry):
            test, files = "counts", [counters.ARCH, ""]
        else:
            return ""
        try:
            stored = [self._load(file).get(given.name) for file in files]
        except (StoreError, ToolchainError):
            return ""
        stores = figures.holds_any(self._root)
        return self._key(test, given.variant, files, stored, stores) if given.variant else ""

    def _load(self, file: str) -> Any:
        """The stored metrics of an architecture; without one the stored counters."""
        if file not in self._stored:
            pins, root = tools.pins(), self._root
            stored = figures.load(file, *pins, root) if file else counters.load_counters(pins[0], root)
            self._stored[file] = stored
        return self._stored[file]

    def _key(self, test: str, variant: Variant, *details: object) -> str:
        kernel, config, dtype = variant
        if kernel.name not in self._states:
            return ""
        compiled = compile_options(kernel, config, dtype), kernel.entry_of(config, dtype), dtype
        text = _text(self._states[kernel.name], test, compiled, config, *details)
        return f"{kernel.name}:{hashlib.sha256(text.encode()).hexdigest()}"


def _surroundings(project: Project, settings: Sequence[object]) -> Dependencies:
    """What the results of all kernels depend on."""
    paths = sysconfig.get_paths()
    installed = [Path(paths[name]) for name in ("purelib", "platlib")]
    about = (
        *(sys.version, sys.flags.optimize, platform.platform(), np.__version__, identity()),
        # pip changes a folder when it changes what is in it.
        *(folder.stat().st_mtime_ns for folder in installed if folder.is_dir()),
        *(*tools.flags(), os.environ.get("GEMM_NUMPY", "")),
        *_compilers(),
        *settings,
    )
    return _state(_files(project), project.root, repr(about))


def _compilers() -> Iterator[str]:
    for find in (tools.find_nvcc, tools.pinned_tools):
        try:
            found = find()
            yield repr([tool.version for tool in (found if isinstance(found, tuple) else (found,))])
        except ToolchainError as error:
            yield str(error)


def _files(project: Project) -> set[Path]:
    """The harness, the declarations, what they and pytest's configuration import, and the tests' files."""
    homes = (Path(str(package.__file__)).parent for package in (gemm_regression, ptxsan))
    found = {path for home in homes for path in home.rglob("*")}
    found.add(declared := project.declarations)
    if declared.name == "__init__.py":
        found |= {path for path in declared.parent.rglob("*") if path.suffix not in _SOURCES}
    found |= {*project.tests.glob("*.py")} | {project.root / name for name in _CONFIGURATION}
    # Python writes its bytecode under other names first; editors keep hidden files.
    made = {path for path in found if "__pycache__" in path.parts or path.name.startswith(".")}
    return {path for path in {*(found - made), *_imported()} if path.is_file()}


def _imported() -> Iterator[Path]:
    """The files of the modules of this process, but for those of Python and of installed packages."""
    paths = sysconfig.get_paths()
    python = tuple(os.path.join(paths[name], "") for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        if name == "__main__" or not file or file.startswith(python):
            continue
        if not {"site-packages", "dist-packages"}.intersection(Path(file).parts):
            yield Path(file)


def _of_kernel(kernel: Kernel, common: Dependencies) -> Dependencies | None:
    """The state of a kernel; None for a library call, where a source cannot be read, and of another compiler,
    of which it is not known what it reads."""
    if kernel.frontend:
        return None
    declared = kernel.name, kernel.features, kernel.waived, kernel.parameters, kernel.workspace
    try:
        own = sources(kernel)
        found = _state((), Path(), _text(common.key, own.key, declared), own.paths)
        return found if sources(kernel).key == own.key else None
    except (CompileError, ValueError):
        return None


def _text(*parts: object) -> str:
    """The same in each process: functions without their addresses; their code is in the declarations."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(parts))


def _state(read: Iterable[Path], root: Path, about: str, more: Iterable[Path] = ()) -> Dependencies:
    """Of the contents of the files ``read``, named relative to ``root``, of ``about``, and of the times of
    these and ``more`` files."""
    made, files = hashlib.sha256(about.encode()), sorted(read)
    times = tuple(_times(str(path)) for path in (*files, *more))  # before they are read
    for path in files:
        try:
            content = path.read_bytes()
        except OSError:  # gone meanwhile
            continue
        made.update(f"\0{os.path.relpath(path, root)}\0{len(content)}\0".encode())
        made.update(content)
    return Dependencies(made.hexdigest(), times)


def _times(path: str) -> tuple[str, int, int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return path, 0, 0, 0
    return path, found.st_ino, found.st_size, found.st_ctime_ns


def _load(state: Dependencies) -> dict[str, Records]:
    """What is kept of a kernel in this state; nothing of an entry that is damaged or of something else."""
    found = tools.load_entry(_entry(state))
    try:
        document = json.loads(found[0]) if found else {}
        if document.get("state") != state.key:
            return {}
        return {
            key: [(str(name), value) for name, value in records]
            for key, records in document["passed"].items()
        }
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}


def _store(state: Dependencies, passed: Mapping[str, Records], failed: set[str]) -> None:
    entry = _entry(state)
    with alone(entry):
        known = {key: of for key, of in {**_load(state), **passed}.items() if key not in failed}
        tools.store_entry(entry, json.dumps({"state": state.key, "passed": known}).encode(), "")


def _entry(state: Dependencies) -> Path:
    return tools.cache_entry(["passed", state.key])
