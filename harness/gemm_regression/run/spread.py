"""Work spread over places, such as GPUs and their processes.

Each place has a thread, and takes the next name that it can do when it is free, so that all end at about the
same time; names of one affinity, which share what is made ready for them, go to one place while there are
others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from typing import Generic, TypeVar

P = TypeVar("P")
R = TypeVar("R")

Done = Callable[[str, R | Exception], None]
# Takes names while it is free, and tells the result of each, or why it has none: at once, or later and in
# another order.
Work = Callable[[P, Iterator[str], Done[R]], None]


class LostError(RuntimeError):
    """A name that no place did."""


class Spread(Generic[P, R]):
    """``places`` do ``work``; ``takes`` says whether a place can do what a name stands for, ``affinity`` what
    else it shares work with. ``closing``: nothing more is to be begun."""

    def __init__(
        self,
        places: Sequence[P],
        work: Work[P, R],
        takes: Callable[[P, str], bool] = lambda place, name: True,
        affinity: Callable[[str], object] = lambda name: None,
    ) -> None:
        self._places, self._work, self._takes, self._affinity = list(places), work, takes, affinity
        self._at: dict[P, object] = {}  # the affinity of what a place took last
        self._lock = threading.RLock()
        self._queue: list[str] = []
        self._futures: dict[str, Future[tuple[P, R]]] = {}
        self._taken: set[str] = set()  # and not done yet
        self._retired: list[P] = []
        self._threads: list[threading.Thread] = []
        self._running, self.closing = 0, False
        self._error: BaseException = LostError("no GPU is left for it")

    def begin(self, names: Sequence[str]) -> None:
        """Does ``names``, in about this order."""
        with self._lock:
            self._queue += names
            self._futures.update((name, Future()) for name in names)
            self._running += len(self._places)
        each = self._places
        self._threads = [threading.Thread(target=self._serve, args=(p,), daemon=True) for p in each]
        for thread in self._threads:
            thread.start()

    def __contains__(self, name: str) -> bool:
        """Whether its result was not asked for yet."""
        return name in self._futures

    def result(self, name: str) -> tuple[P, R]:
        """Who did it, and the result, waited for; done now if it was not begun, or asked for before.

        Raises what the work raised, or LostError.
        """
        if name not in self._futures:
            self.settle()
            self.begin([name])
        try:
            return self._futures[name].result()
        finally:
            del self._futures[name]

    def retire(self, place: P) -> bool:
        """Gives no more to a place if others can do what is left; whether they can."""
        with self._lock:
            others = [each for each in self._places if each is not place and each not in self._retired]
            can = bool(others) and all(any(self._takes(each, n) for each in others) for n in self._queue)
            if can:
                self._retired.append(place)
            return can

    def finish(self) -> None:
        """Waits until all names are done; some place may not have begun yet, and finds nothing left."""
        wait(list(self._futures.values()))

    def settle(self) -> None:
        """Waits until no place does anything any more."""
        for thread in self._threads:
            thread.join()

    def close(self, stop: Callable[[], None] = lambda: None, seconds: float = 3.0) -> None:
        """Gives nothing more to anyone, and waits; what is not done after ``seconds`` is told to ``stop``."""
        with self._lock:
            self.closing = True
        for thread in self._threads:
            thread.join(seconds)
        if self._taken:
            stop()
        self.settle()

    # The threads

    def _serve(self, place: P) -> None:
        mine: set[str] = set()

        def names() -> Iterator[str]:
            while name := self._next(place):
                mine.add(name)
                yield name

        def done(name: str, value: R | Exception) -> None:
            mine.remove(name)
            self._taken.remove(name)
            if isinstance(value, Exception):
                self._futures[name].set_exception(value)
            else:
                self._futures[name].set_result((place, value))

        while self._has_work(place):
            error: BaseException = LostError("it was begun, and came to no result")
            try:
                self._work(place, names(), done)
            except BaseException as raised:  # Whoever waits for it raises it.
                self._error = error = raised
            if not mine:
                break
            self._taken -= mine
            for name in mine:
                self._futures[name].set_exception(error)
            mine.clear()
        with self._lock:
            self._running -= 1
            left = [] if self._running else self._queue[:]
            del self._queue[: len(left)]
        for name in left:  # No place is left that could do it, which is no pass.
            self._futures[name].set_exception(self._error)

    def _has_work(self, place: P) -> bool:
        with self._lock:
            gone = self.closing or place in self._retired
            return not gone and any(self._takes(place, name) for name in self._queue)

    def _next(self, place: P) -> str:
        """One of the affinity of the last, else of one that no other place is at, else the first; empty if
        there is nothing left for this place."""
        with self._lock:
            if not self._has_work(place):
                return ""
            theirs = {affinity for each, affinity in self._at.items() if each is not place}
            found: dict[int, str] = {}
            for name in self._queue:
                affinity = self._affinity(name)
                rank = 0 if affinity == self._at.get(place) else 1 + (affinity in theirs)
                if rank not in found and self._takes(place, name):
                    found[rank] = name
                if 0 in found:
                    break
            name = found[min(found)]
            self._queue.remove(name)
            self._taken.add(name)
            self._at[place] = self._affinity(name)
            return name
