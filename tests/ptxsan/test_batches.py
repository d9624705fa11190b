"""Launches of a batch, in chunks of blocks: as alone, as whole, and each with its own hazards and memory."""

from __future__ import annotations

import numpy as np
import pytest

from ptxsan import Buffer, GlobalMemory, PreparedKernel, Report, parse
from tests.ptxsan.rig import Array, execute, kernel, numbers

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


def mixed(operands: Array, n: int = 17, launches: int = 3) -> tuple[Array, Report]:
    out, report = execute(kernel(MIXED, inside=CELLS), operands, 64, n=n, launches=launches)
    assert report.hazards == []
    return out, report


def test_launches_in_many_chunks_are_as_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, report = mixed(numbers(64 * 6))
    for lanes in (64, 128, 320):  # in the last a chunk holds the end of a launch and the start of the next
        monkeypatch.setattr("ptxsan.kernel.LANES", lanes)
        out, parted = mixed(numbers(64 * 6))
        assert np.array_equal(out, whole)
        assert parted.lane_instructions == report.lane_instructions


def test_a_batch_is_as_its_launches_alone() -> None:
    batch, _ = mixed(numbers(128))
    for i in range(3):
        assert np.array_equal(batch[i], mixed(np.roll(numbers(128), -i, axis=0), 17 + i, 1)[0])


def test_a_hazard_belongs_to_its_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launch 1 alone reads a word that nobody wrote; each lane's registers start anew in each chunk."""
    body = "mov.u32 %r10, 1;\nsetp.ne.s32 %p1, %r9, 1;\n@%p1 bra $END;\nld.shared.u32 %r10, [cells];\n$END:"
    body += "\nst.global.u32 [%rd6], %r10;"
    for lanes in (64, 8192):
        monkeypatch.setattr("ptxsan.kernel.LANES", lanes)
        _, report = execute(kernel(body, inside=CELLS), numbers(128), 64, launches=3)
        assert [(h.check, h.launch) for h in report.hazards] == [("uninit", 1)]


def two_launches(body: str, x: Buffer, rows: int, blocks: int = 1, backwards: tuple[int, ...] = ()) -> Buffer:
    """Y of so many rows, after two launches of a body of blocks of 32 threads."""
    y = Buffer("Y", 1, [np.zeros((rows, 2), np.uint32)] * 2, writable=True)
    given = [[np.int64(x.address(i)), np.int64(y.address(i)), np.int32(0)] for i in range(2)]
    machine, memory = PreparedKernel(parse(kernel(body), "k"), "k.cu"), GlobalMemory([x, y])
    report = machine.run((blocks, 1, 1), (32, 1, 1), 0, given, memory, 1000, backwards=backwards)
    assert report.hazards == []
    return y


@pytest.mark.parametrize("lanes", [32, 8192])
def test_blocks_of_a_launch_can_run_last_to_first(monkeypatch: pytest.MonkeyPatch, lanes: int) -> None:
    """Each block draws a ticket: the order in which they come, however many run together."""
    monkeypatch.setattr("ptxsan.kernel.LANES", lanes)
    draw = "setp.ne.s32 %p1, %r1, 0;\n@%p1 bra $END;\natom.global.add.u32 %r10, [%rd1], 1;\n"
    tickets = Buffer("X", 0, [np.zeros((1, 1), np.uint32)] * 2, writable=True)
    drawn = two_launches(draw + "st.global.u32 [%rd6], %r10;\n$END:", tickets, 96, 3, backwards=(1,))
    assert [drawn.values(i)[::32, 0].tolist() for i in range(2)] == [[0, 1, 2], [2, 1, 0]]


def test_elements_that_no_thread_wrote() -> None:
    body = "setp.eq.u32 %p1, %r1, 9;\n@!%p1 st.global.u32 [%rd6], %r1;"
    y = two_launches(body, Buffer("X", 0, [numbers(32)] * 2), 32)
    for launch in (0, 1):
        assert [tuple(at) for at in np.argwhere(~y.written(launch)[:, :1])] == [(9, 0)]
        assert not y.written(launch)[:, 1].any()


def test_a_variable_of_the_device_begins_anew_with_each_launch() -> None:
    body = "atom.global.add.u32 %r10, [count], 1;\nst.global.u32 [%rd6], %r10;"
    text = kernel(body, ".visible .global .align 4 .u32 count = 5;")
    out, report = execute(text, numbers(64), launches=2)
    assert report.hazards == []
    assert [sorted(launch[:, 0]) for launch in out] == [list(range(5, 69))] * 2
