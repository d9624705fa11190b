"""Stored baselines: what was measured is appended as lines, and what is current is derived from all of them.

<root>/<gpu>/figures.jsonl   runs, what they timed, and their figures (`records`)
<root>/binaries/             the binaries, with all that launches them, shared by all GPU models: each cubin
                             compressed, and named by the SHA-256 of its content; a launch is a line of
                             launches.jsonl"""

from __future__ import annotations

import hashlib
import json
import lzma
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from gemm_regression.baselines.lines import StoredLine, entries, raw_lines, read, written
from gemm_regression.baselines.records import RESTORE, BaselineEntry, BaselineError, gpu_slug, parsed
from gemm_regression.devices.work import StoredBinary, launch_document, launch_id, read_launch
from gemm_regression.files import write_whole
from gemm_regression.hints import typed

FIGURES = "figures.jsonl"
_SUFFIX = ".cubin.xz"


@dataclass(frozen=True)
class Baseline:
    """Cases of one GPU model: one measurement, or what is current of several.

    Attributes:
        slug: the folder of the GPU model.
        machine_info, commit_info, datetime: of the newest of its measurements.
        entries: the cases, by id, each with the machine and the commit of its own.
        path: the file.
        number: of a measurement, its place among those of the GPU model, from 1.
    """

    slug: str
    machine_info: Mapping[str, Any]
    commit_info: Mapping[str, Any]
    datetime: str
    entries: Mapping[str, BaselineEntry]
    path: Path | None = None
    number: int = 0

    @property
    def label(self) -> str:
        """Number and date of a measurement, as pytest-benchmark names files: ``0003_2026-11-02``."""
        return f"{self.number:04}_{self.datetime[:10]}"

    @property
    def name(self) -> str:
        """The GPU model."""
        return str(self.machine_info["name"])

    @property
    def board(self) -> str | None:
        """The board of the newest measurement; None if unknown."""
        return self.machine_info.get("board")

    @property
    def case_ids(self) -> tuple[str, ...]:
        return tuple(self.entries)

    def entry(self, case_id: str) -> BaselineEntry | None:
        return self.entries.get(case_id)


# Binaries


def cubin_path(root: Path, sha256: str) -> Path:
    return root / "binaries" / sha256[:2] / f"{sha256}{_SUFFIX}"


def launches_path(root: Path) -> Path:
    return root / "binaries" / "launches.jsonl"


def keep_binary(root: Path, binary: StoredBinary) -> tuple[str, str]:
    """Keeps it, if it is not kept already: its cubin's SHA-256 and its launch's id. Raises BaselineError."""
    document = launch_document(binary.symbol, binary.work)
    sha256, launch = binary.sha256, launch_id(document)
    path = cubin_path(root, sha256)
    try:
        if _content(path) is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, lzma.compress(binary.cubin, preset=9 | lzma.PRESET_EXTREME))
        if launch not in _launches(root):
            text = json.dumps({"id": launch, **document}, separators=(",", ":"), allow_nan=False)
            _append(launches_path(root), [text])
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
            f"measure it again with `{typed('baseline')}`"
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
    return _read_launches(*_state(launches_path(root)))


def _state(path: Path) -> tuple[Path, int, int]:
    """By which a file is known to be the one that was read before."""
    state = path.stat() if path.exists() else None
    return (path, state.st_mtime_ns, state.st_size) if state else (path, 0, 0)


@lru_cache(maxsize=4)
def _read_launches(path: Path, changed: int, size: int) -> Mapping[str, dict[str, Any]]:
    """The launches in a file, by id. Raises BaselineError."""
    found: dict[str, dict[str, Any]] = {}
    for where, text in raw_lines(path):
        document = parsed(where, text)
        id_ = document.pop("id", None)
        if launch_id(document) != id_:
            raise BaselineError(f"{where}: its id does not match: edited by hand or damaged; {RESTORE}")
        found[id_] = document
    return found


