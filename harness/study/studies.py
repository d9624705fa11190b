"""Files of samples, judged, and grouped by GPU model."""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from harness.study.analysis import Cell, cells
from harness.study.raw import StudyError, read

LONG = 100e-6  # seconds; the targets are about cases longer than this
# Remarks on a file that its samples do not contain, by the first digits of its digest.
NOTES = {
    "22c1e91bbb42c853": "Measured before kernels declared a duty cycle: launches on tensor cores are back to "
    "back here; in "
    "later files there are rests between them, which count as GPU seconds.",
}


@dataclass(frozen=True)
class Study:
    """One file of samples, judged: its ``name``, its ``head`` (header) as stored, the ``cells`` of its
    trials, how many ``failed``, and the ``digest`` of the file."""

    name: str
    head: Mapping[str, Any]
    cells: Sequence[Cell]
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
    def date(self) -> str:
        return str(self.head["datetime"])[:10]

    @property
    def note(self) -> str:
        return f" {NOTES[self.digest[:16]]}" if self.digest[:16] in NOTES else ""

    @property
    def alone(self) -> bool:
        """Whether it contains only summaries of A/A trials: nothing planted, no other tool evaluated."""
        return self.sizes == [0.0] and bool(self.head.get("summaries"))

    @property
    def methods(self) -> list[str]:
        return list(self.cells[0].found)

    @property
    def cases(self) -> list[str]:
        """Case ids, the shortest run time first."""
        return list(dict.fromkeys(cell.case for cell in sorted(self.cells, key=lambda cell: cell.seconds)))

    @property
    def sizes(self) -> list[float]:
        return sorted({cell.size for cell in self.cells})

    @property
    def groups(self) -> dict[str, list[str]]:
        """The cases over LONG and the others, by the title of the group."""
        times = {
            case: statistics.median(c.seconds for c in self.cells if c.case == case) for case in self.cases
        }
        return {
            f"cases over {1e6 * LONG:.0f} µs": [case for case in self.cases if times[case] > LONG],
            f"cases of {1e6 * LONG:.0f} µs and less": [case for case in self.cases if times[case] <= LONG],
        }

    def of(self, size: float, cases: Collection[str]) -> list[Cell]:
        return [cell for cell in self.cells if cell.size == size and cell.case in cases]


def same(studies: Iterable[Study]) -> list[Cell]:
    """All their A/A trials."""
    return [cell for study in studies for cell in study.cells if cell.size == 0.0]


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
        judged = cells(head, records)
    except ImportError as error:
        raise StudyError(
            f"the other tools' own code is not installed ({error}); `pip install --group study`"
        ) from None
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise StudyError(f"{file}: not written by `measure` ({type(error).__name__}: {error})") from None
    if not judged:
        raise StudyError(f"{file} contains no trial; add some with `nox -s study -- measure {file}`")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return Study(file.name, head, judged, len(records) - len(judged), digest)


@dataclass(frozen=True)
class Model:
    """A GPU model: ``studies`` are reported in full, ``boards`` are A/A trials on other boards of it."""

    studies: Sequence[Study]
    boards: Sequence[Study]

    @property
    def files(self) -> list[Study]:
        return [*self.studies, *self.boards]


def models(studies: Sequence[Study]) -> list[Model]:
    """That with most trials first. If all files are A/A trials, the first one is reported in full."""
    found = []
    for gpu in dict.fromkeys(study.gpu for study in studies):
        files = [study for study in studies if study.gpu == gpu]
        whole = [study for study in files if not study.alone] or files[:1]
        found.append(Model(whole, [study for study in files if study not in whole]))
    return sorted(found, key=lambda model: -sum(len(study.cells) for study in model.files))
