"""How far a command is that takes longer: a bar in a terminal, lines elsewhere, nothing with -q."""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext
from typing import TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column

EVERY = 10.0  # seconds between two lines in a log, unless there are few steps
FEW = 20  # steps, of which each has its line


class Steps:
    """Steps that are done, of a ``total``, 0 where that is not known; call it with what is done, or say what
    is being done ``now``. ``log``: where lines go, if no bar is shown."""

    def __init__(self, title: str, total: int, bar: Progress, log: TextIO | None) -> None:
        self.title, self._bar, self._log = title, bar, log
        number = bar.add_task(title, total=total or None, what="")
        self._task = bar.tasks[number]
        self._said, self._told = time.monotonic(), 0

    @property
    def total(self) -> int:
        return int(self._task.total or 0)

    @total.setter
    def total(self, number: int) -> None:
        self._bar.update(self._task.id, total=number)

    def __call__(self, what: str) -> None:
        """Another step is done: ``what`` it was."""
        self._bar.update(self._task.id, advance=1, what=what)
        self._tell()

    def now(self, what: str) -> None:
        self._bar.update(self._task.id, what=what)
        self._tell()

    def _tell(self) -> None:
        """A line where one is due: of few steps each, of quick ones the last alone."""
        done, now = int(self._task.completed), time.monotonic()
        few = done > self._told and self.total <= FEW and (done == self.total or now - self._said >= 1)
        if self._log is None or not (few or now - self._said >= EVERY):
            return
        self._said, self._told = now, done
        left = f", {self._task.time_remaining:.0f} s left" if self._task.time_remaining else ""
        of = f" of {self.total}" if self.total else ""
        told = f"{self.title}: {done}{of}: {self._task.fields['what']}, {self._task.elapsed or 0:.0f} s{left}"
        print(told, file=self._log, flush=True)


def quiet(options: Collection[str]) -> bool:
    """Whether pytest's options ask for no progress."""
    return any(option in ("-q", "-qq", "--quiet") for option in options)


@contextmanager
def progress(title: str, total: int = 0, silent: bool = False) -> Iterator[Steps]:
    """Shows how many of ``total`` steps (0: not known yet) are done, and the time left by those. On standard
    error, so that what a command prints stays what it was."""
    with _standard_error() as file:
        console = Console(file=file)
        cut = Column(no_wrap=True, overflow="ellipsis", ratio=1)
        columns = (TextColumn("{task.description}", markup=False), BarColumn(20), MofNCompleteColumn())
        times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
        what = TextColumn("{task.fields[what]}", markup=False, table_column=cut)
        bar = Progress(
            *(*columns, *times, what),
            console=console,
            transient=True,
            expand=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        shown = console.is_terminal and not silent
        with bar if shown else nullcontext():
            yield Steps(title, total, bar, None if silent or shown else file)


@contextmanager
def _standard_error() -> Iterator[TextIO]:
    """A copy of it, which nobody captures."""
    try:
        number = os.dup(sys.stderr.fileno())
    except (OSError, io.UnsupportedOperation):  # in a test
        yield sys.stderr
        return
    with os.fdopen(number, "w", encoding=sys.stderr.encoding, errors="replace") as file:
        yield file
