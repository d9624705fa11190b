"""Compares the memory counters of a run's variants with the stored ones, and updates those."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from gemm_regression.compiler import tools
from gemm_regression.compiler.nvcc import Variant
from gemm_regression.compiler.static.compiled import variants_of
from gemm_regression.compiler.static.files import ACCEPT, StoreError
from gemm_regression.counters import stored as store
from gemm_regression.counters.counts import Counts, count, counted
from gemm_regression.counters.stored import ARCH
from gemm_regression.devices import DeviceError
from gemm_regression.devices.emulated import EmulatedDevice
from gemm_regression.model import Case, Kernel


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
    """Every variant of these kernels, and every one with counters stored in ``root``. A file that cannot be
    read adds none."""
    live = variants_of(ARCH, kernels)
    try:
        stored = store.load(tools.pins()[0], root)
    except StoreError:
        stored = {}
    gone = [CounterEntry(name, None) for name in stored if name not in live]
    return [*(CounterEntry(name, variant) for name, variant in live.items()), *gone]


class CounterCheck:
    """Counts the variants of a run, each when it is requested.

    Raises ToolchainError if the pinned compiler is missing, and, for an entry, StoreError if the stored
    counters cannot be trusted.
    """

    def __init__(self, root: Path) -> None:
        nvcc = tools.pinned_nvcc()
        self.version, self._root = nvcc.version, root
        self.device = EmulatedDevice(ARCH, nvcc)
        self._stored: dict[str, store.Variant] | None = None
        self._made: dict[str, dict[str, Counts]] = {}

    def made(self, entry: CounterEntry) -> dict[str, Counts]:
        """The counters of a variant by problem; empty if it no longer exists. Raises DeviceError."""
        if entry.name not in self._made:
            self._made[entry.name] = {
                case.problem.id: count(case, device=self.device, by_source=False) for case in _cases(entry)
            }
        return self._made[entry.name]

    def _figures(self, entry: CounterEntry) -> store.Variant:
        return {problem: store.figures(counts) for problem, counts in self.made(entry).items()}

    @property
    def stored(self) -> dict[str, store.Variant]:
        if self._stored is None:
            self._stored = store.load(self.version, self._root)
        return self._stored

    def finding(self, entry: CounterEntry) -> str:
        """Why an entry fails: what and where in one line, then what to do; empty if all is as stored."""
        stored = self.stored.get(entry.name)
        if entry.variant is None:
            return (
                f"{entry.name}: counters are stored for a variant that no longer exists; "
                f"remove them with `{entry.accept}`"
            )
        try:
            changes = self._changes(entry, stored or {})
        except DeviceError as error:
            return str(error)
        if stored is None:
            return f"{entry.name}: no counters are stored; store them with `{entry.accept}`"
        return f"{entry.name}: {'; '.join(changes)}\nto accept it: {entry.accept}" if changes else ""

    def _changes(self, entry: CounterEntry, stored: store.Variant) -> list[str]:
        made = self._figures(entry)
        changes = []
        for case in _cases(entry):
            problem = case.problem.id
            now = made[problem]
            if now == stored.get(problem):
                continue
            if problem not in stored:
                changes.append(f"nothing is stored for {problem}")
                continue
            # Source lines cost another compilation, so they are determined only here.
            by_line = count(case, device=self.device)
            changes.append(
                f"on {problem} {', '.join(store.compare(stored[problem], now, by_line.worst_line))}"
            )
        gone = [problem for problem in stored if problem not in made]
        return changes + [f"{problem} is stored, but no longer counted" for problem in gone]

    def refresh(self, chosen: Iterable[CounterEntry], before: dict[str, store.Variant]) -> Iterator[str]:
        """Updates the counters of the chosen entries in ``before``, and yields what changed, a line per
        variant.

        Raises DeviceError for a variant that cannot be counted.
        """
        for entry in chosen:
            was = before.get(entry.name)
            if entry.variant is None:
                del before[entry.name]
                yield f"{entry.name} counters: removed"
                continue
            changes = self._changes(entry, was or {})
            if was is None or changes:
                before[entry.name] = self._figures(entry)
            if was is None:
                yield f"{entry.name} counters: new"
            elif changes:
                yield f"{entry.name} counters: {'; '.join(changes)}"


def _cases(entry: CounterEntry) -> list[Case]:
    if entry.variant is None:
        return []
    return counted(entry.variant)
