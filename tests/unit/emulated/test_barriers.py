"""Barriers of a block: who waits for whom, what is reduced, and what is said where threads miss them."""

from __future__ import annotations

import pytest

from tests.unit.emulated.rig import checks, hazards, per_lane

HALF = "setp.lt.u32 %p1, %r1, 32;\n"
CELLS = ".shared .align 4 .b8 cells[512];"
OWN = "mov.u32 %r10, cells;\nshl.b32 %r11, %r1, 2;\nadd.u32 %r12, %r10, %r11;\n"  # %r12: the thread's cell
WRITE = OWN + "st.shared.u32 [%r12], %r1;\n"


def read(other: str) -> str:
    """The cell of thread %r13 goes to the result."""
    return other + "shl.b32 %r13, %r13, 2;\nadd.u32 %r13, %r13, %r10;\nld.shared.u32 %r14, [%r13];\n" + SAY


SAY = "st.global.u32 [%rd6], %r14;\n"
MIRROR = read("xor.b32 %r13, %r1, 127;\n")  # a thread of another warp


@pytest.mark.parametrize("barrier", ["bar.sync 0", "barrier.sync 0", "barrier.cta.sync.aligned 3"])
def test_a_barrier_of_the_block(barrier: str) -> None:
    assert per_lane(f"{WRITE}{barrier};\n{MIRROR}", CELLS, 128, blocks=2) == [127 - t for t in range(128)] * 2


def test_named_barriers_of_halves_of_the_block() -> None:
    """A group of 64 threads meets at the barrier 1 + its number, by an immediate and by a register."""
    pair = read("xor.b32 %r13, %r1, 63;\n")
    want = [t ^ 63 for t in range(128)]
    chosen = "shr.u32 %r15, %r1, 6;\nadd.u32 %r15, %r15, 1;\nbar.sync %r15, 64;\n"
    assert per_lane(WRITE + chosen + pair, CELLS, 128) == want
    branch = "setp.lt.u32 %p1, %r1, 64;\n@%p1 bra $A;\nbar.sync 2, 64;\nbra $B;\n$A:\nbar.sync 1, 64;\n$B:\n"
    assert per_lane(WRITE + branch + pair, CELLS, 128) == want


def test_a_thread_that_misses_the_barrier_of_its_half() -> None:
    """The threads of the other half, at a barrier of another number, do not stand in for it."""
    chosen = "shr.u32 %r15, %r1, 6;\nadd.u32 %r15, %r15, 1;\n"
    miss = "setp.eq.u32 %p1, %r1, 40;\n@%p1 bra $END;\nbar.sync %r15, 64;\n$END:"
    (said,) = hazards(chosen + miss, threads=128)
    assert said.startswith(
        "barrier: thread (0, 0, 0) of block (0, 0, 0) waits at a barrier that 63 of the 128"
    )


def test_a_barrier_of_a_half_that_comes_twice() -> None:
    """The second meeting waits for as many again."""
    twice = WRITE + "bar.sync 1, 128;\n" + "ld.shared.u32 %r15, [%r12];\nbar.sync 1, 128;\n" + WRITE
    assert per_lane(twice + "bar.sync 1, 128;\n" + MIRROR, CELLS, 128) == [127 - t for t in range(128)]


def test_a_thread_that_misses_the_second_meeting() -> None:
    body = "bar.sync 1, 64;\nsetp.eq.u32 %p1, %r1, 5;\n@%p1 bra $END;\nbar.sync 1, 64;\n$END:"
    assert checks(body, threads=64) == ["barrier"]


def test_two_warps_that_arrive_for_each_other() -> None:
    """Neither waits where it arrives."""
    body = HALF + "@%p1 bra $A;\nbar.arrive 1, 64;\nbar.sync 2, 64;\nbra $END;\n"
    body += "$A:\nbar.arrive 2, 64;\nbar.sync 1, 64;\n$END:"
    assert checks(body, threads=64) == []


PRODUCE = """
    setp.ge.u32 %p1, %r1, 32;
    @%p1 bra $CONSUMER;
    st.shared.u32 [%r12], %r1;
    {arrive}
    bra $END;
$CONSUMER:
    {wait}
    and.b32 %r13, %r1, 31;
    shl.b32 %r13, %r13, 2;
    add.u32 %r13, %r13, %r10;
    ld.shared.u32 %r14, [%r13];
    st.global.u32 [%rd6], %r14;
$END:
"""


def test_a_producer_arrives_and_goes_on() -> None:
    right = OWN + PRODUCE.format(arrive="bar.arrive 1, 64;", wait="bar.sync 1, 64;")
    assert per_lane(right, CELLS, 64) == [0] * 32 + list(range(32))
    assert checks(OWN + PRODUCE.format(arrive="", wait=""), CELLS, 64) == ["race"]


