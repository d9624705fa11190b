"""A stored baseline: read, validated, pruned, written. Pure except for files."""

from __future__ import annotations

import hashlib
import json
import re
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, model_validator

from harness.baselines.fields import (
    BaselineError,
    File,
    Info,
    NotNegative,
    Positive,
    Record,
    agree,
    checked,
    checked_record,
    commit_of,
    machine_of,
    read_json,
)
from harness.files import write_whole
from harness.verdicts.vocabulary import Reference

SCHEMA = 1
MIN_RUNS = 5  # Fresh processes: their medians give the noise floor.
_OF_A_CASE = ("board", "driver", "nvcc", "power_limit_w", "ecc", "mig")  # from a case's own provenance
_MEASURE = "measure it with `nox -s baseline`"
_RESTORE = "restore it from git, or remove it and measure again with `nox -s baseline`"


@dataclass(frozen=True)
class BaselineEntry:
    """One case as stored.

    Attributes:
        fullname: the name of its test.
        group: its problem.
        stats: pytest-benchmark's statistics, in seconds.
        info: our ``extra_info``; see the properties.
        board_spread: how far the board of this run may differ from the one that measured it, relative; 0 on
            that board, and where nothing is known of it (`boards.judging`).
        other_board: whether that is another one, as far as both are known.
    """

    fullname: str
    group: str
    stats: Mapping[str, Any]
    info: Mapping[str, Any]
    board_spread: float = 0.0
    other_board: bool = False

    @property
    def case_id(self) -> str:
        return str(self.info["case"])

    @property
    def median_s(self) -> float:
        """Median device seconds of the middle run."""
        return float(self.info["median_s"])

    @property
    def gflops(self) -> float:
        return float(self.info["gflops"])

    @property
    def noise_floor(self) -> float:
        """(max - min) / median of the medians of the runs, dimensionless."""
        return float(self.info["noise_floor"])

    @property
    def cycle_noise_floor(self) -> float | None:
        """The same of the medians in SM cycles; None if the clock of a run is unknown, as in older
        baselines."""
        return cycle_noise_floor(self.info.get("run_medians") or (), self.info.get("run_clocks_mhz") or ())

    @property
    def reference(self) -> Reference:
        """What an observation of the case is compared with."""
        return Reference(
            median_s=self.median_s,
            gflops=self.gflops,
            noise_floor=self.noise_floor,
            cycle_noise_floor=self.cycle_noise_floor,
            l2=self.l2,
            duty=self.duty,
            launch=self.launch,
            cubin_sha256=self.cubin_sha256,
            choice=self.choice,
            sm_clock_mhz=self.sm_clock_mhz,
            temperature_c=self.info.get("temperature_c"),
            cublas_ratio=self.cublas_ratio,
            stats=self.stats,
            board_spread=self.board_spread,
            other_board=self.other_board,
        )

    @property
    def cublas_ratio(self) -> float | None:
        """Speed relative to cuBLAS's in the same run."""
        ratio = self.info.get("cublas_ratio")
        return None if ratio is None else float(ratio)

    @property
    def cubin_sha256(self) -> str | None:
        return self.info.get("cubin_sha256")

    @property
    def launch(self) -> str | None:
        """Grid, block and dynamic shared memory as text; None in an older baseline."""
        return self.info.get("launch")

    @property
    def choice(self) -> str:
        """What a kernel that chooses had chosen, as `Case.choice`; empty for others."""
        return str(self.info.get("chosen", ""))

    @property
    def commit(self) -> str:
        """The commit whose kernel was measured, or ``unknown``."""
        return str(self.info.get("commit", "unknown"))

    @property
    def board(self) -> str | None:
        """The board it was measured on; None if unknown."""
        return self.info.get("board")

    @property
    def dirty(self) -> bool:
        """Whether the tree had changes on top of that commit."""
        return bool(self.info.get("dirty", True))

    @property
    def l2(self) -> str:
        return str(self.info["l2"])

    @property
    def sm_clock_mhz(self) -> float | None:
        """The expected SM clock: that of the middle run."""
        return self.info.get("sm_clock_mhz") or None

    @property
    def duty(self) -> float:
        """The duty cycle: the maximum fraction of time the GPU is kept busy."""
        return float(self.info.get("duty", 1.0))


