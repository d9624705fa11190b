"""Without a GPU, kernels are compiled while those before them run."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from gemm_regression.cli.common import in_ci
from gemm_regression.cli.session import KEY
from gemm_regression.compiler import tools
from gemm_regression.compiler.nvcc import compile_cubin, compile_ptx
from gemm_regression.compiler.static import Entry, unchanged
from gemm_regression.compiler.static.metrics import ALWAYS, ARCHES
from gemm_regression.compiler.tools import CompileError, ToolchainError
from gemm_regression.devices.emulated import EmulatedDevice, forget_machines
from gemm_regression.model import Case

_LAST = pytest.StashKey[str]()  # the variant of the last case


def pytest_collection_finish(session: pytest.Session) -> None:
    """Begins with what the tests need, in their order. Of several processes each compiles its own."""
    config = session.config
    device = config.stash[KEY].device
    if device is None or config.option.collectonly:
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
            every, root = config.option.every_architecture, config.stash[KEY].project.static
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
