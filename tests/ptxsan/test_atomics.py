"""Atomic operations: one lane after another, in global and in shared memory."""

from __future__ import annotations

import numpy as np
import pytest

from ptxsan import PtxError
from tests.ptxsan.rig import checks, execute, kernel, numbers

WIDE = ".global .align 8 .b8 cell[8] = {{{}}};"


def atomic(
    op: str, operands: str, start: int, kind: str = "u32", space: str = "global"
) -> tuple[list[int], int]:
    """What 32 lanes get of one cell that holds ``start``, in order, and what it holds then. %r10 is the lane,
    %rd7 the lane in 64 bits, %f1 in FP32."""
    data = ", ".join(str(b) for b in start.to_bytes(8, "little"))
    wide = kind.endswith("64")
    target = "%rd8" if wide else "%f2" if kind == "f32" else "%r11"
    move = "ld.global.u64 %rd9, [cell];\nst.shared.u64 [mine], %rd9;\nbar.warp.sync -1;\n"
    body = "mov.u32 %r10, %r1;\ncvt.u64.u32 %rd7, %r1;\ncvt.rn.f32.u32 %f1, %r1;\n"
    body += move if space == "shared" else ""
    cell = "mine" if space == "shared" else "cell"
    body += f"atom.{space}.{op}.{kind} {target}, [{cell}], {operands};\n"
    body += (
        f"st.global.{'u64' if wide else 'f32' if kind == 'f32' else 'u32'} [%rd6], {target};\nbar.sync 0;\n"
    )
    last = f"setp.ne.u32 %p1, %r1, 0;\n@%p1 bra $END;\nld.{space}.u64 %rd9, [{cell}];\n"
    last += "st.global.u64 [%rd6+256], %rd9;\n"
    text = kernel(body + last + "$END:\n", WIDE.format(data), ".shared .align 8 .b8 mine[8];")
    # Block 0 leaves the cell where block 1's results would be.
    text = text.replace(
        "mov.u32 %r1, %tid.x;",
        "mov.u32 %r2, %ctaid.x;\nsetp.ne.u32 %p2, %r2, 0;\n@%p2 ret;\nmov.u32 %r1, %tid.x;",
        1,
    )
    out, report = execute(text, numbers(64))
    assert [h.check for h in report.hazards] == (["race"] if space == "shared" else [])  # the cell's start
    held = out.view(np.uint64)[:, 0]
    got = held[:32] if wide else out[:32, 0]
    return [int(v) for v in got], int(held[32])


@pytest.mark.parametrize("space", ["global", "shared"])
@pytest.mark.parametrize(
    ("op", "operands", "start", "step"),
    [
        ("add", "3", 5, lambda old, lane: old + 3),
        ("inc", "7", 0, lambda old, lane: 0 if old >= 7 else old + 1),
        ("dec", "7", 3, lambda old, lane: 7 if old == 0 or old > 7 else old - 1),
        ("max", "%r10", 9, max),
        ("min", "%r10", 9, min),
        ("exch", "%r10", 77, lambda old, lane: lane),
        ("cas", "%r10, 100", 4, lambda old, lane: 100 if old == lane else old),
        ("xor", "%r10", 1, lambda old, lane: old ^ lane),
        ("and", "%r10", 31, lambda old, lane: old & lane),
        ("or", "%r10", 32, lambda old, lane: old | lane),
    ],
)
def test_words(op: str, operands: str, start: int, step: object, space: str) -> None:
    assert callable(step)
    kind = "b32" if op in ("exch", "cas", "xor", "and", "or") else "u32"
    cell, before = start, []
    for lane in range(32):
        before.append(cell)
        cell = step(cell, lane)
    assert atomic(op, operands, start, kind, space) == (before, cell)


def test_floats_and_pairs_of_halves() -> None:
    before, after = atomic("add", "%f1", 0, "f32")
    sums = np.array([lane * (lane - 1) // 2 for lane in range(32)], np.float32)
    assert before == [int(v) for v in sums.view(np.uint32)]
    assert np.array([after & 0xFFFFFFFF], np.uint32).view(np.float32) == 31 * 16
    half = int(np.array([1.5, -2], np.float16).view(np.uint32)[0])
    _, after = atomic("add.noftz", str(half), 0, "f16x2")
    assert list(np.array([after & 0xFFFFFFFF], np.uint32).view(np.float16)) == [48, -64]


@pytest.mark.parametrize(
    "how", ["", ".relaxed.gpu", ".acquire.gpu", ".release.gpu", ".acq_rel.gpu", ".relaxed.sys"]
)
def test_every_order_and_scope(how: str) -> None:
    body = f"atom{how}.global.add.u32 %r10, [cell], 1;\nred{how}.global.add.u32 [cell], 1;\n"
    assert checks(body, outside=".global .align 4 .u32 cell;") == []


@pytest.mark.parametrize("load", ["ld.volatile.global", "ld.relaxed.gpu.global", "ld.acquire.gpu.global"])
def test_a_strong_load_of_what_atomics_count_is_no_race(load: str) -> None:
    body = f"atom.global.add.u32 %r10, [cell], 1;\n{load}.u32 %r11, [cell];\n"
    assert checks(body, blocks=2, outside=".global .align 4 .u32 cell;") == []
    plain = body.replace(load, "ld.global")
    assert checks(plain, blocks=2, outside=".global .align 4 .u32 cell;") == ["race"]


@pytest.mark.parametrize("store", ["st.relaxed.gpu.global", "st.release.gpu.global"])
def test_strong_stores_do_not_clash(store: str) -> None:
    body = f"{store}.u32 [cell], %r1;\n"
    assert checks(body, blocks=2, outside=".global .align 4 .u32 cell;") == []
    plain = body.replace(store, "st.global")
    assert checks(plain, blocks=2, outside=".global .align 4 .u32 cell;") == ["race"]


@pytest.mark.parametrize(
    "op", ["atom.global.min.f32 %f1, [cell], %f2", "atom.global.add.u16 %rs1, [cell], %rs2"]
)
def test_what_there_is_not_is_refused(op: str) -> None:
    with pytest.raises(PtxError, match="unknown form of atom"):
        checks(f"{op};", outside=".global .align 4 .u32 cell;")
