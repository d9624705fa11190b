"""pytest-xdist's workers: a worker that is killed costs its test, not the run.

pytest-xdist 3.8 hands the whole group of the killed worker to another one: the test that it died of again,
and groups without a test left, after which a worker waits for ever. Two workers killed at a time end the run
with an internal error, for the second one's place is given work before it has collected. So does what a
worker refuses when it has collected, such as a marker that nobody declared. And with pytest 9.2 it has no
groups, without a word: it writes them into an attribute of the tests that is read no more.


And without a GPU, kernels are compiled while those before them run.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from gemm_regression.cli.common import in_ci
from gemm_regression.compiler import tools
from gemm_regression.compiler.nvcc import compile_cubin, compile_ptx
from gemm_regression.compiler.static import Entry, unchanged
from gemm_regression.compiler.static.metrics import ALWAYS, ARCHES
from gemm_regression.compiler.tools import CompileError, ToolchainError
from gemm_regression.counters.check import CounterEntry
from gemm_regression.devices.emulated import EmulatedDevice, forget_machines
from gemm_regression.model import Case
from gemm_regression.pytest_plugin.session import KEY

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


_LAST = pytest.StashKey[str]()  # the variant of the last case


def pytest_collection_finish(session: pytest.Session) -> None:
    """Begins with what the tests need, in their order. Of several processes each compiles its own."""
    config = session.config
    known = config.stash.get(KEY, None)
    device = known.device if known else None
    if known is None or device is None or config.option.collectonly:
        return
    if not isinstance(device, EmulatedDevice):
        _seldom_collect(config, False)  # thousands of tests and their reports stay to the end
        return
    given = [value for item in session.items for value in _parameters(item)]
    _seldom_collect(config, any(isinstance(value, Case) for value in given))
    entries = [e for e in given if isinstance(e, Entry) and e.variant is not None]
    device.cubins = bool(entries)
    if hasattr(config, "workerinput"):
        return
    cases = dict.fromkeys((c.kernel, c.config, c.dtype) for c in given if isinstance(c, Case))
    ptx = partial(compile_ptx, arch=device.arch, cubin_too=device.cubins)
    jobs: list[Callable[[], object]] = [partial(ptx, *variant) for variant in cases]
    if entries:
        with suppress(ToolchainError):
            nvcc = tools.pinned_nvcc()
            every, root = config.option.every_architecture, known.project.static
            held = {} if every else unchanged(entries, root, nvcc)
            arches = ARCHES if every or in_ci() else ALWAYS
            left = (e for e in entries if (e.name, e.arch) not in held and e.arch in arches)
            jobs += [partial(compile_cubin, *e.variant, e.arch, nvcc) for e in left if e.variant]
    pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)))
    config.add_cleanup(lambda: pool.shutdown(cancel_futures=True))
    for job in jobs:
        pool.submit(_quietly, job)


@pytest.hookimpl(tryfirst=True)
def pytest_unconfigure() -> None:
    gc.freeze()  # pytest looks for garbage at the end, for two seconds


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Looks for garbage between two variants alone."""
    last = item.config.stash.get(_LAST, None)
    case = next((value for value in _parameters(item) if isinstance(value, Case)), None)
    if last is not None and case and case.variant != last:
        forget_machines()
        item.config.stash[_LAST] = case.variant


def _seldom_collect(config: pytest.Config, between_variants: bool) -> None:
    """A kernel made ready is 100 000 objects, and they stay: to look through them for garbage again and again
    takes a sixth of the time of a check."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(1_000_000 if between_variants else 10_000, 10, 10)
    if between_variants:
        config.stash[_LAST] = ""
    config.add_cleanup(lambda: gc.set_threshold(*before))


def _quietly(job: Callable[[], object]) -> None:
    """The test that needs it says what is wrong with it."""
    with suppress(CompileError, ToolchainError, ValueError):
        job()


def _parameters(item: Any) -> list[object]:
    spec = getattr(item, "callspec", None)
    return list(spec.params.values()) if spec else []
