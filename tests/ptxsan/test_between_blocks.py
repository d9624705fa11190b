"""Blocks that hand values to each other through global memory, as split-K does; right, and with faults."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ptxsan
from ptxsan import api
from tests.ptxsan.rig import checks, execute, hazards, kernel, numbers

KERNELS = Path(__file__).parent / "kernels"
X = np.random.default_rng(3).integers(-8, 8, 1024).astype(np.float32)
COUNTER = np.zeros(1, np.uint32)


@pytest.fixture(autouse=True)
def compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "compile_file", _COMPILE)


_COMPILE = cache(api.compile_file)


def last_block(*defines: str, blocks: int = 6) -> ptxsan.LaunchResult:
    arguments = [X, np.int32(1024), ptxsan.Empty(128 * blocks), COUNTER, ptxsan.Empty(1)]
    source = KERNELS / "last_block.cu"
    return ptxsan.run(source, grid=blocks, block=128, arguments=arguments, defines=defines)


def line_of(file: str, text: str) -> int:
    lines = (KERNELS / file).read_text(encoding="utf-8").splitlines()
    return next(i for i, line in enumerate(lines, 1) if text in line)


@pytest.fixture(params=[128, 256, 8192])
def chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """A block at a time, two of them, or all together."""
    monkeypatch.setattr("ptxsan.kernel.LANES", request.param)
    return int(request.param)


@pytest.mark.compile
def test_the_last_block_reduces(chunks: int) -> None:
    result = last_block()
    assert result.hazards == ()
    assert result.arrays[4] == X.sum()
    assert result.arrays[3] == 0


@pytest.mark.compile
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


@pytest.mark.compile
def test_a_fence_of_one_thread_past_the_barrier_is_enough(chunks: int) -> None:
    assert last_block("LATE_FENCE").hazards == ()


@pytest.mark.compile
def test_the_example_of_the_programming_guide(chunks: int) -> None:
    def run(*defines: str) -> ptxsan.LaunchResult:
        arguments = [X, np.uint32(1024), ptxsan.Empty(4)]
        source = KERNELS / "threadfence.cu"
        return ptxsan.run(source, grid=4, block=64, arguments=arguments, defines=defines)

    good, bad = run(), run("NO_FENCE")
    assert good.hazards == ()
    assert good.arrays[2][0] == bad.arrays[2][0] == X.sum()
    assert {hazard.check for hazard in bad.hazards} == {"race"}
    assert f"threadfence.cu:{line_of('threadfence.cu', 'total += result')}" in bad.hazards[0].message


@pytest.mark.compile
@pytest.mark.parametrize(
    ("defines", "clean"), [((), True), (("RELAXED",), False), (("OF_THE_BLOCK",), False)]
)
def test_release_and_acquire_by_an_atomic(defines: tuple[str, ...], clean: bool, chunks: int) -> None:
    arguments = [X[:512], ptxsan.Empty(512), COUNTER, np.zeros(128, np.float32)]
    source = KERNELS / "release.cu"
    result = ptxsan.run(source, grid=4, block=128, arguments=arguments, defines=defines)
    assert list(result.arrays[3]) == list(X[:512].reshape(4, 128).sum(axis=0))
    assert (result.hazards == ()) is clean
    assert {hazard.check for hazard in result.hazards} <= {"race"}


@pytest.mark.compile
def test_turns_by_a_flag_where_the_blocks_come_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flag that another block has set is an order, too; one that is never set is a hang."""
    monkeypatch.setattr("ptxsan.kernel.LANES", 64)

    def run(*defines: str) -> ptxsan.LaunchResult:
        arguments: list[Any] = [np.zeros(64, np.float32), np.zeros(1, np.int32)]
        source = KERNELS / "turns.cu"
        return ptxsan.run(source, grid=4, block=64, arguments=arguments, defines=defines, steps=1000)

    result = run()
    assert result.hazards == ()
    assert set(result.arrays[0]) == {10}
    assert {hazard.check for hazard in run("NO_FENCE").hazards} == {"race"}
    (hazard,) = run("SPIN").hazards
    assert hazard.check == "hang"
    assert "loops, or waits for another block" in hazard.message


# In PTX, of two blocks of 32 threads: each writes its element of Y, and reads that of the other block.
OTHER = "xor.b32 %r10, %r4, 32;\nmul.wide.s32 %rd7, %r10, 8;\nadd.s64 %rd7, %rd2, %rd7;\n"
READ = "ld.global.u32 %r11, [%rd7];\n"
ARRIVE = "atom.global{}.add.u32 %r12, [count], 1;\n"
COUNT = ".global .align 4 .u32 count;"


