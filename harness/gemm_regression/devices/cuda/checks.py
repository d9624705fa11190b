"""Checks on the device, with exactly the problem that is timed, that a result is correct."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np

from gemm_regression.devices import DeviceError
from gemm_regression.devices.cuda.backend import cuda
from gemm_regression.devices.cuda.timed_data import OLD, TimedData
from gemm_regression.devices.cuda.timing import Enqueue
from gemm_regression.devices.work import GUARD, Work
from gemm_regression.model import Array, Storage

_ROUNDING_MARGIN = 8.0  # λ of the probabilistic bound, in standard deviations
# As probe.cu numbers them.
_KINDS = {"float32": 0, "float16": 1, "bfloat16": 2, "int8": 3, "int32": 4, "int16": 5, "float64": 6}
_KINDS |= {"float8_e4m3fn": 7}
_SUMS = ("float32", "float64", "int32")  # results that hold the sums of the exact check without rounding
_EXPECTED = 128  # vectors kept, of a problem and dtype each


class Checks:
    """The checks around a timing; ``probe`` is the module of probe.cu."""

    def __init__(self, probe: Any) -> None:
        self._probe = probe
        self._expected: OrderedDict[Any, tuple[Array, Array]] = OrderedDict()

    def exact(
        self,
        name: str,
        work: Work,
        enqueue: Enqueue,
        reference: Enqueue | None,
        data: TimedData,
        number: int = 0,
    ) -> None:
        """One launch with exactly the problem that is timed, on integers, or on the normal data if the
        epilogue rounds; ``reference`` computes the same beside it; ``number`` tells one set of integers from
        another. Raises DeviceError: WRONG, or ELEMENT_TYPE for elements that no check here knows.

        A plain product into a type that can represent it is verified with Freivalds' check, C·x = A·(B·x),
        exactly: one wrong element always shows; several in a row cancel with a probability of about 1 in
        2000. Any other operation is compared with the library's result. The result is filled with a finite
        number before this launch, to reveal a kernel that only overwrites NaN; before the timed launches with
        NaN."""
        summed = work.product and work.dtype.output.name in _SUMS
        for operand, storage in work.storages.items():
            if summed or operand in work.outputs:
                _kind(storage, name)
        stream = cuda.Stream()
        data.fill(stream, work, number, work.exact, old=True)
        if summed:
            expected = self._wanted(work, data, number)  # before the kernel could have changed A or B
        enqueue(stream)
        stream.synchronize()
        if summed:
            self._freivalds(name, work, data, *expected)
        elif reference is not None:
            data.fill(stream, work, number, work.exact, old=True, beside=True)
            reference(stream)
            stream.synchronize()
            if work.exact:
                what = "the exact check at the timed problem failed"
                self._compare(name, work, work.result, data.at[work.result], data.reference, 0.0, what)
            else:
                self.timed(name, work, work.result, data.at[work.result], data.reference)
        self.guard(name, data)

    def timed(self, name: str, work: Work, output: str, got: int, want: int) -> None:
        """Compares an output of a timed launch, at that address, with the library's on the same data, or
        without a library with that of another launch. Raises DeviceError WRONG.

        For data of zero mean the partial sums grow like √k, and so K additions with roundoff u end within
        about λ·u·K of the exact sum (Higham and Mary, "Sharper probabilistic backward error analysis for
        basic linear algebra kernels with random data", SIAM J. Sci. Comput. 42, 2020); rounding the
        multiplicands to TF32 adds λ·2⁻¹¹·√K, and rounding the result λ·u·√K. Both kernels err, hence the 2.
        """
        dtype = work.dtype
        rounded = dtype.output_roundoff if dtype.output_roundoff > 2.0**-24 else 0.0
        if dtype.storage == np.float32 and dtype.unit_roundoff > 2.0**-24:
            rounded += dtype.unit_roundoff
        roundings = dtype.accumulate_roundoff * work.depth + rounded * work.depth**0.5
        scale = 2 * _ROUNDING_MARGIN * work.slope * max(1.0, abs(work.problem.alpha))
        tolerance = scale * roundings + (0.0 if work.exact else 2.0**-18)
        which = "" if output == work.result else f" {output}"
        what = f"the output{which} of a timed launch is wrong"
        self._compare(name, work, output, got, want, tolerance, what)

    def guard(self, name: str, data: TimedData) -> None:
        """Raises DeviceError WRONG if a byte outside the result has changed."""
        for where, address in (("before", data.guard[0]), ("past", data.guard[1])):
            band = np.empty(GUARD, np.uint8)
            cuda.memcpy_dtoh(band, address)
            if (band != 0xFF).any():
                text = f"{name} on {data.work.problem.id}: wrote {where} the end of {data.work.result}"
                raise DeviceError("WRONG", text)

    # Freivalds' check

    def _freivalds(self, name: str, work: Work, data: TimedData, x: Array, want: Array) -> None:
        got, p = self._product([(data.at["C"], work.storages["C"])], x), work.problem
        if (wrong := np.flatnonzero(~(got == want))).size:
            matrix, row = divmod(int(wrong[0]), p.m)
            of = f"{p.m * p.batch} rows, first in row {row}" + (f" of matrix {matrix}" if p.batch > 1 else "")
            text = f"{name} on {p.id}: exact check at the timed problem failed in {wrong.size} of {of}"
            raise DeviceError("WRONG", text)

    def _wanted(self, work: Work, data: TimedData, number: int) -> tuple[Array, Array]:
        """x and A·(B·x), once for all kernels that are checked on these integers."""
        p, at, of = work.problem, data.at, work.storages
        key = p, work.dtype, tuple(of.items()), number
        if key in self._expected:
            self._expected.move_to_end(key)
            return self._expected[key]
        rng = np.random.default_rng(p.m + p.n + p.k)
        x = np.tile(rng.choice([-1.0, 1.0], p.n) * rng.integers(1, 1024, p.n), p.batch)
        want = p.alpha * self._product([(at["A"], of["A"]), (at["B"], of["B"])], x)
        if p.beta:
            want += p.beta * OLD * np.repeat(x.reshape(p.batch, p.n).sum(axis=1), p.m)
        self._expected[key] = x, want
        if len(self._expected) > _EXPECTED:
            self._expected.popitem(last=False)
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
                np.int32(_kind(storage)),
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

    # Beside the library

    def _compare(
        self, name: str, work: Work, output: str, at: int, beside: int, tolerance: float, what: str
    ) -> None:
        storage = work.storages[output]
        found = cuda.to_device(np.array([0, 2**63 - 1], np.uint64))
        self._probe.get_function("compare")(
            np.uintp(at),
            np.uintp(beside),
            np.int32(_kind(storage)),
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
            got, want = (_element(address, storage, first) for address in (at, beside))
            raise DeviceError(
                "WRONG",
                f"{name} on {work.problem.id}: {what} in {wrong} of "
                f"{storage.count * storage.rows * storage.columns} elements, first at {place}: got {got:g}, "
                f"expected {want:g} ± {tolerance:.3g}",
            )


def _kind(storage: Storage, name: str = "") -> int:
    """The elements as probe.cu numbers them. Raises DeviceError ELEMENT_TYPE."""
    if storage.dtype.name not in _KINDS:
        known = ", ".join(sorted(_KINDS))
        text = f"{name}: elements of {storage.dtype.name} cannot be checked on the GPU; known: {known}"
        raise DeviceError("ELEMENT_TYPE", text)
    return _KINDS[storage.dtype.name]


def _element(address: int, storage: Storage, index: int) -> float:
    out = np.empty(1, storage.dtype)
    cuda.memcpy_dtoh(out, address + storage.dtype.itemsize * index)
    return float(out[0])
