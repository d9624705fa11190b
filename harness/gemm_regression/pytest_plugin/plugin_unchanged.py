"""Kernels of which nothing changed since they passed without a GPU are answered from the cache.

The controller looks up what is known, and its workers leave those tests out; it counts them as answered. With
--no-cache, in CI, and where the user picked tests by --lf or --sw, all are run.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

import pytest

from gemm_regression.cli.common import in_ci
from gemm_regression.cli.session import Answer, Session
from gemm_regression.compiler.static import Entry
from gemm_regression.counters.check import CounterEntry
from gemm_regression.model import Case
from gemm_regression.project import selection as cases
from gemm_regression.pytest_plugin import judged
from gemm_regression.pytest_plugin.plugin import open_session
from gemm_regression.run.passed import Keys, Passed, Records

_MARK, _INPUT = "unchanged", "gemm_unchanged"
_FEW = 200  # cases: nvcc, of which there are several at a time, takes longer than they
_WITH_MAPS = 5  # cases that take as long as one of a kernel of tensor maps, which runs without C


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """None beside this process, where few tests are left; None to leave that to pytest-xdist."""
    if not _is_on(config):
        return None
    session, unchanged = open_session(config), _opened(config)
    fits = cases.fitting(config.option.keyword) if _is_plain(config) else lambda text: True
    left = sum(
        _WITH_MAPS if case.kernel.maps else 1
        for case in session.selection.verify
        if fits(case.id) and unchanged.keys.of_case(case) not in unchanged.known
    )
    return 0 if left <= _FEW else None


def _is_plain(config: pytest.Config) -> bool:
    try:
        cases.fitting(config.option.keyword)
    except ValueError:
        return False
    return True


def _is_on(config: pytest.Config) -> bool:
    return bool(config.option.from_cache and not config.option.collectonly and not config.option.list_cases)


def _reads(config: pytest.Config) -> bool:
    picked = any(getattr(config.option, name, False) for name in ("lf", "failedfirst", "stepwise"))
    return not (config.option.no_cache or picked or in_ci())


def _opened(config: pytest.Config) -> Unchanged:
    plugin: Unchanged | None = config.pluginmanager.get_plugin(_INPUT)
    if plugin is None:
        plugin = Unchanged(config, open_session(config))
        config.pluginmanager.register(plugin, _INPUT)
    return plugin


def pytest_configure(config: pytest.Config) -> None:
    if _is_on(config):
        _opened(config)


class Unchanged:
    """The hooks of a run that answers from the cache."""

    def __init__(self, config: pytest.Config, session: Session) -> None:
        self._config, self._session = config, session
        given: Mapping[str, Any] | None = getattr(config, "workerinput", {}).get(_INPUT)
        self._store: Passed | None = None
        if given is None:
            option = config.option
            settings = (session.arch, option.strict_notes, option.time_limit)
            self._store = Passed(session.project, settings)
            given = {"states": self._store.keys, "known": [*self._store.answers] if _reads(config) else []}
        self._given, self.known = given, frozenset(given["known"])
        self.keys = Keys(given["states"], session.project)
        self._answered: list[str] = []
        self._passed: dict[str, Records] = {}
        self._failed: set[str] = set()

    def key(self, item: pytest.Item) -> str:
        """The key of one of the tests that judge kernels; empty for any other."""
        function, parameters = getattr(item, "function", None), getattr(item, "callspec", None)
        for given in parameters.params.values() if parameters else ():
            if function is judged.test_kernel and isinstance(given, Case):
                return self.keys.of_case(given)
            if function is judged.test_compiler_metrics and isinstance(given, Entry) and given.variant:
                return self.keys.of_figures(given.name, given.arch, given.variant)
            if function is judged.test_counts and isinstance(given, CounterEntry) and given.variant:
                return self.keys.of_counts(given.name, given.variant)
        return ""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        left = []
        for item in items:
            key = self.key(item)
            if key in self.known:
                self._answered.append(key)
                continue
            if key:
                item.user_properties.append((_MARK, key))
            left.append(item)
        items[:] = left

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[_INPUT] = self._given

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._answered = getattr(node, "workeroutput", {}).get(_INPUT, []) or self._answered

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: Any) -> None:
        if self._store is None:
            return
        key = next((str(value) for name, value in report.user_properties if name == _MARK), "")
        report.user_properties = [each for each in report.user_properties if each[0] != _MARK]
        if key and report.failed:
            self._failed.add(key)
        elif key and report.when == "call" and report.passed:
            self._passed[key] = list(report.user_properties)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self) -> Generator[None]:
        if self._store is None:
            self._config.workeroutput[_INPUT] = self._answered  # type: ignore[attr-defined]
            return (yield)
        passed = {key: records for key, records in self._passed.items() if key not in self._failed}
        self._store.keep(passed, self._failed)
        self._session.answered = [Answer(key, self._store.answers[key]) for key in self._answered]
        if self._answered and (reporter := self._config.pluginmanager.get_plugin("terminalreporter")):
            reporter._add_stats("from the cache", self._session.answered)
        return (yield)
