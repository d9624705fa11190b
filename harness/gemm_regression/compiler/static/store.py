"""The stored compiler metrics: one file per compiler version and architecture."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from gemm_regression.compiler.static.metrics import StaticFigures
from gemm_regression.files import no_key_twice, write_whole

ACCEPT = "nox -s static -- --refresh"
_REMEDY = f"restore it from git, or regenerate it with `{ACCEPT}`"

Groups = Mapping[str, Any]
T = TypeVar("T")


class StoreError(Exception):
    """A file cannot be trusted or written; one line with the file, the reason, and what to do."""


def read_records(
    path: Path, head: Mapping[str, object], make: Callable[[Groups], T], remedy: str = _REMEDY
) -> dict[str, T]:
    """The stored records by variant name, each converted by ``make``; empty if there is no file.

    Raises StoreError, which ends with the ``remedy``, for a file that is malformed, edited by hand, or has
    another ``head`` (header).
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"{shown(path)}: cannot be read ({error}); {remedy}") from None
    try:
        records = _parse(text, head)
        return {name: _genuine(name, record, make) for name, record in records.items()}
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{shown(path)}: {error}; {remedy}") from None


def _parse(text: str, head: Mapping[str, object]) -> dict[str, Any]:
    try:
        document = json.loads(text, object_pairs_hook=no_key_twice)
    except json.JSONDecodeError as error:
        raise ValueError(f"not valid JSON: truncated or damaged ({error})") from None
    if not isinstance(document, dict) or not isinstance(document.get("variants"), dict):
        raise ValueError("contains no stored metrics")
    for name, wanted in head.items():
        if document.get(name) != wanted:
            raise ValueError(f"its {name} is {document.get(name)!r}, not {wanted!r}")
    return dict(document["variants"])


def _genuine(name: str, record: Any, make: Callable[[Groups], T]) -> T:
    with contextlib.suppress(TypeError, KeyError, AttributeError):
        groups = {key: value for key, value in record.items() if key != "checksum"}
        if record == _sealed(name, groups):
            return make(groups)
    raise ValueError(f"{name}: its metrics do not match their checksum: edited by hand or damaged")


def _sealed(name: str, groups: Groups) -> dict[str, Any]:
    text = json.dumps([name, groups], sort_keys=True)
    return {**groups, "checksum": hashlib.sha256(text.encode()).hexdigest()[:16]}


def write_records(path: Path, head: Mapping[str, object], records: Mapping[str, Groups]) -> Path:
    """Writes the groups of every variant atomically. Raises StoreError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text_of(head, records))
    except OSError as error:
        raise StoreError(
            f"{shown(path)}: could not be written ({error.strerror}); the old file is unchanged"
        ) from None
    return path


def text_of(head: Mapping[str, object], records: Mapping[str, Groups]) -> str:
    """JSON with one line per group of metrics, so that a change is one line below its variant's name."""
    lines = [f" {json.dumps(name)}: {json.dumps(value)}," for name, value in head.items()]
    variants = []
    for name in sorted(records):
        groups = (f"   {json.dumps(k)}: {json.dumps(v)}" for k, v in _sealed(name, records[name]).items())
        variants.append(f"  {json.dumps(name)}: {{\n" + ",\n".join(groups) + "\n  }")
    return "\n".join(["{", *lines, ' "variants": {', ",\n".join(variants), " }", "}"]) + "\n"


def shown(path: Path) -> str:
    """The path, relative to the working directory if it is inside."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


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
    return read_records(path_of(arch, nvcc, root), head(arch, nvcc, nvdisasm), _figures)


def write(stored: Stored, arch: str, nvcc: str, nvdisasm: str, root: Path) -> Path:
    """Writes the metrics of an architecture atomically. Raises StoreError."""
    records = {name: groups(figures) for name, figures in stored.items()}
    return write_records(path_of(arch, nvcc, root), head(arch, nvcc, nvdisasm), records)


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
