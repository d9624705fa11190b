"""Imports from sources alone, as they are now: Python knows the bytecode that it keeps of a file by its size
and the second of its last change, so that an edit may go unseen."""

from __future__ import annotations

import contextlib
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType

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
