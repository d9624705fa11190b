"""Versions of the software used for a measurement. No host name, no user name, no paths."""

from __future__ import annotations

import contextlib
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from gemm_regression.compiler.tools import ToolchainError, find_nvcc
from gemm_regression.devices import DeviceError, Gpu
from gemm_regression.timing.plan import TIMING

if TYPE_CHECKING:
    from gemm_regression.devices.cuda.environment import GpuInfo

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
        with contextlib.suppress(PackageNotFoundError):
            found[name.replace("-", "_")] = version(name)
    return found


def machine_info(gpu: GpuInfo) -> dict[str, Any]:
    """The GPU, its settings, the versions of the software, and how it is timed."""
    return {**gpu.as_dict(), **software_versions(), "timing": TIMING}


def machine_of(gpu: Gpu) -> dict[str, Any]:
    """The same of an open GPU, with the versions that only its worker knows, where it still answers."""
    facts: dict[str, Any] = {}
    with contextlib.suppress(DeviceError):  # a case has reported this already; keep the samples
        facts = gpu.facts()
    return {**machine_info(gpu.info), **facts}
