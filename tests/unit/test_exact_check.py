"""The exact check at the timed problem, over a PyCUDA made up of a byte array for a GPU's memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harness.devices import DeviceError
from harness.model import Array, Problem
from tests.unit.fake_pycuda import made_up
from tests.unit.synthetic import case

PROBLEM = Problem(3, 4, 5)
SIZE = 4 * PROBLEM.m * PROBLEM.ldc
PRODUCT = np.arange(12.0).reshape(3, 4)


class Bench:
    """The checks without a context, and C between two guard bands in its memory."""

    def __init__(self, checks: ModuleType, memory: bytearray, guard: int) -> None:
        from harness.devices.work import Work

        self.memory, self.checks, self.start = memory, checks.Checks(None), guard
        self.checks._product = self._product
        self.checks._explain = lambda *_: "wrong"
        at = {"A": 0, "B": 0, "C": guard}
        work = Work.of(case(problem=PROBLEM))
        reference = {**at, "C": 2 * guard + SIZE}
        self.data: Any = SimpleNamespace(
            work=work,
            normal=at,
            integers=at,
            reference=reference,
            guard=(0, guard + SIZE),
            result_elements=SIZE // 4,
        )

    @property
    def c(self) -> Array:
        return np.frombuffer(self.memory, np.float32, 12, self.start).reshape(3, 4)

    def _product(self, matrices: list[Any], x: Array) -> Array:
        product: Array = (self.c if len(matrices) == 1 else PRODUCT) @ x
        return product

    def check(self, kernel: Callable[[], None]) -> None:
        self.checks.exact("planted", lambda stream: kernel(), None, self.data)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    from harness.devices.cuda.guards import GUARD

    memory = bytearray(2 * GUARD + 2 * SIZE)

    def memset(unit: str) -> Callable[[int, int, int], None]:
        def fill(to: int, value: int, count: int) -> None:
            np.frombuffer(memory, unit, count, to)[:] = value

        return fill

    def fetch(to: Array, address: int) -> None:
        to[:] = np.frombuffer(memory, to.dtype, to.size, address)

    memsets = {"memset_d8": memset("u1"), "memset_d16": memset("u2"), "memset_d32": memset("u4")}
    stream = SimpleNamespace(synchronize=lambda: None)
    functions: dict[str, Any] = {**memsets, "memcpy_dtoh": fetch, "Stream": lambda: stream}
    with made_up(monkeypatch, "checks", "memory", **functions) as (checks, _):
        yield Bench(checks, memory, GUARD)


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
    assert bands.sum() == seen[0].size - 24  # C, and that of the reference behind it
    assert set(seen[0][~bands]) == {77.0}


@pytest.mark.parametrize("offset", [-1, SIZE])
def test_byte_beside_c_is_wrong(bench: Bench, offset: int) -> None:
    def kernel() -> None:
        bench.c[:] = PRODUCT
        bench.memory[bench.start + offset] = 0

    with pytest.raises(DeviceError, match=r"wrote (before|past) the end of C"):
        bench.check(kernel)
