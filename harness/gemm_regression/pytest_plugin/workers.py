"""Runs without a GPU, in one process or pytest-xdist's: kernels are compiled while those before them run, and
what a worker refuses ends the run in one line."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from gemm_regression.cli.common import in_ci
from gemm_regression.compiler import tools
from gemm_regression.compiler.nvcc import compile_cubin, compile_ptx
from gemm_regression.compiler.static import ALWAYS, ARCHES, StaticEntry, unchanged
from gemm_regression.compiler.tools import CompileError, ToolchainError
from gemm_regression.devices.emulated import EmulatedDevice, forget_machines
from gemm_regression.model import Case
from gemm_regression.pytest_plugin.session import KEY, parameters

REFUSED = "gemm_refused"  # of what a worker sends at its end
_LAST = pytest.StashKey[str]()  # the variant of the last case


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """What is made until all is collected stays: nothing of it is garbage. A process that only starts others
    collects nothing."""
    if not getattr(config.option, "numprocesses", None):
        gc.disable()
        config.add_cleanup(gc.enable)


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


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Those of a variant are neighbours: a kernel is made ready once, of workers by few of them."""
    known = config.stash.get(KEY, None)
    if known and isinstance(known.device, EmulatedDevice) and not config.option.collectonly:
        place: dict[str, int] = {}
        items.sort(key=lambda item: place.setdefault(variant_of(item), len(place)))


def variant_of(item: pytest.Item) -> str:
    """The name of the variant that a test is about; empty for others."""
    of = [value.variant for value in parameters(item) if isinstance(value, Case)]
    return next(iter(of or [str(getattr(value, "name", "")) for value in parameters(item)]), "")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Begins with what the tests need, in their order. Of several processes each compiles its own."""
    gc.enable()
    config = session.config
    known = config.stash.get(KEY, None)
    device = known.device if known else None
    if known is None or device is None or config.option.collectonly:
        return
    given = [value for item in session.items for value in parameters(item)]
    if not isinstance(device, EmulatedDevice):
        given = []
    cases = dict.fromkeys((c.kernel, c.config, c.dtype) for c in given if isinstance(c, Case))
    _seldom_collect(config, bool(cases))
    entries = [e for e in given if isinstance(e, StaticEntry) and e.variant is not None]
    if given and isinstance(device, EmulatedDevice):
        device.cubins = bool(entries)
    if not given or hasattr(config, "workerinput"):
        return
    ptx = partial(compile_ptx, arch=known.arch, cubin_too=bool(entries))
    jobs: list[Callable[[], object]] = [partial(ptx, *variant) for variant in cases]
    with suppress(ToolchainError):
        nvcc, every = tools.pinned_nvcc(), config.option.every_architecture
        held = {} if every else unchanged(entries, known.project.static, nvcc)
        arches = ARCHES if every or in_ci() else ALWAYS
        left = (e for e in entries if (e.name, e.arch) not in held and e.arch in arches)
        jobs += [partial(compile_cubin, *e.variant, e.arch, nvcc) for e in left if e.variant]
    pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)))
    config.add_cleanup(lambda: pool.shutdown(cancel_futures=True))
    for job in jobs:
        pool.submit(_quietly, job)


def _quietly(job: Callable[[], object]) -> None:
    """The test that needs it says what is wrong with it."""
    with suppress(CompileError, ToolchainError, ValueError):
        job()


def _seldom_collect(config: pytest.Config, between_variants: bool) -> None:
    """A kernel made ready is 100 000 objects, and they stay: to look through them for garbage again and again
    takes a sixth of the time of a check. On a GPU thousands of tests and their reports stay to the end."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(1_000_000 if between_variants else 10_000, 10, 10)
    if between_variants:
        config.stash[_LAST] = ""
    config.add_cleanup(lambda: gc.set_threshold(*before))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Looks for garbage between two variants alone."""
    last = item.config.stash.get(_LAST, None)
    case = next((value for value in parameters(item) if isinstance(value, Case)), None)
    if last is not None and case and case.variant != last:
        forget_machines()
        item.config.stash[_LAST] = case.variant


@pytest.hookimpl(tryfirst=True)
def pytest_unconfigure() -> None:
    if "triton" in sys.modules:  # which lists in 40 lines what is left when Python ends
        gc.unfreeze()
    else:
        gc.freeze()  # pytest looks for garbage at the end, for two seconds
