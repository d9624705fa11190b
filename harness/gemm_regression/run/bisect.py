"""Finds the first commit that made a case slower, by pairs with the binary of a good one.

Commits whose binaries and launches are equal are one. Those that cannot be judged are skipped, as by
``git bisect skip``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from math import ceil, log2

from gemm_regression.devices import PairingDevice
from gemm_regression.devices.stored import StoredBinary
from gemm_regression.judge.paired import FASTER, NOT_SLOWER, SLOWER, Paired
from gemm_regression.model import Case
from gemm_regression.run.pairing import Pair, Pairing
from gemm_regression.run.pairs import key_of
from gemm_regression.timing.looks import Rule


class State(Enum):
    GOOD = "good"
    BAD = "bad"
    SKIP = "skip"


@dataclass(frozen=True)
class Revision:
    """A commit: its ``name``, its ``binary`` of the case, or None and ``why`` there is none."""

    name: str
    binary: StoredBinary | None = None
    why: str = ""


@dataclass(frozen=True)
class Tested:
    """``revisions`` of one binary, oldest first; the ``state`` that was found of them, in the pair
    ``paired``, or ``why`` there was none."""

    revisions: tuple[Revision, ...]
    state: State
    paired: Paired | None = None
    why: str = ""


@dataclass(frozen=True)
class Found:
    """``first``: the revisions of the first bad binary, the oldest of which made it; ``skipped``: those
    before it that could not be judged, and may be it."""

    first: tuple[Revision, ...]
    skipped: tuple[Revision, ...] = ()


Test = Callable[[StoredBinary], tuple[State, Paired | None]]


def grouped(revisions: Sequence[Revision]) -> list[tuple[Revision, ...]]:
    """Neighbours of one binary and launch together; one without a binary stands alone."""
    groups: list[list[Revision]] = []
    for revision in revisions:
        last = groups[-1][-1].binary if groups else None
        if last and revision.binary and key_of(last) == key_of(revision.binary):
            groups[-1].append(revision)
        else:
            groups.append([revision])
    return [tuple(group) for group in groups]


def first_bad(
    groups: Sequence[tuple[Revision, ...]],
    good: StoredBinary,
    test: Test,
    told: Callable[[Tested, int], None] = lambda tested, left: None,
) -> Found:
    """Where the case becomes slower, of groups after ``good``, oldest first, of which the last one is bad.
    ``test`` is asked once of each binary; ``told`` is told each answer, and how many groups are left."""
    known: dict[tuple[str, str], tuple[State, Paired | None]] = {key_of(good): (State.GOOD, None)}
    low, high = -1, len(groups) - 1
    skipped: set[int] = set()
    while open_ := [i for i in range(low + 1, high) if i not in skipped]:
        middle = min(open_, key=lambda i: (abs(i - (low + high) / 2), i))
        binary = groups[middle][0].binary
        if binary is None:
            state, paired = State.SKIP, None
        else:
            if (key := key_of(binary)) not in known:
                known[key] = test(binary)
            state, paired = known[key]
        if state is State.SKIP:
            skipped.add(middle)
        elif state is State.GOOD:
            low = middle
        else:
            high = middle
        left = sum(i not in skipped for i in range(low + 1, high))
        told(Tested(groups[middle], state, paired, groups[middle][0].why), left)
    among = [revision for group in groups[low + 1 : high] for revision in group]
    return Found(groups[high], tuple(among))


def steps(groups: int) -> int:
    """How many pairs that takes, at most, with the one of the last group, unless some are skipped."""
    return 1 + ceil(log2(max(1, groups)))


def beside(
    device: PairingDevice,
    case: Case,
    good: StoredBinary,
    pairs: int,
    margin: float,
    core: str,
    seconds: float,
    seed: int,
    rule: Rule | None = None,
) -> Test:
    """Times a binary of a case beside the good one, with a control of its own. ``pairs``: how many there will
    be, which share the probability of an error."""
    done = 0

    def test(binary: StoredBinary) -> tuple[State, Paired | None]:
        nonlocal done
        done += 1
        pairing = Pairing(device, rule or Rule(), pairs, seed + 1000 * done)
        pairing.time(Pair(case, good, margin, core, seconds, good.name, binary))
        (timed,) = pairing.finish()
        states = {SLOWER: State.BAD, NOT_SLOWER: State.GOOD, FASTER: State.GOOD}
        return states.get(timed.paired.outcome, State.SKIP), timed.paired

    return test
