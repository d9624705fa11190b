"""What the emulated device keeps of the hazards it sees."""

from __future__ import annotations

from collections import Counter

from ptxsan import Report
from tests.ptxsan.rig import execute, kernel, numbers


def run(body: str, blocks: int = 1) -> Report:
    """Blocks of 64 threads."""
    return execute(kernel(body, inside=".shared .align 4 .b8 cells[256];"), numbers(64 * blocks), 64)[1]


def test_many_races_do_not_hide_the_barrier_that_stops_the_launch() -> None:
    races = "st.shared.u32 [cells], %r1;\n" * 50
    half = "setp.lt.u32 %p1, %r1, 32;\n@%p1 bra $A;\nbar.sync 0;\nbra $B;\n$A:\nbar.sync 1;\n$B:"
    report = run(races + half)
    assert report.stopped
    counts = Counter(hazard.check for hazard in report.hazards)
    assert counts == {"race": 10, "barrier": 1}


def test_many_races_do_not_hide_an_uninitialised_read() -> None:
    report = run("st.shared.u32 [cells], %r1;\n" * 50 + "bar.sync 0;\nld.shared.u32 %r2, [cells+128];")
    assert {hazard.check for hazard in report.hazards} == {"race"}
    assert {note.check for note in report.notes} == {"uninit"}


def test_a_barrier_orders_the_threads_of_a_block_where_another_block_goes_elsewhere() -> None:
    leave = "mov.u32 %r2, %ctaid.x;\nsetp.eq.u32 %p1, %r2, 1;\n@%p1 bra $END;\n"
    cell = "mov.u32 %r2, cells;\nshl.b32 %r3, %r1, 2;\nadd.u32 %r3, %r3, %r2;\nst.shared.u32 [%r3], %r1;\n"
    read = "xor.b32 %r3, %r3, 4;\nld.shared.u32 %r2, [%r3];\n$END:"
    assert run(leave + cell + "bar.sync 0;\n" + read, blocks=2).hazards == []
    assert {hazard.check for hazard in run(leave + cell + read, blocks=2).hazards} == {"race"}
