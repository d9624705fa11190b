"""``nox -s lab -- benchmark``: the speed of the emulated device on one core.

The unit is a thread instruction: one PTX instruction executed by one thread. All checks are enabled.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gemm_regression import oracle
from gemm_regression.compiler.static import ARCHES
from gemm_regression.compiler.tools import ToolchainError
from gemm_regression.devices import DeviceError
from gemm_regression.devices.emulated import EmulatedDevice
from gemm_regression.model import Case
from gemm_regression.project.loader import find, load
from gemm_regression.project.selection import find_case
from lab.pages import fail
from ptxsan import Counters
from ptxsan.native import describe

CASE = "register-f32-tile128x128x8-thread8x8-pad0-256x256x256"
ARCH = "sm_90a"


def rates(case: Case, rounds: int, counting: bool) -> list[float]:
    """Thread instructions per second of each round, after one untimed round. Raises DeviceError."""
    device = EmulatedDevice(ARCH)
    inputs = oracle.make_inputs(case.kernel.operation, case.problem, case.dtype, "normal")
    found = []
    for _ in range(rounds + 1):
        before, start = device.lane_instructions, time.perf_counter()
        (output,) = device.run_all([case], [inputs], Counters() if counting else None)
        seconds = time.perf_counter() - start
        if output.violations:
            raise DeviceError("WRONG", f"{case.id}: {output.violations[0].message}")
        found.append((device.lane_instructions - before) / seconds)
    return found[1:]


def cpu_name() -> str:
    """The CPU's name according to Linux."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def main(args: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("nox -s lab -- benchmark", description="Thread instructions per second.")
    parser.add_argument("case", nargs="?", default=CASE, metavar="CASE_ID", help=f"default {CASE}")
    parser.add_argument("--rounds", type=int, default=10, metavar="N", help="timed rounds (default 10)")
    options = parser.parse_args(args)
    cores, busy = os.sched_getaffinity(0), os.getloadavg()[0]
    os.sched_setaffinity(0, {max(cores)})
    try:
        case = find_case(load(find(Path.cwd())), options.case, ARCHES[ARCH])
        if not case.kernel.compiled:
            raise ValueError(f"{case.id}: it has no PTX to run")
        print(f"{case.id}, {ARCH}, one core of {cpu_name()}, load average before: {busy:.2f}")
        print(f"Python {platform.python_version()}, NumPy {np.__version__}, {describe()}")
        for title, counting in (("all checks on", False), ("and counters", True)):
            found = [rate / 1e6 for rate in rates(case, max(1, options.rounds), counting)]
            middle, low, high = statistics.median(found), min(found), max(found)
            print(f"{title}: {middle:.1f} million lane-instructions per second ({low:.1f} to {high:.1f})")
    except (DeviceError, ToolchainError, ValueError) as error:
        return fail(f"benchmark: {error}")
    finally:
        os.sched_setaffinity(0, cores)
    return 0
