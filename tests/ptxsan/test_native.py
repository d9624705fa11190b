"""C and NumPy give the same bits, the same hazards and the same counts."""

from __future__ import annotations

import gc
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ptxsan
from gemm_regression.devices import emulated
from gemm_regression.devices.emulated import EmulatedDevice
from gemm_regression.model import Case, Kernel
from gemm_regression.oracle import make_inputs
from ptxsan import Counters
from ptxsan import native as build
from ptxsan.native.source import OPERATIONS, OPTIONS, SIZES
from tests.ladder import LADDER, select
from tests.mutants import MUTANTS, Mutant, real
from tests.mutants import build as build_mutant
from tests.ptxsan.rig import program

needs_c = pytest.mark.skipif(build.library() is None, reason=f"straight-line code runs on {build.describe()}")
LANES = 2080  # more than a strip, and not a multiple of one


def on_numpy(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(build, "_found", lambda: "the test asks for it")


# Every operation

_SPECIAL32 = [0, 1, 2, 3, 5, 31, 32, 33, 63, 64, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x3F800000, 0xBF800000]
_SPECIAL32 += [0x00000001, 0x807FFFFF, 0x00800000, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7F800001, 0xFFC12345]


def operands(count: int, seed: int) -> list[Any]:
    """Any bits, and often those where something special happens."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        any_bits = rng.integers(0, 1 << 64, LANES, np.uint64)
        special = rng.choice(np.array(_SPECIAL32, np.uint64), LANES)
        far = rng.choice(np.array([0, 0xFFFFFFFF00000000, 0x8000000000000000], np.uint64), LANES)
        kind = rng.integers(0, 3, LANES)
        found.append(np.where(kind == 0, any_bits, special | np.where(kind == 1, far, np.uint64(0))))
    return found


# By the size of a value: its register, how it is loaded and stored, and how a result is set before.
REGISTERS = {1: "%p", 2: "%rs", 4: "%r1", 8: "%rd"}
KINDS = {1: "u32", 2: "u16", 4: "b32", 8: "b64"}
BEFORE = {1: "setp.ne.u32", 2: "mov.b16", 4: "mov.b32", 8: "mov.b64"}
# %r2 becomes the number of the thread in the grid.
GLOBAL = "mov.u32 %r2, %ctaid.x;\nmov.u32 %r3, %ntid.x;\nmad.lo.s32 %r2, %r2, %r3, %r1;\n"


def one_operation(op: str, masked: bool) -> str:
    """A kernel of one instruction on 8 bytes of each operand; ``masked``: in a part of the threads."""
    operation = OPERATIONS[op]
    kinds = (operation.result, *operation.operands)
    d, *sources = (
        f"{'%f' if kind == 'float' else REGISTERS[SIZES[kind]]}{i}" for i, kind in enumerate(kinds)
    )
    lines = [GLOBAL + "mul.wide.u32 %rd20, %r2, 8;", "add.s64 %rd10, %rd10, %rd20;"]
    for i, (source, kind) in enumerate(zip(sources, operation.operands, strict=True)):
        size = SIZES[kind]
        lines.append(f"add.s64 %rd21, %rd1{1 + i}, %rd20;")
        lines.append(f"ld.global.{KINDS[size]} {'%r4' if size == 1 else source}, [%rd21];")
        lines += ["and.b32 %r4, %r4, 1;", f"setp.ne.u32 {source}, %r4, 0;"] if size == 1 else []
    size = SIZES[operation.result]
    lines.append(f"{BEFORE[size]} {d}, {'1, 1' if size == 1 else '7'};")
    lines += ["and.b32 %r4, %r2, 5;", "setp.eq.u32 %half, %r4, 4;", "@%half bra $END;"] if masked else []
    kind = "pred" if op.endswith("1") else f"b{8 * int(op[-1])}" if op.startswith("copy") else ""
    lines += [f"{f'mov.{kind}' if op.startswith('copy') else op} {d}, {', '.join(sources)};", "$END:"]
    lines += [f"selp.b32 %r4, 1, 0, {d};"] if size == 1 else []
    lines.append(f"st.global.{KINDS[size]} [%rd10], {'%r4' if size == 1 else d};")
    return program("\n".join(lines), len(sources), ".reg .pred %half;")


def both(
    patch: pytest.MonkeyPatch, text: str, grid: int, block: int, *arguments: Any
) -> tuple[ptxsan.LaunchResult, ptxsan.LaunchResult]:
    """What C gives and what NumPy gives, of a launch."""
    fast = ptxsan.run(text, grid=grid, block=block, arguments=arguments)
    with patch.context() as slowly:
        on_numpy(slowly)
        slow = ptxsan.run(text, grid=grid, block=block, arguments=arguments)
    assert (fast.hazards, fast.notes, fast.counts) == (slow.hazards, slow.notes, slow.counts)
    return fast, slow


@needs_c
@pytest.mark.parametrize("op", OPERATIONS)
def test_an_operation_gives_the_bits_of_numpy(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = operands(len(OPERATIONS[op].operands), seed=list(OPERATIONS).index(op))
    for masked in (False, True):
        text, out = one_operation(op, masked), ptxsan.Empty(LANES, np.uint64)
        fast, slow = both(monkeypatch, text, LANES // 32, 32, out, *given)
        assert fast.hazards == ()
        np.testing.assert_array_equal(fast.arrays[0], slow.arrays[0], err_msg=text)
        assert len(np.unique(fast.arrays[0])) > 1


# Shared memory

_ACCESSES = {
    "st16": ("st.shared.u16 [%r5], %rs1;", 2),
    "st32": ("st.shared.b32 [%r5], %r1;", 4),
    "st128": ("st.shared.v4.b32 [%r5], {%r1, %r1, %r1, %r1};", 16),
    "ld16": ("ld.shared.u16 %rs1, [%r5];", 2),
    "ld32": ("ld.shared.b32 %r6, [%r5];", 4),
    "ld64": ("ld.shared.b64 %rd1, [%r5];", 8),
    "atom": ("atom.shared.add.u32 %r6, [%r5], 1;", 4),
    "warp": ("bar.warp.sync 0xffffffff;", 0),
    "block": ("bar.sync 0;", 0),
    "part": ("bar.sync 1, 64;", 0),  # whose order vector clocks keep
}


def accesses(steps: list[str], masked: bool) -> str:
    """A kernel that accesses shared memory at the places that it is given, 64 threads of each of 4 blocks."""
    lines = [GLOBAL + "mul.wide.u32 %rd20, %r2, 4;", "add.s64 %rd10, %rd10, %rd20;", "mov.u32 %r4, held;"]
    lines += ["mov.u16 %rs1, 3;", "and.b32 %r3, %r1, 1;", "setp.ne.u32 %p1, %r3, 0;"]
    for j, step in enumerate(steps):
        text, width = _ACCESSES[step]
        if width:
            lines += [f"ld.global.b32 %r5, [%rd10+{4 * 256 * j}];", "add.u32 %r5, %r5, %r4;"]
        lines.append(f"@%p1 {text}" if masked and width and j % 2 else text)
    return program("\n".join(lines), 0, ".shared .align 16 .b8 held[4096];")


@needs_c
@pytest.mark.parametrize("seed", range(80))
def test_accesses_to_shared_memory_are_checked_alike(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(seed)
    steps = ["st32", *rng.choice(list(_ACCESSES), 9).tolist()]
    at = np.zeros((len(steps), 4, 64), np.int32)
    for j, step in enumerate(steps):
        width = _ACCESSES[step][1] or 4
        mine = np.arange(64) * 64 // width * width  # of each thread its own, and now and then another's
        other = rng.permutation(mine) if j % 2 else mine[np.arange(64) ^ 1]
        strays = rng.random((4, 64)) < rng.choice([0, 0.02, 0.5])
        at[j] = np.where(strays, other, mine) + 16 * rng.integers(0, 2)
    if seed % 8 == 7:
        at[rng.integers(len(steps)), 2, 5] = rng.choice([1, 4096, -4])
    both(monkeypatch, accesses(steps, masked=seed % 3 == 0), 4, 64, at.reshape(-1))


@needs_c
def test_lanes_of_a_warp_that_read_one_word_are_ordered_by_a_step_of_it() -> None:
    mine = np.broadcast_to(np.arange(64, dtype=np.int32) * 64, (4, 64))
    for step, races in (("warp", 0), ("ld16", 1)):
        steps = ["st32", "block", "ld32", step, "st32"]
        at = np.stack([mine, mine, mine // 128 * 128, mine, mine])
        found = ptxsan.run(accesses(steps, masked=False), grid=4, block=64, arguments=[at.reshape(-1)])
        assert len(found.hazards) == races


# Kernels


def of_case(case: Case, counting: bool = True) -> Any:
    """Everything that a launch gives."""
    emulated._prepared.cache_clear()
    device, counters = EmulatedDevice(), Counters() if counting else None
    inputs = make_inputs(case.kernel.operation, case.problem, case.dtype, "normal")
    (output,) = device.run_all([case], [inputs], counters)
    counts = [(i.line, tally) for i, tally in counters.tallies()] if counters else []
    return output.result.tobytes(), output.violations, counts, device.lane_instructions


def a_case(kernel: Kernel) -> Case:
    """Of the default config, the largest of its small problems."""
    of_default = [c for c in select("full", (kernel.name,)).verify if c.config == kernel.configs[0]]
    small = [c for c in of_default if c.problem.m * c.problem.n * c.problem.k * c.problem.batch < 1_000_000]
    return max(small, key=lambda c: c.problem.m * c.problem.n * c.problem.k)


@needs_c
@pytest.mark.turns
@pytest.mark.parametrize("kernel", [k for k in LADDER if k.compiled], ids=lambda kernel: kernel.name)
def test_a_kernel_gives_what_it_gives_on_numpy(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    case = a_case(kernel)
    for counting in (True, False):
        fast = of_case(case, counting)
        with monkeypatch.context() as patch:
            on_numpy(patch)
            assert of_case(case, counting) == fast
        assert not fast[1]


WRONG = {"first_barrier", "register_barrier", "wait_missing", "early_return", "barrier_of_some_columns"}
WRONG |= {"syncwarp_before_reading", "overlapping_blocks"}


@needs_c
@pytest.mark.turns
@pytest.mark.parametrize("mutant", [m for m in MUTANTS if m.name in WRONG], ids=lambda mutant: mutant.name)
def test_a_broken_kernel_breaks_alike(
    mutant: Mutant, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    case = replace(a_case(real(mutant)), kernel=build_mutant(mutant, tmp_path))
    fast = of_case(case)
    with monkeypatch.context() as patch:
        on_numpy(patch)
        assert of_case(case) == fast
    assert fast[1]


@pytest.mark.parametrize("name", ["register", "split_k", "async_copy"])
def test_a_launch_leaves_no_garbage(name: str) -> None:
    """Its memory is free when it ends: garbage is looked for seldom."""
    (kernel,) = (k for k in LADDER if k.name == name)
    case, device = a_case(kernel), EmulatedDevice()
    inputs = make_inputs(kernel.operation, case.problem, case.dtype, "normal")
    device.run_all([case], [inputs])
    gc.collect()
    gc.disable()
    try:
        device.run_all([case], [inputs])
        assert gc.collect() == 0
    finally:
        gc.enable()


# Where it cannot be built


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """As in a process that has not looked yet, with an empty cache; what is compiled need not be fast."""
    monkeypatch.setattr(build, "_found", build._found.__wrapped__)
    monkeypatch.setattr("ptxsan.native.source.OPTIONS", (*OPTIONS, "-O0"))
    monkeypatch.setenv("GEMM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("GEMM_NUMPY", raising=False)
    return tmp_path


def test_no_compiler(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(fresh))
    assert build.library() is None
    assert build.describe() == "NumPy alone: no C compiler"


@pytest.mark.parametrize(
    ("does", "said"),
    [
        ("echo no room >&2\nexit 1", "{}/cc failed: no room"),
        ('for last; do :; done\necho nothing > "$last"', ""),
    ],
)
def test_a_compiler_that_fails_or_makes_something_else(
    does: str, said: str, fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (fresh / "cc").write_text(f"#!/bin/sh\n{does}\n")
    (fresh / "cc").chmod(0o755)
    monkeypatch.setenv("PATH", str(fresh))
    assert build.library() is None
    assert build.describe().startswith(f"NumPy alone: {said.format(fresh)}")


def test_needs_no_headers_of_python_and_numpy(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = fresh / "headers"
    (fresh / "cc").write_text(f'#!/bin/sh\nexec {shutil.which("g++")} "$@" -MD -MF {found}\n')
    (fresh / "cc").chmod(0o755)
    monkeypatch.setenv("PATH", f"{fresh}{os.pathsep}{os.environ['PATH']}")
    assert build.describe() == "C, by cc"
    headers = [Path(name).name for name in found.read_text(encoding="utf-8").split() if name.endswith(".h")]
    assert "stdint.h" in headers
    assert not {"Python.h", "pyconfig.h", "arrayobject.h"} & set(headers)
    assert not any("numpy" in name for name in headers)


@needs_c
def test_objects_that_are_not_as_declared() -> None:
    found = build.library()
    assert found is not None
    prepare = found.prepare

    def wrong(array: Any, scalar: Any = -7, held: int = 0, shift: int = 0) -> int:
        given, others = [array.copy()], []
        others += given * held
        place = given[0].__array_interface__["data"][0] + shift
        return int(prepare(given, place, np.int64(scalar)))

    array = np.arange(7, dtype=np.int32)
    assert wrong(array) == 0
    refused = [wrong(array[:6]), wrong(array.astype(np.int64)), wrong(array[None])]
    refused += [wrong(array, scalar=-8), wrong(array, held=1), wrong(array, shift=8)]
    assert refused == [2] * len(refused)
    assert prepare([array], 0, np.int64(-7)) == prepare([None], 0, np.int64(-7)) == 2


def test_a_cache_that_cannot_be_written(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (fresh / "file").write_text("")
    monkeypatch.setenv("GEMM_CACHE_DIR", str(fresh / "file"))
    assert build.library() is None
    assert build.describe().startswith("NumPy alone: ")


def test_numpy_is_asked_for(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMM_NUMPY", "1")
    assert build.describe() == "NumPy alone: GEMM_NUMPY is set"


@needs_c
def test_it_is_compiled_once(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert build.library() is not None
    (made,) = (fresh / "cache").iterdir()
    monkeypatch.setattr(build, "_compile", lambda *_: pytest.fail("compiled again"))
    assert build.library() is not None
    assert list((fresh / "cache").iterdir()) == [made]
