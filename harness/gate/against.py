"""Times a suspected regression side by side with the commit its baseline was measured at."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from harness.baselines import BaselineEntry
from harness.compiler.errors import ToolchainError
from harness.devices import PairingDevice
from harness.gate.compare import compare
from harness.gate.pairs import Pair, pairs_of
from harness.model import Case
from harness.project.commit import Commit, CommitError, checked_out
from harness.project.loader import Project
from harness.timing.looks import Rule
from harness.timing.plan import PairPlan
from harness.verdicts.paired import BASE_UNUSABLE, NO_PAIR, SAME_BINARY, Paired


class Against:
    """Pairs cases with the commits of their baselines; each commit is checked out once.

    Must be closed, which removes the checkouts.
    """

    def __init__(
        self, device: PairingDevice, capability: tuple[int, int], l2: str, project: Project, seed: int = 0
    ) -> None:
        self._device, self._capability, self._project, self._seed = device, capability, project, seed
        self._plan = PairPlan((), l2=l2)
        self._open = contextlib.ExitStack()
        self._commits: dict[str, Commit | CommitError] = {}

    def close(self) -> None:
        self._open.close()
        self._commits.clear()

    def _commit(self, name: str) -> Commit:
        if name not in self._commits:
            try:
                self._commits[name] = self._open.enter_context(checked_out(name, self._project))
            except CommitError as error:
                self._commits[name] = error
        found = self._commits[name]
        if isinstance(found, CommitError):
            raise found
        return found

    def __call__(self, case: Case, entry: BaselineEntry, threshold: float) -> Paired:
        """The result of the paired comparison. The margin is half the gate's ``threshold`` for the case,
        since a suspected regression exceeds the whole threshold."""
        if case.chosen_for and entry.info.get("chosen") != case.choice:
            return _none(f"{case.choice} was chosen, and {entry.info.get('chosen')} when it was measured")
        if entry.dirty:
            return _none(f"the baseline was measured with uncommitted changes to {entry.commit[:12]}")
        try:
            commit = self._commit(entry.commit)
            (pair,) = pairs_of([case], commit, self._capability)
        except (CommitError, ToolchainError) as error:
            return _none(str(error))
        if pair.outcome == SAME_BINARY:
            return Paired(*SAME_BINARY, commit=commit.sha)
        if pair.outcome is not None:
            return _none(pair.detail)
        return self._timed(pair, commit, Rule(delta=min(threshold / 2, 0.5)))

    def _timed(self, pair: Pair, commit: Commit, rule: Rule) -> Paired:
        (row,) = compare(self._device, [pair], rule, self._seed, self._plan).rows
        if row.outcome == BASE_UNUSABLE:
            return _none(row.detail)
        found = Paired(*row.outcome, detail=row.detail, commit=commit.sha, delta=rule.delta)
        f = row.finding
        return replace(found, change=f.change, interval=f.interval) if f else found


def _none(why: str) -> Paired:
    return Paired(*NO_PAIR, detail=why)
