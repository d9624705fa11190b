"""The binaries of baselines, with all that launches them: ``binaries/``, shared by all GPU models.

A cubin is compressed, and named by the SHA-256 of its content; a launch is a line of ``launches.jsonl``.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from gemm_regression.baselines.entries import BaselineEntry
from gemm_regression.baselines.fields import BaselineError
from gemm_regression.baselines.lines import RESTORE, parsed, raw_lines
from gemm_regression.devices.stored import StoredBinary, launch_document, launch_id, read_launch
from gemm_regression.files import write_whole

_SUFFIX = ".cubin.xz"


def cubin_path(root: Path, sha256: str) -> Path:
    return root / "binaries" / sha256[:2] / f"{sha256}{_SUFFIX}"


def launches_path(root: Path) -> Path:
    return root / "binaries" / "launches.jsonl"


def keep_binary(root: Path, binary: StoredBinary) -> tuple[str, str]:
    """Keeps it, if it is not kept already: its cubin's SHA-256 and its launch's id. Raises BaselineError."""
    document = launch_document(binary.symbol, binary.work)
    sha256, launch = binary.sha256, launch_id(document)
    path, launches = cubin_path(root, sha256), launches_path(root)
    try:
        if _content(path) is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, lzma.compress(binary.cubin, preset=9 | lzma.PRESET_EXTREME))
        if launch not in _launches(root):
            text = json.dumps({"id": launch, **document}, separators=(",", ":"), allow_nan=False)
            append_lines(launches, [text])
    except OSError as error:
        raise BaselineError(f"{path}: could not be written ({error.strerror})") from None
    return sha256, launch


def binary(root: Path, entry: BaselineEntry) -> StoredBinary:
    """The binary of an entry, ready to be launched. Raises BaselineError where it has none, or where what is
    kept is missing or damaged."""
    if entry.cubin_sha256 is None:
        raise BaselineError(f"{entry.case_id}: a library's, which has no binary of ours")
    if entry.launch_id is None:
        raise BaselineError(
            f"{entry.case_id}: its binary {entry.cubin_sha256[:12]} was not kept when it was measured; "
            "measure it again with `nox -s baseline`"
        )
    return load_binary(root, entry.variant, entry.cubin_sha256, entry.launch_id)


def load_binary(root: Path, name: str, sha256: str, launch: str) -> StoredBinary:
    """A kept binary, called ``name`` in messages. Raises BaselineError."""
    path, launches = cubin_path(root, sha256), launches_path(root)
    content = _content(path)
    if content is None:
        state = "does not contain what its name says" if path.exists() else "does not exist"
        raise BaselineError(f"{path}: {state}, the binary of {name}; {RESTORE}")
    document = _launches(root).get(launch)
    if document is None:
        raise BaselineError(f"{launches}: no launch {launch}, of {name}; {RESTORE}")
    try:
        symbol, work = read_launch(document)
    except ValueError as error:
        raise BaselineError(f"{launches}: launch {launch}, of {name}: {error}; {RESTORE}") from None
    return StoredBinary(name, content, symbol, work)


def _content(path: Path) -> bytes | None:
    """The cubin in a file; None if there is none, or not the one that it is named after."""
    try:
        content = lzma.decompress(path.read_bytes())
    except (OSError, lzma.LZMAError):
        return None
    return content if hashlib.sha256(content).hexdigest() == path.name.removesuffix(_SUFFIX) else None


def _launches(root: Path) -> Mapping[str, dict[str, Any]]:
    path = launches_path(root)
    state = path.stat() if path.exists() else None
    return _read(path, state.st_mtime_ns, state.st_size) if state else {}


@lru_cache(maxsize=4)
def _read(path: Path, changed: int, size: int) -> Mapping[str, dict[str, Any]]:
    """The launches in a file, by id. Raises BaselineError."""
    found: dict[str, dict[str, Any]] = {}
    for where, text in raw_lines(path):
        document = parsed(where, text)
        id_ = document.pop("id", None)
        if launch_id(document) != id_:
            raise BaselineError(f"{where}: its id does not match: edited by hand or damaged; {RESTORE}")
        found[id_] = document
    return found


def append_lines(path: Path, lines: list[str]) -> None:
    """All of them, on disk, or none. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{line}\n" for line in lines)
    if path.exists() and path.read_bytes()[-1:] not in (b"", b"\n"):
        text = f"\n{text}"
    with path.open("ab", buffering=0) as file:
        size, left = file.tell(), memoryview(text.encode())
        try:
            while left:
                left = left[file.write(left) :]
            os.fsync(file.fileno())
        except OSError:
            file.truncate(size)
            raise


def kept_binaries(root: Path) -> list[tuple[str, Path]]:
    """The SHA-256 and the file of each kept cubin."""
    return [
        (path.name.removesuffix(_SUFFIX), path) for path in sorted((root / "binaries").glob(f"*/*{_SUFFIX}"))
    ]


def keep_launches(root: Path, wanted: set[str]) -> int:
    """Removes the other launches; how many. Raises BaselineError and OSError."""
    known = _launches(root)
    kept = {id_: document for id_, document in known.items() if id_ in wanted}
    if len(kept) < len(known):
        lines = [json.dumps({"id": id_, **each}, separators=(",", ":")) for id_, each in kept.items()]
        write_whole(launches_path(root), "".join(f"{line}\n" for line in lines))
    return len(known) - len(kept)
