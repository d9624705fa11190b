"""What the lanes of a warp do together: votes, shuffles; and what all threads do to one word: atomics."""

from __future__ import annotations

import re

import pytest

from tests.ptxsan.rig import checks, hazards, notes, per_lane, who

ALL = 0xFFFFFFFF
SAY = "st.global.u32 [%rd6], %r20;\n"


@pytest.mark.parametrize(
    ("vote", "predicate", "want"),
    [
        ("all", "setp.lt.u32 %p1, %r1, 64", [1, 1]),
        ("all", "setp.lt.u32 %p1, %r1, 63", [1, 0]),
        ("any", "setp.eq.u32 %p1, %r1, 40", [0, 1]),
        ("any", "setp.eq.u32 %p1, %r1, 64", [0, 0]),
        ("uni", "setp.lt.u32 %p1, %r1, 32", [1, 1]),
        ("uni", "setp.lt.u32 %p1, %r1, 40", [1, 0]),
    ],
)
def test_votes_are_of_each_warp(vote: str, predicate: str, want: list[int]) -> None:
    body = f"{predicate};\nvote.sync.{vote}.pred %p2, %p1, -1;\nselp.u32 %r20, 1, 0, %p2;\n"
    assert per_lane(body + SAY, threads=64) == [want[0]] * 32 + [want[1]] * 32


@pytest.mark.parametrize("mode", ["sync.ballot", "ballot.sync"])
def test_a_ballot(mode: str) -> None:
    body = f"setp.lt.u32 %p1, %r1, 40;\nvote.{mode}.b32 %r20, %p1, -1;\n"
    assert per_lane(body + SAY, threads=64) == [ALL] * 32 + [0xFF] * 32


def test_votes_of_the_lanes_that_are_there() -> None:
    """All of those that vote say yes."""
    body = "and.b32 %r10, %r1, 1;\nsetp.eq.u32 %p1, %r10, 0;\nmov.u32 %r20, 9;\n@!%p1 bra $END;\n"
    body += "{}\n$END:\n" + SAY
    ballot = body.format("vote.sync.ballot.b32 %r20, %p1, 0x55555555;")
    assert per_lane(ballot) == [0x55555555, 9] * 16
    every = body.format("vote.sync.all.pred %p2, %p1, 0x55555555;\nselp.u32 %r20, 1, 0, %p2;")
    assert per_lane(every) == [1, 9] * 16


def shuffled(mode: str, lane: int, by: int, width: int) -> int:
    """The lane that CUDA's __shfl_*_sync reads from (CUDA C++ Programming Guide, warp shuffle functions)."""
    first = lane // width * width
    if mode == "idx":
        return first + by % width
    source = {"up": lane - by, "down": lane + by, "bfly": lane ^ by}[mode]
    inside = source < first + width if mode == "bfly" else first <= source < first + width
    return source if inside else lane


