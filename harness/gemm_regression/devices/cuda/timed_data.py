"""The data of a timed problem: where it lies, and the numbers in it, other ones for every launch. The random
numbers are drawn once on the host, and kept on the device."""

from __future__ import annotations

import base64
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from itertools import chain, count, repeat
from typing import Any

import numpy as np

from gemm_regression.devices import DeviceError
from gemm_regression.devices.cuda.backend import cuda
from gemm_regression.devices.work import GUARD, WORKSPACE, Work, aligned, odd, sparse
from gemm_regression.model import Array, DType
from gemm_regression.model.operation import MADE, UNDRAWN

PERIOD = 4_194_319  # prime: a pool never lines up with a tile or a row
_DRAW = 4  # threads that draw numbers, in which NumPy needs no Python
_KEPT = 24  # pools on the device, at most 32 MiB each


def integers_of(work: Work) -> dict[str, str]:
    """The kind of integers that each operand but the outputs holds in the exact check, by name; or how an
    operand is drawn that says so."""
    multiplied = chain(("odd",), repeat("sparse"))
    roles = {name: role for name, role in work.roles.items() if name not in work.outputs}
    return {
        name: work.draws.get(name) or ("added" if role == "added" else next(multiplied))
        for name, role in roles.items()
    }


def _share(depth: int) -> float:
    """Of numbers that are not 0 in a sparse matrix, so that sums of ``depth`` products stay exact: 512 to
    1024 of them. A power of two, since the pool of each share takes a tenth of a second."""
    return min(0.5, float(2.0 ** np.ceil(np.log2(512 / max(1, depth)))))


@cache
def _drawn(kind: str, dtype: DType, share: float) -> Array:
    """Random numbers on the grid of the dtype: ``normal``; ``odd`` and ``sparse``, whose products are probes;
    ``added``, small integers of the output's type. Integer dtypes multiply any integer. ``integers LOW HIGH``
    and ``scale POWER`` as `Operation.draws` has them, not in a dtype yet."""
    how, *limits = kind.split()
    if how == "integers":
        low, high = map(int, limits)
        held = np.uint64 if high >= 2**63 else np.int64
        return _seeded(kind).integers(low, high, PERIOD, held, endpoint=True)
    if how == "scale":
        return _seeded(kind).uniform(0.5, 2.0, PERIOD) * 2.0 ** int(limits[0])
    if _any_dtype(kind, dtype):
        return _of_any_dtype(kind, share).astype(dtype.storage)
    if kind == "added":
        return _seeded(kind).integers(-15, 16, PERIOD).astype(dtype.output)
    if dtype.integer:
        return _seeded(kind).integers(-127, 128, PERIOD).astype(dtype.storage)
    return odd(_seeded(kind), PERIOD, dtype, 1 if dtype.adds_in_f16 else 1 << 12).astype(dtype.storage)


def _any_dtype(kind: str, dtype: DType) -> bool:
    """Whether the numbers are those of other dtypes, too."""
    return kind in ("normal", "sparse") and not dtype.integer


@cache
def _of_any_dtype(kind: str, share: float) -> Array:
    if kind == "normal":
        return _seeded(kind).standard_normal(PERIOD, np.float32)
    return sparse(_seeded(kind), PERIOD, share)


def _seeded(kind: str) -> np.random.Generator:
    return np.random.default_rng(sum(map(ord, kind)))


def _needed(work: Work) -> Iterator[tuple[str, DType, float]]:
    for kind in (
        "normal",
        *(kind for kind in integers_of(work).values() if not kind.startswith((MADE, UNDRAWN))),
    ):
        yield kind, work.dtype, _share(work.depth) if kind == "sparse" else 0.0


def prepare_inputs(works: Iterable[Work]) -> None:
    """Draws what problems need, ahead; on the host alone, on several cores."""
    needed = {each: None for work in works for each in _needed(work)}
    shared = {(kind, share) for kind, dtype, share in needed if _any_dtype(kind, dtype)}
    with ThreadPoolExecutor(_DRAW) as pool:
        wait([pool.submit(_of_any_dtype, *each) for each in shared])
        wait([pool.submit(_drawn, *each) for each in needed])


OLD = 77  # what the result holds before a launch that may read it, in its own type
_ARENA = 2 << 30  # bytes, enough for six matrices of 8192 × 8192 in FP32
_PAGE = 2 << 20  # the GPU's large pages
_APART = 1_000_003  # elements between what two operands of another layout hold at one place
_STEP = 611_953  # elements of a pool between the inputs of one launch and of the next: prime to PERIOD
_BLOCKS, _THREADS = 528, 256  # of the kernel that fills
# As probe.cu has it: elements to[i] = from[(i + start + shift) % period], each of so many bytes; without
# the shift where the last number is 1.
_FILL = np.dtype("u8, u8, u8, u4, u4, u4, u4")


