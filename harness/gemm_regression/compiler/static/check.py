"""Compares the compiler metrics of a run's variants with the stored ones, and updates those."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from gemm_regression.compiler import tools
from gemm_regression.compiler.nvcc import Variant
from gemm_regression.compiler.static import store
from gemm_regression.compiler.static.metrics import (
    ARCHES,
    BY_WIDTH,
    CHANGED_ONLY,
    StaticFigures,
    all_figures,
    made_of,
    variants_of,
)
from gemm_regression.compiler.static.store import ACCEPT, StoreError
from gemm_regression.compiler.tools import CompileError, Nvcc
from gemm_regression.model import Kernel

# How a change of a number of StaticFigures is printed: before, after.
_NUMBERS = {
    "registers": "registers {} -> {}",
    "shared_bytes": "shared memory {} -> {} bytes",
    "local_bytes": "local memory {} -> {} bytes",
    "spill_store_bytes": "spill stores {} -> {} bytes",
    "spill_load_bytes": "spill loads {} -> {} bytes",
    "constant_bytes": "constant banks {} -> {} bytes",
    "barriers": "barriers {} -> {}",
}
_ACCESSES = {
    "LDG": "global loads",
    "STG": "global stores",
    "LDS": "shared loads",
    "STS": "shared stores",
    "LDGSTS": "asynchronous copies",
}


def compare(stored: StaticFigures, made: StaticFigures) -> list[str]:
    """The changes from the stored metrics to the current ones, one phrase each; empty if there are none."""
    changes = _mix_changes(stored.instruction_mix, made.instruction_mix)
    for name, text in _NUMBERS.items():
        before, after = getattr(stored, name), getattr(made, name)
        if before != after:
            changes.append(text.format(before, after))
    if made.spill_bytes > 0 == stored.spill_bytes:
        changes.append("registers spill")
    before, after = ((round(f.occupancy, 4), f.blocks, f.limited_by) for f in (stored, made))
    if before != after:
        changes.append(_occupancy_change(stored, made))
    return changes


def _occupancy_change(stored: StaticFigures, made: StaticFigures) -> str:
    before, after = (percent(f.occupancy) for f in (stored, made))
    if before != after:
        return f"occupancy {before} -> {after} ({made.limited_by})"
    if stored.blocks != made.blocks:
        return f"blocks per SM {stored.blocks} -> {made.blocks} ({made.limited_by})"
    return f"occupancy {after} limited by {stored.limited_by} -> {made.limited_by}"


def percent(share: float) -> str:
    """0.125 as ``12.5 %``."""
    return f"{100 * share:.4g} %"


def _mix_changes(stored: Mapping[str, int], made: Mapping[str, int]) -> list[str]:
    """Changed counts; all widths of an access in one phrase, with what the change means."""
    changed = [op for op in {**stored, **made} if stored.get(op, 0) != made.get(op, 0)]
    groups: dict[str, list[str]] = {}
    for op in sorted(changed, key=_place):
        word = op.split(".")[0]
        groups.setdefault(word if word in BY_WIDTH else op, []).append(op)
    return [_mix_change(word, ops, stored, made) for word, ops in groups.items()]


def _place(op: str) -> tuple[bool, str, int]:
    """Sort key: by name and decreasing width, the total last."""
    word, _, rest = op.partition(".")
    return op == "total", word, -int(rest) if word in BY_WIDTH else 0


def _mix_change(word: str, ops: list[str], stored: Mapping[str, int], made: Mapping[str, int]) -> str:
    counts = [(op, stored.get(op, 0), made.get(op, 0)) for op in ops]
    names = {"total": "instructions"}
    text = ", ".join(f"{names.get(op, op)} {before} -> {after}" for op, before, after in counts)
    meaning = _meaning(word, stored, made)
    return f"{text}: {meaning}" if meaning else text


def _meaning(word: str, stored: Mapping[str, int], made: Mapping[str, int]) -> str:
    before, after = stored.get(word, 0), made.get(word, 0)
    if word.split(".")[0].endswith("MMA"):
        return (
            ""
            if before and after
            else "no longer used on tensor cores"
            if before
            else "now used on tensor cores"
        )
    if word == "FFMA" and not after:
        return "fused multiply-adds lost"
    if word in ("LDL", "STL") and not _bits(word, stored):
        return "local memory used"
    if word not in _ACCESSES:
        return ""
    what, (was, now) = _ACCESSES[word], (_bits(word, counts) for counts in (stored, made))
    if was and not now:
        return f"{what} gone"
    if max(was, default=0) > 32 >= max(now, default=0):
        return f"vectorised {what} lost"
    if max(now, default=0) > 32 >= max(was, default=0):
        return f"{what} vectorised"
    narrower = _mean(now) - _mean(was)
    return f"{what} narrower" if narrower < 0 else f"{what} wider" if narrower > 0 else ""


def _bits(word: str, counts: Mapping[str, int]) -> dict[int, int]:
    """Number of accesses by width in bits."""
    split = ((op.split("."), count) for op, count in counts.items())
    return {int(op[1]): count for op, count in split if op[0] == word and count}


def _mean(bits: Mapping[int, int]) -> float:
    return sum(width * count for width, count in bits.items()) / sum(bits.values()) if bits else 0.0


class Entry(NamedTuple):
    """A variant ``name`` on architecture ``arch``; ``variant`` is None if metrics are stored for a variant
    that no longer exists."""

    name: str
    arch: str
    variant: Variant | None

    def __str__(self) -> str:
        return f"{self.name}-{self.arch}"

    @property
    def title(self) -> str:
        return f"{self.name} {self.arch}"

    @property
    def accept(self) -> str:
        return f'{ACCEPT} -k "[{self}]"'


def entries(kernels: Sequence[Kernel], root: Path) -> list[Entry]:
    """Every variant of these kernels, and every one with metrics stored in ``root``, ordered by architecture.

    A file that cannot be read adds none; the check, which reads it again, reports why.
    """
    found = []
    for arch in ARCHES:
        live = variants_of(arch, kernels)
        try:
            stored = store.load(arch, *tools.pins(), root)
        except StoreError:
            stored = {}
        gone = [Entry(name, arch, None) for name in stored if name not in live]
        found += [*(Entry(name, arch, variant) for name, variant in live.items()), *gone]
    return found


def unchanged(chosen: Iterable[Entry], root: Path, nvcc: Nvcc) -> dict[tuple[str, str], StaticFigures]:
    """The stored metrics, by variant name and architecture, of those entries that need not be compiled: they
    are of the CHANGED_ONLY architectures, and all that their metrics follow from is as it was."""
    found, stored = {}, dict[str, dict[str, StaticFigures]]()
    for entry in chosen:
        if entry.arch not in CHANGED_ONLY or entry.variant is None:
            continue
        with contextlib.suppress(StoreError, CompileError):  # the check reports them
            if entry.arch not in stored:
                stored[entry.arch] = store.load(entry.arch, *tools.pins(), root)
            known = stored[entry.arch].get(entry.name)
            if known and known.made_of == made_of(entry.variant, entry.arch, nvcc):
                found[entry.name, entry.arch] = known
    return found


class Check:
    """Compiles the entries of a run, all of an architecture when the first of them is requested; not those
    that are ``unchanged``, unless ``every`` one is to be. Without ``changed``, what has changed is left to a
    ``later`` run for the architectures of CHANGED_ONLY: one edit is then compiled for one, not seven.

    Raises ToolchainError if the pinned compiler or disassembler is missing, and, for an entry, StoreError if
    the stored metrics of its architecture cannot be trusted.
    """

    def __init__(self, chosen: Iterable[Entry], root: Path, every: bool = True, changed: bool = True) -> None:
        self._tools = tools.pinned_tools()
        self._root = root
        self._chosen = list(chosen)
        self._unchanged = {} if every else unchanged(self._chosen, root, self._tools[0])
        self._changed = every or changed
        self._made: dict[str, dict[str, StaticFigures | CompileError]] = {}
        self._stored: dict[str, dict[str, StaticFigures]] = {}

    def made(
        self, arch: str, step: Callable[[str], None] = lambda what: None
    ) -> dict[str, StaticFigures | CompileError]:
        """The compiler metrics of the entries of an architecture, by variant name; ``step`` is called for
        each that is compiled."""
        if arch not in self._made:
            held = {name: known for (name, of), known in self._unchanged.items() if of == arch}
            now = [e for e in self._chosen if e.arch == arch and not self.later(e)]
            known = {e.name: e.variant for e in now if e.variant}
            fresh = {name: variant for name, variant in known.items() if name not in held}
            figures = all_figures(list(fresh.values()), arch, self._tools, step) if fresh else []
            self._made[arch] = {**held, **dict(zip(fresh, figures, strict=True))}
        return self._made[arch]

    def later(self, entry: Entry) -> bool:
        """Whether an entry is left to a run that compiles for all architectures."""
        held = (entry.name, entry.arch) in self._unchanged
        return not self._changed and entry.arch in CHANGED_ONLY and bool(entry.variant) and not held

    def stored(self, arch: str) -> dict[str, StaticFigures]:
        """The stored metrics of an architecture, by variant name."""
        if arch not in self._stored:
            self._stored[arch] = store.load(arch, *self.versions, self._root)
        return self._stored[arch]

    @property
    def versions(self) -> tuple[str, str]:
        nvcc, nvdisasm = self._tools
        return nvcc.version, nvdisasm.version

    def finding(self, entry: Entry) -> str:
        """Why an entry fails: what and where in one line, then what to do; empty if all is as stored."""
        stored = self.stored(entry.arch).get(entry.name)
        if entry.variant is None:
            return (
                f"{entry.title}: metrics are stored for a variant that no longer exists; "
                f"remove them with `{entry.accept}`"
            )
        if self.later(entry):
            return ""
        made = self.made(entry.arch)[entry.name]
        if (fault := self.fault(entry)) or isinstance(made, CompileError):
            return fault
        if stored is None:
            return f"{entry.title}: no metrics are stored; store them with `{entry.accept}`"
        changes = compare(stored, made)
        return f"{entry.title}: {'; '.join(changes)}\nto accept it: {entry.accept}" if changes else ""

    def fault(self, entry: Entry) -> str:
        """What is wrong with a binary regardless of what is stored: it does not compile, or cannot be
        launched as declared; empty if nothing is wrong."""
        made = self.made(entry.arch).get(entry.name)
        if isinstance(made, CompileError):
            return str(made)
        fault = _fault(entry.variant, made) if entry.variant and made else ""
        return f"{entry.title}: {fault}" if fault else ""

    def changes(self, arch: str, before: dict[str, StaticFigures]) -> Iterator[str]:
        """What an update changes in the stored metrics of an architecture, one line per changed variant.

        Raises CompileError for a variant that does not compile.
        """
        for entry in self._chosen:
            if entry.arch != arch:
                continue
            was, now = before.get(entry.name), self.made(arch).get(entry.name)
            if isinstance(now, CompileError):
                raise now
            if now is None:
                yield f"{entry.title}: removed"
            elif was is None:
                yield (
                    f"{entry.title}: new: {now.registers} registers, occupancy {percent(now.occupancy)} "
                    f"({now.limited_by}), {now.instruction_mix['total']} instructions"
                )
            elif changed := compare(was, now):
                yield f"{entry.title}: {'; '.join(changed)}"

    def after(self, arch: str, before: dict[str, StaticFigures]) -> dict[str, StaticFigures]:
        """The stored metrics of an architecture after updating the run's entries; others stay unchanged."""
        chosen = {entry.name for entry in self._chosen if entry.arch == arch}
        fresh = {n: made for n, made in self.made(arch).items() if isinstance(made, StaticFigures)}
        return {name: figures for name, figures in before.items() if name not in chosen} | fresh


def _fault(variant: Variant, made: StaticFigures) -> str:
    """What is wrong with a binary regardless of what is stored."""
    kernel, config, dtype = variant
    if not made.blocks:
        return f"cannot be launched: too many {made.limited_by}"
    declared = kernel.shape_of(config, dtype).shared_bytes
    if declared is not None and declared != made.shared_bytes:
        return f"uses {made.shared_bytes} bytes of shared memory, but its declaration says {declared}"
    return ""