@pytest.mark.parametrize("mode", ["idx", "up", "down", "bfly"])
@pytest.mark.parametrize("width", [32, 16, 8, 1])
@pytest.mark.parametrize("by", [0, 1, 5, 17, 31])
def test_shuffles(mode: str, width: int, by: int) -> None:
    control = (32 - width) << 8 | (0 if mode == "up" else 31)  # as the compiler makes it of a width
    body = f"shfl.sync.{mode}.b32 %r20|%p1, %r1, {by}, {control}, -1;\n"
    want = [32 * (t // 32) + shuffled(mode, t % 32, by, width) for t in range(64)]
    assert per_lane(body + SAY, threads=64) == want


# Atomics

TOTAL = "ld.param.u64 %rd7, [k_out];\n"  # the first word of Y, for all threads


def test_what_was_there_before() -> None:
    """A ticket for each thread, and no two alike."""
    body = TOTAL + "atom.global.add.u32 %r20, [%rd7+4], 1;\n" + "st.global.u32 [%rd6], %r20;"
    assert sorted(per_lane(body, threads=64)) == list(range(64))


CELLS = ".shared .align 4 .b8 cells[128];"
START = "setp.eq.u32 %p1, %r1, 0;\n@%p1 st.shared.u32 [cells], 0;\nbar.sync 0;\n"


def test_a_shared_counter() -> None:
    half = "setp.lt.u32 %p2, %r1, 32;\n@%p2 red.shared.add.u32 [cells], 2;\n"
    half += "@!%p2 red.shared.add.u32 [cells], -2;\n"
    body = (
        START
        + half
        + "atom.shared.add.u32 %r20, [cells], 1;\nbar.sync 0;\nld.shared.u32 %r20, [cells];\n"
        + SAY
    )
    assert per_lane(body, CELLS, 64, blocks=2) == [64] * 128


ADD, SET, BARRIER = "red.shared.add.u32 [cells], 1;\n", "@%p1 st.shared.u32 [cells], 0;\n", "bar.sync 0;\n"


@pytest.mark.parametrize(
    "body",
    [
        SET + ADD,
        SET + BARRIER + ADD + "ld.shared.u32 %r20, [cells];",
        SET + BARRIER + "ld.shared.u32 %r20, [cells];\n" + ADD,
        SET + BARRIER + ADD + SET,
        SET + BARRIER + SET + "@%p1 " + ADD + ADD,  # the thread that writes is the first to add
        SET + BARRIER + ADD + ADD + BARRIER + SET + ADD,
    ],
)
def test_an_atomic_and_a_plain_access_race(body: str) -> None:
    assert checks("setp.eq.u32 %p1, %r1, 0;\n" + body, CELLS, 64) == ["race"]


def test_an_atomic_on_a_word_that_nobody_wrote() -> None:
    (said,) = notes("red.shared.add.u32 [cells], 1;", CELLS)
    assert "reads shared memory cells+0, which no thread wrote; nothing depends on the value" in said
    total = "bar.sync 0;\nld.shared.u32 %r10, [cells];\nst.global.u32 [%rd6], %r10;"
    (said,) = hazards("red.shared.add.u32 [cells], 1;\n" + total, CELLS)
    assert re.search(r"stores an undefined value to Y\(0, 0\), which comes from shared memory cells\+0", said)
    assert "red.shared.add.u32" in said


def test_an_atomic_and_a_plain_write_of_another_block() -> None:
    both = "red.global.add.u32 [%rd7], 1;\n", "setp.eq.u32 %p1, %r4, 37;\n@%p1 st.global.u32 [%rd7], 9;\n"
    for one, two in (both, both[::-1]):
        (said,) = hazards(TOTAL + one + two, blocks=2)
        assert "race: thread (" in said
        assert "Y(0, 0)" in said


ODD = "and.b32 %r10, %r1, 1;\nsetp.eq.u32 %p1, %r10, 1;\n"  # of the lanes
KEEP = "st.global.u32 [%rd6], %r12;\n"


def test_who_is_active_and_who_holds_the_same() -> None:
    low, odd = 0xFFFF, 0xAAAAAAAA
    body = f"setp.lt.u32 %p1, %r1, 16;\nmov.u32 %r12, 0;\n@%p1 activemask.b32 %r12;\n{KEEP}"
    assert per_lane(body) == [low] * 16 + [0] * 16
    body = f"{ODD}match.any.sync.b32 %r12, %r10, -1;\n{KEEP}"
    assert per_lane(body) == [0x55555555, odd] * 16
    body = f"{ODD}mov.u32 %r12, 7;\n@%p1 match.all.sync.b32 %r12|%p2, %r10, -1;\n{KEEP}"
    assert per_lane(body) == [7, odd] * 16
    body = f"{ODD}match.all.sync.b32 %r12|%p2, %r10, -1;\n@%p2 mov.u32 %r12, 9;\n{KEEP}"
    assert per_lane(body) == [0] * 32


def test_a_trap_ends_the_launch() -> None:
    (said,) = hazards("setp.eq.u32 %p1, %r1, 5;\n.loc 1 9 0\n@%p1 trap;\n")
    assert said.startswith(f"trap: {who(5)} stops the launch by trap at k.cu:9 (PTX")
