"""The kernels in kernels/: blocks that hand values to each other, right and with faults; calls and printf;
clusters and bulk copies; and what nvcc leaves nothing of."""

from __future__ import annotations

import gc
import re
import struct
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ptxsan
from ptxsan import nvcc
from ptxsan.checks.clocks import Clocks
from ptxsan.machine import turns

KERNELS = Path(__file__).parent / "kernels"
X = np.random.default_rng(3).integers(-8, 8, 1024).astype(np.float32)
COUNTER, COUNTS = np.zeros(1, np.uint32), np.zeros(256, np.int32)
_COMPILE = cache(nvcc.compile_file)

pytestmark = pytest.mark.compile


@pytest.fixture(autouse=True)
def compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvcc, "compile_file", _COMPILE)


@pytest.fixture(params=[128, 256, 8192])
def chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """A block at a time, two of them, or all together."""
    monkeypatch.setattr("ptxsan.kernel.LANES", request.param)
    return int(request.param)


def ran(file: str, grid: int, block: int, *arguments: Any, **how: Any) -> ptxsan.LaunchResult:
    return ptxsan.run(KERNELS / file, grid=grid, block=block, arguments=arguments, **how)


def last_block(*defines: str) -> ptxsan.LaunchResult:
    arguments = X, np.int32(1024), ptxsan.Empty(128 * 6), COUNTER, ptxsan.Empty(1)
    return ran("last_block.cu", 6, 128, *arguments, defines=defines)


def threadfence(*defines: str) -> ptxsan.LaunchResult:
    """The example of the programming guide."""
    return ran("threadfence.cu", 4, 64, X, np.uint32(1024), ptxsan.Empty(4), defines=defines)


def line_of(file: str, text: str) -> int:
    lines = (KERNELS / file).read_text(encoding="utf-8").splitlines()
    return next(i for i, line in enumerate(lines, 1) if text in line)


def test_the_last_block_reduces(chunks: int) -> None:
    for result in (last_block(), last_block("LATE_FENCE")):  # of one thread, past the barrier
        assert result.hazards == ()
        assert result.arrays[4] == X.sum()
        assert result.arrays[3] == 0


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        ("NO_FENCE", "race"),
        ("NO_BARRIER", "race"),  # other threads' sums may come after the atomic of thread 0
        ("NO_ATOMIC", "race"),
        ("SKIP_A_BLOCK", "uninit"),
    ],
)
def test_a_fault_is_seen_where_the_sums_are_read(fault: str, check: str, chunks: int) -> None:
    result = last_block(fault)
    assert {hazard.check for hazard in result.hazards} >= {check}
    first = next(hazard for hazard in result.hazards if hazard.check == check)
    assert f"last_block.cu:{line_of('last_block.cu', 's += partial[b')}" in first.message
    assert re.search(" (reads|which comes from) partial.[0-9]", first.message)
    if check == "race":
        assert result.arrays[4] == X.sum()  # the values do not show it


def test_the_example_of_the_programming_guide(chunks: int) -> None:
    good, bad = threadfence(), threadfence("NO_FENCE")
    assert good.hazards == ()
    assert good.arrays[2][0] == bad.arrays[2][0] == X.sum()
    assert {hazard.check for hazard in bad.hazards} == {"race"}
    assert f"threadfence.cu:{line_of('threadfence.cu', 'total += result')}" in bad.hazards[0].message


@pytest.mark.parametrize(
    ("defines", "checks"), [((), set()), (("RELAXED",), {"race"}), (("OF_THE_BLOCK",), {"race"})]
)
def test_release_and_acquire_by_an_atomic(defines: tuple[str, ...], checks: set[str], chunks: int) -> None:
    arguments = X[:512], ptxsan.Empty(512), COUNTER, np.zeros(128, np.float32)
    result = ran("release.cu", 4, 128, *arguments, defines=defines)
    assert list(result.arrays[3]) == list(X[:512].reshape(4, 128).sum(axis=0))
    assert {hazard.check for hazard in result.hazards} == checks