@dataclass(frozen=True)
class Baseline:
    """All cases of one GPU model.

    Attributes:
        slug: the folder of the GPU model.
        runs: the number of runs that the latest cases are based on.
        machine_info: the GPU, its settings and the software of the latest.
        commit_info: the commit that was measured.
        datetime: when, ISO 8601.
        entries: the cases, by id.
        path: the file, where it is one.
    """

    slug: str
    runs: int
    machine_info: Mapping[str, Any]
    commit_info: Mapping[str, Any]
    datetime: str
    entries: Mapping[str, BaselineEntry]
    path: Path | None = None

    @property
    def board(self) -> str | None:
        """The board; None in an older baseline."""
        return self.machine_info.get("board")

    @property
    def case_ids(self) -> tuple[str, ...]:
        return tuple(self.entries)

    def entry(self, case_id: str) -> BaselineEntry | None:
        return self.entries.get(case_id)

    def machine_of(self, entry: BaselineEntry) -> dict[str, Any]:
        """The machine a case was measured on; a case may be older than the file."""
        return {**self.machine_info, **{n: entry.info[n] for n in _OF_A_CASE if n in entry.info}}

    def require_gpu(self, slug: str, name: str) -> None:
        """Raises BaselineError if this is the baseline of another GPU model."""
        if slug != self.slug:
            theirs = self.machine_info["name"]
            raise BaselineError(
                f"{self.path} is the baseline of {theirs}, but this GPU is {name}; {_MEASURE}"
            )

    def require_mig(self, mig: bool | None) -> None:
        """Raises BaselineError where MIG was off and is on, or the other way."""
        then = self.machine_info.get("mig")
        if None not in (then, mig) and then != mig:
            states = [("off", "on")[bool(state)] for state in (then, mig)]
            raise BaselineError(
                f"{self.path}: measured with MIG {states[0]}, but MIG is {states[1]}, and a part of a GPU is "
                "another GPU; switch it back, or move this baseline away"
            )