def test_a_consumer_whose_producer_never_arrives() -> None:
    (said,) = hazards(OWN + PRODUCE.format(arrive="", wait="bar.sync 1, 64;"), CELLS, 64)
    assert said.startswith(
        "barrier: thread (32, 0, 0) of block (0, 0, 0) waits at a barrier that 32 of the 64 "
    )
    assert "bar.sync 1, 64" in said


@pytest.mark.parametrize(
    ("reduction", "predicate", "want"),
    [
        ("popc.u32", "setp.lt.u32 %p1, %r1, 40", 40),
        ("and.pred", "setp.lt.u32 %p1, %r1, 64", 1),
        ("and.pred", "setp.lt.u32 %p1, %r1, 63", 0),
        ("or.pred", "setp.eq.u32 %p1, %r1, 63", 1),
        ("or.pred", "setp.eq.u32 %p1, %r1, 64", 0),
    ],
)
def test_a_barrier_that_reduces(reduction: str, predicate: str, want: int) -> None:
    target = "%r14" if reduction.startswith("popc") else "%p2"
    body = f"{predicate};\nbar.red.{reduction} {target}, 0, %p1;\n"
    body += "" if target == "%r14" else "selp.u32 %r14, 1, 0, %p2;\n"
    assert per_lane(body + SAY, threads=64, blocks=2) == [want] * 128


def test_each_block_reduces_its_own() -> None:
    body = "setp.lt.u32 %p1, %r4, 50;\nbar.red.popc.u32 %r14, 0, %p1;\n" + SAY
    assert per_lane(body, threads=32, blocks=3) == [32] * 32 + [18] * 32 + [0] * 32


def test_a_reduction_orders_as_a_barrier_does() -> None:
    body = WRITE + "setp.lt.u32 %p1, %r1, 9;\nbar.red.popc.u32 %r15, 0, %p1;\n" + MIRROR
    assert per_lane(body, CELLS, 128) == [127 - t for t in range(128)]


def test_a_barrier_in_divergent_flow() -> None:
    body = HALF + "@%p1 bra $END;\n.loc 1 7 0\nbar.sync 0;\n$END:\nadd.s32 %r10, %r10, 1;"
    # The other half ends: it leaves the barrier out.
    (said,) = hazards(body, threads=64)
    assert said.startswith(
        "barrier: thread (32, 0, 0) of block (0, 0, 0) waits at a barrier that 32 of the 64"
    )
    assert "left out by exiting at k.cu:7 (PTX line" in said


def test_a_barrier_in_each_branch() -> None:
    body = HALF + "@%p1 bra $A;\nbar.sync 0;\nbra $B;\n$A:\nbar.sync 0;\n$B:"
    (said,) = hazards(body, threads=64, blocks=2)
    assert said.startswith(
        "barrier: thread (32, 0, 0) of block (0, 0, 0) waits at a barrier that 32 of the 64"
    )
    assert "threads of the block reached; 32 at PTX line" in said


def test_a_barrier_under_a_guard() -> None:
    body = HALF + "@%p1 bar.sync 0;\nbar.sync 0;"
    (said,) = hazards(body, threads=64)
    assert said.startswith(
        "barrier: thread (0, 0, 0) of block (0, 0, 0) waits at a barrier that 32 of the 64"
    )
    assert "@%p1 bar.sync 0" in said


def test_a_barrier_that_some_trips_of_a_loop_leave_out() -> None:
    body = "mov.u32 %r10, 0;\n$HEAD:\nbar.sync 0;\nadd.s32 %r10, %r10, 1;\nsetp.lt.s32 %p1, %r10, %r1;\n"
    assert checks(body + "@%p1 bra $HEAD;", threads=64) == ["barrier"]
    even = body.replace("%r10, %r1;", "%r10, 5;")
    assert checks(even + "@%p1 bra $HEAD;", threads=64) == []


@pytest.mark.parametrize("leave", ["ret", "exit"])
def test_threads_that_exit_while_others_wait(leave: str) -> None:
    """Whichever comes first, the waiting or the leaving."""
    before = f"setp.eq.u32 %p1, %r1, 5;\n@%p1 {leave};\nbar.sync 0;"
    (said,) = hazards(before, threads=64)
    assert said.startswith("barrier: thread (0, 0, 0) of block (0, 0, 0) waits at a barrier that 1 of the 64")
    after = f"setp.ne.u32 %p1, %r1, 5;\n@%p1 bra $WAIT;\nbra $GO;\n$WAIT:\nbar.sync 0;\n{leave};\n$GO:"
    assert checks(after, threads=64) == ["barrier"]


def test_a_block_that_exits_as_a_whole_misses_no_barrier() -> None:
    body = "setp.eq.u32 %p1, %r2, 1;\n@%p1 ret;\nbar.sync 0;"
    assert checks(body, threads=64, blocks=3) == []