def _append(path: Path, lines: Iterable[str]) -> None:
    """All of them, on disk, or none. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    before = path.read_text(encoding="utf-8").rstrip("\n") if path.exists() else ""
    write_whole(path, "\n".join([*([before] if before else []), *lines, ""]))


# Figures


def figures_path(root: Path, slug: str) -> Path:
    return root / slug / FIGURES


def slugs(root: Path) -> list[str]:
    """The GPU models that have figures."""
    return sorted(path.parent.name for path in root.glob(f"*/{FIGURES}"))


def history(root: Path, slug: str) -> list[Baseline]:
    """All measurements of a GPU model, oldest first. Raises BaselineError for what cannot be trusted."""
    return list(_history(*_state(figures_path(root, slug)), slug))


@lru_cache(maxsize=8)
def _history(path: Path, changed: int, size: int, slug: str) -> tuple[Baseline, ...]:
    return tuple(measurements(read(path), path, slug))


def measurements(lines: Sequence[StoredLine], path: Path, slug: str) -> list[Baseline]:
    """A `Baseline` of each run, oldest first. Raises BaselineError."""
    found = []
    for number, own in enumerate(entries(lines, path), 1):
        one = next(iter(own.values()))
        if gpu_slug(str(one.machine["name"])) != slug:
            raise BaselineError(f"{path}: has figures of {one.machine['name']}; {RESTORE}")
        found.append(Baseline(slug, one.machine, one.commit_info, one.datetime, own, path, number))
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
    mine = [measured for measured in found if board and measured.board == board]
    for measured in found:
        newest |= measured.entries
    for measured in mine:
        own |= {(case, entry.binary): entry for case, entry in measured.entries.items()}
    entries = {case: own.get((case, entry.binary), entry) for case, entry in newest.items()}
    return replace((mine or found)[-1], entries=entries, number=0)


def stored(root: Path) -> list[Baseline]:
    """What is current of every GPU model. Raises BaselineError for what cannot be trusted."""
    return [baseline for slug in slugs(root) if (baseline := current(root, slug))]


def append(root: Path, measured: Baseline, binaries: Mapping[str, StoredBinary]) -> Path:
    """Appends figures, each with its own provenance, and the binaries of their cases, by id; the file.

    Raises BaselineError, and writes no figure, for what would be refused when read, and for a binary that is
    not the one that was measured.
    """
    path = figures_path(root, measured.slug)
    fresh = written(_with_binary(root, entry, binaries.get(case)) for case, entry in measured.entries.items())
    there = read(path)
    known = {each.id for each in there}
    fresh = [each for each in fresh if each.id not in known]
    if not any(each.kind == "figure" for each in fresh):
        raise BaselineError(f"{path}: not written: it contains these figures already")
    measurements([*there, *fresh], path, measured.slug)  # what would be refused is never written
    try:
        _append(path, [each.text for each in fresh])
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


# Pruning


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
        each.id: (each.says.machine.get("board"), each.says.datetime) for each in lines if each.kind == "run"
    }
    figures = [each for each in lines if each.kind == "figure"]
    left = [each for each in figures if (*runs[each.says.run], each.says.case_id) in wanted]
    if len(left) < len(figures):
        used = {id_ for each in left for id_ in (each.id, each.says.run, each.says.timed)}
        write_whole(path, "".join(f"{each.text}\n" for each in lines if each.id in used))
    return len(figures) - len(left)


def prune_binaries(root: Path) -> tuple[int, int]:
    """Removes the binaries and launches that no figure names; how many. Raises BaselineError and OSError."""
    found = [measured for slug in slugs(root) for measured in history(root, slug)]
    every = [entry for measured in found for entry in measured.entries.values()]
    used = {(e.cubin_sha256, e.launch_id) for e in every if e.launch_id} | {e.best for e in every if e.best}
    cubins, launches = ({each[part] for each in used} for part in (0, 1))
    gone = [
        path for path in (root / "binaries").glob(f"*/*{_SUFFIX}") if path.name[: -len(_SUFFIX)] not in cubins
    ]
    for path in gone:
        path.unlink()
    known = _launches(root)
    kept = {id_: document for id_, document in known.items() if id_ in launches}
    if len(kept) < len(known):
        lines = [json.dumps({"id": id_, **each}, separators=(",", ":")) for id_, each in kept.items()]
        write_whole(launches_path(root), "".join(f"{line}\n" for line in lines))
    return len(gone), len(known) - len(kept)
