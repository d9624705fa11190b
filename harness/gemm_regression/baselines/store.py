"""Stored baselines: what was measured is appended as lines, and what is current is derived from all of them.

<root>/<gpu>/figures.jsonl   runs, what they timed, and their figures (`lines`)
<root>/binaries/             the binaries, with all that launches them (`binaries`)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from gemm_regression.baselines.binaries import (
    append_lines,
    keep_binary,
    keep_launches,
    kept_binaries,
)
from gemm_regression.baselines.entries import Baseline, BaselineEntry, gpu_slug
from gemm_regression.baselines.fields import BaselineError
from gemm_regression.baselines.lines import RESTORE, Line, entries, read, written
from gemm_regression.devices.stored import StoredBinary
from gemm_regression.files import write_whole

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
