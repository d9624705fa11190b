"""How far a command is that takes longer: a bar in a terminal, lines elsewhere, nothing with -q."""

from __future__ import annotations

import io
import os
import sys
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
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
    """Steps that are done, of a ``total``; call it with what is done, or say what is being done ``now``."""

    def __init__(self, title: str, total: int, bar: Progress) -> None:
        self.title, self._bar = title, bar
        number = bar.add_task(title, total=total or None, what="")
        self._task = bar.tasks[number]
        self.said, self._told = time.monotonic(), 0

    @property
    def total(self) -> int:
        """How many there are; 0 where that is not known."""
        return int(self._task.total or 0)

    @total.setter
    def total(self, number: int) -> None:
        self._bar.update(self._task.id, total=number)

    def __call__(self, what: str) -> None:
        """Another step is done: ``what`` it was."""
        self._bar.update(self._task.id, advance=1, what=what)

    def now(self, what: str) -> None:
        self._bar.update(self._task.id, what=what)

    def line(self) -> str:
        """How far it is; empty where nothing has to be said yet."""
        done, now = int(self._task.completed), time.monotonic()
        last = done == self.total > self._told
        few = done > self._told and 0 < self.total <= FEW and now - self.said >= 1
        if not (last or few or now - self.said >= EVERY):
            return ""
        self.said, self._told = now, done
        left = f", {self._task.time_remaining:.0f} s left" if self._task.time_remaining else ""
        of = f" of {self.total}" if self.total else ""
        what = self._task.fields["what"]
        return f"{self.title}: {done}{of}: {what}, {self._task.elapsed or 0:.0f} s{left}\n"


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
        steps = Steps(title, total, bar)
        shown: AbstractContextManager[object] = (
            nullcontext() if silent else bar if console.is_terminal else _lines(steps, file)
        )
        with shown:
            yield steps


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


@contextmanager
def _lines(steps: Steps, file: TextIO) -> Iterator[None]:
    """A line a step where there are few, otherwise one from time to time, also during a long step."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.1):
            print(end=steps.line(), file=file, flush=True)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        if 0 < steps.total <= FEW:
            print(end=steps.line(), file=file, flush=True)
