"""Tests that a run leaves to others: to the other parts (``--shard``), and to the cache what passed before.

Kernels of which nothing changed since they passed without a GPU are answered from the cache. The controller
looks up what is known, and its workers leave those tests out; it counts them as answered. With --no-cache, in
CI, and where the user picked tests by --lf or --sw, all are run.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gemm_regression.cli.common import in_ci
from gemm_regression.files import write_whole
from gemm_regression.model import Case
from gemm_regression.project import selection as cases
from gemm_regression.pytest_plugin import judged
from gemm_regression.pytest_plugin.session import KEY, Session, open_session, parameters
from gemm_regression.run import replay
from gemm_regression.run.passed import Keys, Passed, Records
from gemm_regression.run.replay import NOT_RUN, Shard


def pytest_configure(config: pytest.Config) -> None:
    option, text = config.option, config.option.shard
    if _is_on(config):
        _opened(config)
    if not text or option.collectonly or option.help:
        return
    try:
        shard = Shard.parse(text)
        if config.stash[KEY].gpu is None:
            raise ValueError(f"--shard {text}: only runs on a GPU have parts")
        if getattr(option, "numprocesses", None):
            raise ValueError(f"--shard {text}: run without -n")
        if not option.benchmark_json:
            need = "needs --benchmark-json FILE, which `gemm-regression shards` adds up"
            raise ValueError(f"--shard {text}: {need}")
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    config.pluginmanager.register(Sharded(shard))


class Sharded:
    """The hooks of a run of one part."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._whole: list[str] = []
        self._outcomes: dict[str, str] = {}
        self._written = False

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> Generator[None]:
        yield  # the user's selection
        number, of = self._shard.number, self._shard.of
        kept, dropped = list[pytest.Item](), list[pytest.Item]()
        for item in items:
            if getattr(item, "obj", None) is judged.test_machine:  # each part has one of its own
                name = item.nodeid.removesuffix(f"[{number}/{of}]")
                self._whole += [f"{name}[{n}/{of}]" for n in range(1, of + 1)]
                kept.append(item)
            else:
                self._whole.append(item.nodeid)
                case = next((given.id for given in parameters(item) if isinstance(given, Case)), item.nodeid)
                (kept if self._shard.has(case) else dropped).append(item)
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept
        self._outcomes = {item.nodeid: NOT_RUN for item in kept}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self._outcomes.get(report.nodeid) != "failed" and (report.when == "call" or not report.passed):
            self._outcomes[report.nodeid] = report.outcome

    def pytest_benchmark_update_json(self, output_json: dict[str, Any]) -> None:
        output_json[replay.KEY] = self._shard.record(self._whole, self._outcomes)
        self._written = True

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A part without a timed case, of which pytest-benchmark writes nothing."""
        if self._written:
            return
        config = session.config
        commit = config.hook.pytest_benchmark_generate_commit_info(config=config)
        config.hook.pytest_benchmark_update_commit_info(config=config, commit_info=commit)
        machine = config.stash[KEY].boards[0].machine()
        document = {"machine_info": machine, "commit_info": commit, "benchmarks": []}
        document[replay.KEY] = self._shard.record(self._whole, self._outcomes)
        write_whole(Path(config.option.benchmark_json), json.dumps(document, indent=1) + "\n")


_MARK, _INPUT = "unchanged", "gemm_unchanged"
_FEW = 200  # cases: nvcc, of which there are several at a time, takes longer than they
_WITH_MAPS = 5  # cases that take as long as one of a kernel of tensor maps, which runs without C
_KEPT = (judged.test_kernel, judged.test_compiler_metrics, judged.test_counts)


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """None beside this process, where few tests are left; None to leave that to pytest-xdist."""
    try:
        fits = cases.fitting(config.option.keyword)
    except ValueError:
        return None
    if not _is_on(config):
        return None
    session, unchanged = open_session(config), _opened(config)
    left = sum(
        _WITH_MAPS if case.kernel.maps else 1
        for case in session.selection.verify
        if fits(case.id) and unchanged.keys.of(case) not in unchanged.known
    )
    return 0 if left <= _FEW else None


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


class Unchanged:
    """The hooks of a run that answers from the cache."""

    def __init__(self, config: pytest.Config, session: Session) -> None:
        self._config, self._session = config, session
        given: Mapping[str, Any] | None = getattr(config, "workerinput", {}).get(_INPUT)
        self._store: Passed | None = None
        if given is None:
            option = config.option
            self._store = Passed(session.project, (session.arch, option.strict_notes, option.time_limit))
            given = {"states": self._store.keys, "known": [*self._store.answers] if _reads(config) else []}
        self._given, self.known = given, frozenset(given["known"])
        self.keys = Keys(given["states"], session.project)
        self._answered: list[str] = []
        self._passed: dict[str, Records] = {}
        self._failed: set[str] = set()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        left = []
        for item in items:
            one_of_ours = getattr(item, "function", None) in _KEPT
            key = next(filter(None, map(self.keys.of, parameters(item))), "") if one_of_ours else ""
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
        answered = self._session.seen.answered = [_passed(k, self._store.answers[k]) for k in self._answered]
        if answered and (reporter := self._config.pluginmanager.get_plugin("terminalreporter")):
            reporter._add_stats("from the cache", answered)
        return (yield)


def _passed(key: str, records: Records) -> pytest.TestReport:
    return pytest.TestReport(key, (key, None, key), {}, "passed", None, "call", user_properties=records)
