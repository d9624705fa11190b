"""Barriers of a block: who waits for whom, what is reduced, and what is said where threads miss them."""

from __future__ import annotations

import pytest

from tests.ptxsan.rig import checks, hazards, notes, per_lane

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


PAST = "add.s32 %r16, %r1, 1;\n"  # what a thread does before it exits


def test_a_warp_that_misses_the_barrier_of_its_half() -> None:
    """The threads of the other half, at a barrier of another number, do not stand in for it."""
    chosen = "shr.u32 %r15, %r1, 6;\nadd.u32 %r15, %r15, 1;\n"
    miss = "setp.eq.u32 %p1, %r1, 40;\nshr.u32 %r16, %r1, 5;\nsetp.eq.u32 %p2, %r16, 1;\n"
    body = chosen + miss + "@%{} bra $END;\nbar.sync %r15, 64;\n$END:"
    (said,) = hazards(body.format("p2"), threads=128)
    assert said.startswith(
        "barrier: thread (0, 0, 0) of block (0, 0, 0) waits at a barrier that 32 of the 128"
    )
    # One thread of a warp that exits is not waited for.
    assert hazards(body.format("p1"), threads=128) == []
    (note,) = notes(body.format("p1"), threads=128)
    assert "thread (32, 0, 0) of block (0, 0, 0) waits at a barrier that 1 threads of its warp left" in note


def test_a_barrier_of_a_half_that_comes_twice() -> None:
    """The second meeting waits for as many again."""
    twice = WRITE + "bar.sync 1, 128;\n" + "ld.shared.u32 %r15, [%r12];\nbar.sync 1, 128;\n" + WRITE
    assert per_lane(twice + "bar.sync 1, 128;\n" + MIRROR, CELLS, 128) == [127 - t for t in range(128)]


def test_a_warp_that_misses_the_second_meeting() -> None:
    body = f"bar.sync 1, 64;\n{HALF}@%p1 bra $END;\nbar.sync 1, 64;\n$END:"
    assert checks(body, threads=64) == ["barrier"]
    assert checks(body.replace("@%p1 bra $END;\n", ""), threads=64) == []


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


# Where PTX and CUDA C++ differ


def test_warps_that_exit_are_not_waited_for() -> None:
    body = HALF + "@%p1 bra $END;\nbar.sync 0;\n$END:\n" + PAST
    assert hazards(body, threads=64) == []
    assert notes(body, threads=64) == []


BRANCHES = """
    setp.lt.u32 %p1, %r1, 32;
    @%p1 bra $A;
    .loc 1 7 0
    {one};
    bra $B;
$A:
    {other};
$B:
"""


@pytest.mark.parametrize("barrier", ["bar.sync 0", "barrier.sync 0", "bar.red.popc.u32 %r14, 0, %p1"])
def test_warps_meet_from_different_branches(barrier: str) -> None:
    """By the number: the order holds, reductions are of all; in CUDA C++ it is undefined."""
    body = WRITE + BRANCHES.format(one=barrier, other=barrier)
    say = SAY if "red" in barrier else MIRROR.replace("127", "63")
    want = [32] * 64 if "red" in barrier else [63 - t for t in range(64)]
    assert per_lane(body + say, CELLS, 64, blocks=2) == want * 2
    (said,) = notes(body, CELLS, 64, blocks=2)
    assert (
        "thread (0, 0, 0) of block (0, 0, 0) waits at a barrier that other warps of the block reach" in said
    )
    assert " at k.cu:7 (PTX line" in said


def test_barriers_of_two_numbers_in_two_branches_never_meet() -> None:
    (said,) = hazards(BRANCHES.format(one="bar.sync 0", other="bar.sync 1"), threads=64)
    assert "waits at a barrier that 32 of the 64 threads of the block reached; 32 at PTX line" in said


def test_a_warp_that_comes_to_a_barrier_by_two_instructions() -> None:
    """Undefined for an aligned one, defined for the other."""
    body = BRANCHES.replace("%r1, 32", "%r1, 40")
    (said,) = hazards(body.format(one="bar.sync 0", other="bar.sync 0"), threads=64)
    assert said.startswith(
        "barrier: thread (40, 0, 0) of block (0, 0, 0) waits at a barrier that other threads"
    )
    free = body.format(one="barrier.sync 0", other="barrier.sync 0")
    assert hazards(free, threads=64) == []
    assert len(notes(free, threads=64)) == 1


