"""The stored figures of the compiler: a file for each compiler version and architecture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.compiler.static import files
from harness.compiler.static.compiled import StaticFigures
from harness.compiler.static.files import ACCEPT, Groups, StoreError, shown

__all__ = ["ACCEPT", "StoreError", "load", "path_of", "shown", "write"]

SCHEMA = 1
# Figures of a variant as they stand in a file, a line each group.
_RESOURCES = (
    *("registers", "shared_bytes", "local_bytes", "spill_store_bytes", "spill_load_bytes"),
    *("constant_bytes", "barriers"),
)
_HELD = ("blocks", "occupancy", "limited_by")

Stored = Mapping[str, StaticFigures]


def path_of(arch: str, nvcc: str, root: Path) -> Path:
    return root / f"nvcc-{nvcc}" / f"{arch}.json"


def holds_any(root: Path) -> bool:
    """Whether figures or counts of any compiler are stored at all."""
    return (root / "counters.json").exists() or any(root.glob("nvcc-*/*.json"))


def load(arch: str, nvcc: str, nvdisasm: str, root: Path) -> dict[str, StaticFigures]:
    """The stored figures by variant name; none where there is no file of that compiler and architecture.

    Raises StoreError for a file that is malformed, edited by hand, or of another disassembler.
    """
    return files.read(path_of(arch, nvcc, root), head(arch, nvcc, nvdisasm), _figures)


def write(stored: Stored, arch: str, nvcc: str, nvdisasm: str, root: Path) -> Path:
    """Writes the figures of an architecture, whole or not at all. Raises StoreError."""
    records = {name: groups(figures) for name, figures in stored.items()}
    return files.write(path_of(arch, nvcc, root), head(arch, nvcc, nvdisasm), records)


def head(arch: str, nvcc: str, nvdisasm: str) -> dict[str, object]:
    return {"schema": SCHEMA, "arch": arch, "nvcc": nvcc, "nvdisasm": nvdisasm}


def groups(figures: StaticFigures) -> dict[str, Any]:
    """A variant as stored."""
    all_of_it = asdict(figures)
    return {
        "resources": {key: all_of_it[key] for key in _RESOURCES},
        "held": {key: all_of_it[key] for key in _HELD},
        "sass": dict(sorted(figures.census.items())),
    }


def _figures(record: Groups) -> StaticFigures:
    made = StaticFigures(**record["resources"], **record["held"], census=record["sass"])
    if groups(made) != record:
        raise TypeError("other groups than these")
    return made
