"""What is loaded in the worker's context: kernels, each maybe twice, and the library by dtype."""

from __future__ import annotations

from gemm_regression.devices.cuda.library import Library
from gemm_regression.devices.cuda.modules import Loaded, load
from gemm_regression.devices.cuda.protocol import Build
from gemm_regression.model import DType


class Kernels:
    """By build. Raises DeviceError for what cannot be compiled or loaded."""

    def __init__(self) -> None:
        self._loaded: dict[tuple[Build, str], Loaded] = {}
        self._libraries: dict[DType, Library] = {}

    def get(self, build: Build, dtype: DType, slot: str = "") -> Loaded | Library:
        """What to launch: a kernel, or the library."""
        return self.library(dtype) if build.source is None else self.load(build, slot)

    def library(self, dtype: DType) -> Library:
        if dtype not in self._libraries:
            self._libraries[dtype] = Library(dtype)
        return self._libraries[dtype]

    def load(self, build: Build, slot: str = "") -> Loaded:
        """The build in this context; in another slot, a copy of its own."""
        if (build, slot) not in self._loaded:
            self._loaded[build, slot] = load(build)
        return self._loaded[build, slot]
