"""The samples of a study in one small file that only grows, so that a killed run keeps its trials.

Lines of JSON in gzip members, one member for each write: a file that ends within one is whole up to there.
The first line is the head: what was studied, on what, and the stored baseline. Durations are in tenths of a
nanosecond, clocks in MHz. Where the head says ``summaries``, what is kept of the samples gives their medians,
which are all that our own verdicts look at.
"""

from __future__ import annotations

import gzip
import json
import os
import statistics
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from harness.files import fault

SCHEMA = 1
_UNIT = 1e-10  # seconds
_GZIP = 31  # zlib's word for a gzip member


class StudyError(Exception):
    """A study that cannot go on or be read; one line: what is wrong, and what to do."""


def ticks(seconds: Iterable[float]) -> list[int]:
    return [round(s / _UNIT) for s in seconds]


def seconds(numbers: Iterable[int]) -> tuple[float, ...]:
    return tuple(n * _UNIT for n in numbers)


def clocks(mhz: Iterable[float]) -> list[int]:
    """Rounded to 1 MHz, 0.05 %; 0 where it is not known."""
    return [round(f) if f == f else 0 for f in mhz]


def summary(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record with the samples of a gate's measurement as least, quartiles and greatest (Tukey's five
    numbers), those of a block and the clocks as their medians: every median stays."""
    told = dict(record)
    if "gate" in record:
        told["gate"] = [
            {**run, "samples": five_numbers(run["samples"]), "clocks": _median(run["clocks"])}
            for run in record["gate"]
        ]
    if "looks" in record:
        told["looks"] = [
            {**look, "blocks": [[_median(part) for part in block] for block in look["blocks"]]}
            for look in record["looks"]
        ]
    return told


def five_numbers(numbers: Sequence[int]) -> list[int]:
    """Least, lower quartile, median, upper quartile and greatest; as they are where they are that few."""
    if len(numbers) <= 5:
        return list(numbers)
    low, middle, high = statistics.quantiles(numbers, n=4, method="inclusive")
    return [min(numbers), *map(round, (low, middle, high)), max(numbers)]


def _median(numbers: Sequence[int]) -> list[int]:
    return [round(statistics.median(numbers))] if numbers else []


def append(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Writes the records behind what is there, whole."""
    lines = "".join(json.dumps(record, separators=(",", ":"), allow_nan=False) + "\n" for record in records)
    with path.open("ab") as file:
        file.write(gzip.compress(lines.encode(), mtime=0))
        file.flush()
        os.fsync(file.fileno())


def read(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The head and the records of a study; a write that was cut short is left out. Raises StudyError."""
    return _parsed(path, _whole(path)[0])


def resume(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """As `read`; the file loses what was cut short, so that more can be appended."""
    text, end = _whole(path)
    found = _parsed(path, text)
    with path.open("r+b") as file:
        file.truncate(end)
    return found


def _whole(path: Path) -> tuple[bytes, int]:
    """The text of the whole gzip members of a file, and where the last of them ends."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StudyError(f"{path}: cannot be read ({error.strerror})") from None
    text, end = [], 0
    while end < len(data):
        member = zlib.decompressobj(_GZIP)
        try:
            found = member.decompress(data[end:])
        except zlib.error:
            break
        if not member.eof:
            break
        text.append(found)
        end = len(data) - len(member.unused_data)
    return b"".join(text), end


class _Run(BaseModel):
    """A measurement of the gate's: tenths of a nanosecond, MHz."""

    samples: list[int]
    clocks: list[int]
    mhz: float
    throttled: bool
    gpu_seconds: float


class _Stored(_Run):
    medians: list[float] = Field(min_length=1)


class _Machine(BaseModel):
    name: str
    capability: str


class _Head(BaseModel):
    study: int
    machine_info: _Machine
    baseline: dict[str, _Stored]

    @field_validator("study")
    @classmethod
    def _known(cls, schema: int) -> int:
        if schema != SCHEMA:
            raise ValueError(f"schema {schema}, this version reads {SCHEMA}")
        return schema


class _Look(BaseModel):
    """Of each block the seconds of either arm, and its clocks."""

    blocks: list[Annotated[list[list[int]], Field(min_length=2, max_length=4)]]
    resolution: float
    gpu_seconds: float


class _Cell(BaseModel):
    """One trial of a case and size; one that failed says so in ``error``."""

    trial: int
    case: str
    size: float
    error: str | None = None
    true: float | None = None
    gate: Annotated[list[_Run], Field(min_length=1)] | None = None
    looks: Annotated[list[_Look], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _whole(self) -> _Cell:
        if self.error is None and None in (self.gate, self.looks):
            raise ValueError(f"trial {self.trial} of {self.case} has no samples and no error")
        return self


class _Study(BaseModel):
    head: _Head
    records: list[_Cell]


def _parsed(path: Path, text: bytes) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    try:
        head, *records = [json.loads(line) for line in text.splitlines()]
        _Study.model_validate({"head": head, "records": records})
    except ValidationError as error:
        raise StudyError(f"{path}: no samples of a study ({fault(error)}); measure them again") from None
    except ValueError as error:
        raise StudyError(f"{path}: no samples of a study ({error}); measure them again") from None
    return head, records
