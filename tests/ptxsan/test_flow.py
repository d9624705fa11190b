"""Lanes that part and meet again: branches, loops, returns, guards, batches of launches."""

from __future__ import annotations

import numpy as np
import pytest

from ptxsan import Buffer, GlobalMemory, parse
from ptxsan import kernel as machine
from tests.ptxsan.rig import checks, execute, hazards, kernel, numbers, per_lane

ALL = 0xFFFFFFFF
BALLOT = "setp.eq.s32 %p9, %r1, %r1;\nvote.sync.ballot.b32 %r30, %p9, -1;\n"  # who is here
SAY = "st.global.u32 [%rd6], {};\n"


def test_nested_ifs_and_who_is_together_after_them() -> None:
    body = """
    and.b32 %r10, %r1, 1;
    and.b32 %r11, %r1, 2;
    setp.eq.s32 %p1, %r10, 0;
    setp.eq.s32 %p2, %r11, 0;
    mov.u32 %r20, 0;
    @%p1 bra $EVEN;
    @%p2 bra $ONE;
    add.s32 %r20, %r20, 3;
    bra $ODD;
$ONE:
    add.s32 %r20, %r20, 1;
$ODD:
    vote.sync.ballot.b32 %r21, %p2, 0xaaaaaaaa;
    add.s32 %r20, %r20, 10;
    bra $END;
$EVEN:
    vote.sync.ballot.b32 %r21, %p2, 0x55555555;
    add.s32 %r20, %r20, 100;
$END:
"""
    assert per_lane(body + SAY.format("%r20")) == [[100, 11, 100, 13][t % 4] for t in range(32)]
    # Of the odd lanes those of 4i + 1 say yes, of the even ones those of 4i.
    assert per_lane(body + SAY.format("%r21")) == [[0x11111111, 0x22222222][t % 2] for t in range(32)]
    assert per_lane(body + BALLOT + SAY.format("%r30")) == [ALL] * 32


LOOP = """
    mov.u32 %r10, 0;
    mov.u32 %r11, 0;
$HEAD:
    setp.ge.s32 %p1, %r10, %r1;
    @%p1 bra $DONE;
    add.s32 %r10, %r10, 1;
    add.s32 %r11, %r11, %r10;
    activemask.b32 %r12;
    bra.uni $HEAD;
$DONE:
"""


