"""One run of one commit in several parts, on several machines: which part a test belongs to, and whether the
parts add up to the whole.

A test belongs to a part by a hash of its case's id: whatever else is selected, added or removed, it stays
there. Each part records all tests of the whole, as a digest, and what became of its own; so that whoever adds
them up misses a part that is lost, and a test that no part ran.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from gemm_regression.baselines.entries import gpu_slug
from gemm_regression.baselines.fields import BaselineError, commit_of, machine_of, read_json
from gemm_regression.files import fault
from gemm_regression.judge.evidence import MACHINES, UNUSABLE

KEY = "shard"
NOT_RUN = "not run"
GREEN = ("passed", "skipped")
_REMEDY = "run this shard again"


@dataclass(frozen=True)
class Shard:
    """Part ``number``, from 1, ``of`` so many."""

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """``2/4``. Raises ValueError, one line."""
        found = re.fullmatch(r"(\d+)/(\d+)", text)
        number, of = map(int, found.groups()) if found else (0, 0)
        if not 1 <= number <= of:
            raise ValueError(f"--shard {text}: must be a part of a number of parts, such as 1/4 or 4/4")
        return cls(number, of)

    def has(self, name: str) -> bool:
        """Whether a test, by the id of its case, is in this part."""
        return int(hashlib.sha256(name.encode()).hexdigest()[:12], 16) % self.of == self.number - 1

    def record(self, whole: Collection[str], outcomes: Mapping[str, str]) -> dict[str, Any]:
        """As the part's JSON has it: of the ``whole`` its digest, and what became of the own tests."""
        count, sum_ = len(whole), digest(whole)
        return {"number": self.number, "of": self.of, "count": count, "whole": sum_, "tests": dict(outcomes)}


def digest(names: Collection[str]) -> str:
    """Of a set of tests, in any order."""
    return hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()


class _Recorded(BaseModel):
    number: int
    of: int
    count: int
    whole: str
    tests: dict[str, str]


class _Document(BaseModel):
    machine_info: dict[str, Any]
    commit_info: dict[str, Any]
    benchmarks: list[dict[str, Any]]
    shard: _Recorded


@dataclass(frozen=True)
class Part:
    """The file of one part: its ``path`` and whole ``document``, and what it ``recorded`` of itself."""

    path: Path
    document: Mapping[str, Any]
    recorded: _Recorded

    @property
    def model(self) -> str:
        """The folder of its GPU model in baselines/."""
        return gpu_slug(str(self.document["machine_info"].get("name", "")))

    @property
    def boards(self) -> list[str]:
        several = self.document.get("gpus") or {"": self.document["machine_info"]}
        return [str(info.get("board") or "unknown") for info in several.values()]


def read(path: Path) -> Part:
    """Raises BaselineError for a file that is no part, or not whole."""
    document = read_json(path, _REMEDY)
    if KEY not in document:
        raise BaselineError(f"{path}: not written by a run with --shard")
    try:
        recorded = _Document.model_validate(document).shard
    except ValidationError as error:
        raise BaselineError(f"{path}: {fault(error)}; {_REMEDY}") from None
    return Part(path, document, recorded)


@dataclass
class Whole:
    """All parts of one GPU ``model``, by their numbers: ``parts`` of ``of``; ``faults``: what is missing or
    does not fit, each one line; ``tests`` has what became of each."""

    model: str
    of: int
    parts: dict[int, Part] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    tests: dict[str, str] = field(default_factory=dict)

    @property
    def red(self) -> list[str]:
        """Tests that failed or were not run."""
        return [name for name, outcome in self.tests.items() if outcome not in GREEN]

    @property
    def boards(self) -> list[str]:
        return list(dict.fromkeys(board for part in self.parts.values() for board in part.boards))

    @property
    def timed(self) -> list[Mapping[str, Any]]:
        """What was recorded of each timed case."""
        found = []
        for part in self.parts.values():
            found += [b["extra_info"] for b in part.document["benchmarks"]]
            found += part.document.get(UNUSABLE, [])
        return found

    def merged(self) -> dict[str, Any]:
        """One document with all cases, of the form of a run on several GPUs."""
        parts = [self.parts[number] for number in sorted(self.parts)]
        first = {name: value for name, value in parts[0].document.items() if name != KEY}
        machines: dict[str, Any] = {}
        for part in parts:
            several = part.document.get("gpus") or {"0": machine_of(part.document)}
            machines |= {f"{part.recorded.number}.{number}": info for number, info in several.items()}
        return first | {
            "gpus": machines,
            "benchmarks": [b for part in parts for b in part.document["benchmarks"]],
            UNUSABLE: [info for part in parts for info in part.document.get(UNUSABLE, [])],
            MACHINES: {
                f"{part.recorded.number}.{number}": machine
                for part in parts
                for number, machine in part.document.get(MACHINES, {}).items()
            },
        }


def add_up(parts: Sequence[Part], models: Sequence[str] = ()) -> list[Whole]:
    """The parts of each GPU model, those of ``models`` in any case, with what is wrong with them."""
    names = list(dict.fromkeys([*models, *(part.model for part in parts)]))
    return [_added(name, [part for part in parts if part.model == name]) for name in names]


def _added(model: str, parts: Sequence[Part]) -> Whole:
    if not parts:
        return Whole(model, 0, faults=["no shard at all"])
    of = Counter(part.recorded.of for part in parts).most_common(1)[0][0]
    first = next(part for part in parts if part.recorded.of == of)
    whole = Whole(model, of)
    for part in parts:
        said = f"shard {part.recorded.number} of {part.recorded.of} ({part.path})"
        if part.recorded.of != of:
            whole.faults.append(f"{said}: the others are of {of}")
        elif part.recorded.number in whole.parts:
            whole.faults.append(f"{said}: there twice")
        elif part.recorded.whole != first.recorded.whole:
            whole.faults.append(f"{said}: of another selection of tests than {first.path}")
        elif commit_of(part.document) != commit_of(first.document):
            whole.faults.append(f"{said}: of another commit than {first.path}")
        else:
            whole.parts[part.recorded.number] = part
            whole.tests |= part.recorded.tests
    missing = [number for number in range(1, of + 1) if number not in whole.parts]
    whole.faults += [f"shard {number} of {of} is missing" for number in missing]
    if not missing and (len(whole.tests), digest(whole.tests)) != (
        first.recorded.count,
        first.recorded.whole,
    ):
        whole.faults.append(
            f"{len(whole.tests)} tests in all shards, but {first.recorded.count} in the whole"
        )
    return whole
