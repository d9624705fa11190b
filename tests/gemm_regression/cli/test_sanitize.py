"""Reading compute-sanitizer, and never calling green what checked nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gemm_regression.cli import suite
from gemm_regression.cli.suite import FOUND, findings, sanitize, summaries, verdict
from tests.gemm_regression.rig import Printed
from tests.ladder import LADDER, find_kernel

NAMES = ("gemm_",)
CLEAN = """\
========= COMPUTE-SANITIZER
tests/test_kernels.py .... gemm_tiled at work
===== 4 passed, 1 skipped in 3.21s =====
========= ERROR SUMMARY: 0 errors
"""
MEMCHECK = """\
========= COMPUTE-SANITIZER
collected 2 items
========= Invalid __global__ read of size 4 bytes
=========     at gemm_tiled+0x3f0
=========     by thread (31,0,0) in block (1,0,0)
=========     Access to 0x7f7a4e000000 is out of bounds
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: launch in worker.so
=========
========= Invalid __global__ read of size 4 bytes
=========     at gemm_tiled+0x3f0
=========     by thread (30,0,0) in block (1,0,0)
=========
F at the end
========= Invalid __shared__ write of size 16 bytes
=========     at 0x120 in gemm_vectorized
=========     Access to 0x104 is misaligned
========= Target application returned an error
========= ERROR SUMMARY: 103 errors
========= ERROR SUMMARY: 100 errors were not printed. Use --print-limit option to adjust the number
"""
RACECHECK = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at gemm_tiled+0x90
=========     and Read access at gemm_tiled+0xd0 [16384 hazards]
=========
========= Warning: Race reported between Write access at
=========     gemm_register+0x90
========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)
"""
SYNCCHECK = """\
========= COMPUTE-SANITIZER
========= Barrier error detected. Divergent thread(s) in block.
=========     at __syncwarp(unsigned int)+0xe0 in sm_30_intrinsics.hpp:110
=========     by thread (32,0,0) in block (0,0,0)
=========         Device Frame: gemm_tiled+0xb0
========= ERROR SUMMARY: 1 error
"""
INITCHECK = """\
========= COMPUTE-SANITIZER
========= Uninitialized __global__ memory read of size 4 bytes
=========     at gemm_naive+0x2a0
========= ERROR SUMMARY: 1 error
"""


def test_findings_are_counted_by_kernel_and_kind() -> None:
    assert not findings(CLEAN, NAMES)  # what pytest prints
    found = findings(MEMCHECK + RACECHECK + INITCHECK + SYNCCHECK, NAMES)
    assert {(of.kernel, of.kind): count for of, count in found.items()} == {
        ("gemm_tiled", "Invalid __global__ read of size 4 bytes"): 2,
        ("gemm_vectorized", "Invalid __shared__ write of size 16 bytes"): 1,
        ("gemm_tiled", "Race reported between Write access"): 1,
        ("gemm_register", "Race reported between Write access"): 1,
        ("gemm_naive", "Uninitialized __global__ memory read of size 4 bytes"): 1,
        # Inside an intrinsic it is the kernel's.
        ("gemm_tiled", "Barrier error detected. Divergent thread(s) in block."): 1,
    }


def test_what_was_not_printed_is_not_counted_twice() -> None:
    assert (summaries(MEMCHECK), summaries(RACECHECK)) == ([103], [2])


@pytest.mark.parametrize(
    ("returncode", "output", "why"),
    [
        (0, CLEAN, ""),
        (0, CLEAN + MEMCHECK, "memcheck: 103 found"),
        (FOUND, "========= Invalid __local__ read\n=========     at gemm_x+0x1\n", "memcheck: 1 found"),
        (FOUND, CLEAN, "memcheck: reported an error that its output does not show"),
        (1, CLEAN, "memcheck: the run under it failed (exit code 1)"),
        (5, CLEAN, "memcheck: the run under it failed (exit code 5)"),  # pytest's "no tests ran"
        (0, "4 passed", "memcheck: ended without a summary, so nothing was checked"),
    ],
)
def test_verdict(returncode: int, output: str, why: str) -> None:
    assert verdict("memcheck", returncode, output, NAMES) == why


def test_every_kernel_is_watched() -> None:
    """The sanitizer is told to look at kernels of these names only."""
    assert suite.watched(LADDER) == NAMES
    naive = find_kernel("naive")
    others = [replace(naive, entry=entry) for entry in ("mine::product<{TILE}>", "sgemm")]
    assert suite.watched(others) == ("product", "sgemm")


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine on which compute-sanitizer is the one program; the test writes what it does."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    return tmp_path / "compute-sanitizer"


def program(tool: Path, script: str) -> None:
    tool.write_text(f"#!/bin/sh\n{script}")
    tool.chmod(0o755)


def test_main_runs_all_four_tools_and_names_the_red_ones(tool: Path, printed: Printed) -> None:
    program(
        tool,
        f'echo "$GEMM_EXACT_BUFFERS" "$@" >> {tool}.calls\n'
        f"case $2 in racecheck | synccheck) cat <<'END'\n{RACECHECK}END\nexit 9;; esac\n"
        f"cat <<'END'\n{CLEAN}END\n",
    )
    assert sanitize(["-k", "tiled"]) == 1
    calls = Path(f"{tool}.calls").read_text().splitlines()
    assert {call.split()[2] for call in calls} == {*suite.TOOLS}
    assert all(call.startswith("1 ") and call.endswith("-k tiled") for call in calls)
    assert all("--kernel-name kernel_substring=gemm_ " in call for call in calls)
    out = printed.out
    assert "racecheck: gemm_register: Race reported between Write access: 1\n" in out
    assert out.splitlines()[-1] == "sanitize: racecheck: 2 found; synccheck: 2 found"


def test_main_is_green_where_nothing_is_found(tool: Path, printed: Printed) -> None:
    program(tool, f"cat <<'END'\n{CLEAN}END\n")
    assert sanitize([]) == 0
    found = "sanitize: nothing found in 4 cases by memcheck, racecheck, initcheck, synccheck"
    assert printed.out.splitlines() == [found]


def test_main_is_red_where_no_case_ran_or_there_is_no_tool(tool: Path, printed: Printed) -> None:
    assert sanitize([]) == 2
    assert printed.err.startswith("error: no compute-sanitizer found (searched PATH): ")
    program(tool, f"cat <<'END'\n{CLEAN.replace('4 passed, ', '')}END\n")
    assert sanitize([]) == 1
    assert "memcheck: no case passed under it, so nothing was checked" in printed.out
