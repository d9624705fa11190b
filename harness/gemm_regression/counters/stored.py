"""The memory counters of every variant as stored, and what a change of them means, as text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from gemm_regression.compiler.static import files
from gemm_regression.compiler.static.files import Groups
from gemm_regression.counters.counts import Counts
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
Variant = Mapping[str, Figures]  # by problem


def figures(counts: Counts) -> dict[str, int]:
    """The counters stored for a case."""
    total, buffers = counts.total, counts.buffers
    made: dict[str, int] = {}
    for name in GLOBAL:
        access = getattr(total, name)
        made |= {f"{name}_requests": access.requests, f"{name}_sectors": access.sectors}
    for name in SHARED:
        access = getattr(total, name)
        made |= {f"{name}_wavefronts": access.wavefronts, f"{name}_conflicts": access.conflicts}
    rest = (total.barriers, total.divergent, total.flop, counts.shared_bytes)
    read = (buffers["A"].read, buffers["B"].read, buffers["C"].read, buffers["C"].written)
    return made | dict(zip(_REST, (*rest, *read), strict=True))


def path_of(root: Path) -> Path:
    return root / "counters.json"


def load(nvcc: str, root: Path) -> dict[str, Variant]:
    """The stored counters, by variant and problem; empty if there is no file. Raises StoreError."""
    return files.read(path_of(root), head(nvcc), _variant)


def write(stored: Mapping[str, Variant], nvcc: str, root: Path) -> Path:
    """Writes the counters of all variants atomically. Raises StoreError."""
    return files.write(path_of(root), head(nvcc), stored)


def head(nvcc: str) -> dict[str, object]:
    return {"schema": SCHEMA, "arch": ARCH, "nvcc": nvcc}


def _variant(groups: Groups) -> Variant:
    return {
        problem: {name: int(value) for name, value in record.items()} for problem, record in groups.items()
    }


def compare(stored: Figures, made: Figures, worst_line: Callable[[str], str]) -> list[str]:
    """The changes, one phrase each; empty if there are none. ``worst_line``: that of the current Counts."""
    return [*_accesses(stored, made, worst_line), *_rest(stored, made)]


def _accesses(stored: Figures, made: Figures, worst_line: Callable[[str], str]) -> Iterator[str]:
    for name, title in GLOBAL.items():
        before, after = (
            GlobalAccess(f.get(f"{name}_requests", 0), f.get(f"{name}_sectors", 0)) for f in (stored, made)
        )
        if before == after:
            continue
        if not (before.requests and after.requests):
            yield f"{title}: {before.requests} -> {after.requests} requests"
            continue
        was, now = before.sectors_per_request, after.sectors_per_request
        said = (
            [] if before.requests == after.requests else [f"{before.requests} -> {after.requests} requests"]
        )
        if was != now:
            said.append(f"{was:.2f} -> {now:.2f} sectors per request")
        meaning = []
        if after.requests > before.requests and _bytes(name, stored) == _bytes(name, made):
            meaning.append("narrower accesses")
        if after.sectors > before.sectors:
            place = worst_line(name)
            meaning.append("coalescing lost" + (f" at {place}" if place else ""))
        yield f"{title}: {', '.join(said)}" + (f": {', '.join(meaning)}" if meaning else "")
    for name, title in SHARED.items():
        for what in ("wavefronts", "conflicts"):
            was, now = (f.get(f"{name}_{what}", 0) for f in (stored, made))
            if was == now:
                continue
            place = worst_line(name) if what == "conflicts" and now > was else ""
            yield f"{title}: {was} -> {now} {what}" + (f" at {place}" if place else "")


def _bytes(name: str, figures: Figures) -> int:
    read = figures.get("a_read", 0) + figures.get("b_read", 0) + figures.get("c_read", 0)
    return figures.get("c_written", 0) if name == "stores" else read


def _rest(stored: Figures, made: Figures) -> Iterator[str]:
    for name, text in _REST.items():
        was, now = stored.get(name), made.get(name)
        if was != now:
            yield text.format(was, now)
    for name in sorted({*stored} ^ {*made}):
        if name not in _REST and not name.startswith((*GLOBAL, *SHARED)):
            yield f"{name}: {stored.get(name)} -> {made.get(name)}"
