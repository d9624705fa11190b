"""The counts of a run's variants against the stored ones, and the refresh of those."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from harness.compiler import tools
from harness.compiler.errors import ToolchainError
from harness.compiler.nvcc import Variant
from harness.compiler.static.check import Check, Entry
from harness.compiler.static.compiled import variants_of
from harness.compiler.static.files import ACCEPT, StoreError
from harness.counters import stored as store
from harness.counters.counts import Counts, count, counted
from harness.counters.stored import ARCH
from harness.devices import DeviceError
from harness.devices.emulated.device import EmulatedDevice
from harness.model import Case, Kernel

# Loads of shared memory that nvcc's PTX has now more, now fewer of, of the same cubin.
_VARIES = "shared_loads_wavefronts"


class CounterEntry(NamedTuple):
    """A variant; ``variant`` None where counts are stored and no kernel has it."""

    name: str
    variant: Variant | None

    def __str__(self) -> str:
        return f"{self.name}-counters"

    @property
    def accept(self) -> str:
        return f'{ACCEPT} -k "[{self}]"'


def entries(kernels: Sequence[Kernel], root: Path) -> list[CounterEntry]:
    """Every variant of these kernels, and every one whose counts are stored in ``root``. A file that
    cannot be read adds none."""
    live = variants_of(ARCH, kernels)
    try:
        stored = store.load(tools.pins()[0], root)
    except StoreError:
        stored = {}
    gone = [CounterEntry(name, None) for name in stored if name not in live]
    return [*(CounterEntry(name, variant) for name, variant in live.items()), *gone]


class CounterCheck:
    """Counts the variants of a run, each when it is asked for.

    Raises ToolchainError where the pinned compiler is not there, and, when asked for an entry, StoreError
    where the stored counts cannot be trusted.
    """

    def __init__(self, root: Path) -> None:
        nvcc = tools.pinned_nvcc()
        self.version, self._root = nvcc.version, root
        self.device = EmulatedDevice(ARCH, nvcc)
        self._stored: dict[str, store.Variant] | None = None
        self._made: dict[str, dict[str, Counts]] = {}

    def made(self, entry: CounterEntry) -> dict[str, Counts]:
        """The counts of a variant by problem, none where it has left the ladder. Raises DeviceError."""
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
        """Why an entry is red: what and where in one line, then what to do; empty if all is as stored."""
        stored = self.stored.get(entry.name)
        if entry.variant is None:
            return (
                f"{entry.name}: counts are stored, but there is no such variant; "
                f"drop them with `{entry.accept}`"
            )
        try:
            changes = self._changes(entry, stored or {})
        except DeviceError as error:
            return str(error)
        if stored is None:
            return f"{entry.name}: no counts are stored; accept these with `{entry.accept}`"
        return f"{entry.name}: {'; '.join(changes)}\nto accept it: {entry.accept}" if changes else ""

    def _same_but_for_the_ptx(self, entry: CounterEntry, stored: store.Variant) -> bool:
        """Whether there are only other shared loads, all as free of conflicts as the stored ones, and the
        compiler's figures, among them every LDS by width, are the stored ones: then ptxas made the same code
        of another PTX, as nvcc 13.0 makes of some kernels by where its own memory happens to lie."""
        made = self._figures(entry)
        if made == stored:
            return True
        if _without(made) != _without(stored):
            return False
        static = Entry(entry.name, ARCH, entry.variant)
        try:
            return not Check([static], self._root).finding(static)
        except (ToolchainError, StoreError):
            return False

    def _changes(self, entry: CounterEntry, stored: store.Variant) -> list[str]:
        if stored and self._same_but_for_the_ptx(entry, stored):
            return []
        made = self._figures(entry)
        changes = []
        for case in _cases(entry):
            problem = case.problem.id
            now = made[problem]
            if now == stored.get(problem):
                continue
            if problem not in stored:
                changes.append(f"on {problem} nothing is stored")
                continue
            # Lines of the source cost a compilation, so they are looked for only here.
            again = count(case, device=self.device)
            changes.append(f"on {problem} {', '.join(store.compare(stored[problem], now, again.worst_line))}")
        gone = [problem for problem in stored if problem not in made]
        return changes + [f"{problem} is stored, but no longer counted" for problem in gone]

    def refresh(self, chosen: Iterable[CounterEntry], before: dict[str, store.Variant]) -> Iterator[str]:
        """What storing the counts of the chosen entries changes, a line a variant, in ``before`` itself.

        Raises DeviceError for a variant that cannot be counted.
        """
        for entry in chosen:
            was = before.get(entry.name)
            if entry.variant is None:
                del before[entry.name]
                yield f"{entry.name} counters: dropped"
                continue
            changes = self._changes(entry, was or {})
            if was is None or changes:
                before[entry.name] = self._figures(entry)
            if was is None:
                yield f"{entry.name} counters: new"
            elif changes:
                yield f"{entry.name} counters: {'; '.join(changes)}"


def _without(variant: store.Variant) -> dict[str, dict[str, int]]:
    """The figures but those that vary from one PTX to another."""
    return {p: {n: value for n, value in of.items() if n != _VARIES} for p, of in variant.items()}


def _cases(entry: CounterEntry) -> list[Case]:
    if entry.variant is None:
        return []
    return counted(entry.variant)