def test_a_barrier_under_a_guard() -> None:
    """The first barrier of one warp is the second one of the other, which then exits."""
    body = HALF + "@%p1 bar.sync 0;\nbar.sync 0;"
    assert hazards(body, threads=64) == []
    (said,) = notes(body, threads=64)
    assert (
        "thread (0, 0, 0) of block (0, 0, 0) waits at a barrier that other warps of the block reach" in said
    )
    assert "@%p1 bar.sync 0" in said


def test_a_barrier_that_some_trips_of_a_loop_leave_out() -> None:
    loop = "mov.u32 %r10, 0;\n$HEAD:\nbar.sync 0;\nadd.s32 %r10, %r10, 1;\nsetp.lt.s32 %p1, %r10, %r1;\n"
    loop += "@%p1 bra $HEAD;\n"
    assert checks(loop + PAST, threads=64) == ["barrier"]
    assert checks(loop.replace("%r10, %r1;", "%r10, 5;") + PAST, threads=64) == []
    # Where a thread exits straight away, the others go on: PTX waits for those that have not exited.
    assert (checks(loop, threads=64), len(notes(loop, threads=64))) == ([], 1)


@pytest.mark.parametrize("leave", ["ret", "exit"])
def test_threads_of_a_warp_that_exit_while_others_wait(leave: str) -> None:
    """Whichever comes first, the waiting or the leaving."""
    before = f"setp.eq.u32 %p1, %r1, 5;\n@%p1 {leave};\nbar.sync 0;"
    assert hazards(before, threads=64) == []
    (said,) = notes(before, threads=64)
    assert said.startswith(
        "barrier: thread (0, 0, 0) of block (0, 0, 0) waits at a barrier that 1 threads of its"
    )
    after = f"setp.ne.u32 %p1, %r1, 5;\n@%p1 bra $WAIT;\nbra $GO;\n$WAIT:\nbar.sync 0;\n{leave};\n$GO:"
    assert (checks(after, threads=64), len(notes(after, threads=64))) == ([], 1)
    # So where they do something of their own first; not where it is what the others do after the barrier.
    assert checks(after + PAST, threads=64) == []
    both = f"setp.ne.u32 %p1, %r1, 5;\n@!%p1 bra $GO;\nbar.sync 0;\n$GO:\n{PAST}"
    assert checks(both, threads=64) == ["barrier"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("bar.sync 1, 40;", "comes to barrier 1 for 40 threads: no whole warps"),
        (BRANCHES.format(one="bar.sync 1, 64", other="bar.sync 1, 32"), "for 32 threads, where others wait"),
        (
            BRANCHES.format(one="bar.red.or.pred %p2, 0, %p1", other="bar.sync 0"),
            "meets bar.red with another",
        ),
    ],
)
def test_what_ptx_leaves_undefined_is_an_error(body: str, said: str) -> None:
    assert any(said in each for each in hazards(body, threads=64))


def test_a_reduction_of_a_part_of_the_block() -> None:
    chosen = "shr.u32 %r15, %r1, 6;\nadd.u32 %r15, %r15, 1;\nsetp.lt.u32 %p1, %r1, 70;\n"
    assert (
        per_lane(chosen + "bar.red.popc.u32 %r14, %r15, 64, %p1;\n" + SAY, threads=128)
        == [64] * 64 + [6] * 64
    )


def test_twice_as_many_as_a_barrier_waits_for() -> None:
    """The first ones to come open it, and then the others."""
    assert checks("bar.sync 1, 64;", threads=128) == []
    assert checks("bar.sync 1, 64;", threads=96) == ["barrier"]


def test_a_block_that_exits_as_a_whole_misses_no_barrier() -> None:
    body = "setp.eq.u32 %p1, %r2, 1;\n@%p1 ret;\nbar.sync 0;"
    assert checks(body, threads=64, blocks=3) == []
