"""pytest-xdist's workers: a worker that is killed costs its test, not the run.

pytest-xdist 3.8 hands the whole group of the killed worker to another one: the test that it died of again,
and groups without a test left, after which a worker waits for ever. Two workers killed at a time end the run
with an internal error, for the second one's place is given work before it has collected. So does what a
worker refuses when it has collected, such as a marker that nobody declared. And with pytest 9.2 it has no
groups, without a word: it writes them into an attribute of the tests that is read no more.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from gemm_regression.cli.session import KEY
from gemm_regression.counters.check import CounterEntry

REFUSED = "gemm_refused"  # of what a worker sends at its end


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """A worker keeps what it refuses for the process that started it."""
    try:
        return (yield)
    except pytest.UsageError as error:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput[REFUSED] = str(error)
        raise


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Raises UsageError for what a worker refused, so that the run ends as it does without workers."""
    if refused := getattr(node, "workeroutput", {}).get(REFUSED):
        raise pytest.UsageError(refused)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """The scheduler of ``--dist loadgroup``; None, for pytest-xdist's own, otherwise."""
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadGroupScheduling

    groups = _groups(config)

    class Groups(LoadGroupScheduling):  # type: ignore[misc]
        """Tests of a group run in one worker."""

        def _split_scope(self, nodeid: str) -> str:
            """The group of a test."""
            parameter = nodeid.partition("[")[2].removesuffix("]")
            return groups.get(parameter) or str(super()._split_scope(nodeid))

        def remove_node(self, node: Any) -> str | None:
            """Takes a worker out; returns the test it died of, or None where it had nothing left to do."""
            left = {
                scope: unit for scope, unit in self.assigned_work.pop(node).items() if not all(unit.values())
            }
            if not left:
                return None
            scope, unit = next(iter(left.items()))
            died_of: str = next(test for test, done in unit.items() if not done)
            unit[died_of] = True
            if all(unit.values()):
                del left[scope]
            self.workqueue.update(left)
            for other in self.assigned_work:
                self._reschedule(other)
            return died_of

        def _reschedule(self, node: Any) -> None:
            """Gives a worker its next group; one that has yet to collect gets its first when it has."""
            if node in self.registered_collections:
                super()._reschedule(node)

    return Groups(config, log)


def _groups(config: pytest.Config) -> dict[str, str]:
    """The variants of the tests that check kernels and count their accesses, by the tests' parameters: one
    process makes a variant ready, once."""
    session = config.stash.get(KEY, None)
    found = {case.id: case.variant for case in session.selection.verify} if session else {}
    return found | {str(CounterEntry(variant, None)): variant for variant in found.values()}
