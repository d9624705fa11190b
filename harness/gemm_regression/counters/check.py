"""Compares the memory counters of a run's variants with the stored ones, and updates those."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from gemm_regression.compiler import tools
from gemm_regression.compiler.nvcc import Variant
from gemm_regression.compiler.static import all_variants, store
from gemm_regression.compiler.static.store import ACCEPT
from gemm_regression.counters.counts import Counts, count, counted
from gemm_regression.devices import DeviceError
from gemm_regression.devices.emulated import EmulatedDevice
from gemm_regression.model import Kernel
from ptxsan import GlobalAccess

SCHEMA = 1
ARCH = "sm_90a"
GLOBAL = {"loads": "global loads", "copies": "cp.async", "stores": "global stores"}
SHARED = {
    "shared_loads": "shared loads",
    "shared_stores": "shared stores",
    "shared_copies": "cp.async to shared memory",
}
_REST = {
    "barriers": "barriers of all warps {} -> {}",
    "divergent": "divergent branches {} -> {}",
    "flop": "FLOP {} -> {}",
    "shared_bytes": "shared memory {} -> {} bytes per block",
    "a_read": "bytes read of A {} -> {}",
    "b_read": "bytes read of B {} -> {}",
    "c_read": "bytes read of C {} -> {}",
    "c_written": "bytes written to C {} -> {}",
}

Figures = Mapping[str, int]
ByProblem = Mapping[str, Figures]  # by problem


def figures(counts: Counts) -> dict[str, int]:
    """The counters stored for a case."""
    total, buffers = counts.total, counts.buffers
    made: dict[str, int] = {}
    for names, parts in ((GLOBAL, ("requests", "sectors")), (SHARED, ("wavefronts", "conflicts"))):
        made |= {f"{name}_{part}": getattr(getattr(total, name), part) for name in names for part in parts}
    rest = (total.barriers, total.divergent, total.flop, counts.shared_bytes)
    if counts.case.kernel.operation.own:
        made |= dict(zip(_REST, rest, strict=False))
        made |= {f"bytes read of {n}": each.read for n, each in buffers.items() if each.read}
        return made | {f"bytes written to {n}": each.written for n, each in buffers.items() if each.written}
    read = (buffers["A"].read, buffers["B"].read, buffers["C"].read, buffers["C"].written)
    return made | dict(zip(_REST, (*rest, *read), strict=True))


def counters_path(root: Path) -> Path:
    return root / "counters.json"


def load_counters(nvcc: str, root: Path) -> dict[str, ByProblem]:
    """The stored counters, by variant and problem; empty if there is no file. Raises StoreError."""
    return store.read_records(counters_path(root), counters_head(nvcc), dict)


def write_counters(stored: Mapping[str, ByProblem], nvcc: str, root: Path) -> Path:
    """Writes the counters of all variants atomically. Raises StoreError."""
    return store.write_records(counters_path(root), counters_head(nvcc), stored)


def counters_head(nvcc: str) -> dict[str, object]:
    return {"schema": SCHEMA, "arch": ARCH, "nvcc": nvcc}


def compare(stored: Figures, made: Figures, worst_line: Callable[[str], str]) -> list[str]:
    """The changes, one phrase each; empty if there are none. ``worst_line``: that of the current Counts."""
    changes = []

    def at(name: str, worse: bool) -> str:
        place = worst_line(name) if worse else ""
        return f" at {place}" if place else ""

    for name, title in GLOBAL.items():
        before, after = (
            GlobalAccess(f.get(f"{name}_requests", 0), f.get(f"{name}_sectors", 0)) for f in (stored, made)
        )
        if before == after:
            continue
        if not (before.requests and after.requests):
            changes.append(f"{title}: {before.requests} -> {after.requests} requests")
            continue
        ratios = before.sectors_per_request, after.sectors_per_request
        said = [f"{before.requests} -> {after.requests} requests"] * (before.requests != after.requests)
        said += [f"{ratios[0]:.2f} -> {ratios[1]:.2f} sectors per request"] * (ratios[0] != ratios[1])
        same = _bytes(name, stored) == _bytes(name, made)
        meaning = ["narrower accesses"] * (same and after.requests > before.requests)
        if after.sectors > before.sectors:
            meaning.append(f"coalescing lost{at(name, True)}")
        changes.append(": ".join([title, ", ".join(said), *([", ".join(meaning)] if meaning else [])]))
    for name, title in SHARED.items():
        for what in ("wavefronts", "conflicts"):
            was, now = (f.get(f"{name}_{what}", 0) for f in (stored, made))
            if was != now:
                place = at(name, what == "conflicts" and now > was)
                changes.append(f"{title}: {was} -> {now} {what}{place}")
    named = (*GLOBAL, *SHARED)
    for name in (*_REST, *sorted({*stored, *made} - {*_REST})):
        if stored.get(name) != made.get(name) and not name.startswith(named):
            text = _REST.get(name, f"{name}: {{}} -> {{}}")
            changes.append(text.format(stored.get(name), made.get(name)))
    return changes


def _bytes(name: str, figures: Figures) -> int:
    moved = ("c_written",) if name == "stores" else ("a_read", "b_read", "c_read")
    return sum(figures.get(what, 0) for what in moved)


class CounterEntry(NamedTuple):
    """A variant ``name``; ``variant`` is None if counters are stored for a variant that no longer exists."""

    name: str
    variant: Variant | None

    def __str__(self) -> str:
        return f"{self.name}-counters"

    @property
    def accept(self) -> str:
        return f'{ACCEPT} -k "[{self}]"'


def entries(kernels: Sequence[Kernel], root: Path) -> list[CounterEntry]:
    """Every variant of these kernels, and every one with counters stored in ``root``."""
    found = all_variants(ARCH, kernels, lambda: load_counters(tools.pins()[0], root))
    return [CounterEntry(name, variant) for name, variant in found.items()]


class CounterCheck:
    """Counts the variants of a run, each when it is requested.

    Raises ToolchainError if the pinned compiler is missing, and, for an entry, StoreError if the stored
    counters cannot be trusted.
    """

    def __init__(self, root: Path) -> None:
        nvcc = tools.pinned_nvcc()
        self.version, self._root = nvcc.version, root
        self.device = EmulatedDevice(ARCH, nvcc)
        self._made: dict[str, dict[str, Counts]] = {}

    def made(self, entry: CounterEntry) -> dict[str, Counts]:
        """The counters of a variant by problem; empty if it no longer exists. Raises DeviceError."""
        if entry.name not in self._made:
            cases = counted(entry.variant) if entry.variant else []
            counts = (count(case, device=self.device, by_source=False) for case in cases)
            self._made[entry.name] = {one.case.problem.id: one for one in counts}
        return self._made[entry.name]

    @cached_property
    def stored(self) -> dict[str, ByProblem]:
        return load_counters(self.version, self._root)

    def finding(self, entry: CounterEntry) -> str:
        """Why an entry fails: what and where in one line, then what to do; empty if all is as stored."""
        stored = self.stored.get(entry.name)
        if entry.variant is None:
            gone = f"{entry.name}: counters are stored for a variant that no longer exists"
            return f"{gone}; remove them with `{entry.accept}`"
        try:
            changes = self._changes(entry, stored or {})
        except DeviceError as error:
            return str(error)
        if stored is None:
            return f"{entry.name}: no counters are stored; store them with `{entry.accept}`"
        return f"{entry.name}: {'; '.join(changes)}\nto accept it: {entry.accept}" if changes else ""

    def _changes(self, entry: CounterEntry, stored: ByProblem) -> list[str]:
        changes, made = [], self.made(entry)
        for problem, counts in made.items():
            if problem not in stored:
                changes.append(f"nothing is stored for {problem}")
            elif (now := figures(counts)) != stored[problem]:
                # Source lines cost another compilation, so they are determined only here.
                by_line = count(counts.case, device=self.device)
                found = compare(stored[problem], now, by_line.worst_line)
                changes.append(f"on {problem} {', '.join(found)}")
        gone = [problem for problem in stored if problem not in made]
        return changes + [f"{problem} is stored, but no longer counted" for problem in gone]

    def refresh(self, chosen: Iterable[CounterEntry], before: dict[str, ByProblem]) -> Iterator[str]:
        """Updates the counters of the chosen entries in ``before``, and yields what changed, a line per
        variant.

        Raises DeviceError for a variant that cannot be counted.
        """
        for entry in chosen:
            was = before.get(entry.name)
            if entry.variant is None:
                del before[entry.name]
                yield f"{entry.name} counters: removed"
            elif changes := ["new"] if was is None else self._changes(entry, was):
                before[entry.name] = {name: figures(counts) for name, counts in self.made(entry).items()}
                yield f"{entry.name} counters: {'; '.join(changes)}"
