"""The stored figures: a file for each compiler version and architecture, read, checked, written whole."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.static.compiled import StaticFigures

ROOT = Path(__file__).resolve().parents[2] / "baselines" / "static"
SCHEMA = 1
ACCEPT = "nox -s static -- --refresh"
_REMEDY = f"restore it from git, or write it anew with `{ACCEPT}`"
# Figures of a variant as they stand in a file, a line each group.
_RESOURCES = (
    *("registers", "shared_bytes", "local_bytes", "spill_store_bytes", "spill_load_bytes"),
    *("constant_bytes", "barriers"),
)
_HELD = ("blocks", "occupancy", "limited_by")

Stored = Mapping[str, StaticFigures]


class StoreError(Exception):
    """A file that cannot be trusted or written; one line with the file, the reason, what to do."""


def path_of(arch: str, nvcc: str, root: Path = ROOT) -> Path:
    return root / f"nvcc-{nvcc}" / f"{arch}.json"


def load(arch: str, nvcc: str, nvdisasm: str, root: Path = ROOT) -> dict[str, StaticFigures]:
    """The stored figures by variant name; none where there is no file of that compiler and architecture.

    Raises StoreError for a file that is malformed, edited by hand, or of another disassembler.
    """
    path = path_of(arch, nvcc, root)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"{shown(path)}: cannot be read ({error}); {_REMEDY}") from None
    try:
        return _parse(text, {"schema": SCHEMA, "arch": arch, "nvcc": nvcc, "nvdisasm": nvdisasm})
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{shown(path)}: {error}; {_REMEDY}") from None


def _parse(text: str, head: Mapping[str, object]) -> dict[str, StaticFigures]:
    try:
        document = json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON, cut short or damaged ({error})") from None
    if not isinstance(document, dict) or not isinstance(document.get("variants"), dict):
        raise ValueError("holds no stored figures")
    for name, wanted in head.items():
        if document.get(name) != wanted:
            raise ValueError(f"its {name} is {document.get(name)!r}, not {wanted!r}")
    return {name: _from_record(name, record) for name, record in document["variants"].items()}


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(n for n in names if names.count(n) > 1)} is in it twice")
    return made


def _from_record(name: str, record: Any) -> StaticFigures:
    try:
        made = StaticFigures(**record["resources"], **record["held"], census=record["sass"])
        genuine = record == _record(name, made)
    except (TypeError, KeyError, AttributeError):
        genuine = False
    if not genuine:
        raise ValueError(f"{name}: its figures do not fit their checksum: edited by hand or damaged")
    return made


def _record(name: str, figures: StaticFigures) -> dict[str, Any]:
    """A variant as stored. The checksum is each variant's own, so that git merges changes of two."""
    all_of_it = asdict(figures)
    groups = {
        "resources": {key: all_of_it[key] for key in _RESOURCES},
        "held": {key: all_of_it[key] for key in _HELD},
        "sass": dict(sorted(figures.census.items())),
    }
    text = json.dumps([name, groups], sort_keys=True)
    return {**groups, "checksum": hashlib.sha256(text.encode()).hexdigest()[:16]}


def write(stored: Stored, arch: str, nvcc: str, nvdisasm: str, root: Path = ROOT) -> Path:
    """Writes the figures of an architecture, whole or not at all. Raises StoreError."""
    path = path_of(arch, nvcc, root)
    text = _text(stored, {"schema": SCHEMA, "arch": arch, "nvcc": nvcc, "nvdisasm": nvdisasm})
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise StoreError(
            f"{shown(path)}: could not be written ({error.strerror}); what was there is untouched"
        ) from None
    return path


def _text(stored: Stored, head: Mapping[str, object]) -> str:
    """JSON with a line for each group of figures: a change shows as one line, under its variant's name."""
    lines = [f" {json.dumps(name)}: {json.dumps(value)}," for name, value in head.items()]
    variants = []
    for name in sorted(stored):
        groups = (f"   {json.dumps(k)}: {json.dumps(v)}" for k, v in _record(name, stored[name]).items())
        variants.append(f"  {json.dumps(name)}: {{\n" + ",\n".join(groups) + "\n  }")
    return "\n".join(["{", *lines, ' "variants": {', ",\n".join(variants), " }", "}"]) + "\n"


def shown(path: Path) -> str:
    """Relative to the checkout where it lies in it."""
    checkout = ROOT.parents[1]
    return str(path.relative_to(checkout) if path.is_relative_to(checkout) else path)