def gpu_slug(name: str) -> str:
    """The folder of a GPU model: ``NVIDIA H200`` reads ``nvidia-h200``."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "unnamed-gpu"


def current(root: Path, slug: str, board: str | None = None) -> Path | None:
    """The newest baseline of this board, else the newest of the GPU model, or None.

    One newer than that of this board that cannot be read is given instead: it may be the one.
    """
    files = [path for _, path in reversed(_numbered(root / slug))]
    for path in files if board else ():
        try:
            if _board_in(path, path.stat().st_mtime_ns) == board:
                return path
        except (OSError, BaselineError, ValueError):
            return path
    return files[0] if files else None


def kept(root: Path, slug: str, board: str | None = None) -> Baseline | None:
    """What a new baseline of a board has of cases that it does not measure, or None: those of the board's
    newest one, and those that only the newest of the GPU model has. Raises BaselineError for one that cannot
    be trusted."""
    path, newest = current(root, slug, board), current(root, slug)
    if path is None or newest is None:
        return None
    own = load(path)
    return own if path == newest else replace(own, entries={**load(newest).entries, **own.entries})


@lru_cache(maxsize=64)
def _board_in(path: Path, changed: int) -> str | None:
    """The board of a file, which is asked for each GPU of a host. Raises BaselineError and ValueError."""
    document = read_json(path, _RESTORE)
    checked(document, File)
    board: str | None = machine_of(document).get("board")
    return board


def history(root: Path, slug: str) -> list[Baseline]:
    """All baselines of a GPU model, oldest first. Raises BaselineError for one that cannot be trusted."""
    found = [load(path) for _, path in _numbered(root / slug)]
    for baseline in found:
        baseline.require_gpu(slug, slug)
    return found


def stored(root: Path) -> list[Baseline]:
    """The current baseline of every GPU model. Raises BaselineError for one that cannot be trusted."""
    folders = sorted(path.name for path in root.iterdir()) if root.is_dir() else []
    found = {name: load(path) for name in folders if (path := current(root, name))}
    for name, baseline in found.items():
        baseline.require_gpu(name, name)
    return list(found.values())


def _numbered(folder: Path) -> list[tuple[int, Path]]:
    files = folder.glob("[0-9][0-9][0-9][0-9]_*.json") if folder.is_dir() else ()
    return sorted((int(path.name[:4]), path) for path in files)


# Reading


def load(path: Path) -> Baseline:
    """The baseline in a file. Raises BaselineError for whatever cannot be trusted."""
    document = read_json(path, _RESTORE)
    try:
        return _baseline(document, path)
    except ValueError as error:
        raise BaselineError(f"{path}: {error}") from None


class _Ours(BaseModel):
    runs: Positive


class _File(File):
    gemm_baseline: _Ours


class _Info(Info):
    median_s: Positive
    run_medians: list[Positive]
    noise_floor: NotNegative
    run_clocks_mhz: list[Positive] | None = None
    cublas_ratio: NotNegative | None = None
    registers: NotNegative | None = None
    shared_bytes: NotNegative | None = None
    local_bytes: NotNegative | None = None

    @model_validator(mode="after")
    def _floor(self) -> _Info:
        if len(self.run_medians) < MIN_RUNS:
            raise ValueError(f"{len(self.run_medians)} run medians; at least {MIN_RUNS} are needed")
        if abs(self.noise_floor - noise_floor(self.run_medians)) > 1e-4 + 0.01 * self.noise_floor:
            raise ValueError(f"noise_floor {self.noise_floor!r} does not follow from its run medians")
        if self.run_clocks_mhz is not None and len(self.run_clocks_mhz) != len(self.run_medians):
            raise ValueError(
                f"{len(self.run_clocks_mhz)} run clocks, but {len(self.run_medians)} run medians"
            )
        return self


class _Record(Record):
    extra_info: _Info

    @model_validator(mode="after")
    def _median(self) -> _Record:
        agree("median_s", self.extra_info.median_s, self.stats.median)
        return self


def _baseline(document: dict[str, Any], path: Path | None) -> Baseline:
    ours = document.get("gemm_baseline")
    if not isinstance(ours, dict):
        raise ValueError(f"not a baseline of this suite (it has no gemm_baseline); {_RESTORE}")
    if ours.get("schema") != SCHEMA:
        raise ValueError(f"schema {ours.get('schema')!r}, but this version reads {SCHEMA}; {_RESTORE}")
    if ours.get("checksum") != _checksum(document):
        raise ValueError(f"its checksum does not match: edited by hand or damaged; {_RESTORE}")
    try:
        checked(document, _File)
        machine = machine_of(document)
        if ours.get("gpu") != gpu_slug(machine["name"]):
            raise ValueError(f"it names two different GPUs: {ours.get('gpu')!r} and {machine['name']!r}")
        entries: dict[str, BaselineEntry] = {}
        for record in document["benchmarks"]:
            checked_record(record, _Record)
            entry = BaselineEntry(record["fullname"], record["group"], record["stats"], record["extra_info"])
            if entry.case_id in entries:
                raise ValueError(f"it contains {entry.case_id} twice")
            entries[entry.case_id] = entry
        return Baseline(
            slug=ours["gpu"],
            runs=int(ours["runs"]),
            machine_info=machine,
            commit_info=commit_of(document),
            datetime=document["datetime"],
            entries=entries,
            path=path,
        )
    except ValueError as error:
        raise ValueError(f"{error}; {_RESTORE}") from None


def noise_floor(medians: Sequence[float]) -> float:
    """(max - min) / median of the medians of the runs."""
    return (max(medians) - min(medians)) / statistics.median(medians)


def cycle_noise_floor(medians: Sequence[float], clocks_mhz: Sequence[float]) -> float | None:
    """The noise floor of the runs in SM cycles, from their medians in seconds and their clocks; None unless
    there is a clock for each."""
    if not medians or len(medians) != len(clocks_mhz):
        return None
    return noise_floor([median * clock for median, clock in zip(medians, clocks_mhz, strict=True)])


# Writing


def prune(baseline: Baseline, keep: Collection[str]) -> Baseline:
    """The baseline without the cases that are not in ``keep``."""
    kept = {case: entry for case, entry in baseline.entries.items() if case in keep}
    return replace(baseline, entries=kept)


def write(baseline: Baseline, folder: Path) -> Path:
    """Writes the next numbered file of a folder, whole or not at all. Raises BaselineError."""
    document = _document(baseline)
    try:
        _baseline(document, None)  # What would be refused when read is never written.
    except ValueError as error:
        raise BaselineError(f"not written: {error}") from None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob("*.json*.tmp"):
            leftover.unlink()
        earlier = _numbered(folder)
        number = earlier[-1][0] + 1 if earlier else 1
        target = folder / f"{number:04}_{baseline.datetime[:10]}.json"
        write_whole(target, json.dumps(document, indent=1, allow_nan=False) + "\n")
    except OSError as error:
        raise BaselineError(
            f"{folder}: the baseline could not be written ({error.strerror}); the old files are unchanged"
        ) from None
    return target


def _document(baseline: Baseline) -> dict[str, Any]:
    benchmarks = [
        {
            "group": entry.group,
            "name": entry.fullname.rpartition("::")[2],
            "fullname": entry.fullname,
            "params": {"timed_case": entry.case_id},
            "param": entry.case_id,
            "extra_info": dict(entry.info),
            "options": {},
            "stats": dict(entry.stats),
        }
        for entry in baseline.entries.values()
    ]
    document: dict[str, Any] = {
        "gemm_baseline": {"schema": SCHEMA, "gpu": baseline.slug, "runs": baseline.runs},
        "machine_info": dict(baseline.machine_info),
        "commit_info": dict(baseline.commit_info),
        "benchmarks": benchmarks,
        "datetime": baseline.datetime,
        "version": baseline.machine_info.get("pytest_benchmark", ""),
    }
    document["gemm_baseline"]["checksum"] = _checksum(document)
    return document


def _checksum(document: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical JSON of everything but the checksum itself."""
    ours = {name: value for name, value in document["gemm_baseline"].items() if name != "checksum"}
    text = json.dumps({**document, "gemm_baseline": ours}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
