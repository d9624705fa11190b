"""Versions of the software that a measurement rests on. No host name, no user, no path."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

from harness.toolchain import ToolchainError, find_nvcc

_PACKAGES = ("pycuda", "numpy", "pytest", "pytest-benchmark", "nvmath-python")


def nvcc_version() -> str:
    """``13.0.88``, or ``none``."""
    try:
        return find_nvcc().version
    except ToolchainError:
        return "none"


def software_versions() -> dict[str, str]:
    """Compiler, Python and the packages that touch the GPU or the samples."""
    found = {"nvcc": nvcc_version(), "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name.replace("-", "_")] = version(name)
        except PackageNotFoundError:
            continue
    return found
