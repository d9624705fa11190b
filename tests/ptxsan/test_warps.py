"""What the lanes of a warp do together, by shuffles and member masks, and to one word, by atomics."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ptxsan import parse
from ptxsan.machine.warps import all_name_all
from tests.ptxsan.rig import execute, kernel, numbers, per_lane


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
    body = f"shfl.sync.{mode}.b32 %r20|%p1, %r1, {by}, {control}, -1;\nst.global.u32 [%rd6], %r20;\n"
    want = [32 * (t // 32) + shuffled(mode, t % 32, by, width) for t in range(64)]
    assert per_lane(body, threads=64) == want


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


# Atomics


def atomic(
    op: str, operands: str, start: int, kind: str = "u32", space: str = "global"
) -> tuple[list[int], int]:
    """What 32 lanes get of one cell that holds ``start``, in order, and what it holds then, of block 0.
    %r10 is the lane, %f1 the lane in FP32."""
    data = ", ".join(str(b) for b in start.to_bytes(8, "little"))
    cell, target = "mine" if space == "shared" else "cell", "%f2" if kind == "f32" else "%r11"
    body = "setp.ne.u32 %p2, %r2, 0;\n@%p2 ret;\nmov.u32 %r10, %r1;\ncvt.rn.f32.u32 %f1, %r1;\n"
    if space == "shared":
        body += "ld.global.u64 %rd9, [cell];\nst.shared.u64 [mine], %rd9;\nbar.warp.sync -1;\n"
    body += f"atom.{space}.{op}.{kind} {target}, [{cell}], {operands};\n"
    body += f"st.global.{'f32' if kind == 'f32' else 'u32'} [%rd6], {target};\nbar.sync 0;\n"
    # The cell goes to where block 1's results would be.
    body += f"setp.ne.u32 %p1, %r1, 0;\n@%p1 bra $END;\nld.{space}.u64 %rd9, [{cell}];\n"
    body += "st.global.u64 [%rd6+256], %rd9;\n$END:\n"
    text = kernel(body, f".global .align 8 .b8 cell[8] = {{{data}}};", ".shared .align 8 .b8 mine[8];")
    out, report = execute(text, numbers(64))
    assert not report.hazards
    assert [h.check for h in report.notes] == (["race"] if space == "shared" else [])  # the cell's start
    return [int(v) for v in out[:32, 0]], int(out.view(np.uint64)[32, 0])


@pytest.mark.parametrize("space", ["global", "shared"])
@pytest.mark.parametrize(
    ("op", "operands", "start", "step"),
    [
        ("add.u32", "3", 5, lambda old, lane: old + 3),
        ("inc.u32", "7", 0, lambda old, lane: 0 if old >= 7 else old + 1),
        ("dec.u32", "7", 3, lambda old, lane: 7 if old == 0 or old > 7 else old - 1),
        ("max.u32", "%r10", 9, max),
        ("min.u32", "%r10", 9, min),
        ("exch.b32", "%r10", 77, lambda old, lane: lane),
        ("cas.b32", "%r10, 100", 4, lambda old, lane: 100 if old == lane else old),
        ("xor.b32", "%r10", 1, lambda old, lane: old ^ lane),
        ("and.b32", "%r10", 31, lambda old, lane: old & lane),
        ("or.b32", "%r10", 32, lambda old, lane: old | lane),
    ],
)
def test_words(op: str, operands: str, start: int, step: Callable[[int, int], int], space: str) -> None:
    cell, before = start, []
    for lane in range(32):
        before.append(cell)
        cell = step(cell, lane)
    name, kind = op.split(".")
    assert atomic(name, operands, start, kind, space) == (before, cell)


def test_floats_and_pairs_of_halves() -> None:
    before, after = atomic("add", "%f1", 0, "f32")
    sums = np.array([lane * (lane - 1) // 2 for lane in range(32)], np.float32)
    assert before == [int(v) for v in sums.view(np.uint32)]
    assert np.array([after & 0xFFFFFFFF], np.uint32).view(np.float32) == 31 * 16
    half = int(np.array([1.5, -2], np.float16).view(np.uint32)[0])
    _, after = atomic("add.noftz", str(half), 0, "f16x2")
    assert list(np.array([after & 0xFFFFFFFF], np.uint32).view(np.float16)) == [48, -64]
