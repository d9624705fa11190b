"""How far a run of pytest is, for the commands that start one: in place of a dot a test."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import pytest

from gemm_regression.cli.progress import Steps, progress
from gemm_regression.cli.session import KEY


class Watched:
    """The tests of a run, while they run."""

    def __init__(self, steps: Steps) -> None:
        self._steps, self._failed = steps, 0

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: Sequence[str]) -> None:
        """Workers collect, each the same."""
        self._steps.total = len(ids)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.now(nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self._failed += report.failed
        if report.when in ("teardown", "???"):  # "???": its process was killed
            self._steps.done += 1
            self.now(report.nodeid)

    def now(self, what: str) -> None:
        """What is being done; of a test, its case."""
        failed = f"{self._failed} failed, " if self._failed else ""
        name = what.rpartition("::")[2]
        self._steps.now(failed + (name.partition("[")[2].removesuffix("]") or name))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_report_teststatus(self) -> Generator[None, Any, Any]:
        """No letter: what failed is told at the end."""
        category, *_ = yield
        return category, "", ""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, Any, Any]:
    config = session.config
    option = config.option
    unwanted = option.verbose or option.collectonly or option.usepdb
    if not option.progress or unwanted or hasattr(config, "workerinput"):
        return (yield)
    with progress(str(option.progress), len(session.items)) as steps:
        watched, reporter = Watched(steps), config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.showfspath = False  # the names of two files, before their dots
        config.stash[KEY].says = watched.now
        config.pluginmanager.register(watched)
        try:
            return (yield)
        finally:
            config.pluginmanager.unregister(watched)
            config.stash[KEY].says = lambda what: None
