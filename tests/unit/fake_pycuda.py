"""A PyCUDA made up of functions, for what imports it on a machine without one."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest


@contextlib.contextmanager
def made_up(
    monkeypatch: pytest.MonkeyPatch, *names: str, **driver: Callable[..., object]
) -> Iterator[tuple[Any, ...]]:
    """Those modules of gemm_regression.devices.cuda, imported anew with a driver of these functions; the next
    that imports them has the real one again."""
    package: Any = ModuleType("pycuda")
    package.driver, package.compiler = ModuleType("pycuda.driver"), ModuleType("pycuda.compiler")
    vars(package.driver).update(driver)
    for module in (package, package.driver, package.compiler):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    full = [f"gemm_regression.devices.cuda.{name}" for name in names]
    for name in full:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield tuple(map(importlib.import_module, full))
    for name in full:  # Those that know the made-up PyCUDA.
        del sys.modules[name]
