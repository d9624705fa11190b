"""Barriers of a part of a block, and member masks within a warp: they order those that met, nobody else."""

from __future__ import annotations

import pytest

from ptxsan import parse
from ptxsan.machine.warps import all_name_all
from tests.ptxsan.rig import CELLS, OWN, WRITE, checks, hazards, kernel, per_lane, who

SAY = "st.global.u32 [%rd6], %r14;\n"
GROUP = "shr.u32 %r15, %r1, 6;\nadd.u32 %r15, %r15, 1;\n"  # 1 + the half of a block of 128


def other(by: int) -> str:
    """The cell of the thread whose number differs by these bits goes to the result."""
    return f"xor.b32 %r13, %r12, {4 * by};\nld.shared.u32 %r14, [%r13];\n{SAY}"


# Barriers with a count


def test_a_barrier_of_a_half_orders_that_half_alone() -> None:
    half = WRITE + GROUP + "bar.sync %r15, 64;\n"
    assert per_lane(half + other(32), CELLS, 128) == [t ^ 32 for t in range(128)]
    (said,) = hazards(half + other(64), CELLS, 128, blocks=2)
    assert said.startswith(f"race: {who(0)} reads shared memory cells+256, which thread 64")


def test_order_is_handed_on() -> None:
    """Warps 0 and 1 meet, then 1 and 2: what 0 wrote is before what 2 reads, and not the other way."""
    chain = """
        shr.u32 %r20, %r1, 5;
        setp.le.u32 %p1, %r20, 1;
        @%p1 bar.sync 1, 64;
        setp.ge.u32 %p2, %r20, 1;
        @%p2 bar.sync 2, 64;
        setp.eq.u32 %p3, %r20, {reader};
        @!%p3 bra $END;
        ld.shared.u32 %r14, [cells + {cell}];
    $END:
    """
    assert checks(WRITE + chain.format(reader=2, cell=0), CELLS, 96) == []
    (said,) = hazards(WRITE + chain.format(reader=0, cell=256), CELLS, 96)
    assert "race: thread (0, 0, 0) of block (0, 0, 0) reads shared memory cells+256, which thread 64" in said


PRODUCE = """
    setp.ge.u32 %p1, %r1, 32;
    @%p1 bra $CONSUMER;
    {before}
    bar.arrive 1, 64;
    {after}
    bra $END;
$CONSUMER:
    bar.sync 1, 64;
    ld.shared.u32 %r14, [%r12 + -128];
$END:
"""


@pytest.mark.parametrize("again", [False, True])
def test_an_arrival_hands_over_what_came_before_it(again: bool) -> None:
    """Not what the thread does after it; and the thread that arrives learns nothing of the others."""
    store = "st.shared.u32 [%r12], %r1;"
    body = OWN + PRODUCE.format(before=store, after=store if again else "")
    assert checks(body, CELLS, 64) == ["race"] * again


def test_a_buffer_is_given_back_by_a_second_barrier() -> None:
    """Two warps fill and empty one buffer in turn, as in the ISA's example of a producer and a consumer."""
    loop = """
        mov.u32 %r16, 0;
        setp.ge.u32 %p1, %r1, 32;
    $LOOP:
        @%p1 bra $CONSUMER;
        {empty}
        st.shared.u32 [%r12], %r16;
        bar.arrive 1, 64;
        bra $NEXT;
    $CONSUMER:
        bar.sync 1, 64;
        ld.shared.u32 %r14, [%r12 + -128];
        bar.arrive 2, 64;
    $NEXT:
        add.u32 %r16, %r16, 1;
        setp.lt.u32 %p2, %r16, 4;
        @%p2 bra $LOOP;
    """
    first = "setp.eq.u32 %p3, %r16, 0;\n@!%p3 bar.sync 2, 64;"
    assert checks(OWN + loop.format(empty=first), CELLS, 64, blocks=3) == []
    assert "race" in checks(OWN + loop.format(empty=""), CELLS, 64, blocks=3)


def test_one_producer_and_two_consumers_with_a_barrier_each() -> None:
    """Both read all of the buffer, and give it back one after the other."""
    body = """
        shr.u32 %r20, %r1, 5;
        setp.eq.u32 %p1, %r20, 0;
        @!%p1 bra $CONSUMER;
        st.shared.u32 [%r12], %r1;
        bar.sync 1, 64;
        bar.sync 2, 64;
        bar.sync 3, 64;
        {last}
        st.shared.u32 [%r12], %r9;
        bra $END;
    $CONSUMER:
        bar.sync %r20, 64;
        ld.shared.u32 %r14, [cells];
        add.u32 %r21, %r20, 2;
        bar.sync %r21, 64;
    $END:
    """
    assert checks(OWN + body.format(last="bar.sync 4, 64;"), CELLS, 96) == []
    # Without the last one the second consumer may still read.
    unmet = body.format(last="").replace("%r21, 64", "%r21, 32")
    assert "race" in checks(OWN + unmet.replace("bar.sync 3, 64", "bar.sync 5, 32"), CELLS, 96)


def test_global_memory_is_ordered_by_them_too() -> None:
    half = "st.global.u32 [%rd6], %r1;\n" + GROUP + "bar.sync %r15, 64;\n"
    read = "xor.b32 %r16, %r1, {};\nmul.wide.u32 %rd8, %r16, 8;\nadd.s64 %rd8, %rd2, %rd8;\n"
    read += "ld.global.u32 %r17, [%rd8];"
    assert checks(half + read.format(32), threads=128) == []
    assert checks(half + read.format(64), threads=128) == ["race"]


