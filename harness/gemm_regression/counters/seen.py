"""What ncu counted on a GPU, stored: ``baselines/<gpu>/counters.json``, by case id."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gemm_regression.compiler.static import files
from gemm_regression.compiler.static.files import Groups

FILE = "counters.json"
STORE = "nox -s profile -- --store"
_HEAD = {"schema": 1, "counters": "ncu"}
_REMEDY = f"restore it from git, or count again with `{STORE}`"


@dataclass(frozen=True)
class Seen:
    """The metrics of one launch, ``values`` by ncu's names; the SHA-256 of the ``cubin`` that was launched;
    and ``made``: GPU, board, driver, nvcc, ncu, commit."""

    cubin: str
    values: Mapping[str, float]
    made: Mapping[str, str]


def load(folder: Path) -> dict[str, Seen]:
    """What is stored of a GPU model in its folder, by case id; empty if nothing is. Raises StoreError."""
    return files.read(folder / FILE, _HEAD, _seen, _REMEDY)


def write(folder: Path, found: Mapping[str, Seen]) -> Path:
    """Adds launches to those that are stored; a case that is there already is replaced. Raises StoreError."""
    every = {**load(folder), **found}
    records = {
        case: {"cubin": one.cubin, "made": dict(one.made), "values": _short(one.values)}
        for case, one in every.items()
    }
    return files.write(folder / FILE, _HEAD, records)


def _seen(groups: Groups) -> Seen:
    values = {str(name): float(value) for name, value in groups["values"].items()}
    return Seen(str(groups["cubin"]), values, dict(groups["made"]))


def _short(values: Mapping[str, float]) -> dict[str, float]:
    """Counts as integers, the rest with six digits."""
    return {name: int(v) if v == int(v) else float(f"{v:.6g}") for name, v in values.items()}
