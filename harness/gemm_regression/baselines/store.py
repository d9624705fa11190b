"""Stored baselines: what was measured is appended as lines, and what is current is derived from all of them.

<root>/<gpu>/figures.jsonl   runs, what they timed, and their figures (`lines`)
<root>/binaries/             the binaries, with all that launches them, shared by all GPU models: each cubin
                             compressed, and named by the SHA-256 of its content; a launch is a line of
                             launches.jsonl"""

from __future__ import annotations

import hashlib
import json
import lzma
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from gemm_regression.baselines.entries import Baseline, BaselineEntry, gpu_slug
from gemm_regression.baselines.fields import BaselineError
from gemm_regression.baselines.lines import RESTORE, Line, entries, parsed, raw_lines, read, written
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


FIGURES = "figures.jsonl"


def figures_path(root: Path, slug: str) -> Path:
    return root / slug / FIGURES


def slugs(root: Path) -> list[str]:
    """The GPU models that have figures."""
    return sorted(path.parent.name for path in root.glob(f"*/{FIGURES}"))


def history(root: Path, slug: str) -> list[Baseline]:
    """All measurements of a GPU model, oldest first. Raises BaselineError for what cannot be trusted."""
    path = figures_path(root, slug)
    state = path.stat() if path.exists() else None
    return list(_history(path, slug, state.st_mtime_ns, state.st_size)) if state else []


@lru_cache(maxsize=8)
def _history(path: Path, slug: str, changed: int, size: int) -> tuple[Baseline, ...]:
    return tuple(measurements(read(path), path, slug))


def measurements(lines: Sequence[Line], path: Path, slug: str) -> list[Baseline]:
    """A `Baseline` of each run, oldest first. Raises BaselineError."""
    found = []
    for number, own in enumerate(entries(lines, path), 1):
        one = next(iter(own.values()))
        if gpu_slug(str(one.machine["name"])) != slug:
            raise BaselineError(f"{path}: has figures of {one.machine['name']}; {RESTORE}")
        found.append(
            Baseline(slug, one.machine, one.commit_info, one.datetime, own, path=path, number=number)
        )
    return found


def current(root: Path, slug: str, board: str | None = None) -> Baseline | None:
    """For each case the newest binary of the GPU model, with this board's newest figure of it, else the
    model's; None without any. Raises BaselineError for what cannot be trusted."""
    found = history(root, slug)
    return derived(found, board) if found else None


def derived(found: Sequence[Baseline], board: str | None = None) -> Baseline:
    """What is current of some measurements, oldest first."""
    newest: dict[str, BaselineEntry] = {}
    own: dict[tuple[object, ...], BaselineEntry] = {}
    for measured in found:
        newest |= measured.entries
        if board and measured.board == board:
            own |= {(case, entry.binary): entry for case, entry in measured.entries.items()}
    entries = {case: own.get((case, entry.binary), entry) for case, entry in newest.items()}
    mine = [measured for measured in found if board and measured.board == board]
    return replace((mine or found)[-1], entries=entries, derived_for=board, number=0)


def stored(root: Path) -> list[Baseline]:
    """What is current of every GPU model. Raises BaselineError for what cannot be trusted."""
    found = [current(root, slug) for slug in slugs(root)]
    return [baseline for baseline in found if baseline is not None]


def append(root: Path, measured: Baseline, binaries: Mapping[str, StoredBinary]) -> Path:
    """Appends figures, each with its own provenance, and the binaries of their cases, by id; the file.

    Raises BaselineError, and writes no figure, for what would be refused when read, and for a binary that is
    not the one that was measured.
    """
    path = figures_path(root, measured.slug)
    if before := current(root, measured.slug, measured.board):
        before.require_mig(measured.machine_info.get("mig"))
    fresh = written(_with_binary(root, entry, binaries.get(case)) for case, entry in measured.entries.items())
    there = read(path)
    known = {each.id for each in there}
    fresh = [each for each in fresh if each.id not in known]
    if not any(each.kind == "figure" for each in fresh):
        raise BaselineError(f"{path}: not written: it contains these figures already")
    measurements([*there, *fresh], path, measured.slug)  # what would be refused is never written
    try:
        append_lines(path, [each.text for each in fresh])
    except OSError as error:
        raise BaselineError(f"{path}: could not be written ({error.strerror}); it is unchanged") from None
    return path


def _with_binary(root: Path, entry: BaselineEntry, binary: StoredBinary | None) -> BaselineEntry:
    if binary is None:
        return entry
    if binary.sha256 != entry.cubin_sha256:
        raise BaselineError(
            f"{entry.case_id}: not written: its binary is {binary.sha256[:12]}, but "
            f"{str(entry.cubin_sha256)[:12]} was measured; has its source changed since? measure it again"
        )
    return replace(entry, launch_id=keep_binary(root, binary)[1])


def prune(root: Path, slug: str, keep: Collection[str], newest: int = 0) -> int:
    """Removes the figures of cases that are not in ``keep``, and, unless ``newest`` is 0, all but those of
    each board's so many newest measurements and what is current on it; how many. Raises BaselineError and
    OSError."""
    path = figures_path(root, slug)
    lines = read(path)
    every = measurements(lines, path, slug)
    wanted: set[tuple[str | None, str, str]] = set()  # board, when, and which case
    for board in {measured.board for measured in every}:
        mine = [measured for measured in every if measured.board == board]
        for each in (*mine[-(newest or len(mine)) :], derived(mine), derived(every, board)):
            wanted |= {(e.board, e.datetime, e.case_id) for e in each.entries.values() if e.case_id in keep}
    runs = {
        each.id: (each.says["machine"].get("board"), each.says["datetime"])
        for each in lines
        if each.kind == "run"
    }
    figures = [each for each in lines if each.kind == "figure"]
    left = [each for each in figures if (*runs[each.says["run"]], each.says["case"]) in wanted]
    if len(left) < len(figures):
        used = {id_ for each in left for id_ in (each.id, each.says["run"], each.says["timed"])}
        write_whole(path, "".join(f"{each.text}\n" for each in lines if each.id in used))
    return len(figures) - len(left)


def prune_binaries(root: Path) -> tuple[int, int]:
    """Removes the binaries and launches that no figure names; how many. Raises BaselineError."""
    found = [measured for slug in slugs(root) for measured in history(root, slug)]
    every = [entry for measured in found for entry in measured.entries.values()]
    cubins = {e.cubin_sha256 for e in every if e.launch_id} | {e.best[0] for e in every if e.best}
    launches = {e.launch_id for e in every if e.launch_id} | {e.best[1] for e in every if e.best}
    gone = [path for sha, path in kept_binaries(root) if sha not in cubins]
    for path in gone:
        path.unlink()
    return len(gone), keep_launches(root, launches)
