"""Checks on the device, with exactly the problem that is timed, that the result is correct before and after
the timing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pycuda.driver as cuda

from harness.devices import DeviceError
from harness.devices.cuda.guards import GUARD
from harness.devices.cuda.memory import TimedData
from harness.model import Array, Problem, Storage

_OLD = 77  # what the result holds before the exact check, in its own type
_ROUNDING_MARGIN = 8.0  # λ of the probabilistic bound, in standard deviations
# As probe.cu numbers them.
_KINDS = {"float32": 0, "float16": 1, "bfloat16": 2, "int8": 3, "int32": 4, "int16": 5}

Enqueue = Callable[[Any], None]


class Checks:
    """The checks around a timing; ``probe`` is the module of probe.cu."""

    def __init__(self, probe: Any) -> None:
        self._probe = probe
        self._expected: tuple[TimedData, Problem, Array, Array] | None = None

    def poison(self, data: TimedData) -> None:
        """Fills the result and its guard bands with 0xFF: NaN, or -1 for integers. If the result is read,
        because beta is not 0 or the kernel declares it, with a finite number."""
        cuda.memset_d8(data.guard[0], 0xFF, data.guard[1] + GUARD - data.guard[0])
        if data.work.problem.beta or data.work.finite_c:
            _fill_old(data, data.normal)
            _fill_old(data, data.reference)

    def exact(self, name: str, enqueue: Enqueue, reference: Enqueue | None, data: TimedData) -> None:
        """One launch with exactly the problem that is timed, on integers, or on the normal data if the
        epilogue rounds. Raises DeviceError WRONG.

        A plain product into a type that can represent it is verified with Freivalds' check, C·x = A·(B·x),
        exactly: one wrong element always shows; several in a row cancel with a probability of about 1 in
        2000. Any other operation is compared with the library's result. The result is filled with a finite
        number before this launch, to reveal a kernel that only overwrites NaN; before the timed launches with
        NaN."""
        work = data.work
        self.poison(data)
        _fill_old(data, data.normal)
        _fill_old(data, data.reference)
        summed = work.product and work.dtype.output.name in ("float32", "int32")
        if summed:
            self._wanted(data)  # before the kernel could have changed A or B
        stream = cuda.Stream()
        enqueue(stream)
        stream.synchronize()
        if summed:
            self._freivalds(name, data)
        elif reference is not None:
            reference(stream)
            stream.synchronize()
            if work.exact:
                self._like_reference(name, data, 0.0, "the exact check at the timed problem failed")
            else:
                self.timed(name, data)
        self.guard(name, data)

    def timed(self, name: str, data: TimedData) -> None:
        """Compares the result of the last timed launch with the library's on the same data, or without a
        library with that of the launch before timing. Raises DeviceError WRONG.

        For data of zero mean the partial sums grow like √k, and so K additions with roundoff u end within
        about λ·u·K of the exact sum (Higham and Mary, "Sharper probabilistic backward error analysis for
        basic linear algebra kernels with random data", SIAM J. Sci. Comput. 42, 2020); rounding the
        multiplicands to TF32 adds λ·2⁻¹¹·√K, and rounding the result λ·u·√K. Both kernels err, hence the 2.
        """
        work, dtype = data.work, data.work.dtype
        rounded = dtype.output_roundoff if dtype.output_roundoff > 2.0**-24 else 0.0
        if dtype.storage == np.float32 and dtype.unit_roundoff > 2.0**-24:
            rounded += dtype.unit_roundoff
        roundings = dtype.accumulate_roundoff * work.depth + rounded * work.depth**0.5
        scale = 2 * _ROUNDING_MARGIN * work.slope * max(1.0, abs(work.problem.alpha))
        tolerance = scale * roundings + (0.0 if work.exact else 2.0**-18)
        self._like_reference(name, data, tolerance, "the output of a timed launch is wrong")
        self.guard(name, data)

    def guard(self, name: str, data: TimedData) -> None:
        """Raises DeviceError WRONG if a byte outside the result has changed."""
        for where, address in (("before", data.guard[0]), ("past", data.guard[1])):
            band = np.empty(GUARD, np.uint8)
            cuda.memcpy_dtoh(band, address)
            if (band != 0xFF).any():
                text = f"{name} on {data.work.problem.id}: wrote {where} the end of {data.work.result}"
                raise DeviceError("WRONG", text)

    # Freivalds' check

    def _freivalds(self, name: str, data: TimedData) -> None:
        x, want = self._wanted(data)
        got = self._product([(data.integers["C"], data.work.storages["C"])], x)
        wrong = np.flatnonzero(~(got == want))
        if wrong.size:
            raise DeviceError("WRONG", self._explain(name, data, int(wrong[0]), wrong.size))

    def _wanted(self, data: TimedData) -> tuple[Array, Array]:
        """x and A·(B·x), once for all kernels that are timed on this data."""
        p, at, of = data.work.problem, data.integers, data.work.storages
        if self._expected and self._expected[0] is data and self._expected[1] == p:
            return self._expected[2:]
        rng = np.random.default_rng(p.m + p.n + p.k)
        x = np.tile(rng.choice([-1.0, 1.0], p.n) * rng.integers(1, 1024, p.n), p.batch)
        want = p.alpha * self._product([(at["A"], of["A"]), (at["B"], of["B"])], x)
        if p.beta:
            want += p.beta * _OLD * np.repeat(x.reshape(p.batch, p.n).sum(axis=1), p.m)
        self._expected = data, p, x, want
        return x, want

    def _product(self, matrices: list[tuple[int, Storage]], x: Array) -> Array:
        """M₁·(M₂·x) of every matrix of a batch, in double on the device; exact while sums stay below 2⁵³."""
        vector = cuda.to_device(x)
        for address, storage in reversed(matrices):
            rows, columns = storage.rows, storage.columns
            steps = (storage.ld, 1)
            if storage.transposed:
                rows, columns, steps = columns, rows, (1, storage.ld)
            out = cuda.mem_alloc(max(8, 8 * rows * storage.count))
            self._probe.get_function("matvec")(
                np.uintp(address),
                np.int32(_KINDS[storage.dtype.name]),
                np.int32(rows),
                np.int32(columns),
                *(np.int64(step) for step in (*steps, storage.stride)),
                vector,
                out,
                block=(256, 1, 1),
                grid=(rows * storage.count, 1),
            )
            vector, x = out, np.empty(rows * storage.count)
        cuda.memcpy_dtoh(x, vector)
        return x

    def _explain(self, name: str, data: TimedData, row: int, rows: int) -> str:
        """The first wrong element of a row that failed, found on the host."""
        p, of = data.work.problem, data.work.storages
        matrix, row = divmod(row, p.m)
        a, b, c = (_fetch(data.integers[name], of[name], matrix).astype(np.float64) for name in "ABC")
        want = p.alpha * (a[row] @ b) + p.beta * _OLD
        column = int(np.flatnonzero(~(c[row] == want))[0])
        place = of["C"].element(matrix, row, column)
        return (
            f"{name} on {p.id}: exact check at the timed problem failed in {rows} of {p.m * p.batch} rows, "
            f"first at {place}: got {c[row, column]:g}, expected {want[column]:g}"
        )

    # Beside the library

    def _like_reference(self, name: str, data: TimedData, tolerance: float, what: str) -> None:
        work = data.work
        storage = work.storages[work.result]
        found = cuda.to_device(np.array([0, 2**63 - 1], np.uint64))
        self._probe.get_function("compare")(
            np.uintp(data.normal[work.result]),
            np.uintp(data.reference[work.result]),
            np.int32(_KINDS[storage.dtype.name]),
            *(np.int32(size) for size in (storage.count, storage.rows, storage.columns)),
            *(np.int64(step) for step in (storage.ld, storage.stride)),
            np.float32(tolerance),
            found,
            block=(256, 1, 1),
            grid=(1024, 1),
        )
        wrong, first = (int(v) for v in cuda.from_device(found, 2, np.uint64))
        if wrong:
            place = storage.place(*divmod(first, storage.ld))
            got, want = (_element(at[work.result], storage, first) for at in (data.normal, data.reference))
            raise DeviceError(
                "WRONG",
                f"{name} on {work.problem.id}: {what} in {wrong} of "
                f"{storage.count * storage.rows * storage.columns} elements, first at {place}: got {got:g}, "
                f"expected {want:g} ± {tolerance:.3g}",
            )


def _fill_old(data: TimedData, at: Mapping[str, int]) -> None:
    """A result filled with 77."""
    dtype = data.work.storages[data.work.result].dtype
    bits = np.array([_OLD]).astype(dtype).view(f"u{dtype.itemsize}")[0]
    fill = {2: cuda.memset_d16, 4: cuda.memset_d32}[dtype.itemsize]
    fill(at[data.work.result], int(bits), data.result_elements)


def _element(address: int, storage: Storage, index: int) -> float:
    out = np.empty(1, storage.dtype)
    cuda.memcpy_dtoh(out, address + storage.dtype.itemsize * index)
    return float(out[0])


def _fetch(address: int, storage: Storage, matrix: int) -> Array:
    """One matrix of a batch, as it is multiplied."""
    size = storage.dtype.itemsize
    flat = np.empty(storage.rows * storage.ld, storage.dtype)
    cuda.memcpy_dtoh(flat, address + matrix * storage.stride * size)
    held = flat.reshape(storage.rows, storage.ld)[:, : storage.columns]
    return held.T if storage.transposed else held
