"""A suspected regression, timed side by side with the commit that its baseline was measured at."""

from __future__ import annotations

import contextlib
from pathlib import Path

from harness.baselines import BaselineEntry
from harness.compiler.toolchain import ToolchainError
from harness.gate.compare import Comparison, PairingDevice, compare
from harness.gate.pairs import Pair, PairState, pairs_of
from harness.model import Case
from harness.project.commit import ROOT, Commit, CommitError, checked_out
from harness.timing.looks import Rule
from harness.timing.plan import PairPlan
from harness.verdicts.judge import Paired, percent_text


class Against:
    """Pairs cases with the commits of their baselines; each commit is taken out of git once.

    To be closed, which removes what was taken out.
    """

    def __init__(
        self, device: PairingDevice, capability: tuple[int, int], l2: str, root: Path = ROOT, seed: int = 0
    ) -> None:
        self._device, self._capability, self._root, self._seed = device, capability, root, seed
        self._plan = PairPlan((), l2=l2)
        self._open = contextlib.ExitStack()
        self._commits: dict[str, Commit | CommitError] = {}

    def close(self) -> None:
        self._open.close()
        self._commits.clear()

    def _commit(self, name: str) -> Commit:
        if name not in self._commits:
            try:
                self._commits[name] = self._open.enter_context(checked_out(name, self._root))
            except CommitError as error:
                self._commits[name] = error
        found = self._commits[name]
        if isinstance(found, CommitError):
            raise found
        return found

    def __call__(self, case: Case, entry: BaselineEntry, threshold: float) -> Paired:
        """What the pair comes to. ``threshold`` is the gate's for the case: half of it is the margin, since
        what it suspects is beyond the whole."""
        if entry.dirty:
            text = f"not paired: the baseline was measured with changes on top of {entry.commit[:12]}"
            return Paired("IMPOSSIBLE", text)
        try:
            commit = self._commit(entry.commit)
            (pair,) = pairs_of([case], commit, self._capability)
        except (CommitError, ToolchainError) as error:
            return Paired("IMPOSSIBLE", f"not paired: {error}")
        if pair.state is PairState.IDENTICAL:
            text = f"yet {commit.label} compiles to the same binary today"
            return Paired("IDENTICAL", text, commit.sha)
        if pair.state is not PairState.CHANGED:
            return Paired("IMPOSSIBLE", f"not paired: {pair.reason}")
        return self._timed(pair, commit, Rule(delta=min(threshold / 2, 0.5)))

    def _timed(self, pair: Pair, commit: Commit, rule: Rule) -> Paired:
        result = compare(self._device, [pair], rule, self._seed, self._plan)
        (row,) = result.rows
        if row.kind == PairState.BASE_UNUSABLE:
            return Paired("IMPOSSIBLE", f"not paired: {row.reason}")
        if row.finding is None:
            return Paired(str(row.kind), f"beside {commit.label}: {row.reason}", commit.sha)
        f = row.finding
        return Paired(str(f.kind), _words(result, commit), commit.sha, f.change, f.interval, rule.delta)


def _words(result: Comparison, commit: Commit) -> str:
    (row,) = result.rows
    assert row.finding is not None
    low, high = row.finding.interval
    return (
        f"beside {commit.label} its time is {percent_text(row.finding.change, 2)} "
        f"({percent_text(low, 2)} … {percent_text(high, 2)}): {row.kind} by ±{100 * result.rule.delta:.2g} %"
    )
