"""The exact check at the timed problem, over a PyCUDA made up of a byte array for a GPU's memory."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harness.devices import Array, DeviceError
from harness.model import Problem
from tests.unit.synthetic import case

PROBLEM = Problem(3, 4, 5)
SIZE = 4 * PROBLEM.m * PROBLEM.ldc
PRODUCT = np.arange(12.0).reshape(3, 4)
UNDER_TEST = ("worker", "memory", "modules", "timing")


class Bench:
    """A worker without a context, and C between two guard bands in its memory."""

    def __init__(self, worker: ModuleType, memory: bytearray, guard: int) -> None:
        self.memory, self.worker, self.start = memory, worker.Worker.__new__(worker.Worker), guard
        self.worker._product = self._product
        self.worker._explain = lambda *_: "wrong"
        at = SimpleNamespace(a=0, b=0, c=guard)
        self.data: Any = SimpleNamespace(problem=PROBLEM, integers=at, guard=(0, guard + SIZE))

    @property
    def c(self) -> Array:
        return np.frombuffer(self.memory, np.float32, 12, self.start).reshape(3, 4)

    def _product(self, matrices: list[Any], x: Array) -> Array:
        product: Array = (self.c if len(matrices) == 1 else PRODUCT) @ x
        return product

    def check(self, kernel: Callable[[], None]) -> None:
        launched = SimpleNamespace(bind=lambda *_: lambda stream: kernel())
        build: Any = SimpleNamespace(name="planted", dtype="f32")
        self.worker._check_exact(build, launched, case().launch, PROBLEM, self.data)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    from harness.devices.cuda.guards import GUARD

    memory = bytearray(2 * GUARD + SIZE)

    def memset(unit: str) -> Callable[[int, int, int], None]:
        def fill(to: int, value: int, count: int) -> None:
            np.frombuffer(memory, unit, count, to)[:] = value

        return fill

    def fetch(to: Array, address: int) -> None:
        to[:] = np.frombuffer(memory, to.dtype, to.size, address)

    driver: Any = ModuleType("pycuda.driver")
    driver.memset_d8, driver.memset_d32, driver.memcpy_dtoh = memset("u1"), memset("u4"), fetch
    driver.Stream = lambda: SimpleNamespace(synchronize=lambda: None)
    package: Any = ModuleType("pycuda")
    package.driver, package.compiler = driver, ModuleType("pycuda.compiler")
    for module in (package, driver, package.compiler):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    for name in UNDER_TEST:
        monkeypatch.delitem(sys.modules, f"harness.devices.cuda.{name}", raising=False)
    worker = importlib.import_module("harness.devices.cuda.worker")
    yield Bench(worker, memory, GUARD)
    for name in UNDER_TEST:  # Those that know the made-up PyCUDA.
        del sys.modules[f"harness.devices.cuda.{name}"]


def test_right_output_passes(bench: Bench) -> None:
    bench.check(lambda: np.copyto(bench.c, PRODUCT))


def test_output_that_is_written_only_over_nan_is_wrong(bench: Bench) -> None:
    with pytest.raises(DeviceError, match="wrong"):
        bench.check(lambda: np.copyto(bench.c, PRODUCT, where=np.isnan(bench.c)))


def test_c_is_a_number_between_bands_of_nan(bench: Bench) -> None:
    seen: list[Array] = []

    def kernel() -> None:
        seen.append(np.frombuffer(bytes(bench.memory), np.float32))
        bench.c[:] = PRODUCT

    bench.check(kernel)
    bands = np.isnan(seen[0])
    assert bands.sum() == seen[0].size - 12
    assert set(seen[0][~bands]) == {77.0}


@pytest.mark.parametrize("offset", [-1, SIZE])
def test_byte_beside_c_is_wrong(bench: Bench, offset: int) -> None:
    def kernel() -> None:
        bench.c[:] = PRODUCT
        bench.memory[bench.start + offset] = 0

    with pytest.raises(DeviceError, match=r"wrote (before|past) the end of C"):
        bench.check(kernel)