def test_a_loop_of_as_many_trips_as_the_lane_has() -> None:
    assert per_lane(LOOP + SAY.format("%r11")) == [t * (t + 1) // 2 for t in range(32)]
    assert per_lane(LOOP + BALLOT + SAY.format("%r30")) == [ALL] * 32


def test_who_is_left_in_each_trip_of_a_loop() -> None:
    body = "mov.u32 %r12, 0;\n" + LOOP + SAY.format("%r12")
    # In its last trip a lane is with those that go on for longer.
    assert per_lane(body) == [(ALL << t) & ALL if t else 0 for t in range(32)]


def test_branches_in_a_loop_against_python() -> None:
    """The steps that 3x + 1 takes to come to 1."""
    body = """
    add.s32 %r10, %r4, 1;
    mov.u32 %r11, 0;
$HEAD:
    setp.eq.s32 %p1, %r10, 1;
    @%p1 bra $DONE;
    add.s32 %r11, %r11, 1;
    and.b32 %r12, %r10, 1;
    setp.eq.s32 %p2, %r12, 0;
    @%p2 bra $EVEN;
    mad.lo.s32 %r10, %r10, 3, 1;
    bra.uni $HEAD;
$EVEN:
    shr.s32 %r10, %r10, 1;
    bra.uni $HEAD;
$DONE:
"""

    def steps(x: int) -> int:
        return 0 if x == 1 else 1 + steps(x // 2 if x % 2 == 0 else 3 * x + 1)

    assert per_lane(body + SAY.format("%r11"), threads=64, blocks=2) == [steps(i + 1) for i in range(128)]
    assert per_lane(body + BALLOT + SAY.format("%r30"), threads=64) == [ALL] * 64


@pytest.mark.parametrize("leave", ["ret", "exit"])
def test_some_lanes_return_early(leave: str) -> None:
    body = f"setp.lt.s32 %p1, %r1, 5;\n@%p1 {leave};\n" + BALLOT + SAY.format("%r30")
    assert per_lane(body) == [0] * 5 + [ALL & ~31] * 27


def test_lanes_return_within_a_loop() -> None:
    """Lane t writes and leaves in trip t; the last ones run out of the loop."""
    body = """
    mov.u32 %r10, 0;
$HEAD:
    setp.ne.s32 %p1, %r10, %r1;
    @%p1 bra $NEXT;
    st.global.u32 [%rd6], %r10;
    ret;
$NEXT:
    add.s32 %r10, %r10, 1;
    setp.lt.s32 %p2, %r10, 20;
    @%p2 bra $HEAD;
    st.global.u32 [%rd6], 99;
"""
    assert per_lane(body) == [*range(20), *[99] * 12]


def test_a_guard_lets_some_lanes_through() -> None:
    body = """
    setp.lt.s32 %p1, %r1, 10;
    mov.u32 %r10, 7;
    @%p1 mov.u32 %r10, 1;
    @!%p1 add.s32 %r10, %r10, 1;
    @%p1 ld.global.u32 %r11, [%rd4+4];
    @!%p1 mov.u32 %r11, 0;
    add.s32 %r10, %r10, %r11;
    @%p1 st.global.u32 [%rd6], %r10;
"""
    assert per_lane(body) == [1 + 4 * t + 1 for t in range(10)] + [0] * 22


def test_a_guard_within_a_branch() -> None:
    """It lets none through that the branch has sent elsewhere."""
    body = "setp.lt.s32 %p1, %r1, 10;\nsetp.lt.s32 %p2, %r1, 20;\nmov.u32 %r10, 7;\n@%p1 bra $END;\n"
    assert (
        per_lane(body + "@%p2 mov.u32 %r10, 1;\n$END:\n" + SAY.format("%r10"))
        == [7] * 10 + [1] * 10 + [7] * 12
    )


def test_a_guard_keeps_an_access_from_its_address() -> None:
    """Lanes that are kept out would be past the end of X."""
    body = """
    setp.lt.s32 %p1, %r1, 10;
    mul.wide.s32 %rd7, %r1, 48;
    add.s64 %rd7, %rd7, %rd4;
    {} ld.global.u32 %r10, [%rd7];
"""
    assert checks(body.format("@%p1"), threads=64) == []
    assert checks(body.format("@!%p1"), threads=64) == ["bounds"]


def test_a_guard_that_is_the_same_in_all_lanes() -> None:
    for n, want in ((0, 5), (1, 6)):
        body = "setp.eq.s32 %p1, %r9, 0;\nmov.u32 %r10, 6;\n@%p1 mov.u32 %r10, 5;\n"
        body += "@!%p1 bra $END;\nmov.u32 %r10, 5;\n$END:\n" + SAY.format("%r10")
        out, _ = execute(kernel(body), numbers(32), n=n)
        assert list(out[:, 0]) == [want] * 32


# A result of thread, block, n and what the other threads of the block hold.
MIXED = """
    ld.global.u32 %r10, [%rd4];
    mov.u32 %r11, cells;
    shl.b32 %r12, %r1, 2;
    add.u32 %r13, %r11, %r12;
    st.shared.u32 [%r13], %r10;
    bar.sync 0;
    setp.lt.s32 %p1, %r1, %r9;
    @%p1 bra $LOW;
    xor.b32 %r12, %r12, 252;
    add.u32 %r13, %r11, %r12;
$LOW:
    ld.shared.u32 %r14, [%r13];
    mad.lo.s32 %r14, %r2, 1000, %r14;
    st.global.u32 [%rd6], %r14;
"""
CELLS = ".shared .align 16 .b8 cells[256];"


def test_launches_in_many_chunks_are_as_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    text, operands = kernel(MIXED, inside=CELLS), numbers(64 * 6)
    whole, report = execute(text, operands, 64, n=17, launches=3)
    assert report.hazards == []
    for lanes in (64, 128, 320):  # in the last a chunk holds the end of a launch and the start of the next
        monkeypatch.setattr(machine, "LANES", lanes)
        out, parted = execute(text, operands, 64, n=17, launches=3)
        assert np.array_equal(out, whole)
        assert parted.hazards == []
        assert parted.lane_instructions == report.lane_instructions


def test_a_batch_is_as_its_launches_alone() -> None:
    text, operands = kernel(MIXED, inside=CELLS), numbers(128)
    batch, _ = execute(text, operands, 64, n=17, launches=3)
    for i in range(3):
        alone, _ = execute(text, np.roll(operands, -i, axis=0), 64, n=17 + i)
        assert np.array_equal(batch[i], alone)


def test_a_hazard_belongs_to_its_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launch 1 alone reads a word that nobody wrote; each lane's registers start anew in each chunk."""
    body = "mov.u32 %r10, 1;\nsetp.ne.s32 %p1, %r9, 1;\n@%p1 bra $END;\nld.shared.u32 %r10, [cells];\n$END:"
    body += "\nst.global.u32 [%rd6], %r10;"
    for lanes in (64, 8192):
        monkeypatch.setattr(machine, "LANES", lanes)
        _, report = execute(kernel(body, inside=CELLS), numbers(128), 64, launches=3)
        assert [(h.check, h.launch) for h in report.hazards] == [("uninit", 1)]


@pytest.mark.parametrize("lanes", [32, 8192])
def test_blocks_of_a_launch_can_run_last_to_first(monkeypatch: pytest.MonkeyPatch, lanes: int) -> None:
    """Each block draws a ticket: the order in which they come, however many run together."""
    monkeypatch.setattr(machine, "LANES", lanes)
    draw = "setp.ne.s32 %p1, %r1, 0;\n@%p1 bra $END;\natom.global.add.u32 %r10, [%rd1], 1;\n"
    text = kernel(draw + SAY.format("%r10") + "$END:")
    tickets = Buffer("X", 0, [np.zeros((1, 1), np.uint32)] * 2, writable=True)
    drawn = Buffer("Y", 1, [np.zeros((96, 2), np.uint32)] * 2, writable=True)
    given = [[np.int64(tickets.address(i)), np.int64(drawn.address(i)), np.int32(0)] for i in range(2)]
    report = machine.PreparedKernel(parse(text, "k"), "k.cu").run(
        (3, 1, 1), (32, 1, 1), 0, given, GlobalMemory([tickets, drawn]), 1000, backwards=(1,)
    )
    assert report.hazards == []
    assert [drawn.values(i)[::32, 0].tolist() for i in range(2)] == [[0, 1, 2], [2, 1, 0]]


def test_registers_start_anew_in_each_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undefined in each, although the first chunk of two blocks sets it."""
    body = "setp.gt.s32 %p1, %r2, 1;\n@%p1 bra $LATE;\nmov.u32 %r20, 1;\n$LATE:\n" + SAY.format("%r20")
    monkeypatch.setattr(machine, "LANES", 64)
    out, report = execute(kernel(body), numbers(96), 32)
    assert [int(v) for v in out[:, 0]] == [1] * 64 + [0] * 32
    assert [h.message[:36] for h in report.hazards] == ["thread (0, 0, 0) of block (2, 0, 0) "]


def test_an_endless_loop_is_told() -> None:
    body = ".loc 1 12 0\n$HEAD:\nadd.s32 %r10, %r10, 1;\nsetp.ne.s32 %p1, %r1, 3;\n@!%p1 bra $HEAD;"
    (said,) = hazards(body, budget=500)
    assert said.startswith("hang: thread (3, 0, 0) of block (0, 0, 0) still runs after 500 basic blocks")
    assert "at k.cu:12 (PTX line" in said
    assert "@!%p1 bra $HEAD" in said


def test_a_long_loop_within_the_budget_is_no_hang() -> None:
    body = "mov.u32 %r10, 0;\n$HEAD:\nadd.s32 %r10, %r10, 1;\nsetp.ne.s32 %p1, %r10, 400;\n@%p1 bra $HEAD;"
    assert checks(body, budget=500) == []
    assert checks(body, budget=300) == ["hang"]
