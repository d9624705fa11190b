"""Compiler metrics of every kernel variant: resources reported by ptxas, occupancy, and the SASS instruction
mix; compared with the stored ones. Needs no GPU."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import NamedTuple

from gemm_regression.compiler import objects, tools
from gemm_regression.compiler.nvcc import Binary, Variant, compile_all
from gemm_regression.compiler.static import store
from gemm_regression.compiler.static.store import ACCEPT, StaticFigures, StoreError
from gemm_regression.compiler.tools import CompileError, Nvcc
from gemm_regression.compiler.units import unit_of
from gemm_regression.model import Config, DType, Kernel, variant_name
from gemm_regression.model.gpus import GpuLimits, Occupancy, legal_variants, occupancy

__all__ = ["ARCHES", "Check", "Entry", "StaticFigures", "StoreError", "compare", "entries", "unchanged"]

Made = StaticFigures | CompileError
# The architectures with stored metrics, by nvcc's names: those that each check compiles for, and those that
# it compiles for only what has changed since its metrics were stored.
_CAPABILITIES = ((8, 0), (9, 0), (10, 0), (12, 0), (7, 5), (8, 6), (8, 9))
ARCHES = {tools.arch(capability): capability for capability in _CAPABILITIES}
ALWAYS = {tools.arch((9, 0))}  # which is emulated, so that the check needs it anyway
CHANGED_ONLY = ARCHES.keys() - ALWAYS


def figures(kernel: Kernel, config: Config, dtype: DType, arch: str) -> StaticFigures:
    """The metrics of one variant for one architecture of ``ARCHES``, compiled with the pinned compiler.

    Raises CompileError with the compiler's messages, ToolchainError without the pinned compiler and
    disassembler, ValueError for a library kernel or an unknown architecture.
    """
    (made,) = all_figures([(kernel, config, dtype)], arch)
    if isinstance(made, CompileError):
        raise made
    return made


def all_figures(
    variants: Sequence[Variant],
    arch: str,
    pinned: tuple[Nvcc, Nvcc] | None = None,
    step: Callable[[str], None] = lambda what: None,
) -> list[Made]:
    """The metrics of many variants, in the same order, compiled on all cores; a CompileError in place of
    those that do not compile. ``step`` is called for each that is done. Otherwise raises as ``figures``
    does."""
    if arch not in ARCHES:
        raise ValueError(f"unknown architecture {arch!r}; known: {', '.join(ARCHES)}")
    nvcc, nvdisasm = pinned or tools.pinned_tools()
    made = compile_all(variants, arch, nvcc=nvcc, step=step)
    texts = [objects.code(binary.cubin, binary.symbol) for binary in made if isinstance(binary, Binary)]
    counted = iter(objects.opcodes(texts, arch, nvdisasm))
    return [
        binary if isinstance(binary, CompileError) else _figures(variant, arch, binary, next(counted), nvcc)
        for variant, binary in zip(variants, made, strict=True)
    ]


def _figures(
    variant: Variant, arch: str, binary: Binary, counts: Mapping[str, int], nvcc: Nvcc
) -> StaticFigures:
    ptxas = binary.figures
    held = occupancy_of(variant, binary, GpuLimits.of(ARCHES[arch]))
    resources = ptxas._replace(shared_bytes=ptxas.shared_bytes + dynamic_shared(variant))
    return StaticFigures(
        **resources._asdict(),
        constant_bytes=objects.constant_bytes(binary.cubin, binary.symbol),
        blocks=held.blocks,
        occupancy=round(held.fraction, 4),
        limited_by=held.limiter,
        instruction_mix=objects.instruction_mix(counts),
        made_of=made_of(variant, arch, nvcc) if arch in CHANGED_ONLY else "",
    )


def made_of(variant: Variant, arch: str, nvcc: Nvcc) -> str:
    """A digest of all that the metrics of a variant follow from: compiler, options, sources, the block, and
    what the architecture allows. Raises CompileError for sources that cannot be read."""
    kernel, config, dtype = variant
    shape = kernel.shape_of(config, dtype)
    block = shape.threads, shape.dynamic_bytes, str(GpuLimits.of(ARCHES[arch]))
    made = json.dumps([arch, unit_of(*variant, arch).identity(nvcc), block])
    return hashlib.sha256(made.encode()).hexdigest()[:16]


def dynamic_shared(variant: Variant) -> int:
    """Bytes of dynamic shared memory of a launch."""
    kernel, config, dtype = variant
    return kernel.shape_of(config, dtype).dynamic_bytes


def occupancy_of(variant: Variant, binary: Binary, limits: GpuLimits) -> Occupancy:
    """The occupancy of a compiled variant."""
    kernel, config, dtype = variant
    shape, ptxas = kernel.shape_of(config, dtype), binary.figures
    shared = ptxas.shared_bytes + shape.dynamic_bytes
    return occupancy(prod(shape.threads), ptxas.registers, shared, limits, ptxas.barriers)


def all_variants(
    arch: str, kernels: Iterable[Kernel], stored: Callable[[], Iterable[str]]
) -> dict[str, Variant | None]:
    """The variants as of ``variants_of``, and after them, as None, those that are gone, whose names are only
    ``stored``. A file that cannot be read adds none; the check, which reads it again, reports why."""
    live: dict[str, Variant | None] = {**variants_of(arch, kernels)}
    with contextlib.suppress(StoreError):
        live |= {name: live.get(name) for name in stored()}
    return live


def variants_of(arch: str, kernels: Iterable[Kernel]) -> dict[str, Variant]:
    """The variants of these kernels that can run on an architecture, by name, in the order of the kernels."""
    limits = GpuLimits.of(ARCHES[arch])
    return {
        variant_name(kernel, config, dtype): (kernel, config, dtype)
        for kernel in kernels
        if kernel.compiled
        for config, dtype in legal_variants(kernel, limits)
    }


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


def compare(stored: StaticFigures, made: StaticFigures) -> list[str]:
    """The changes from the stored metrics to the current ones, one phrase each; empty if there are none."""
    was, now = Counter(stored.instruction_mix), Counter(made.instruction_mix)
    kinds = [*sorted({*was, *now} - {"total"}), "total"]
    names = {"total": "instructions"}
    changes = [f"{names.get(op, op)} {was[op]} -> {now[op]}" for op in kinds if was[op] != now[op]]
    for name, text in _NUMBERS.items():
        before, after = getattr(stored, name), getattr(made, name)
        if before != after:
            changes.append(text.format(before, after))
    share, by = _percent(made.occupancy), made.limited_by
    if (before := _percent(stored.occupancy)) != share:
        changes.append(f"occupancy {before} -> {share} ({by})")
    elif stored.blocks != made.blocks:
        changes.append(f"blocks per SM {stored.blocks} -> {made.blocks} ({by})")
    elif stored.limited_by != by:
        changes.append(f"occupancy {share} limited by {stored.limited_by} -> {by}")
    return changes


def _percent(share: float) -> str:
    """0.125 as ``12.5 %``."""
    return f"{100 * share:.4g} %"


class StaticEntry(NamedTuple):
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


def architectures(names: str) -> list[str]:
    """Those of a line of names, all of ARCHES if it is empty. Raises ValueError for another one."""
    if strange := [name for name in names.split() if name not in ARCHES]:
        raise ValueError(f"architectures: {strange[0]!r} is none of {', '.join(ARCHES)}")
    return names.split() or [*ARCHES]


def entries(kernels: Sequence[Kernel], root: Path, names: str = "") -> list[StaticEntry]:
    """Every variant of these kernels, and every one with metrics stored in ``root``, by architecture: those
    of this line of ``names``, or all. Raises ValueError."""
    found = []
    for arch in architectures(names):
        every = all_variants(arch, kernels, partial(store.load, arch, *tools.pins(), root))
        found += [StaticEntry(name, arch, variant) for name, variant in every.items()]
    return found


def unchanged(chosen: Iterable[StaticEntry], root: Path, nvcc: Nvcc) -> dict[tuple[str, str], StaticFigures]:
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

    def __init__(
        self, chosen: Iterable[StaticEntry], root: Path, every: bool = True, changed: bool = True
    ) -> None:
        self._tools = tools.pinned_tools()
        self._root = root
        self._chosen = list(chosen)
        self._unchanged = {} if every else unchanged(self._chosen, root, self._tools[0])
        self._changed = every or changed
        self._made: dict[str, dict[str, Made]] = {}
        self._stored: dict[str, dict[str, StaticFigures]] = {}

    def made(self, arch: str, step: Callable[[str], None] = lambda what: None) -> dict[str, Made]:
        """The compiler metrics of the entries of an architecture, by variant name; ``step`` is called for
        each that is compiled."""
        if arch not in self._made:
            held = {name: known for (name, of), known in self._unchanged.items() if of == arch}
            now = [e for e in self._chosen if e.arch == arch and e.name not in held and not self.later(e)]
            fresh = {e.name: e.variant for e in now if e.variant}
            figures = all_figures(list(fresh.values()), arch, self._tools, step) if fresh else []
            self._made[arch] = {**held, **dict(zip(fresh, figures, strict=True))}
        return self._made[arch]

    def later(self, entry: StaticEntry) -> bool:
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

    def finding(self, entry: StaticEntry) -> str:
        """Why an entry fails: what and where in one line, then what to do; empty if all is as stored."""
        stored, title = self.stored(entry.arch).get(entry.name), entry.title
        if entry.variant is None:
            gone = f"{title}: metrics are stored for a variant that no longer exists"
            return f"{gone}; remove them with `{entry.accept}`"
        if self.later(entry):
            return ""
        made = self.made(entry.arch)[entry.name]
        if (fault := self.fault(entry)) or isinstance(made, CompileError):
            return fault
        if stored is None:
            return f"{title}: no metrics are stored; store them with `{entry.accept}`"
        changes = compare(stored, made)
        return f"{title}: {'; '.join(changes)}\nto accept it: {entry.accept}" if changes else ""

    def fault(self, entry: StaticEntry) -> str:
        """What is wrong with a binary regardless of what is stored: it does not compile, or cannot be
        launched as declared; empty if nothing is wrong."""
        made = self.made(entry.arch).get(entry.name)
        if isinstance(made, CompileError):
            return str(made)
        if made is None or entry.variant is None:
            return ""
        kernel, config, dtype = entry.variant
        if not made.blocks:
            return f"{entry.title}: cannot be launched: too many {made.limited_by}"
        declared, uses = kernel.shape_of(config, dtype).shared_bytes, made.shared_bytes
        if declared is not None and declared != uses:
            what = f"uses {uses} bytes of shared memory, but its declaration says {declared}"
            return f"{entry.title}: {what}"
        return ""

    def changes(self, arch: str, before: dict[str, StaticFigures]) -> Iterator[str]:
        """What an update changes in the stored metrics of an architecture, one line per changed variant.

        Raises CompileError for a variant that does not compile.
        """
        for entry in (entry for entry in self._chosen if entry.arch == arch):
            was, now = before.get(entry.name), self.made(arch).get(entry.name)
            if isinstance(now, CompileError):
                raise now
            if now is None:
                yield f"{entry.title}: removed"
            elif was is None:
                total = now.instruction_mix["total"]
                held = f"occupancy {_percent(now.occupancy)} ({now.limited_by})"
                yield f"{entry.title}: new: {now.registers} registers, {held}, {total} instructions"
            elif changed := compare(was, now):
                yield f"{entry.title}: {'; '.join(changed)}"

    def after(self, arch: str, before: dict[str, StaticFigures]) -> dict[str, StaticFigures]:
        """The stored metrics of an architecture after updating the run's entries; others stay unchanged."""
        chosen = {entry.name for entry in self._chosen if entry.arch == arch}
        fresh = {n: made for n, made in self.made(arch).items() if isinstance(made, StaticFigures)}
        return {name: figures for name, figures in before.items() if name not in chosen} | fresh
