"""Barriers of a block: who waits for whom, what is reduced, and what is said where threads miss them."""

from __future__ import annotations

import pytest

from tests.ptxsan.rig import CELLS, OWN, WRITE, checks, hazards, notes, per_lane, who

HALF = "setp.lt.u32 %p1, %r1, 32;\n"


def read(other: str) -> str:
    """The cell of thread %r13 goes to the result."""
    return other + "shl.b32 %r13, %r13, 2;\nadd.u32 %r13, %r13, %r10;\nld.shared.u32 %r14, [%r13];\n" + SAY


SAY = "st.global.u32 [%rd6], %r14;\n"
MIRROR = read("xor.b32 %r13, %r1, 127;\n")  # a thread of another warp


@pytest.mark.parametrize("barrier", ["bar.sync 0", "barrier.sync 0", "barrier.cta.sync.aligned 3"])
def test_a_barrier_of_the_block(barrier: str) -> None:
    assert per_lane(f"{WRITE}{barrier};\n{MIRROR}", CELLS, 128, blocks=2) == [127 - t for t in range(128)] * 2


PAST = "add.s32 %r16, %r1, 1;\n"  # what a thread does before it exits


def test_a_warp_that_misses_the_barrier_of_its_half() -> None:
    """The threads of the other half, at a barrier of another number, do not stand in for it."""
    chosen = "shr.u32 %r15, %r1, 6;\nadd.u32 %r15, %r15, 1;\n"
    miss = "setp.eq.u32 %p1, %r1, 40;\nshr.u32 %r16, %r1, 5;\nsetp.eq.u32 %p2, %r16, 1;\n"
    body = chosen + miss + "@%{} bra $END;\nbar.sync %r15, 64;\n$END:"
    (said,) = hazards(body.format("p2"), threads=128)
    assert said.startswith(f"barrier: {who(0)} waits at a barrier that 32 of the 128")
    # One thread of a warp that exits is not waited for.
    assert hazards(body.format("p1"), threads=128) == []
    (note,) = notes(body.format("p1"), threads=128)
    assert "thread (32, 0, 0) of block (0, 0, 0) waits at a barrier that 1 threads of its warp left" in note


def test_a_barrier_of_a_half_that_comes_twice() -> None:
    """The second meeting waits for as many again."""
    twice = WRITE + "bar.sync 1, 128;\n" + "ld.shared.u32 %r15, [%r12];\nbar.sync 1, 128;\n" + WRITE
    assert per_lane(twice + "bar.sync 1, 128;\n" + MIRROR, CELLS, 128) == [127 - t for t in range(128)]


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


def test_a_consumer_whose_producer_never_arrives() -> None:
    (said,) = hazards(OWN + PRODUCE.format(arrive="", wait="bar.sync 1, 64;"), CELLS, 64)
    assert said.startswith(f"barrier: {who(32)} waits at a barrier that 32 of the 64 ")
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
    assert f"{who(0)} waits at a barrier that other warps of the block reach" in said
    assert " at k.cu:7 (PTX line" in said


def test_a_barrier_under_a_guard() -> None:
    """The first barrier of one warp is the second one of the other, which then exits."""
    body = HALF + "@%p1 bar.sync 0;\nbar.sync 0;"
    assert hazards(body, threads=64) == []
    (said,) = notes(body, threads=64)
    assert f"{who(0)} waits at a barrier that other warps of the block reach" in said
    assert "@%p1 bar.sync 0" in said


@pytest.mark.parametrize("leave", ["ret", "exit"])
def test_threads_of_a_warp_that_exit_while_others_wait(leave: str) -> None:
    """Whichever comes first, the waiting or the leaving."""
    before = f"setp.eq.u32 %p1, %r1, 5;\n@%p1 {leave};\nbar.sync 0;"
    assert hazards(before, threads=64) == []
    (said,) = notes(before, threads=64)
    assert said.startswith(f"barrier: {who(0)} waits at a barrier that 1 threads of its")
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


FOR_EACH = "bar.arrive {}, 64;\nbar.sync {}, 64"
SECOND = f"bar.sync 1, 64;\n{HALF}{{}}bar.sync 1, 64;\n$END:"


@pytest.mark.parametrize(
    ("body", "threads", "found"),
    [
        (SECOND.format(""), 64, []),
        (SECOND.format("@%p1 bra $END;\n"), 64, ["barrier"]),  # a warp misses the second meeting
        # The first ones to come open it, and then the others.
        ("bar.sync 1, 64;", 128, []),
        ("bar.sync 1, 64;", 96, ["barrier"]),
        # Two warps arrive for each other: neither waits where it arrives.
        (
            BRANCHES.format(
                one="bar.arrive 1, 64;\nbar.sync 2, 64", other="bar.arrive 2, 64;\nbar.sync 1, 64"
            ),
            64,
            [],
        ),
        ("setp.eq.u32 %p1, %r2, 1;\n@%p1 ret;\nbar.sync 0;", 64, []),  # a block exits as a whole
    ],
)
def test_who_waits_for_whom(body: str, threads: int, found: list[str]) -> None:
    assert checks(body, threads=threads, blocks=3) == found


def test_a_barrier_at_which_all_only_arrive() -> None:
    """Nobody waits there, and nothing is ordered."""
    assert checks("bar.arrive 1, 64;", threads=64) == []
    assert checks(f"{WRITE}bar.arrive 1, 128;\n{MIRROR}", CELLS, 128) == ["race"]
