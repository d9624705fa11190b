"""What is said of shared memory: bounds, words that nobody wrote, races to the byte, copies in flight."""

from __future__ import annotations

import re

import pytest

from tests.ptxsan.rig import CELLS, OWN, WRITE, checks, execute, hazards, kernel, notes, numbers, per_lane

ALONE = "setp.ne.u32 %p1, %r4, 37;\n@%p1 bra $END;\n.loc 1 21 5\n{}\n$END:"  # thread 5 of block 1 alone
WHO = r"thread \(5, 0, 0\) of block \(1, 0, 0\)"


def other(thread: str) -> str:
    """%r15 becomes the word of another thread, and %r13 where it lies."""
    return f"{thread};\nshl.b32 %r13, %r13, 2;\nadd.u32 %r13, %r13, %r10;\n" + READ


READ = "ld.shared.u32 %r15, [%r13];\n"
NEIGHBOUR, FAR = other("xor.b32 %r13, %r1, 1"), other("xor.b32 %r13, %r1, 32")  # of the same warp, of another


def of(body: str, threads: int = 64) -> list[str]:
    return checks(body, CELLS, threads)


# Bounds, alignment


@pytest.mark.parametrize(
    ("access", "said"),
    [
        ("ld.shared.u32 %r10, [cells+512]", r"bounds: {} .*, 0 bytes past the end of cells \(512 bytes\)"),
        ("st.shared.u32 [cells+600], %r10", r"bounds: {} .*, 88 bytes past the end of cells \(512 bytes\)"),
        ("ld.shared.u32 %r10, [cells+-4]", r"bounds: {} .*, 4 bytes before the start of cells"),
        (
            "st.shared.v4.u32 [cells+500], {{%r1, %r1, %r1, %r1}}",
            r"bounds: {} .*16 bytes of shared memory, 0 b",
        ),
        ("ld.shared.u32 %r10, [more+16]", r"bounds: {} .*, 0 bytes past the end of more \(16 bytes\)"),
        ("ld.shared.u32 %r10, [40]", r"bounds: {} .*, shared address 0x28 is of no variable"),
        (
            "st.shared.v2.u32 [cells+4], {{%r1, %r1}}",
            r"misaligned: {} 8-byte access at shared memory cells\+4 ",
        ),
        (
            "cp.async.cg.shared.global [cells+8], [%rd4], 16",
            r"misaligned: {} 16-byte .* cells\+8 is not align",
        ),
    ],
)
def test_an_access_of_one_thread(access: str, said: str) -> None:
    access = access.replace("{{", "{").replace("}}", "}")
    (found,) = hazards(
        ALONE.format(f"{access};"), CELLS + "\n.shared .align 4 .b8 more[16];", threads=32, blocks=2
    )
    where = r" at k\.cu:21 \(PTX line \d+: " + re.escape(access)
    assert re.match(said.format(WHO) + ".*" + where, found)


def test_dynamic_shared_memory_is_as_large_as_asked_for() -> None:
    dynamic = ".extern .shared .align 16 .b8 cells[];"
    body = OWN + "st.shared.u32 [%r12], %r1;"
    assert checks(body, outside=dynamic, threads=64, dynamic_shared=256) == []
    (said,) = hazards(body, outside=dynamic, threads=64, dynamic_shared=252)
    assert re.match(r"bounds: thread \(63, 0, 0\) .* 0 bytes past the end of cells \(252 bytes\)", said)


# What nobody wrote


@pytest.mark.parametrize(
    ("writes", "reads", "found"),
    [
        ("u32", "u32", []),
        ("u16", "u16", []),
        ("u16", "u32", ["uninit"]),
        ("u8", "u16", ["uninit"]),
        ("u8", "u8", []),
    ],
)
def test_a_word_of_which_a_part_is_written(writes: str, reads: str, found: list[str]) -> None:
    registers = {"u32": "%r1", "u16": "%rs1", "u8": "%rs1"}
    body = (
        f"{OWN}st.shared.{writes} [%r12], {registers[writes]};\nld.shared.{reads} {registers[reads]}, [%r12];"
    )
    body += f"\nst.global.{reads} [%rd6], {registers[reads]};"
    assert of(f"mov.u16 %rs1, 5;\n{body}") == found


