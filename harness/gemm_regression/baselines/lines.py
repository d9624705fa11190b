"""The lines of ``figures.jsonl``, ``{"id": …, KIND: {…}}``, each sealed by its id."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from gemm_regression.baselines.records import (
    _KEYS,
    RESTORE,
    BaselineEntry,
    BaselineError,
    FigureLine,
    RunLine,
    TimedLine,
    _Figure,
    _Line,
    checked,
    moment,
    parsed,
)
from gemm_regression.files import read_whole

_CONFLICT = ("<<<<<<<", "|||||||", "=======", ">>>>>>>")
_DIGITS = 16  # of an id


_KINDS: Mapping[str, type[_Line]] = {"run": RunLine, "timed": TimedLine, "figure": FigureLine}


@dataclass(frozen=True)
class StoredLine:
    """One of a file: its ``kind``, its ``id``, what it ``says``, and its ``text``."""

    kind: str
    id: str
    says: Any
    text: str


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def raw_lines(path: Path) -> Iterator[tuple[str, str]]:
    """Where and what each different line of a file is, if it exists; a merge can double lines, which are one.
    Raises BaselineError."""
    try:
        text = read_whole(path).decode() if path.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise BaselineError(f"{path}: cannot be read ({error}); {RESTORE}") from None
    seen = set()
    for number, each in enumerate(map(str.strip, text.split("\n")), 1):
        if each.startswith(_CONFLICT):
            raise BaselineError(
                f"{path}:{number}: a conflict of git; keep the lines of both sides, once each"
            )
        if each and each not in seen:
            seen.add(each)
            yield f"{path}:{number}", each


def read(path: Path) -> list[StoredLine]:
    """The lines of a file, validated one by one. Raises BaselineError."""
    return [validated(where, text) for where, text in raw_lines(path)]


def validated(where: str, text: str) -> StoredLine:
    """Raises BaselineError."""
    document = parsed(where, text)
    kind = next((kind for kind in _KINDS if kind in document), "")
    if set(document) != {"id", kind}:
        raise BaselineError(f"{where}: neither a run, nor what was timed, nor a figure; {RESTORE}")
    if _digest(text[len('{"id":"",') + _DIGITS :]) != document["id"]:
        raise BaselineError(f"{where}: its id does not match: edited by hand or damaged; {RESTORE}")
    try:
        return StoredLine(kind, document["id"], checked(document[kind], _KINDS[kind]), text)
    except ValueError as error:
        raise BaselineError(f"{where}: {error}; {RESTORE}") from None


def entries(lines: Sequence[StoredLine], where: object) -> list[dict[str, BaselineEntry]]:
    """The figures of each run, by case, oldest first. Raises BaselineError for one whose run, or what it
    timed, is in no line."""
    of = {kind: {each.id: each.says for each in lines if each.kind == kind} for kind in _KINDS}
    found: dict[str, dict[str, BaselineEntry]] = {}
    for figure in of["figure"].values():
        says, case = dict(vars(figure)), figure.case_id
        for name in ("run", "timed"):
            if (id_ := says.pop(name)) not in of[name]:
                raise BaselineError(f"{where}: {case}: its {name} {id_} is in no line; {RESTORE}")
            says |= vars(of[name][id_])
        if case in found.setdefault(figure.run, {}):
            raise BaselineError(f"{where}: {case} twice in run {figure.run}; {RESTORE}")
        found[figure.run][case] = BaselineEntry(**says)
    order = sorted(found, key=lambda run: (moment(of["run"][run].datetime), run))
    return [found[run] for run in order]


def written(entries: Iterable[BaselineEntry]) -> list[StoredLine]:
    """The lines of figures, each once. Raises BaselineError for what would be refused when read."""
    found: dict[str, StoredLine] = {}
    for entry in entries:
        run, timed = (_line(kind, entry, _says(entry, _KINDS[kind])) for kind in ("run", "timed"))
        ids = {"case": entry.case_id, "run": run.id, "timed": timed.id}
        figure = _line("figure", entry, ids | _says(entry, _Figure))
        found |= {each.id: each for each in (run, timed, figure)}
    return list(found.values())


def _says(entry: BaselineEntry, kind: type[Any]) -> dict[str, Any]:
    """What a line of a kind says of an entry, without defaults."""
    said = {field.name: getattr(entry, field.name) for field in fields(kind)}
    default = {field.name: field.default for field in fields(kind)}
    return {_KEYS.get(name, name): value for name, value in said.items() if value != default[name]}


def _line(kind: str, entry: BaselineEntry, says: Mapping[str, Any]) -> StoredLine:
    try:
        known = checked(says, _KINDS[kind])
        body = f'"{kind}":{json.dumps(says, separators=(",", ":"), ensure_ascii=False, allow_nan=False)}}}'
    except ValueError as error:
        raise BaselineError(f"not written: {entry.case_id}: {error}") from None
    return StoredLine(kind, _digest(body), known, f'{{"id":"{_digest(body)}",{body}')
