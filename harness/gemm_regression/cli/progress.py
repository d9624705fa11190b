"""How far a command is that takes longer: a bar in a terminal, lines elsewhere, nothing with -q."""

from __future__ import annotations

import io
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Column

EVERY = 10.0  # seconds between the first two lines, unless there are few steps; later more, up to LONGEST
LONGEST = 60.0
RECENT = 20.0  # seconds whose pace says what is left: cases that are timed take longer than checked ones
FEW, SOON = 20, 1.0  # where there are few, a line a step, but none within so many seconds of the last one


class Steps:
    """Steps that are done, of a ``total``; call it with what is done, or say what is being done ``now``."""

    def __init__(self, title: str, total: int, most: bool = False) -> None:
        self.title, self.total, self.most = title, total, "at most " * most
        self.done, self.what = 0, ""
        self.changed: Callable[[], None] = lambda: None
        self._start = time.monotonic()
        self._ended: deque[float] = deque([self._start])  # when the latest steps ended, the oldest one first

    def __call__(self, what: str) -> None:
        """Another step is done: ``what`` it was."""
        self.done += 1
        self._ended.append(time.monotonic())
        while len(self._ended) > 2 and self._ended[1] < self._ended[-1] - RECENT:
            self._ended.popleft()
        self.now(what)

    def now(self, what: str) -> None:
        self.what = what
        self.changed()

    def __str__(self) -> str:
        now = time.monotonic()
        took, recent = now - self._start, len(self._ended) - 1
        rest = (now - self._ended[0]) / recent * self.left if recent else 0.0
        left = f", {self.most}{rest:.0f} s left" if rest else ""
        of = f" of {self.most}{self.total}" if self.total else ""
        return f"{self.title}: {self.done}{of}: {self.what}, {took:.0f} s{left}"

    @property
    def left(self) -> int:
        return max(0, self.total - self.done)


def quiet(options: Collection[str]) -> bool:
    """Whether pytest's options ask for no progress."""
    return any(option in ("-q", "-qq", "--quiet") for option in options)


@contextmanager
def progress(title: str, total: int = 0, silent: bool = False, most: bool = False) -> Iterator[Steps]:
    """Shows how many of ``total`` steps (0: not known yet; ``most``: fewer may do) are done, and the time
    left by those. On standard error, so that what a command prints stays what it was."""
    steps = Steps(title, total, most)
    if silent:
        yield steps
        return
    with _standard_error() as file:
        console = Console(file=file)
        with _bar(steps, console) if console.is_terminal else _lines(steps, file):
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
def _bar(steps: Steps, console: Console) -> Iterator[None]:
    cut = Column(no_wrap=True, overflow="ellipsis", ratio=1)
    what = TextColumn("{task.fields[what]}", markup=False, table_column=cut)
    times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    title = TextColumn(f"{steps.title}{', at most' * bool(steps.most)}")
    columns = (title, BarColumn(20), MofNCompleteColumn(), *times, what)
    with Bar(
        *columns, console=console, transient=True, expand=True, redirect_stdout=False, redirect_stderr=False
    ) as bar:
        task = bar.add_task(steps.title, total=steps.total or None, what="")

        def show() -> None:
            bar.update(task, completed=steps.done, total=steps.total or None, what=steps.what)

        steps.changed = show
        yield


@contextmanager
def _lines(steps: Steps, file: TextIO) -> Iterator[None]:
    """A line a step where there are few, otherwise one from time to time, also during a long step."""
    start = said = time.monotonic()
    ended, shown = threading.Event(), 0

    def show() -> None:
        nonlocal said, shown
        said, shown = time.monotonic(), steps.done
        print(steps, file=file, flush=True)

    def changed() -> None:
        due = not shown or not steps.left or time.monotonic() - said >= SOON
        if steps.done > shown and 0 < steps.total <= FEW and due:
            show()

    def watch() -> None:
        while not ended.wait(0.5):
            now = time.monotonic()
            if now - said >= min(LONGEST, max(EVERY, (now - start) / 3)):
                show()

    steps.changed = changed
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