@pytest.mark.parametrize(
    ("fence", "atomic", "wanted"),
    [
        ("membar.gl;", "", []),
        ("membar.sys;", "", []),
        ("fence.acq_rel.gpu;", "", []),
        ("fence.sc.gpu;", ".relaxed.gpu", []),
        ("", ".acq_rel.gpu", []),
        ("", ".release.gpu", []),
        ("membar.cta;", "", ["race"]),
        ("fence.acq_rel.cta;", "", ["race"]),
        ("", "", ["race"]),
        ("", ".acquire.gpu", ["race"]),
        ("membar.gl;", ".relaxed.cta", ["race"]),
        ("", ".acq_rel.cta", ["race"]),
    ],
)
def test_what_orders_two_blocks(
    fence: str, atomic: str, wanted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Block 1 reads what block 0 wrote, which ran before."""
    monkeypatch.setattr("ptxsan.kernel.LANES", 32)
    late = "setp.eq.u32 %p1, %r2, 0;\n@%p1 bra $END;\n" + OTHER + READ + "$END:\n"
    body = f"st.global.u32 [%rd6], %r1;\n{fence}\n{ARRIVE.format(atomic)}{late}"
    assert checks(body, blocks=2, outside=COUNT) == wanted


def test_a_write_past_the_fence_is_not_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ptxsan.kernel.LANES", 32)
    late = "setp.eq.u32 %p1, %r2, 0;\n@%p1 bra $END;\n" + OTHER + READ + "$END:\n"
    body = f"membar.gl;\nst.global.u32 [%rd6], %r1;\n{ARRIVE.format('')}{late}"
    assert checks(body, blocks=2, outside=COUNT) == ["race"]


def test_another_counter_hands_over_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ptxsan.kernel.LANES", 32)
    two = ".global .align 4 .b8 count[8];"
    own = "mul.wide.s32 %rd8, %r2, 4;\nmov.u64 %rd9, count;\nadd.s64 %rd8, %rd9, %rd8;\n"
    late = "setp.eq.u32 %p1, %r2, 0;\n@%p1 bra $END;\n" + OTHER + READ + "$END:\n"
    body = f"st.global.u32 [%rd6], %r1;\nmembar.gl;\n{own}atom.global.add.u32 %r12, [%rd8], 1;\n{late}"
    assert checks(body, blocks=2, outside=two) == ["race"]


NEXT = "xor.b32 %r10, %r4, {};\nmul.wide.s32 %rd7, %r10, 8;\nadd.s64 %rd7, %rd2, %rd7;\n"


@pytest.mark.parametrize(
    ("between", "far", "wanted"),
    [
        ("", 32, ["race"]),
        ("bar.sync 0;", 32, []),
        ("membar.gl;", 32, ["race"]),  # orders, but waits for nobody
        ("bar.warp.sync -1;", 32, ["race"]),
        ("bar.warp.sync -1;", 1, []),
        ("", 1, ["race"]),
        ("bar.sync 0;", 1, []),
    ],
)
def test_threads_of_a_block_that_read_each_others_elements(between: str, far: int, wanted: list[str]) -> None:
    body = f"st.global.u32 [%rd6], %r1;\n{between}\n{NEXT.format(far)}{READ}"
    said = hazards(body, threads=64)
    assert [each.split(":")[0] for each in said] == wanted
    assert all(
        f"thread {far} of the same block wrote in this launch with no barrier" in each for each in said
    )


def test_threads_of_a_block_that_write_in_turn() -> None:
    body = f"st.global.u32 [%rd6], %r1;\n{{}}\n{NEXT.format(32)}st.global.u32 [%rd7], %r1;\n"
    assert checks(body.format("bar.sync 0;"), threads=64) == []
    assert checks(body.format(""), threads=64) == ["race"]


def test_halves_of_a_word_are_told_apart() -> None:
    """Two threads that write the halves of one word write two elements; who reads the word reads both."""
    half = "shr.u32 %r10, %r1, 1;\nmul.wide.s32 %rd7, %r10, 8;\nand.b32 %r11, %r1, 1;\n"
    half += "mul.wide.s32 %rd8, %r11, 2;\n"
    half = "mov.u16 %rs1, 7;\n" + half
    half += "add.s64 %rd7, %rd7, %rd8;\nadd.s64 %rd7, %rd2, %rd7;\nst.global.u16 [%rd7], %rs1;\n"
    assert checks(half) == []
    assert checks(half + "ld.global.u16 %rs2, [%rd7];") == []
    assert checks(half + "and.b64 %rd7, %rd7, -4;\nld.global.u32 %r12, [%rd7];") == ["race"]


def test_a_variable_of_the_device_begins_anew_with_each_launch() -> None:
    body = "atom.global.add.u32 %r10, [count], 1;\nst.global.u32 [%rd6], %r10;"
    text = kernel(body, ".visible .global .align 4 .u32 count = 5;")
    out, report = execute(text, numbers(64), launches=2)
    assert report.hazards == []
    assert [sorted(launch[:, 0]) for launch in out] == [list(range(5, 69))] * 2
