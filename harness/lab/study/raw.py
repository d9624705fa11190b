"""The samples of a study in one small append-only file, so that a killed run keeps its trials.

JSON lines in gzip members, one member per write: a truncated file is valid up to its last complete member.
The first line is the header: what was studied, and on what. Of each block the means of both sides are stored,
in tenths of a nanosecond.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import AwareDatetime, BaseModel, Field, ValidationError, field_validator, model_validator

from gemm_regression.files import fault
from gemm_regression.judge.machine import Machine

SCHEMA = 1
_UNIT = 1e-10  # seconds
_GZIP = 31  # zlib's wbits for a gzip member


class StudyError(Exception):
    """A study cannot be continued or read; one line: what is wrong, and what to do."""


def ticks(seconds: Iterable[float]) -> list[int]:
    return [round(s / _UNIT) for s in seconds]


def seconds(numbers: Iterable[int]) -> tuple[float, ...]:
    return tuple(n * _UNIT for n in numbers)


def append(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Appends the records in one write."""
    lines = "".join(json.dumps(record, separators=(",", ":"), allow_nan=False) + "\n" for record in records)
    with path.open("ab") as file:
        file.write(gzip.compress(lines.encode(), mtime=0))
        file.flush()
        os.fsync(file.fileno())


def read(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The header and the records of a study; an incomplete last write is ignored. Raises StudyError."""
    return _parsed(path, _whole(path)[0])


def resume(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """As `read`, and truncates an incomplete last write, so that more can be appended."""
    text, end = _whole(path)
    found = _parsed(path, text)
    with path.open("r+b") as file:
        file.truncate(end)
    return found


def _whole(path: Path) -> tuple[bytes, int]:
    """The text of the complete gzip members of a file, and where the last of them ends."""
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


class _Stored(BaseModel):
    cubin_sha256: str | None = None
    margin: float | None = Field(default=None, gt=0)
    seconds: float | None = Field(default=None, gt=0)
    mhz: float | None = None


class _Head(BaseModel):
    study: int
    datetime: AwareDatetime
    machine_info: Machine
    cases: int | None = Field(default=None, ge=1)
    baseline: dict[str, _Stored]

    @field_validator("study")
    @classmethod
    def _known(cls, schema: int) -> int:
        if schema != SCHEMA:
            raise ValueError(f"schema {schema}, this version reads {SCHEMA}")
        return schema


class _Analysis(BaseModel):
    """One interim analysis: the times of both sides, for each block."""

    blocks: list[Annotated[list[list[int]], Field(min_length=2, max_length=4)]]
    resolution: float
    gpu_seconds: float


class _Cell(BaseModel):
    """One trial of a case and size; ``error`` if it failed."""

    trial: int
    case: str
    size: float
    error: str | None = None
    true: float | None = None
    looks: Annotated[list[_Analysis], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _whole(self) -> _Cell:
        if self.error is None and self.looks is None:
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
        raise StudyError(f"{path} is not a study's file ({fault(error)}); measure again") from None
    except ValueError as error:
        raise StudyError(f"{path} is not a study's file ({error}); measure again") from None
    return head, records
