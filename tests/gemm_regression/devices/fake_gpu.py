"""A PyCUDA made up of functions, for what imports it on a machine without one; and with them a GPU's memory,
and what of probe.cu the checks launch, in NumPy."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gemm_regression.devices.work import Work
from gemm_regression.model import Array

MODULES = ("timing", "timed_data", "checks", "source_module", "library", "modules", "bench")
BASE = 1 << 21  # where the first allocation lies
_KINDS = ("float32", "float16", "bfloat16", "int8", "int32", "int16", "float64")
_PERIOD = 10_007  # of random numbers: fewer are drawn sooner
ROW = "u8, u8, u8, u4, u4, u4, u4"


def numpy_type(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, name))


class Allocation:
    def __init__(self, address: int) -> None:
        self.address = address

    def __int__(self) -> int:
        return self.address

    def free(self) -> None:
        pass


class Function:
    """A kernel of probe.cu, called as PyCUDA has it."""

    def __init__(self, call: Callable[..., None]) -> None:
        self._call = call

    def prepare(self, format: str) -> Function:
        return self

    def prepared_async_call(self, grid: Any, block: Any, stream: Any, *given: Any) -> None:
        self._call(*given)

    def __call__(self, *given: Any, block: Any, grid: Any) -> None:
        self._call(*(int(v) if isinstance(v, Allocation) else v for v in given))


class FakeGpu:
    """Allocations one behind the other, which are never given back."""

    def __init__(self, size: int = 1 << 28) -> None:
        self.bytes, self._free = np.zeros(size, np.uint8), BASE
        self.held = False  # by a gate, behind which nothing may be waited for
        self.copies = 0  # from and to the host

    def at(self, address: int, size: int) -> Array:
        return self.bytes[address - BASE : address - BASE + size]

    def view(self, address: int, dtype: Any, count: int) -> Array:
        dtype = np.dtype(dtype)
        return np.frombuffer(self.bytes.data, dtype, count, int(address) - BASE)

    # pycuda.driver

    def mem_alloc(self, size: int) -> Allocation:
        assert not self.held
        address, self._free = self._free, self._free + -(-size // 256) * 256
        assert self._free - BASE <= self.bytes.size, "the made-up GPU is full"
        return Allocation(address)

    def mem_get_info(self) -> tuple[int, int]:
        return self.bytes.size // 2, self.bytes.size

    def memset_d8(self, to: Any, value: int, count: int) -> None:
        assert not self.held
        self.at(int(to), count)[:] = value

    def memcpy_htod(self, to: int, what: Array) -> None:
        self.copies += 1
        self.at(to, what.nbytes)[:] = what

    def memcpy_dtoh(self, to: Array, address: Any) -> None:
        assert not self.held
        self.copies += 1
        flat = self.view(address, to.dtype, to.size)
        to.reshape(-1)[:] = flat

    def memcpy_dtod_async(self, to: int, source: int, size: int, stream: Any) -> None:
        self.at(to, size)[:] = self.at(source, size)

    def to_device(self, array: Any) -> Allocation:
        made = self.mem_alloc(max(1, array.nbytes))
        self.at(made.address, array.nbytes)[:] = np.frombuffer(memoryview(array).tobytes(), np.uint8)
        return made

    def from_device(self, address: Any, shape: Any, dtype: Any) -> Array:
        count = int(np.prod(shape))
        return self.view(int(address), dtype, count).reshape(shape).copy()

    def Stream(self) -> Any:
        return SimpleNamespace(synchronize=lambda: None)

    # probe.cu

    def get_function(self, name: str) -> Function:
        return Function(getattr(self, name))

    def fill(self, table: int, count: int, shift: int) -> None:
        for to, source, elements, start, period, size, fixed in self.view(table, ROW, count):
            given = self.view(int(source), f"u{size}", int(period))
            places = (np.arange(int(elements)) + int(start) + (0 if fixed else shift)) % int(period)
            self.view(int(to), f"u{size}", int(elements))[:] = given[places]

    def matvec(
        self, x: Any, kind: Any, rows: Any, columns: Any, down: Any, across: Any, stride: Any, v: int, y: int
    ) -> None:
        rows, columns, down, across, stride = map(int, (rows, columns, down, across, stride))
        dtype = numpy_type(_KINDS[int(kind)])
        count = 1
        vector = self.view(v, np.float64, count * columns)
        places = np.arange(rows)[:, None] * down + np.arange(columns) * across
        flat = self.view(int(x), dtype, int(places.max()) + 1)
        self.view(y, np.float64, rows)[:] = flat[places].astype(np.float64) @ vector

    def compare(self, got: Any, want: Any, kind: Any, *given: Any) -> None:
        _, rows, columns, ld, _, tolerance, found = given
        dtype = numpy_type(_KINDS[int(kind)])
        places = (np.arange(int(rows))[:, None] * int(ld) + np.arange(int(columns))).reshape(-1)
        flat = (self.view(int(v), dtype, int(places.max()) + 1) for v in (got, want))
        a, b = (view[places].astype(np.float64) for view in flat)
        wrong = np.flatnonzero(~(np.abs(a - b) <= float(tolerance)))
        result = self.view(found, np.uint64, 2)
        result[0] = wrong.size
        if wrong.size:
            result[1] = places[wrong[0]]


def product(gpu: FakeGpu, work: Work, at: dict[str, int]) -> Array:
    """alpha·A·B + beta·C of a launch, in float64."""
    a, b, c = (matrix(gpu, work, at, name).astype(np.float64) for name in "ABC")
    p = work.problem
    found: Array = p.alpha * (a @ b)
    return found + p.beta * c if p.beta else found


def matrix(gpu: FakeGpu, work: Work, at: dict[str, int], name: str) -> Array:
    """An operand of one matrix, as a view of memory."""
    storage = work.storages[name]
    flat = gpu.view(at[name], storage.dtype, int(np.prod(storage.shape)))
    found: Array = storage.matrices(flat.reshape(storage.shape))[0]
    return found


@contextlib.contextmanager
def made_up_gpu(monkeypatch: pytest.MonkeyPatch, *more: str) -> Iterator[tuple[FakeGpu, Any]]:
    """The GPU, and by name the modules of gemm_regression.devices.cuda that know no other."""
    gpu = FakeGpu()
    names = ["mem_alloc", "mem_get_info", "memset_d8", "memcpy_htod", "memcpy_dtoh", "memcpy_dtod_async"]
    names += ["to_device", "from_device", "Stream"]
    functions: dict[str, Any] = {name: getattr(gpu, name) for name in names}
    functions |= {"Error": type("Error", (Exception,), {})}
    with made_up(monkeypatch, *MODULES, *more, **functions) as modules:
        found = SimpleNamespace(**dict(zip((*MODULES, *more), modules, strict=True)))
        found.timed_data.PERIOD = _PERIOD
        yield gpu, found


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
    full = [f"gemm_regression.devices.cuda.{name}" for name in ("backend", *names)]
    for name in full:
        monkeypatch.delitem(sys.modules, name, raising=False)
    _, *modules = map(importlib.import_module, full)
    yield tuple(modules)
    for name in full:  # Those that know the made-up PyCUDA.
        del sys.modules[name]


def pycuda_compile(source: str, nvcc: str, options: list[str], include_dirs: list[str], **more: Any) -> bytes:
    """As PyCUDA's."""
    options = [*options, "-arch", more["arch"], *(f"-I{folder}" for folder in include_dirs)]
    key = hashlib.md5("".join([source, *options]).encode()).hexdigest()
    kept = Path(more["cache_dir"] or "/nowhere", f"{key}.cubin")
    if kept.is_file():
        return kept.read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "kernel.cu").write_text(source)
        command = [nvcc, "--cubin", *options, "kernel.cu"]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        made = Path(folder, "kernel.cubin").read_bytes()
    if more["cache_dir"]:
        kept.write_bytes(made)
    return made