# Member masks

LOW = "setp.lt.u32 %p1, %r1, 16;\n"


def test_a_sync_of_some_lanes_orders_these() -> None:
    """Lanes 0 to 15 read what lane 16 and above wrote."""
    low = WRITE + LOW + "@%p1 bar.warp.sync 0xffff;\n@!%p1 bra $END;\n"
    assert checks(low + other(8) + "$END:", CELLS) == []
    (said,) = hazards(low + other(16) + "$END:", CELLS)
    assert "reads shared memory cells+64, which thread 16 wrote with no barrier between" in said
    assert checks(WRITE + "bar.warp.sync -1;\n" + other(16), CELLS) == []


def test_halves_of_a_warp_with_a_mask_each() -> None:
    masks = LOW + "selp.b32 %r16, 0xffff, 0xffff0000, %p1;\n"
    assert checks(WRITE + masks + "bar.warp.sync %r16;\n" + other(8), CELLS) == []
    assert checks(WRITE + masks + "bar.warp.sync %r16;\n" + other(16), CELLS) == ["race"]
    vote = masks + "and.b32 %r17, %r1, 3;\nsetp.eq.u32 %p2, %r17, 0;\nvote.sync.ballot.b32 %r14, %p2, %r16;\n"
    assert per_lane(vote + SAY) == [0x1111] * 16 + [0x11110000] * 16


def test_a_shuffle_of_some_lanes_orders_these() -> None:
    low = WRITE + LOW + "@!%p1 bra $END;\nshfl.sync.idx.b32 %r16, %r1, 0, 31, 0xffff;\n"
    assert checks(low + other(8) + "$END:", CELLS) == []
    assert checks(low + other(16) + "$END:", CELLS) == ["race"]


def test_a_sync_in_each_branch_meets() -> None:
    """Of bar.warp.sync any instruction will do, as CUDA C++ has it since Volta."""
    body = WRITE + LOW + "@%p1 bra $A;\n{}\nbra $B;\n$A:\n{}\n$B:\n" + other(16)
    assert checks(body.format("bar.warp.sync -1;", "bar.warp.sync -1;"), CELLS) == []
    assert checks(body.format("bar.warp.sync 0xffff0000;", "bar.warp.sync 0xffff;"), CELLS) == ["race"]


@pytest.mark.parametrize(
    "instruction",
    [
        "shfl.sync.idx.b32 %r16, %r1, 0, 31, -1;",
        "vote.sync.ballot.b32 %r16, %p1, -1;",
        "match.any.sync.b32 %r16, %r1, -1;",
        "redux.sync.add.s32 %r16, %r1, -1;",
        "bar.warp.sync -1;",
    ],
)
def test_lanes_that_a_mask_names_and_that_never_come(instruction: str) -> None:
    """It is told, and the launch goes on; lanes that have exited are not waited for."""
    body = LOW + "@!%p1 bra $END;\n" + instruction + "\n$END:\nmov.u32 %r14, %r1;\n" + SAY
    (said,) = hazards(body)
    lanes = ", ".join(map(str, range(16, 32)))
    assert f"waits for lane {lanes} of its warp, which the member mask 0xffffffff names" in said
    assert said.startswith("barrier: thread (0, 0, 0) of block (0, 0, 0)")
    assert checks(LOW + "@!%p1 exit;\n" + instruction) == []


def test_a_mask_without_the_lane_itself() -> None:
    (said,) = hazards("shfl.sync.idx.b32 %r16, %r1, 0, 31, 0xfff7;")
    assert f"{who(3)} has a member mask, 0x0000fff7, that does not name its own" in said


def test_lanes_that_come_later_are_waited_for() -> None:
    """Those that take a detour, which lies behind in the program."""
    body = LOW + "mov.u32 %r14, 5;\n@%p1 bra $FAR;\n$BACK:\nshfl.sync.idx.b32 %r14, %r14, 3, 31, -1;\n" + SAY
    assert per_lane(body + "ret;\n$FAR:\nmov.u32 %r14, 9;\nbra $BACK;") == [9] * 32


@pytest.mark.parametrize(
    ("body", "partial"),
    [
        ("bar.warp.sync -1;", False),
        ("mov.u32 %r16, -1;\nbar.warp.sync %r16;", False),
        ("mov.u32 %r16, -1;\nbar.warp.sync 0xffffffff;\nmov.u32 %r16, 3;", False),
        ("bar.warp.sync 1;", True),
        ("mov.u32 %r16, -1;\nbar.warp.sync %r16;\nmov.u32 %r16, 0xffff;", True),
        ("mov.u32 %r16, -1;\nand.b32 %r16, %r16, %r1;\nbar.warp.sync %r16;", True),
        ("ld.global.v2.u32 {%r16, %r17}, [%rd4];\nbar.warp.sync %r17;", True),
        ("activemask.b32 %r16;\nbar.warp.sync %r16;", True),
    ],
)
def test_masks_that_name_the_whole_warp_cost_nothing(body: str, partial: bool) -> None:
    """What each thread knows of each other is kept only where it may differ within a warp."""
    assert all_name_all(parse(kernel(body), "k").code) != partial
