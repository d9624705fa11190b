"""Times changed cases side by side with the commits that their baselines were measured at."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from harness.baselines import BaselineEntry
from harness.compiler.errors import ToolchainError
from harness.devices import DeviceError, PairingDevice
from harness.gate.compare import Row, compare
from harness.gate.pairs import Pair, pairs_of
from harness.model import Case
from harness.project.commit import Commit, CommitError, checked_out
from harness.project.loader import Project
from harness.timing.looks import Rule
from harness.timing.plan import PairPlan
from harness.verdicts.paired import BASE_UNUSABLE, NO_PAIR, SAME_BINARY, Paired

_ONE_AT_A_TIME = threading.Lock()  # declarations are modules of the process, and git locks its repository
LEAST_SECONDS = 30.0  # for pairs, however few cases were timed
# One look more than a comparison by itself: what stays ambiguous is red, and few cases need it.
LOOKS = 4

Step = Callable[[str], None]


@dataclass(frozen=True)
class Wanted:
    """A ``case`` to be paired with the commit of its baseline's ``entry``; ``margin``: the smallest change
    that counts, relative."""

    case: Case
    entry: BaselineEntry
    margin: float


class Against:
    """Pairs cases with the commits of their baselines; each commit is checked out once.

    ``budget``: seconds for timing all pairs of a `pair`; None: as long as the measurements before took, and
    at least LEAST_SECONDS. Must be closed, which removes the checkouts.
    """

    def __init__(
        self,
        device: PairingDevice,
        capability: tuple[int, int],
        l2: str,
        project: Project,
        seed: int = 0,
        budget: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._device, self._capability, self._project, self._seed = device, capability, project, seed
        self._plan, self._budget, self._clock = PairPlan((), l2=l2), budget, clock
        self._open = contextlib.ExitStack()
        self._commits: dict[str, Commit | CommitError] = {}

    def close(self) -> None:
        self._open.close()
        self._commits.clear()

    def _commit(self, name: str) -> Commit:
        with _ONE_AT_A_TIME:
            return self._found(name)

    def _found(self, name: str) -> Commit:
        if name not in self._commits:
            try:
                self._commits[name] = self._open.enter_context(checked_out(name, self._project))
            except CommitError as error:
                self._commits[name] = error
        found = self._commits[name]
        if isinstance(found, CommitError):
            raise found
        return found

    def pair(
        self, wanted: Sequence[Wanted], measured_seconds: float, step: Step = lambda what: None
    ) -> dict[str, Paired]:
        """The result of each case, by id; in this order while there is time, NO_PAIR with the reason
        afterwards, and where no pair is possible. ``measured_seconds``: what the measurements before took."""
        if self._budget == 0:
            return {each.case.id: _none("--pair-budget is 0") for each in wanted}
        found: dict[str, Paired] = {}
        groups: dict[tuple[str, float], list[Case]] = {}
        for each in wanted:
            if why := _impossible(each):
                found[each.case.id] = _none(why)
            else:
                groups.setdefault((each.entry.commit, each.margin), []).append(each.case)
        compiled = []
        for (name, margin), cases in groups.items():
            try:
                commit = self._commit(name)
                with self._prepared(commit, cases):
                    pairs = pairs_of(cases, commit, self._capability)
            except (CommitError, ToolchainError) as error:
                found |= {case.id: _none(str(error)) for case in cases}
                continue
            found |= {p.case.id: _untimed(p, commit) for p in pairs if p.outcome is not None}
            if timed := [p for p in pairs if p.outcome is None]:
                rule = Rule(delta=margin, error=Rule.error / len(groups), looks=LOOKS)
                compiled.append((commit, rule, timed))
        if compiled:
            self._device.ahead()  # what is slower by little is paired once more in a new process
        seconds = max(LEAST_SECONDS, measured_seconds) if self._budget is None else self._budget
        end = self._clock() + seconds

        def late() -> bool:
            return self._clock() > end

        for commit, rule, pairs in compiled:  # one comparison: its controls and its error are of all of them
            result = compare(self._device, pairs, rule, self._seed, self._plan, step=step, late=late)
            found |= {row.case.id: _timed(row, commit, rule, seconds) for row in result.rows}
        self._doubted(found, compiled, step, late)
        return found

    @contextlib.contextmanager
    def _prepared(self, commit: Commit, cases: Sequence[Case]) -> Iterator[None]:
        """Meanwhile the device compiles both sides as it loads them, which takes as long as to compare their
        binaries. What fails is reported when it is timed."""
        bases = [base for case in cases if isinstance(base := commit.counterpart(case), Case)]
        with ThreadPoolExecutor(1) as beside:
            job = beside.submit(self._device.prepare_pairs, [*bases, *cases])
            yield
        with contextlib.suppress(DeviceError):
            job.result()

    def _doubted(
        self,
        found: dict[str, Paired],
        compiled: Sequence[tuple[Commit, Rule, Sequence[Pair]]],
        step: Step,
        late: Callable[[], bool],
    ) -> None:
        """What is slower by little, once more in a new process. What cannot be timed there stays as it is."""
        doubted = ((rule, [p for p in pairs if found[p.case.id].doubtful]) for _, rule, pairs in compiled)
        again = [(rule, pairs) for rule, pairs in doubted if pairs]
        if not again or late():
            return
        self._device.restart()
        for rule, pairs in again:
            rows = compare(self._device, pairs, rule, self._seed + 1, self._plan, step=step, late=late).rows
            for row in rows:
                if row.finding:
                    seen = found[row.case.id]
                    found[row.case.id] = seen.in_new_process(row.samples.log_ratios)


def _impossible(wanted: Wanted) -> str:
    """Why a case cannot be paired, as far as its baseline tells; else empty."""
    case, entry = wanted.case, wanted.entry
    if case.chosen_for and entry.choice != case.choice:
        return f"{case.choice} was chosen, and {entry.choice or None} when it was measured"
    if entry.dirty:
        return f"the baseline was measured with uncommitted changes to {entry.commit[:12]}"
    return ""


def _untimed(pair: Pair, commit: Commit) -> Paired:
    if pair.outcome == SAME_BINARY:
        return Paired(*SAME_BINARY, commit=commit.sha)
    return _none(pair.detail)


def _timed(row: Row, commit: Commit, rule: Rule, seconds: float) -> Paired:
    if row.outcome == NO_PAIR:
        return _none(f"the {seconds:.0f} s for pairs were used up (--pair-budget)")
    if row.outcome == BASE_UNUSABLE:
        return _none(row.detail)
    found = Paired(*row.outcome, detail=row.detail, commit=commit.sha, delta=rule.delta)
    f, samples = row.finding, row.samples
    if f is None:
        return found
    return replace(
        found,
        change=f.change,
        interval=f.interval,
        log_ratios=samples.log_ratios,
        resolution=samples.resolution,
        miss=f.miss,
    )


def _none(why: str) -> Paired:
    return Paired(*NO_PAIR, detail=why)
