"""Compiles ahead of the first worker, in a process of its own, which alone imports PyCUDA."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from gemm_regression.compiler.nvcc import compile_ptx
from gemm_regression.compiler.tools import arch
from gemm_regression.devices.cuda.protocol import Build
from gemm_regression.model import Case


def compile_ahead(cases: Iterable[Case], capability: tuple[int, int]) -> None:
    """See `gemm_regression.devices.compile_ahead`."""
    variants = {case.variant: case for case in cases}.values()
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        for case in variants:
            threads.submit(compile_ptx, case.kernel, case.config, case.dtype, arch(capability))
    builds = [Build.of(case, capability) for case in variants]
    with (
        ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process,
        contextlib.suppress(ImportError, BrokenProcessPool),  # no driver here: the workers compile
    ):
        process.submit(_compile_all, builds).result()


def _compile_all(builds: Sequence[Build]) -> None:
    from gemm_regression.devices.cuda.modules import compile_all

    compile_all(builds)
