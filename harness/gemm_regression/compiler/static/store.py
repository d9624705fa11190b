"""The stored compiler metrics: a file per compiler version and architecture, each variant with a checksum."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from gemm_regression.files import no_key_twice, read_whole, write_whole
from gemm_regression.hints import typed

ACCEPT = typed("static", "--refresh")
SCHEMA = 1
_REMEDY = f"restore it from git, or regenerate it with `{ACCEPT}`"

Groups = Mapping[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class StaticFigures:
    """Compiler metrics of a variant.

    Per thread: ``registers``, ``local_bytes`` of local memory (the stack), ``spill_store_bytes`` and
    ``spill_load_bytes``. Per block: ``shared_bytes``, static and dynamic, and ``barriers``. Per kernel:
    ``constant_bytes``. Per SM: resident ``blocks``, ``occupancy`` as a fraction of its warps (0 to 1), and
    ``limited_by``, the resource that limits it (``gpus.Occupancy``). ``instruction_mix``: the number of
    SASS instructions of each kind (``instruction_mix``). ``made_of``: what they follow from
    (``made_of``), for the architectures of CHANGED_ONLY.
    """

    registers: int
    shared_bytes: int
    local_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    constant_bytes: int
    barriers: int
    blocks: int
    occupancy: float
    limited_by: str
    instruction_mix: Mapping[str, int]
    made_of: str = field(default="", compare=False)

    @property
    def tensor_cores(self) -> bool:
        """Whether it multiplies on tensor cores: HMMA, IMMA, QGMMA …"""
        return any(op.partition(".")[0].endswith("MMA") for op in self.instruction_mix)


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
        document = json.loads(read_whole(path), object_pairs_hook=no_key_twice)
        if not isinstance(document, dict) or not isinstance(document.get("variants"), dict):
            raise ValueError("contains no stored metrics")
        for name, wanted in head.items():
            if document.get(name) != wanted:
                raise ValueError(f"its {name} is {document.get(name)!r}, not {wanted!r}")
        return {name: _genuine(name, record, make) for name, record in document["variants"].items()}
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        reason = f"cannot be read ({error})"
    except json.JSONDecodeError as error:
        reason = f"not valid JSON: truncated or damaged ({error})"
    except (ValueError, RecursionError) as error:
        reason = str(error)
    raise StoreError(f"{shown(path)}: {reason}; {remedy}")


def _genuine(name: str, record: Any, make: Callable[[Groups], T]) -> T:
    try:
        groups = {key: value for key, value in record.items() if key != "checksum"}
        if record == _sealed(name, groups):
            return make(groups)
    except (TypeError, KeyError, AttributeError):
        pass
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
        why = f"could not be written ({error.strerror}); the old file is unchanged"
        raise StoreError(f"{shown(path)}: {why}") from None
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


def write(stored: Mapping[str, StaticFigures], arch: str, nvcc: str, nvdisasm: str, root: Path) -> Path:
    """Writes the metrics of an architecture atomically. Raises StoreError."""
    records = {name: groups(figures) for name, figures in stored.items()}
    return write_records(path_of(arch, nvcc, root), head(arch, nvcc, nvdisasm), records)


def head(arch: str, nvcc: str, nvdisasm: str) -> dict[str, object]:
    return {"schema": SCHEMA, "arch": arch, "nvcc": nvcc, "nvdisasm": nvdisasm}


def groups(figures: StaticFigures) -> dict[str, Any]:
    """A variant as stored, one line per group."""
    resources = dict(vars(figures))
    made_of, mix = resources.pop("made_of"), resources.pop("instruction_mix")
    held = {key: resources.pop(key) for key in ("blocks", "occupancy", "limited_by")}
    made = {"resources": resources, "held": held, "sass": dict(sorted(mix.items()))}
    return {**made, "made_of": made_of} if made_of else made


def _figures(record: Groups) -> StaticFigures:
    rest = {"instruction_mix": record["sass"], "made_of": record.get("made_of", "")}
    made = StaticFigures(**record["resources"], **record["held"], **rest)
    if groups(made) != record:
        raise TypeError("unexpected groups")
    return made
