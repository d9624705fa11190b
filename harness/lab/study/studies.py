"""Files of samples, judged."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from lab.study import frozen
from lab.study.analysis import Cell, cells
from lab.study.raw import StudyError, read


@dataclass(frozen=True)
class Study:
    """One file of samples, judged: its ``name``, its ``head`` (header) as stored, the ``cells`` of its
    trials, how many ``failed``, and the ``digest`` of the file."""

    name: str
    head: Mapping[str, Any]
    cells: tuple[Cell, ...]
    failed: int
    digest: str

    @property
    def gpu(self) -> str:
        return str(self.head["machine_info"]["name"])

    @property
    def board(self) -> str:
        """The board it was measured on; a file without that counts as a board of its own, by its name."""
        return str(self.head["machine_info"].get("board") or self.name)

    @property
    def after(self) -> bool:
        """Whether it was measured after the rule was frozen."""
        return frozen.after(self.head)

    @property
    def whole(self) -> bool:
        """Whether all samples are stored, which other tools' rules need."""
        return not self.head.get("summaries")


def load(files: Iterable[Path]) -> list[Study]:
    """The files, judged, in the order of their names. Raises StudyError, also if two contain the same
    trials."""
    studies = [_study(file) for file in sorted(files, key=lambda file: (file.name, file))]
    for one, other in combinations(studies, 2):
        if one.head == other.head:
            raise StudyError(
                f"{one.name} and {other.name} contain the same measurement, which would count twice; remove "
                "one"
            )
    return studies


def _study(file: Path) -> Study:
    head, records = read(file)
    try:
        judged = tuple(cells(head, records))
    except ImportError as error:
        raise StudyError(
            f"the other tools' own code is not installed ({error}); `pip install --group study`"
        ) from None
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise StudyError(f"{file}: not written by `measure` ({type(error).__name__}: {error})") from None
    if not judged:
        raise StudyError(f"{file} contains no trial; measure some with `nox -s lab -- study measure`")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return Study(file.name, head, judged, len(records) - len(judged), digest)