class TimedData:
    """Device addresses for one problem and dtype: ``at`` by operand, and of the workspace; ``reference``, the
    result of whatever a launch is compared with; ``kept``, of each arm, a copy of one by output;
    ``guard``, the first byte of the band before the result, and the first past it.

    Inputs are filled anew for each launch, by number: no two numbers give the same. All kinds of data lie at
    the same addresses, so that no launch can tell which one it is.
    """

    def __init__(self, arena: TimedDataArena, work: Work, workspace: int) -> None:
        self._arena, self.work, self._workspace = arena, work, workspace
        self._tables: dict[tuple[Any, ...], tuple[Any, int, list[Any]]] = {}
        storages, offsets = work.storages, work.offsets
        counts = {name: int(np.prod(storage.shape)) for name, storage in storages.items()}
        self._counts = counts
        sizes = {name: offsets[name] + counts[name] * storages[name].dtype.itemsize for name in counts}
        self.output_bytes = {name: counts[name] * storages[name].dtype.itemsize for name in work.outputs}
        inputs = [name for name in storages if name != work.result]
        band = aligned(sizes[work.result]) + 2 * GUARD
        kept = [sizes[name] for name in work.outputs] * 2
        places = iter(
            arena.cut([*(sizes[name] for name in inputs), band, sizes[work.result], *kept, workspace])
        )
        self.at = {name: next(places) + offsets[name] for name in inputs}
        c = next(places)
        self.reference = next(places) + offsets[work.result]
        self.kept = [{name: next(places) + offsets[name] for name in work.outputs} for arm in "AB"]
        self.at |= {work.result: c + GUARD + offsets[work.result], WORKSPACE: next(places)}
        self.guard, self._band = (c, self.at[work.result] + self.output_bytes[work.result]), band
        self.set_guard()

    def set_guard(self) -> None:
        """The bands around the result are as no launch may change them."""
        cuda.memset_d8(self.guard[0], 0xFF, self._band)

    def new_number(self) -> int:
        """For inputs that no launch of this process has had."""
        return next(self._arena.numbers)

    def holds(self, work: Work) -> bool:
        """Whether it is that of this launch, too."""
        mine = self.work
        same = (mine.storages, mine.dtype, mine.roles) == (work.storages, work.dtype, work.roles)
        same = same and mine.draws == work.draws
        return same and mine.depth == work.depth and self._workspace >= work.workspace[0]

    def beside(self) -> dict[str, int]:
        """The addresses of a launch whose result is the reference."""
        return {**self.at, self.work.result: self.reference}

    def fill(
        self,
        stream: Any,
        work: Work,
        number: int = 0,
        exact: bool = False,
        old: bool = False,
        beside: bool = False,
    ) -> None:
        """Queues inputs, the result and the workspace as a launch is to find them: the inputs random numbers,
        or the integers of the ``exact`` check; the result, or the reference if ``beside``, NaN or -1, or OLD
        if ``old`` or where a launch reads it."""
        table, rows, _ = self.rows(work, exact, old, beside)
        self._arena.fill(stream, table, rows, number * _STEP % PERIOD)

    def rows(
        self, work: Work, exact: bool = False, old: bool = False, beside: bool = False
    ) -> tuple[Any, int, list[Any]]:
        """What `fill` reads, on the device. Made at the first call, which waits for all that is queued: not
        behind a gate."""
        read = bool(old or work.problem.beta or work.finite_c)
        key = work.workspace, exact, read, beside
        if key not in self._tables:
            self._tables[key] = self._table(work, exact, read, beside)
        return self._tables[key]

    def _table(self, work: Work, exact: bool, read: bool, beside: bool) -> tuple[Any, int, list[Any]]:
        """The rows of a fill on the device, how many, and what they read, which has to be held."""
        integers, held, rows = integers_of(work), list[Any](), list[tuple[int, ...]]()
        turned = work.problem.layout != "NN"
        for number, (name, kind) in enumerate(integers.items()):
            if kind.startswith(UNDRAWN):
                raise DeviceError("LAUNCH_FAILED", f"{work.operation}: {kind.removeprefix(UNDRAWN)}")
            if kind.startswith(MADE):
                words = np.frombuffer(base64.b64decode(kind.removeprefix(MADE)), work.storages[name].dtype)
                held.append(cuda.to_device(words.view(np.uint8)))
                row = self.at[name], int(held[-1]), self._counts[name], 0, len(words), words.itemsize, 1
                rows.append(row)
                continue
            pool = self._arena.pool(kind if exact or name in work.draws else "normal", work, name)
            held.append(pool)
            # Else a row of A and a column of B would hold the same numbers: sums of squares.
            start = number * _APART % PERIOD if turned else 0
            size = work.storages[name].dtype.itemsize
            rows.append((self.at[name], int(pool), self._counts[name], start, PERIOD, size, 0))
        storages, dtype = work.storages, work.storages[work.result].dtype
        old = np.full(8, OLD).astype(dtype)[:1].tobytes()
        constants = cuda.to_device(np.frombuffer(old.ljust(8, b"\0") + bytes(8) + b"\xff" * 8, np.uint8))
        held.append(constants)
        first, zero, nan = (int(constants) + at for at in (0, 8, 16))
        size, zeroed = work.workspace
        result = self.reference if beside else self.at[work.result]
        rows.append((result, first if read else nan, self._counts[work.result], 0, 1, dtype.itemsize, 0))
        for name in work.outputs[1:]:
            rows.append((self.at[name], nan, self._counts[name], 0, 1, storages[name].dtype.itemsize, 0))
        rows.append((self.at[WORKSPACE], zero, zeroed // 4, 0, 1, 4, 0))
        rows.append((self.at[WORKSPACE] + zeroed, nan, (size - zeroed) // 4, 0, 1, 4, 0))
        rows = [row for row in rows if row[2]]
        return cuda.to_device(np.array(rows, _FILL).view(np.uint8)), len(rows), held


class TimedDataArena:
    """The buffers of the timed problem, always at the same addresses, regardless of what ran before.

    The address of a buffer determines which L2 slices and memory channels it shares: on an H200 a 15 µs
    product ran 6 % slower in buffers allocated after other ones were freed. So one allocation is made when
    the worker starts, and divided up depending only on the problem; one that it does not hold gets another.
    """

    def __init__(self, probe: Any) -> None:
        free, _ = cuda.mem_get_info()
        self._size = min(_ARENA, free // 2)
        self._base = cuda.mem_alloc(self._size)
        self._large: Any = None  # for a problem that it does not hold, which shall not move the others
        self._large_size = 0
        self._fill = probe.get_function("fill").prepare("PiI")
        self.numbers = count(1)
        # By kind, dtype and, of sparse ones, the share of what is not 0.
        self._pools: OrderedDict[tuple[str, DType, float, str], Any] = OrderedDict()
        self._last: TimedData | None = None

    def pool(self, kind: str, work: Work, name: str) -> Any:
        """PERIOD numbers for an operand, in device memory, which lives as long as it is held."""
        held, share = work.storages[name].dtype, _share(work.depth) if kind == "sparse" else 0.0
        key = kind, work.dtype, share, held.name
        if key not in self._pools:
            drawn = _drawn(kind, work.dtype, share).astype(held, copy=False)
            self._pools[key] = cuda.to_device(drawn.view(np.uint8))
            if len(self._pools) > _KEPT:
                self._pools.popitem(last=False)
        self._pools.move_to_end(key)
        return self._pools[key]

    def _of_size(self, size: int) -> int:
        if size <= self._size:
            return int(self._base)
        if size > self._large_size:
            if self._large is not None:
                self._large.free()
            self._large, self._large_size = None, 0  # so that a failed allocation is not used
            self._large, self._large_size = cuda.mem_alloc(size), size
        return int(self._large)

    def cut(self, sizes: list[int]) -> list[int]:
        """The address of each part of that many bytes."""
        ends = np.cumsum([-(-size // _PAGE) * _PAGE for size in sizes])
        base = self._of_size(int(ends[-1]))
        return [base, *(base + int(end) for end in ends[:-1])]

    def fill(self, stream: Any, table: Any, rows: int, shift: int) -> None:
        self._fill.prepared_async_call((_BLOCKS, 1), (_THREADS, 1, 1), stream, int(table), rows, shift)

    def get(self, *works: Work) -> TimedData:
        """The data of a problem, for launches that differ at most in their workspace. Of the last one asked
        for the tables are kept: timed cases are sorted by problem."""
        if self._last is None or not all(map(self._last.holds, works)):
            self._last = None
            self._last = TimedData(self, works[0], max(work.workspace[0] for work in works))
        return self._last
