"""The course: lessons of all stages. ``nox -s course -- FOLDER``: lays out its exercises as a project in an
empty folder.

Each kernel there has one mistake; ``nox -s check -- --project FOLDER``, which needs no GPU, judges what
becomes of it. Exit status: 0 done; 1 the folder has a project already; 2 a wrong command line.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gemm_regression.cli import init
from gemm_regression.cli.common import about
from gemm_regression.files import write_whole
from lab import pages

FOLDER = Path(__file__).parent
KERNELS = FOLDER.parents[2] / "kernels"
_MARK = re.compile(r" *// lesson: (begin|end)\n")


@dataclass(frozen=True)
class Lesson:
    """A record of lessons.toml, whose first lines say what each field is."""

    stage: str
    variant: str
    threads: tuple[int, int]
    tile: tuple[int, int]
    thread: tuple[int, int]
    see: str
    expect: str
    why: str
    question: str
    answer: str
    task: str
    edits: list[list[str]]
    finds: str
    on: str
    because: str
    warp: tuple[int, int] = (0, 0)
    shows: str = ""
    also: str = ""
    shown: str = ""
    at: str = "1024x1024x1024"
    large: str = "4096x4096x4096"
    over: str = ""
    unit: str = ""
    products: float = 1
    waves: Sequence[tuple[str, int, int]] = ()
    issue: Sequence[tuple[str, int, int]] = ()

    @property
    def dtype(self) -> str:
        return self.variant.split("-")[1]

    @property
    def source(self) -> Path:
        (file,) = KERNELS.glob(f"s[0-9][0-9]_{self.stage}.cu")
        return file

    @property
    def lines(self) -> list[str]:
        """The lines between the markers of the source, without their common indentation. Raises ValueError if
        it does not have one pair of markers."""
        file = KERNELS / self.shown if self.shown else self.source
        parts = re.split(_MARK, file.read_text(encoding="utf-8"))
        if parts[1::2] != ["begin", "end"]:
            raise ValueError(f"{file}: it needs one pair of markers, lesson: begin and lesson: end")
        before, _, cut, _, _ = parts
        head = before.rpartition("\n")[2]  # of the line that the first marker stands on
        lines = [*([head] if head.strip(" {") else []), *cut.rstrip().splitlines()]
        least = min(len(line) - len(line.lstrip()) for line in lines if line and not line.startswith("#"))
        return [line if line.startswith("#") else line[least:] for line in lines]

    def broken(self) -> str:
        """The source with the exercise's mistake, without markers. Raises ValueError if an edit does not fit
        exactly once."""
        text = plain(self.source)
        for old, new in self.edits:
            if text.count(old) != 1:
                raise ValueError(f"{self.source}: {text.count(old)} times in it, not once: {old!r}")
            text = text.replace(old, new)
        return text


def plain(source: Path) -> str:
    """A source without markers."""
    return re.sub(r"(?m) *// lesson: (begin|end)$", "", source.read_text(encoding="utf-8"))


_READ = tomllib.loads((FOLDER / "lessons.toml").read_text(encoding="utf-8"))
LESSONS = [Lesson(**one) for one in _READ["lesson"]]
TIMELINES: dict[str, list[tuple[str, float, float]]] = _READ["timelines"]


def lay_out(folder: Path) -> None:
    """Writes the project. Raises ValueError if the folder has one already."""
    with contextlib.redirect_stdout(io.StringIO()):
        init.main(["--project", str(folder)])
    kernels = folder / "kernels"
    (kernels / "sgemm.cu").unlink()
    write_whole(kernels / "__init__.py", (FOLDER / "exercises.template").read_text(encoding="utf-8"))
    for lesson in LESSONS:
        write_whole(kernels / f"{lesson.stage}.cu", lesson.broken())
    for header in KERNELS.glob("*.cuh"):
        write_whole(kernels / header.name, plain(header))
    tasks = [f"{n}. `{one.stage}`: {one.task}" for n, one in enumerate(LESSONS)]
    how = f'nox -s check -- --project {folder.resolve()} -k "[tiled-"'
    said = (FOLDER / "exercises.md").read_text(encoding="utf-8").format(how=how, tasks="\n".join(tasks))
    write_whole(folder / "README.md", said)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="nox -s course --", description=about(__doc__))
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="an empty folder, or one to be made")
    given = parser.parse_args(arguments)
    try:
        given.folder.mkdir(parents=True, exist_ok=True)
        lay_out(given.folder)
    except (ValueError, OSError) as error:
        return pages.fail(str(error))
    print(f'wrote {len(LESSONS)} exercises; next: nox -s check -- --project {given.folder} -k "[strided-"')
    return 0
