"""How far a command is that takes minutes: a bar in a terminal, lines elsewhere, nothing with -q."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar


class Step(Protocol):
    def __call__(self, what: str) -> None:
        """Another step is done: ``what`` it was."""


def quiet(options: Collection[str]) -> bool:
    """Whether pytest's options ask for no progress."""
    return any(option in ("-q", "-qq", "--quiet") for option in options)


@contextmanager
def progress(title: str, steps: int, silent: bool = False) -> Iterator[Step]:
    """Shows how many of ``steps`` are done, and the time left by those. On standard error, so that what a
    command prints stays what it was."""
    console = Console(file=sys.stderr)
    if silent:
        yield lambda what: None
    elif console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Bar(*columns, TextColumn("left"), TimeRemainingColumn(), console=console, transient=True) as bar:
            task = bar.add_task(title, total=steps)
            yield lambda what: bar.update(task, advance=1, description=f"{title}: {what}")
    else:
        yield _lines(title, steps)


def _lines(title: str, steps: int) -> Step:
    start, done = time.monotonic(), 0
    print(f"{title}: {steps} steps", file=sys.stderr, flush=True)

    def step(what: str) -> None:
        nonlocal done
        done += 1
        took = time.monotonic() - start
        left = f", {took / done * (steps - done):.0f} s left" if done < steps else ""
        print(f"{title}: {done} of {steps}: {what}, {took:.0f} s{left}", file=sys.stderr, flush=True)

    return step
