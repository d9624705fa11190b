"""Files of stored metrics: JSON by variant, read, validated and written atomically.

A variant's record consists of groups of metrics, one line each, and a checksum of its own, which
distinguishes an edited file from a changed kernel. Git can merge changes to two variants."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from gemm_regression.files import no_key_twice, write_whole

ACCEPT = "nox -s static -- --refresh"
_REMEDY = f"restore it from git, or regenerate it with `{ACCEPT}`"

Groups = Mapping[str, Any]
T = TypeVar("T")


class StoreError(Exception):
    """A file cannot be trusted or written; one line with the file, the reason, and what to do."""


def read(
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


def write(path: Path, head: Mapping[str, object], records: Mapping[str, Groups]) -> Path:
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
