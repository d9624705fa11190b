"""Work spread over places, such as GPUs and their processes.

Each place has a thread, and takes the next name that it can do when it is free, so that all end at about the
same time; names of one affinity, which share what is made ready for them, go to one place while there are
others. An affinity is a tuple, of which the first is shared by most and costs most."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from itertools import chain, takewhile
from operator import eq, itemgetter
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
    else it shares work with, ``waits`` whether it is done after the others. ``closing``: nothing more is to
    be begun."""

    def __init__(
        self,
        places: Sequence[P],
        work: Work[P, R],
        takes: Callable[[P, str], bool] = lambda place, name: True,
        affinity: Callable[[str], tuple[object, ...]] = lambda name: (),
        waits: Callable[[str], bool] = lambda name: False,
    ) -> None:
        self._places, self._work, self._takes, self._affinity = list(places), work, takes, affinity
        self._waits = waits
        self._at: dict[P, tuple[object, ...]] = {}  # the affinity of what a place took last
        self._lock = threading.RLock()
        # By whether they wait, and affinity: names in order.
        self._queue: dict[tuple[bool, tuple[object, ...]], list[str]] = {}
        self._futures: dict[str, Future[tuple[P, R]]] = {}
        self._taken: set[str] = set()  # and not done yet
        self._retired: list[P] = []
        self._threads: list[threading.Thread] = []
        self._running, self.closing = 0, False
        self._error: BaseException = LostError("no GPU is left for it")

    def begin(self, names: Sequence[str]) -> None:
        """Does ``names``, in about this order."""
        with self._lock:
            for name in sorted(names, key=self._waits):
                self._queue.setdefault((self._waits(name), self._affinity(name)), []).append(name)
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
            can = bool(others) and all(any(self._takes(each, n) for each in others) for n in self._left())
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
            left = [] if self._running else [*self._left()]
            if not self._running:
                self._queue.clear()
        for name in left:  # No place is left that could do it, which is no pass.
            self._futures[name].set_exception(self._error)

    def _left(self) -> Iterator[str]:
        return chain.from_iterable(self._queue.values())

    def _has_work(self, place: P) -> bool:
        with self._lock:
            gone = self.closing or place in self._retired
            return not gone and any(self._takes(place, name) for name in self._left())

    def _next(self, place: P) -> str:
        """Of those that need not wait, if there are any, the one that shares most with the last, and best
        what no other place is at; empty if there is nothing left for this place."""
        with self._lock:
            if not self._has_work(place):
                return ""
            last = self._at.get(place, ())
            elsewhere = [at for each, at in self._at.items() if each is not place]
            theirs = {at[:length] for at in elsewhere for length in range(1, len(at) + 1)}

            def rank(waits: bool, affinity: tuple[object, ...]) -> tuple[bool, int, bool]:
                shared = sum(takewhile(bool, map(eq, affinity, last)))
                return waits, -shared, affinity != last and affinity[: shared + 1] in theirs

            found: list[tuple[tuple[bool, int, bool], tuple[bool, tuple[object, ...]], str]] = []
            for key, names in self._queue.items():
                if name := next((name for name in names if self._takes(place, name)), ""):
                    found.append((rank(*key), key, name))
            _, key, name = min(found, key=itemgetter(0))
            self._queue[key].remove(name)
            if not self._queue[key]:
                del self._queue[key]
            self._taken.add(name)
            self._at[place] = key[1]
            return name
