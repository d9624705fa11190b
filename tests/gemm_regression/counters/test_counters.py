"""What a warp asks of memory, counted by hand, against what the emulated device counts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemm_regression.cli import profile as __main__
from gemm_regression.counters import count, expected_bytes
from gemm_regression.counters.counts import Bytes
from gemm_regression.counters.counts import chosen as chosen_cases
from gemm_regression.devices import DeviceError
from gemm_regression.model import F32, Case, Problem
from gemm_regression.project.selection import Choice, find_config
from ptxsan import Buffer, Counters, GlobalMemory, PreparedKernel, Tally, flop, mnemonic, parse
from tests.ladder import H200, PROJECT, find_kernel
from tests.mutants import Mutant, build

# %rd1: A, 64 KB; %r1: the thread; %p1: the lower half of its warp; shared: 16 KB.
HEAD = """
.version 9.0
.target sm_90a
.address_size 64
.visible .entry tiny(.param .u64 a)
{
    .reg .pred %p<9>;
    .reg .b32 %r<9>;
    .reg .f32 %f<9>;
    .reg .b64 %rd<9>;
    .shared .align 16 .b8 tile[16384];
    ld.param.u64 %rd1, [a];
    mov.u32 %r1, %tid.x;
    and.b32 %r2, %r1, 31;
    setp.lt.s32 %p1, %r2, 16;
    mov.u32 %r3, tile;
    mov.f32 %f1, 0f3F800000;
"""


def run(body: str, threads: int = 32) -> Tally:
    """One block that runs the body."""
    machine = PreparedKernel(parse(HEAD + body + "\n ret;\n}\n", "tiny"), "tiny.cu")
    a = np.zeros((64, 256), np.float32)
    memory = GlobalMemory([Buffer("A", 0, [a], writable=True)])
    counters = Counters()
    address = np.int64(memory.buffers[0].address(0))
    report = machine.run((1, 1, 1), (threads, 1, 1), 0, [[address]], memory, 1000, counters)
    assert not report.stopped, report.hazards
    return sum((tally for _, tally in counters.tallies()), Tally())


def global_load(
    stride: int, width: str = "f32", offset: int = 0, registers: str = "%f2", guard: str = ""
) -> str:
    """Lane i reads at i · stride + offset bytes."""
    return f"""
        mul.wide.s32 %rd2, %r1, {stride};
        add.s64 %rd3, %rd1, %rd2;
        {guard} ld.global.{width} {registers}, [%rd3+{offset}];"""


FLOAT4 = ("v4.f32", 0, "{%f2, %f3, %f4, %f5}")


@pytest.mark.parametrize(
    ("body", "requests", "sectors", "ideal", "asked"),
    [
        pytest.param(global_load(4), 1, 4, 4, 128, id="coalesced"),
        pytest.param(global_load(4, offset=4), 1, 5, 4, 128, id="one element past a sector's start"),
        pytest.param(global_load(8), 1, 8, 4, 128, id="every other element"),
        pytest.param(global_load(1024), 1, 32, 4, 128, id="a column"),
        pytest.param(global_load(0), 1, 1, 1, 128, id="broadcast"),
        pytest.param(global_load(16, *FLOAT4), 1, 16, 16, 512, id="float4"),
        pytest.param(global_load(32, *FLOAT4), 1, 32, 16, 512, id="every other float4"),
        pytest.param(global_load(2, "u16", registers="%r4"), 1, 2, 2, 64, id="half precision"),
        pytest.param(global_load(4, guard="@%p1"), 1, 2, 2, 64, id="half a warp"),
        pytest.param(global_load(4, guard="@!%p1"), 1, 2, 2, 64, id="the other half"),
    ],
)
def test_global_loads_of_a_warp(body: str, requests: int, sectors: int, ideal: int, asked: int) -> None:
    loads = run(body).loads
    assert (loads.requests, loads.sectors, loads.ideal, loads.bytes) == (requests, sectors, ideal, asked)


def test_a_warp_without_an_active_lane_makes_no_request() -> None:
    body = "setp.lt.s32 %p2, %r1, 40;" + global_load(4, guard="@%p2")
    loads = run(body, threads=96).loads
    assert (loads.requests, loads.sectors, loads.bytes) == (2, 4 + 1, 40 * 4)
    assert run("setp.lt.s32 %p2, %r1, 0;" + global_load(4, guard="@%p2")).loads.requests == 0


def test_stores_are_not_loads() -> None:
    made = run("mul.wide.s32 %rd2, %r1, 4; add.s64 %rd3, %rd1, %rd2; st.global.f32 [%rd3], %f1;")
    assert (made.stores.requests, made.stores.sectors, made.loads.requests) == (1, 4, 0)
    assert made.accesses == made.stores


def test_an_asynchronous_copy_reads_global_and_writes_shared_memory() -> None:
    made = run("""
        mul.wide.s32 %rd2, %r1, 16; add.s64 %rd3, %rd1, %rd2;
        shl.b32 %r4, %r1, 4; add.s32 %r5, %r3, %r4;
        cp.async.cg.shared.global [%r5], [%rd3], 16;
        cp.async.wait_all;""")
    assert (made.copies.requests, made.copies.sectors, made.copies.bytes) == (1, 16, 512)
    shared = made.shared_copies
    assert (shared.requests, shared.wavefronts, shared.conflicts) == (1, 4, 0)
    assert made.loads.requests == made.shared_stores.requests == 0
    assert made.reads == made.copies


def shared_store(stride: int, width: str = "f32", registers: str = "%f1", guard: str = "") -> str:
    """Lane i writes at i · stride bytes."""
    return (
        f"mul.lo.s32 %r4, %r1, {stride}; add.s32 %r5, %r3, %r4; {guard} st.shared.{width} [%r5], {registers};"
    )


ONES2, ONES4 = "{%f1, %f1}", "{%f1, %f1, %f1, %f1}"


@pytest.mark.parametrize(
    ("body", "wavefronts", "conflicts"),
    [
        pytest.param(shared_store(4), 1, 0, id="neighbours"),
        pytest.param(shared_store(8), 2, 1, id="two-way"),
        pytest.param(shared_store(128), 32, 31, id="a column of 32 floats: 32-way"),
        pytest.param(shared_store(132), 1, 0, id="a column padded by one float"),
        pytest.param(shared_store(128, guard="@%p1"), 16, 15, id="half a column"),
        pytest.param(shared_store(8, "v2.f32", ONES2), 2, 0, id="float2"),
        pytest.param(shared_store(16, "v2.f32", ONES2), 4, 2, id="every other float2: two-way"),
        pytest.param(shared_store(16, "v4.f32", ONES4), 4, 0, id="float4"),
        pytest.param(shared_store(16, "v4.f32", ONES4, "@%p1"), 2, 0, id="float4, half a warp"),
        pytest.param(shared_store(2, "u16", "%r1"), 1, 0, id="two halves of a word"),
        # Eight lanes of a group on two sets of four banks: four to each.
        pytest.param(shared_store(64, "v4.f32", ONES4), 16, 12, id="every fourth float4: four-way"),
    ],
)  # fmt: skip
def test_shared_memory_of_a_warp(body: str, wavefronts: int, conflicts: int) -> None:
    stores = run(body).shared_stores
    assert (stores.requests, stores.wavefronts, stores.conflicts) == (1, wavefronts, conflicts)


FILL = "shl.b32 %r4, %r1, 4; add.s32 %r5, %r3, %r4; st.shared.v4.f32 [%r5], {%f1, %f1, %f1, %f1}; bar.sync 0;"


REGISTERS = {"f32": "%f2", "v2.f32": "{%f2, %f3}", "v4.f32": "{%f2, %f3, %f4, %f5}"}
# i / 2: lanes beside each other; (i & 1) + (i & 28) / 2: lanes two further; i & 15: neither.
HALF = "shr.u32 %r6, %r1, 1;"
TWO_ON = "and.b32 %r6, %r1, 1; and.b32 %r4, %r1, 28; shr.u32 %r4, %r4, 1; add.s32 %r6, %r6, %r4;"


@pytest.mark.parametrize(
    ("address", "width", "wavefronts"),
    [
        pytest.param("shl.b32 %r6, %r1, 4;", "v4.f32", 4, id="float4 of each lane"),
        pytest.param("mov.u32 %r6, 0;", "v4.f32", 2, id="one float4 for all"),
        pytest.param("mov.u32 %r6, 0;", "f32", 1, id="one word for all"),
        pytest.param(f"{HALF} shl.b32 %r6, %r6, 4;", "v4.f32", 2, id="pairs"),
        pytest.param(f"{TWO_ON} shl.b32 %r6, %r6, 4;", "v4.f32", 2, id="pairs at two"),
        pytest.param("and.b32 %r6, %r1, 15; shl.b32 %r6, %r6, 4;", "v4.f32", 4, id="halves"),
        pytest.param("shl.b32 %r6, %r1, 3;", "v2.f32", 2, id="float2 of each lane"),
        pytest.param(f"{HALF} shl.b32 %r6, %r6, 3;", "v2.f32", 1, id="float2 pairs"),
    ],
)
def test_groups_of_a_load_that_want_the_same_are_served_as_one(
    address: str, width: str, wavefronts: int
) -> None:
    """Lane i reads at the address %r6 that the code makes of its number %r1."""
    load = f"ld.shared.{width} {REGISTERS[width]}, [%r7];"
    loads = run(f"{FILL} {address} add.s32 %r7, %r3, %r6; {load}").shared_loads
    assert (loads.requests, loads.wavefronts, loads.conflicts) == (1, wavefronts, 0)


@pytest.mark.parametrize(("stride", "wavefronts"), [(4, 1), (128, 32), (132, 1), (0, 1)])
def test_an_asynchronous_copy_waits_for_the_banks_that_it_reads(stride: int, wavefronts: int) -> None:
    made = run(f"""
        mul.wide.s32 %rd2, %r1, {stride}; add.s64 %rd3, %rd1, %rd2;
        shl.b32 %r4, %r1, 2; add.s32 %r5, %r3, %r4;
        cp.async.ca.shared.global [%r5], [%rd3], 4;
        cp.async.wait_all;""")
    assert (made.shared_copies.requests, made.shared_copies.wavefronts) == (1, wavefronts)


def test_flop_are_those_of_active_lanes() -> None:
    made = run("""
        fma.rn.f32 %f2, %f1, %f1, %f1;
        @%p1 fma.rn.f32 %f3, %f1, %f1, %f1;
        mul.f32 %f4, %f1, %f1; add.f32 %f5, %f1, %f1; max.f32 %f6, %f1, %f1; add.s32 %r4, %r1, %r1;""")
    assert made.flop == 32 * 2 + 16 * 2 + 32 + 32
    inside = run("@!%p1 bra SKIP; fma.rn.f32 %f2, %f1, %f1, %f1; SKIP:")
    assert inside.flop == 16 * 2


@pytest.mark.parametrize(
    ("op", "of_a_lane", "of_a_warp", "name"),
    [
        ("fma.rn.f32", 2, 0, "fma.f32"),
        ("fma.rn.f16x2", 4, 0, "fma.f16x2"),
        ("mad.lo.s32", 0, 0, "mad"),
        ("ld.global.nc.v4.f32", 0, 0, "ld.global"),
        ("st.shared::cta.f32", 0, 0, "st.shared"),
        ("ld.f32", 0, 0, "ld.generic"),
        ("cp.async.commit_group", 0, 0, "cp.async"),
        ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", 0, 4096, "mma"),
        ("wmma.mma.sync.aligned.row.row.m16n16k16.f32.f32", 0, 8192, "wmma.mma"),
    ],
)
def test_flop_and_the_name_of_an_instruction(op: str, of_a_lane: int, of_a_warp: int, name: str) -> None:
    assert (flop(op), mnemonic(op)) == ((of_a_lane, of_a_warp), name)


def test_a_branch_diverges_within_a_warp_only() -> None:
    def split(at: int) -> int:
        return run(f"setp.lt.s32 %p2, %r1, {at}; @%p2 bra SKIP; mov.f32 %f2, %f1; SKIP:", 64).divergent

    assert [split(at) for at in (16, 32, 48, 64)] == [1, 0, 1, 0]


def test_instructions_and_barriers_are_counted_a_warp() -> None:
    made = run("bar.sync 0; setp.lt.s32 %p2, %r1, 32; @!%p2 bra SKIP; mov.f32 %f2, %f1; SKIP:", 64)
    assert made.barriers == 2
    # Six of the head, the barrier, setp, bra and ret by two warps; mov by one.
    assert made.instructions == 2 * (6 + 4) + 1


# Of whole kernels, by nvcc


def case(kernel: str, config: str, problem: Problem, dtype: Any = F32) -> Case:
    found = find_kernel(kernel)
    return Case(found, dtype, find_config(found, config), problem)


SMALL = Problem(96, 160, 64)


@pytest.mark.compile
def test_naive_reads_two_elements_for_each_multiplication() -> None:
    made = count(case("naive", "block32x32", SMALL))
    products = 96 * 160 * 64
    assert made.buffers == {
        "A": Bytes(4 * products, 0),
        "B": Bytes(4 * products, 0),
        "C": Bytes(0, 4 * 96 * 160),
    }
    # A warp is a row of C: of A one element at a time, of B and C 32 neighbours.
    assert made.total.loads.requests == 2 * products // 32
    assert made.total.loads.sectors == (1 + 4) * products // 32
    assert made.total.stores == made.lines["s01_naive.cu:31"].stores
    assert made.total.stores.sectors_per_request == 4
    assert made.total.flop == 2 * products + 96 * 160  # and alpha
    assert (made.total.shared.conflicts, made.total.barriers, made.total.divergent) == (0, 0, 0)


@pytest.mark.compile
@pytest.mark.parametrize(("size", "padding", "conflicts"), [(32, 0, 0), (32, 1, 0), (16, 0, 0), (16, 1, 1)])
def test_tiled_reads_a_tile_size_th_of_that(size: int, padding: int, conflicts: int) -> None:
    made = count(case("tiled", f"tile{size}-pad{padding}", SMALL))
    products = 96 * 160 * 64
    assert made.buffers["A"].read + made.buffers["B"].read == 2 * 4 * products // size
    assert made.total.barriers == made.warps * 2 * 64 / size
    assert (made.shared_bytes, made.total.shared_loads.conflicts) == (2 * size * (size + padding) * 4, 0)
    # Two rows of 16 a warp: an odd stride lets the end of one meet the start of the other.
    assert made.total.shared_stores.conflicts == conflicts * made.total.shared_stores.requests


DEFAULTS = chosen_cases(PROJECT, Choice(shapes=("67x45x33-beta2",)), H200)


@pytest.mark.turns
@pytest.mark.compile
@pytest.mark.parametrize(
    "chosen", [pytest.param(c, id=str(c), marks=pytest.mark.xdist_group(c.variant)) for c in DEFAULTS]
)
def test_every_stage_reads_what_its_tiles_say(chosen: Case) -> None:
    expected = expected_bytes(chosen)
    if chosen.kernel.name in ("lean_loop", "stream_k"):
        # For rows and columns past an edge they read the last ones again.
        p, (rows, columns) = chosen.problem, chosen.kernel.shape_of(chosen.config, chosen.dtype).tile
        width = -(-p.n // columns) * columns
        whole = replace(p, m=-(-p.m // rows) * rows, n=width, ldb=width, ldc=width)
        expected |= {name: expected_bytes(replace(chosen, problem=whole))[name] for name in "AB"}
    assert count(chosen, by_source=False).buffers == expected


@pytest.mark.compile
def test_an_empty_problem_counts_nothing() -> None:
    made = count(case("naive", "block32x32", Problem(0, 4, 4)))
    assert made.total == Tally()
    assert made.worst_line("loads") == ""


@pytest.mark.compile
def test_lines_are_those_of_the_file_and_add_up() -> None:
    made = count(case("vectorized", "tile64x64x8-thread8x8-pad4", Problem(5, 7, 9)))
    source = (find_kernel("vectorized").source or Path()).read_text().splitlines()
    fused = max(made.lines, key=lambda line: made.lines[line].flop)
    assert "sum[m][n] += a[m] * b[n]" in source[int(fused.removeprefix("s06_vectorized.cu:")) - 1]
    assert sum(t.flop for t in made.lines.values()) == made.total.flop
    assert sum(made.mix.values()) == made.total.instructions


@pytest.mark.compile
def test_a_kernel_that_is_stopped_counts_nothing(tmp_path: Path) -> None:
    edit = ("lda + k]", "lda + k + 9999999]")
    kernel = build(Mutant("wild", "naive", "", (edit,)), tmp_path)
    with pytest.raises(
        DeviceError, match=r"naive-f32-block32x32-4x4x4: cannot be counted: .*past the end of A"
    ):
        count(Case(kernel, F32, kernel.configs[0], Problem(4, 4, 4)))


# The command


@pytest.mark.compile
def test_the_command_shows_a_row_a_case(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # 80 in a process of pytest-xdist, too few for the table
    expression = "naive and block32 or wmma-tf32 and 64x64x32"
    assert __main__.counters(["-k", expression, "--shape", "33x18x5", "--lines"]) == 0
    out = capsys.readouterr().out
    rows = [line.split() for line in out.splitlines() if "33x18x5 " in line and "(" not in line]
    assert [row[:4] for row in rows] == [
        ["naive", "f32", "block32x32", "33x18x5"],
        ["wmma", "tf32", "tile64x64x32-warp32x32", "33x18x5"],
    ]
    # 33 rows of one warp each, two loads for each k; of 18 neighbours 2.25 sectors and more.
    assert rows[0][5] == "330"
    (line,) = [line.split() for line in out.splitlines() if line.startswith("s01_naive.cu:27 ")]
    assert line[2] == "330"


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["-k", "nothing-like-it"], "-k 'nothing-like-it' matches no case"),
        (["-k", "tild and fp32"], "matches no case"),
        (["-k", "tiled and"], "-k 'tiled and': expected not OR left parenthesis OR identifier"),
        (["tiled-4x4x4"], "unknown case 'tiled-4x4x4'"),
        (["cublas-f32-4x4x4"], "a library has no PTX to count"),
        (["--shape", "4x4"], "unknown shape '4x4'"),
    ],
)
def test_a_mistake_is_one_line(args: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.counters(args) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert why in line


@pytest.mark.parametrize("width", [60, 100])
def test_a_table_fits_the_terminal(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert __main__.counters(["naive-f32-block32x32-33x18x5", "--lines"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    assert lines[0] == "naive-f32-block32x32-33x18x5"
    assert lines[1].startswith("  instructions ")
    assert "loads 330, sectors per load " in lines[1] + lines[2]
    assert any(line.startswith("  instructions ") and "loads 330" in line for line in lines[3:])
