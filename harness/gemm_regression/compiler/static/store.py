"""The stored compiler metrics: one file per compiler version and architecture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gemm_regression.compiler.static import files
from gemm_regression.compiler.static.compiled import StaticFigures
from gemm_regression.compiler.static.files import ACCEPT, Groups, StoreError, shown

__all__ = ["ACCEPT", "StoreError", "load", "path_of", "shown", "write"]

SCHEMA = 1
# Metrics of a variant as stored in a file, one line per group.
_RESOURCES = (
    *("registers", "shared_bytes", "local_bytes", "spill_store_bytes", "spill_load_bytes"),
    *("constant_bytes", "barriers"),
)
_HELD = ("blocks", "occupancy", "limited_by")

Stored = Mapping[str, StaticFigures]


def path_of(arch: str, nvcc: str, root: Path) -> Path:
    return root / f"nvcc-{nvcc}" / f"{arch}.json"


def holds_any(root: Path) -> bool:
    """Whether compiler metrics or memory counters are stored at all, for any compiler."""
    return (root / "counters.json").exists() or any(root.glob("nvcc-*/*.json"))


def load(arch: str, nvcc: str, nvdisasm: str, root: Path) -> dict[str, StaticFigures]:
    """The stored metrics by variant name; empty if there is no file for that compiler and architecture.

    Raises StoreError for a file that is malformed, edited by hand, or written with another disassembler.
    """
    return files.read(path_of(arch, nvcc, root), head(arch, nvcc, nvdisasm), _figures)


def write(stored: Stored, arch: str, nvcc: str, nvdisasm: str, root: Path) -> Path:
    """Writes the metrics of an architecture atomically. Raises StoreError."""
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
        "sass": dict(sorted(figures.instruction_mix.items())),
        **({"made_of": figures.made_of} if figures.made_of else {}),
    }


def _figures(record: Groups) -> StaticFigures:
    made = StaticFigures(
        **record["resources"],
        **record["held"],
        instruction_mix=record["sass"],
        made_of=record.get("made_of", ""),
    )
    if groups(made) != record:
        raise TypeError("unexpected groups")
    return made