def test_turns_by_a_flag_where_the_blocks_come_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flag that another block has set is an order, too; one that is never set is a hang."""
    monkeypatch.setattr("ptxsan.kernel.LANES", 64)

    def run(*defines: str) -> ptxsan.LaunchResult:
        arguments = np.zeros(64, np.float32), np.zeros(1, np.int32)
        return ran("turns.cu", 4, 64, *arguments, defines=defines, steps=1000)

    result = run()
    assert result.hazards == ()
    assert set(result.arrays[0]) == {10}
    assert {hazard.check for hazard in run("NO_FENCE").hazards} == {"race"}
    (hazard,) = run("SPIN").hazards
    assert hazard.check == "hang"
    assert "loops, or waits for another block" in hazard.message


# Threads that wait for others


def waits(entry: str, grid: int, block: int, *arguments: Any, **how: Any) -> ptxsan.LaunchResult:
    return ran("waits.cu", grid, block, *arguments, entry=entry, **how)


@pytest.mark.parametrize("last", [0, 1])
def test_blocks_that_take_turns(last: int, chunks: int) -> None:
    """Whichever of them begins, and whether they run together or not."""
    result = waits("serial", 6, 64, np.zeros(64, np.float32), np.zeros(1, np.int32), np.int32(last))
    assert result.clean, result.hazards
    assert set(result.arrays[0]) == {21}


def test_a_block_that_waits_for_one_that_is_not_there(monkeypatch: pytest.MonkeyPatch, chunks: int) -> None:
    monkeypatch.setitem(turns._MACHINES, 90, (1, 2048, 3, 228))  # three blocks at a time

    def run(last: int) -> ptxsan.LaunchResult:
        arguments = np.zeros(64, np.float32), np.zeros(1, np.int32), np.int32(last)
        return waits("serial", 6, 64, *arguments, steps=2000)

    assert run(0).clean
    (hazard,) = run(1).hazards
    assert (hazard.check, "waits for another block" in hazard.message) == ("hang", True)
    with pytest.raises(ptxsan.LaunchError, match="cooperative launch of 4 blocks, of which 3 fit at once"):
        waits("grid_sync", 4, 32, *(np.zeros(128, np.int32) for _ in range(2)), cooperative=True)


def test_a_flag_and_a_value_in_one_word(chunks: int) -> None:
    x = np.arange(256, dtype=np.int32)
    result = waits("lookback", 8, 32, x, np.zeros(8, np.uint64), np.zeros(256, np.int32))
    assert result.clean, result.hazards
    assert result.arrays[2][::32].tolist() == [0, *np.cumsum(x.reshape(8, 32).sum(axis=1))[:-1].tolist()]


def test_a_grid_meets(chunks: int) -> None:
    arguments = np.zeros(256, np.int32), np.zeros(256, np.int32)
    result = waits("grid_sync", 8, 32, *arguments, cooperative=True)
    assert result.clean, result.hazards
    assert result.arrays[1].tolist() == list(range(255, -1, -1))
    assert [h.check for h in waits("grid_sync", 8, 32, *arguments).hazards] == ["trap"]  # not cooperative


def test_a_lock_of_each_thread() -> None:
    result = waits("lock", 2, 32, *(np.zeros(1, np.int32) for _ in range(2)))
    assert result.clean, result.hazards
    assert result.arrays[1].tolist() == [64]


@pytest.mark.parametrize(
    ("entry", "fault", "checks"),
    [("flags", 0, []), ("atomic_flags", 0, [])]
    + [(entry, fault, ["race"]) for entry, fault in (("flags", 1), ("flags", 2), ("atomic_flags", 1))],
)
def test_warps_that_wait_by_a_flag_in_shared_memory(entry: str, fault: int, checks: list[str]) -> None:
    result = waits(entry, 1, 64, np.zeros(32, np.int32), defines=(f"FAULT={fault}",))
    assert [hazard.check for hazard in result.hazards] == checks
    if not fault:
        assert result.arrays[0].tolist() == list(range(5, 37))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_another_schedule(seed: int) -> None:
    """Warps come in another order, the same for a seed; what is right stays right, what is not is found."""
    source = 'extern "C" __global__ void k(int* next, int* out) { out[threadIdx.x] = atomicAdd(next, 1); }\n'

    def tickets(schedule: int | None) -> list[int]:
        arguments = np.zeros(1, np.int32), np.zeros(256, np.int32)
        result = ptxsan.run(source, grid=1, block=256, arguments=arguments, schedule=schedule)
        assert result.clean
        return [int(v) for v in result.arrays[1]]

    assert tickets(None) == list(range(256)) == sorted(tickets(seed))
    assert tickets(seed) == tickets(seed) != tickets(None)
    result = waits("lookback", 8, 32, np.ones(256, np.int32), np.zeros(8, np.uint64), COUNTS, schedule=seed)
    assert result.clean, result.hazards
    assert result.arrays[2][::32].tolist() == list(range(0, 256, 32))
    for fault, checks in ((0, []), (1, ["race"])):
        how = {"schedule": seed, "defines": (f"FAULT={fault}",)}
        assert [h.check for h in waits("flags", 1, 64, COUNTS, **how).hazards] == checks


# Calls


def calls(n: int) -> ptxsan.LaunchResult:
    scale = struct.pack("<fid4i", 2.0, 3, 1.5, 10, 20, 30, 40)
    return ran("calls.cu", 1, 32, ptxsan.Empty(32), np.int32(n), scale, entry="calls")


def levels(n: int) -> int:
    return 1 if n <= 1 else levels(n - 1) * 2 + (n & 1)


def test_a_barrier_of_the_whole_grid(chunks: int) -> None:
    """Its blocks run together, however many threads they have."""
    arguments = X, ptxsan.Empty(8), ptxsan.Empty(1024)
    good = ran("grid_sync.cu", 8, 128, *arguments, cooperative=True)
    assert good.hazards == ()
    np.testing.assert_allclose(good.arrays[2], X / X.sum(), rtol=1e-5)
    bad = ran("grid_sync.cu", 8, 128, *arguments, defines=("NO_SYNC",), cooperative=True).hazards[0]
    assert (bad.check, bad.line) == ("race", line_of("grid_sync.cu", "total += sums"))


@pytest.mark.parametrize(
    ("defines", "said"),
    [((), ""), (("PLAIN",), "before = *(volatile"), (("BESIDE",), "total += beside")],
)
def test_what_a_volatile_load_waits_for_says_itself_that_it_is_there(
    defines: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ptxsan.kernel.LANES", 32)  # a block at a time
    x, none = np.arange(1, 9, dtype=np.uint32), np.zeros(8, np.uint32)
    result = ran("lookback.cu", 8, 32, x, none, none, ptxsan.Empty(8, np.uint32), defines=defines)
    found = [(hazard.check, hazard.line) for hazard in result.hazards]
    assert found == ([("race", line_of("lookback.cu", said))] if said else [])
    assert list(result.arrays[3]) == list(x.cumsum())


def test_functions_that_are_not_inlined() -> None:
    """By value and by struct, back by struct, recursive, from both sides of a branch; with variables that
    point to others, and a struct parameter that is indexed."""
    assert "call.uni" in _COMPILE(KERNELS / "calls.cu")
    result = calls(7)
    assert result.hazards == ()
    i = np.arange(32)
    want = np.where(i % 2, i, -i) * 2.0 + 3 + np.array([0.5, 1.5, 2.5])[i % 3] + np.array([2, 3])[i % 2]
    want += np.array([10, 20, 30, 40])[i % 4] + i * 0.5 + np.where(i < 4, 1, 2) + levels(7)
    assert list(result.arrays[0]) == list(want)
    assert result.printed == ("lane 3: 52.50|ab  |123456789012 x% 0xff\n",)


@pytest.mark.parametrize(
    ("n", "check", "said"),
    [
        (100, "trap", "fails the assertion n < 100 at calls.cu:38 "),
        (50, "unsupported", "which calls itself more often than is supported at calls.cu:"),
    ],
)
def test_a_call_that_fails_is_a_finding_with_its_text(n: int, check: str, said: str) -> None:
    (hazard,) = calls(n).hazards
    assert hazard.check == check
    assert said in hazard.message


# Clusters, as cooperative groups have them, and bulk copies, as the programming guide has them


def test_clusters_leave_nothing_that_waits_to_be_collected() -> None:
    """Clocks are large: those of a cycle would fill the memory before Python looks for it."""
    gc.collect()
    gc.disable()
    try:
        x, out = np.zeros(256, np.int32), ptxsan.Empty((4, 4), np.int32)
        ran("cluster_groups.cu", 4, 64, x, np.zeros(256, np.int32), out, entry="neighbours", cluster=2)
        assert not [each for each in gc.get_objects() if isinstance(each, Clocks)]
    finally:
        gc.enable()


def test_clusters() -> None:
    x, out = np.arange(256, dtype=np.int32), ptxsan.Empty(256, np.int32)
    how = {"entry": "neighbours", "cluster": 2}
    result = ran("cluster_groups.cu", 4, 64, x, out, ptxsan.Empty((4, 4), np.int32), **how)
    assert result.clean, result.hazards
    np.testing.assert_array_equal(result.arrays[1].reshape(4, 64), x.reshape(4, 64)[[1, 0, 3, 2]])
    sums = x.reshape(2, 128).sum(axis=1)
    told = [[sums[0], 1, 0, 0], [0, 0, 1, 1], [sums[1], 1, 0, 0], [0, 0, 1, 1]]
    assert result.arrays[2].tolist() == told


def test_bulk_copies() -> None:
    x = np.arange(128, dtype=np.int32)
    result = ran("cluster_groups.cu", 1, 128, x, ptxsan.Empty(128, np.int32), entry="one_more")
    assert result.clean, result.hazards
    np.testing.assert_array_equal(result.arrays[1], x + 1)


def test_what_the_compiler_removes() -> None:
    """``s + 1`` of an ``int s;`` becomes a constant, of a float NaN, which values show."""
    for kind, value in (("int", 0), ("float", np.nan)):
        source = f'extern "C" __global__ void k(float* out) {{ {kind} s; out[threadIdx.x] = s + 1; }}\n'
        result = ptxsan.run(source, grid=1, block=32, arguments=[np.ones(32, np.float32)])
        assert (result.hazards, result.notes) == ((), ())
        assert np.array_equal(result.arrays[0], np.full(32, value), equal_nan=True)
