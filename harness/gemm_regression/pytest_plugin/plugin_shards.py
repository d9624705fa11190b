"""``--shard``: runs one part of the tests, and records what became of them."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from gemm_regression.cli.session import KEY
from gemm_regression.files import write_whole
from gemm_regression.model import Case
from gemm_regression.pytest_plugin.plugin_machine import test_machine
from gemm_regression.run import shards
from gemm_regression.run.shards import NOT_RUN, Shard

_NAME = "gemm_shard"


def pytest_configure(config: pytest.Config) -> None:
    text = config.option.shard
    if not text or config.option.collectonly or config.option.help:
        return
    try:
        shard = Shard.parse(text)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    if config.stash[KEY].gpu is None:
        raise pytest.UsageError(f"--shard {text}: only runs on a GPU have parts")
    if getattr(config.option, "numprocesses", None):
        raise pytest.UsageError(f"--shard {text}: run without -n")
    if not config.option.benchmark_json:
        raise pytest.UsageError(
            f"--shard {text}: needs --benchmark-json FILE, which `gemm-regression shards` adds up"
        )
    config.pluginmanager.register(Sharded(shard), _NAME)


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
        mine = f"[{self._shard.number}/{self._shard.of}]"
        self._whole = [item.nodeid for item in items if not _is_machine(item)]
        for item in items:
            if _is_machine(item):
                name = item.nodeid.removesuffix(mine)
                self._whole += [f"{name}[{n}/{self._shard.of}]" for n in range(1, self._shard.of + 1)]
        kept = [item for item in items if _is_machine(item) or self._shard.has(_name(item))]
        dropped = set(items) - set(kept)
        config.hook.pytest_deselected(items=[item for item in items if item in dropped])
        items[:] = kept
        self._outcomes = {item.nodeid: NOT_RUN for item in kept}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        said = self._outcomes.get(report.nodeid, NOT_RUN)
        if report.failed or said == "failed":
            self._outcomes[report.nodeid] = "failed"
        elif report.skipped or report.when == "call":
            self._outcomes[report.nodeid] = report.outcome

    def pytest_benchmark_update_json(self, output_json: dict[str, Any]) -> None:
        output_json[shards.KEY] = self._shard.record(self._whole, self._outcomes)
        self._written = True

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A part without a timed case, of which pytest-benchmark writes nothing."""
        config = session.config
        board = config.stash[KEY].boards[0]
        if not self._written:
            commit = config.hook.pytest_benchmark_generate_commit_info(config=config)
            config.hook.pytest_benchmark_update_commit_info(config=config, commit_info=commit)
            document = {"machine_info": board.machine(), "commit_info": commit, "benchmarks": []}
            document[shards.KEY] = self._shard.record(self._whole, self._outcomes)
            write_whole(Path(config.option.benchmark_json), json.dumps(document, indent=1) + "\n")


def _is_machine(item: pytest.Item) -> bool:
    return getattr(item, "obj", None) is test_machine


def _name(item: pytest.Item) -> str:
    """What decides which part a test is in: its case, otherwise its own id."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    case = parameters.get("verify_case") or parameters.get("timed_case")
    return case.id if isinstance(case, Case) else item.nodeid