def test_a_vector_of_which_a_word_is_unwritten() -> None:
    body = "shl.b32 %r11, %r1, 4;\nmov.u32 %r10, cells;\nadd.u32 %r12, %r10, %r11;\n"
    body += "st.shared.v2.u32 [%r12], {%r1, %r1};\nst.shared.u32 [%r12+12], %r1;\n"
    whole = "ld.shared.v4.u32 {%r20, %r21, %r22, %r23}, [%r12];"
    (said,) = notes(body + whole, CELLS)
    assert re.match(
        r"uninit: thread \(0, 0, 0\) .* reads shared memory cells\+8, which no thread wrote", said
    )
    assert notes(body + "st.shared.u32 [%r12+8], %r1;\n" + whole, CELLS) == []
    # What comes of the other words is defined.
    assert of(body + whole + "st.global.v2.u32 [%rd6], {%r21, %r23};", 32) == []
    assert of(body + whole + "st.global.v2.u32 [%rd6], {%r21, %r22};", 32) == ["uninit"]


@pytest.mark.parametrize("lanes", [32, 8192])
def test_what_one_block_wrote_another_did_not(lanes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether they run together or one after another."""
    monkeypatch.setattr("ptxsan.kernel.LANES", lanes)
    body = (
        "setp.eq.u32 %p1, %r2, 1;\n@!%p1 st.shared.u32 [cells], 1;\nbar.sync 0;\nld.shared.u32 %r10, [cells];"
    )
    guarded = body.replace("@!%p1 st", "setp.ne.u32 %p2, %r1, 0;\nor.pred %p1, %p1, %p2;\n@!%p1 st")
    (said,) = notes(guarded, CELLS, blocks=3)
    assert said.startswith("uninit: thread (0, 0, 0) of block (1, 0, 0) reads shared memory cells+0")


# Races


COPY = "cp.async.ca.shared.global [%r12], [%rd4], 4;\ncp.async.commit_group;\n"
MINE, NEXT = "ld.shared.u32 %r15, [%r12];\n", NEIGHBOUR


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            f"{WRITE}.loc 1 31 0\n{FAR}",
            r"reads {}128, which thread 32 wrote with no barrier between {}:31 {}",
        ),
        (
            f"{WRITE}bar.sync 0;\n{FAR}.loc 1 40 0\nst.shared.u32 [%r12], 7;",
            r"writes {}0, which thread 32 read with no barrier between {}:40 \(",
        ),
        (
            WRITE + NEIGHBOUR.replace(READ, "st.shared.u32 [%r13], 7;"),
            r"writes {}4, which thread 1 wrote with",
        ),
        (
            "shr.u32 %r10, %r1, 1;\nst.shared.u32 [cells], %r10;",
            r"writes {}0, as thread \d+ does with the",
        ),
        (
            f"{OWN}{COPY}bar.sync 0;\n.loc 1 50 0\n{FAR}",
            r"reads {}128, where an asynchronous copy of thread 32 is in flight {}:50 {}",
        ),
    ],
    ids=["read after write", "write after read", "two writes", "one instruction", "copy in flight"],
)
def test_a_race_says_with_whom_and_where(body: str, said: str) -> None:
    (found,) = hazards(body, CELLS, threads=64)
    parts = r"shared memory cells\+", r"at k\.cu", r"\(PTX line \d+: ld\.shared"
    assert re.match(r"race: thread \(0, 0, 0\) of block \(0, 0, 0\) " + said.format(*parts), found)


def test_a_race_tells_of_the_block_it_is_in() -> None:
    one = "setp.ne.u32 %p1, %r2, 2;\n@%p1 bra $SKIP;\n" + FAR + "$SKIP:"
    (said,) = hazards(WRITE + one, CELLS, threads=64, blocks=4)
    assert said.startswith("race: thread (0, 0, 0) of block (2, 0, 0) reads shared memory cells+128")


ONE = "setp.ne.u32 %p1, %r1, 0;\n@!%p1 st.shared.u32 [cells], 1;\nbar.sync 0;\n"  # thread 0 sets a word
ALL_READ, STEP = "ld.shared.u32 %r20, [cells];\n", "bar.warp.sync -1;\n"
HALF_READ = "setp.lt.u32 %p2, %r1, 32;\n@!%p2 " + ALL_READ
PARTED = "setp.lt.u32 %p2, %r1, 16;\n@%p2 " + ALL_READ + "@!%p2 " + ALL_READ


@pytest.mark.parametrize(
    ("reads", "threads", "found"),
    [
        (ALL_READ, 64, ["race"]),
        (HALF_READ, 64, ["race"]),
        (ALL_READ + STEP, 64, ["race"]),  # the other warp
        (ALL_READ + STEP, 32, []),
        ("", 64, []),
        ("@!%p1 " + ALL_READ, 64, []),  # its own read
        (HALF_READ + "@!%p1 " + ALL_READ, 64, ["race"]),
        (PARTED, 32, ["race"]),
        (PARTED + STEP, 32, []),
        (PARTED + STEP, 64, ["race"]),
    ],
)
def test_a_write_after_several_readers(reads: str, threads: int, found: list[str]) -> None:
    """By thread 0: it races with any of them, not with the last one alone."""
    assert of(f"{ONE}{reads}@!%p1 st.shared.u32 [cells], 2;", threads) == found


def test_several_readers_are_no_race() -> None:
    assert of(ONE + ALL_READ * 2) == []


def test_neighbouring_bytes_are_no_race() -> None:
    byte = "mov.u32 %r10, cells;\nadd.u32 %r12, %r10, %r1;\n"
    store, load = "st.shared.u8 [%r12], %rs1;\n", "ld.shared.u8 %rs2, [%r12];\n"
    assert of(byte + store + load) == []
    half = "add.u32 %r12, %r12, %r1;\nst.shared.u16 [%r12], %rs1;\n"
    assert of(byte + half + "ld.shared.u8 %rs2, [%r12+1];\n") == []
    assert of(byte + half + "xor.b32 %r13, %r12, 2;\nld.shared.u8 %rs2, [%r13+1];\n") == ["race"]
    (said,) = hazards(byte + "and.b32 %r12, %r12, 0xFFFFFFFE;\n" + store, CELLS, threads=64)
    assert re.match(r"race: thread \(0, .* writes shared memory cells\+0, as thread 1 does", said)
    assert of(byte + store + "xor.b32 %r13, %r12, 32;\nld.shared.u8 %rs2, [%r13];\n") == ["race"]


def test_writes_of_one_thread_are_no_race() -> None:
    assert of(WRITE + WRITE + "ld.shared.u32 %r20, [%r12];\n" + WRITE) == []


# Order


@pytest.mark.parametrize(
    "order", ["bar.sync 0", "bar.red.popc.u32 %r20, 0, %p1", "barrier.cta.sync.aligned 0"]
)
@pytest.mark.parametrize("read", [NEIGHBOUR, FAR])
def test_a_barrier_orders_the_block(order: str, read: str) -> None:
    assert of(f"{WRITE}{order};\n{read}") == []
    assert of(f"{WRITE}{read}{order};\n") == ["race"]


def test_what_a_barrier_has_ordered_stays_so() -> None:
    """Words written before it are read while a word between them is written."""
    before = WRITE + "ld.shared.u32 %r20, [%r12];\n{}"
    after = "setp.eq.u32 %p1, %r1, 0;\n@%p1 st.shared.u32 [cells+4], 9;\n"
    after += "and.b32 %r13, %r13, 62;\nshl.b32 %r13, %r13, 2;\nadd.u32 %r13, %r13, %r10;\n" + READ
    body = before + "xor.b32 %r13, %r1, 32;\n" + after
    assert of(body.format("bar.sync 0;\n")) == []
    assert set(of(body.format(""))) == {"race"}


WARP_ORDER = ("bar.warp.sync -1", "shfl.sync.idx.b32 %r20, %r1, 0, 31, -1", "vote.sync.any.pred %p2, %p1, -1")


@pytest.mark.parametrize("order", WARP_ORDER)
def test_a_warp_level_barrier_orders_its_warp_alone(order: str) -> None:
    assert of(f"{WRITE}{order};\n{NEIGHBOUR}") == []
    assert of(f"{WRITE}{order};\n{FAR}") == ["race"]
    assert of(f"{order};\n{WRITE}{NEIGHBOUR}") == ["race"]
    write = "st.shared.u32 [%r12], 7;\n"  # where the neighbour has read
    assert of(f"{WRITE}{order};\n{NEIGHBOUR}{order};\n{write}") == []
    assert of(f"{WRITE}{order};\n{NEIGHBOUR}{write}") == ["race"]


@pytest.mark.parametrize("order", WARP_ORDER)
@pytest.mark.parametrize("numpy", [False, True])
def test_reads_before_a_warp_level_barrier_do_not_join_those_after_it(
    order: str, numpy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lane reads a word that its neighbour read before, and then writes it: nobody reads it meanwhile."""
    if numpy:
        monkeypatch.setattr("ptxsan.machine.memory.shared_memory.library", lambda: None)
    own = "ld.shared.u32 %r20, [%r12];\nst.shared.u32 [%r12], 7;\n"
    assert of(f"{WRITE}{order};\n{NEIGHBOUR}{order};\n{own}") == []
    assert of(f"{WRITE}{order};\n{NEIGHBOUR}{own}") == ["race"]
    assert of(f"{WRITE}bar.sync 0;\n{FAR}{order};\n{own}") == ["race"]  # the reader is of another warp


@pytest.mark.parametrize("c", [True, False], ids=["C", "NumPy"])
def test_atomics_after_a_warp_level_barrier_are_ordered_as_writes_are(
    c: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One warp sets a word and adds to it in two instructions; another one's atomics, after the first
    one's, are ordered with those and not with what it set."""
    if not c:
        monkeypatch.setattr("ptxsan.machine.memory.shared_memory.library", lambda: None)
    start = "setp.ne.u32 %p1, %r1, 0;\nsetp.lt.u32 %p2, %r1, 32;\n@!%p1 st.shared.u32 [cells], 5;\n"
    add, step = "atom.shared.add.u32 %r20, [cells], 1;\n", "bar.warp.sync -1;\n"
    assert of(start + step + add + add, 32) == []
    assert of(start + add, 32) == ["race"]
    assert of(start + step + f"@%p2 {add}@!%p2 {add}", 64) == ["race"]
    assert of(start + "bar.sync 0;\n" + add + add, 64) == []
    read = "ld.shared.u32 %r21, [cells];\n"
    assert of(start + step + add + step + read, 32) == []
    assert of(start + step + add + read, 32) == ["race"]
    assert of("bar.sync 0;\n" + start + "bar.sync 0;\n" + add + step + f"@!%p1 {read}", 64) == ["race"]


def test_a_warp_level_barrier_of_one_warp_orders_no_other() -> None:
    first = "setp.ge.u32 %p1, %r1, 32;\n@%p1 bra $SKIP;\nbar.warp.sync -1;\n$SKIP:\n"
    (said,) = hazards(WRITE + first + NEIGHBOUR, CELLS, threads=64)
    assert said.startswith("race: thread (32, 0, 0)")


def test_a_race_in_a_later_trip_of_a_loop() -> None:
    """A barrier too few: a word is read in one trip and written in the next."""
    body = """
    mov.u32 %r20, 0;
$HEAD:
    st.shared.u32 [%r12], %r20;
    bar.sync 0;
    {}
    {}
    add.s32 %r20, %r20, 1;
    setp.lt.s32 %p1, %r20, 3;
    @%p1 bra $HEAD;
"""
    assert of(OWN + body.format(FAR, "bar.sync 0;")) == []
    assert of(OWN + body.format(FAR, "")) == ["race"]


# Asynchronous copies


@pytest.mark.parametrize(
    ("wait", "read", "found"),
    [
        ("cp.async.wait_group 0;\nbar.sync 0;\n", NEXT, []),
        ("cp.async.wait_all;\nbar.sync 0;\n", FAR, []),
        ("cp.async.wait_group 0;\nbar.warp.sync -1;\n", NEXT, []),
        ("cp.async.wait_group 0;\n", MINE, []),
        ("cp.async.wait_group 0;\n", NEXT, ["race"]),  # no barrier
        ("cp.async.wait_group 0;\nbar.warp.sync -1;\n", FAR, ["race"]),
        ("", MINE, ["race"]),  # no wait
        ("bar.sync 0;\n", MINE, ["race"]),
        ("bar.sync 0;\ncp.async.wait_group 0;\n", NEXT, ["race"]),  # the wrong way round
        ("cp.async.wait_group 1;\nbar.sync 0;\n", MINE, ["race"]),  # one group short
    ],
)
def test_a_copy_is_waited_for(wait: str, read: str, found: list[str]) -> None:
    assert of(OWN + COPY + wait + read) == found


def test_a_copy_that_was_not_committed_is_of_the_next_group() -> None:
    issue = COPY.splitlines()[0] + "\n"
    assert of(OWN + issue + "cp.async.wait_group 0;\n" + MINE) == ["race"]
    assert of(OWN + issue + "cp.async.wait_all;\n" + MINE) == []
    assert of(OWN + issue + "cp.async.commit_group;\ncp.async.wait_group 0;\n" + MINE) == []


STAGES = """
    cp.async.ca.shared.global [%r12], [%rd4], 4;
    cp.async.commit_group;
    cp.async.ca.shared.global [%r12+256], [%rd4+4], 4;
    cp.async.commit_group;
    cp.async.wait_group {};
    bar.sync 0;
"""
SECOND = FAR.replace("[%r13]", "[%r13+256]")


def test_groups_end_in_their_order() -> None:
    """Of two groups in flight the first one is done where one may still be."""
    assert of(OWN + STAGES.format(1) + FAR) == []
    assert of(OWN + STAGES.format(1) + SECOND) == ["race"]
    assert of(OWN + STAGES.format(0) + FAR + SECOND) == []
    assert of(OWN + STAGES.format(2) + FAR) == ["race"]


def test_empty_groups_count() -> None:
    empty = "cp.async.commit_group;\n"
    assert of(OWN + COPY + empty + "cp.async.wait_group 1;\nbar.sync 0;\n" + FAR) == []
    assert of(OWN + empty + COPY + "cp.async.wait_group 1;\nbar.sync 0;\n" + FAR) == ["race"]


def test_only_the_lanes_that_wait_have_waited() -> None:
    wait = "setp.lt.u32 %p1, %r1, 32;\n@%p1 cp.async.wait_group 0;\n"
    (said,) = hazards(OWN + COPY + wait + MINE, CELLS, threads=64)
    assert said.startswith("race: thread (32, 0, 0)")
    assert of(OWN + COPY + wait + "@!%p1 cp.async.wait_group 0;\n" + MINE) == []


def test_a_copy_over_what_others_still_read_or_write() -> None:
    done = "cp.async.wait_all;\nbar.sync 0;\n"
    copy_far = (
        "xor.b32 %r14, %r11, 128;\nadd.u32 %r14, %r10, %r14;\ncp.async.ca.shared.global [%r14], [%rd4], 4;\n"
    )
    assert of(WRITE + copy_far + done) == ["race"]
    assert of(WRITE + "bar.sync 0;\n" + MINE + copy_far + done) == ["race"]
    assert of(WRITE + "bar.sync 0;\n" + MINE + "bar.sync 0;\n" + copy_far + done + MINE) == []
    # A store into a copy in flight, by the thread itself.
    assert of(OWN + COPY + "st.shared.u32 [%r12], 1;\n" + done) == ["race"]


def test_zeros_in_place_of_what_a_copy_must_not_read() -> None:
    """A source size of 0 reads nothing, so that its address may be anywhere."""
    body = """
    setp.lt.u32 %p1, %r1, 40;
    selp.b32 %r20, 4, 0, %p1;
    selp.b64 %rd7, %rd4, 0, %p1;
    cp.async.ca.shared.global [%r12], [%rd7], 4, %r20;
    cp.async.wait_all;
    bar.sync 0;
"""
    assert per_lane(OWN + body + FAR + "st.global.u32 [%rd6], %r15;", CELLS, 64) == [
        4 * (t ^ 32) if t ^ 32 < 40 else 0 for t in range(64)
    ]


# Two halves of a buffer, 2 KiB each, exchanged by a bit of the address.
FLIP = """
    mov.u32 %r10, cells;
    shl.b32 %r11, %r1, 3;
    add.u32 %r12, %r10, %r11;
    st.shared.u32 [%r12], %r1;
    xor.b32 %r13, %r12, 2048;
    st.shared.u32 [%r13], %r1;
"""


@pytest.mark.parametrize(
    ("target", "threads", "want"),
    [
        ("sm_80", 256, ""),
        ("sm_89", 256, ""),
        ("sm_90a", 128, ""),  # these stay within 1 KiB of the start, which is aligned
        (
            "sm_90a",
            256,
            "1024 bytes before the start of cells, in the 1024 bytes that are reserved from sm_90 on",
        ),
        ("sm_100a", 256, "1024 bytes before the start of cells"),
    ],
)
def test_an_address_that_is_flipped_as_if_shared_memory_began_at_zero(
    target: str, threads: int, want: str
) -> None:
    """Seen on an H200: the alignment of 4096 that the variable asks for is not honoured."""
    text = kernel(FLIP, inside=".shared .align 4096 .b8 cells[4096];", target=target)
    _, report = execute(text, numbers(threads), threads)
    said = [f"{hazard.check}: {hazard.message}" for hazard in report.hazards]
    assert len(said) == bool(want)
    if want:
        assert (
            f"bounds: thread (128, 0, 0) of block (0, 0, 0) accesses 4 bytes of shared memory, {want}"
            in said[0]
        )
        assert "cells is not aligned to the 4096 bytes that it asks for" in said[0]


def test_a_flip_that_stays_within_the_variable_reads_what_nobody_wrote() -> None:
    read = FLIP.partition("xor")[0] + "bar.sync 0;\nxor.b32 %r13, %r12, 512;\nld.shared.u32 %r14, [%r13];"
    text = kernel(read + "\nst.global.u32 [%rd6], %r14;", inside=".shared .align 2048 .b8 cells[1024];")
    _, report = execute(text, numbers(32), 32)
    (said,) = report.hazards
    assert said.check == "uninit"
    assert "cells+512, which no thread wrote (cells is not aligned to the 2048 bytes" in said.message


def test_shared_memory_without_variables_past_its_start() -> None:
    """An address that is a number lies in no variable."""
    (said,) = hazards("st.shared.u32 [64], %r1;")
    assert "shared address 0x40 is of no variable" in said


def test_a_byte_that_is_stored_by_a_generic_address_is_one_byte() -> None:
    """Of the words that are read, the threads wrote one byte in four."""
    store = "mov.u32 %r10, cells;\nshl.b32 %r11, %r1, 2;\nadd.u32 %r12, %r10, %r11;\n"
    store += "cvt.u64.u32 %rd8, %r12;\ncvta.shared.u64 %rd8, %rd8;\nmov.u16 %rs1, 3;\nst.u8 [%rd8], %rs1;\n"
    cells, say = ".shared .align 4 .b8 cells[256];", "st.global.u32 [%rd6], %r14;"
    assert checks(store + "bar.sync 0;\nld.shared.u8 %r14, [%r12];\n" + say, cells, 64) == []
    (said,) = hazards(store + "bar.sync 0;\nld.shared.u32 %r14, [%r12];\n" + say, cells, 64)
    assert "shared memory cells+1, which no thread wrote" in said
    assert checks(store + "ld.shared.u8 %r14, [cells + 8];\n" + say, cells, 64) == ["race"]
    assert checks(store + "st.shared.u8 [%r12 + 1], %rs1;", cells, 64) == []
