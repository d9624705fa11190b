"""Accesses beyond plain loads and stores: parts of a cp.async, cache hints, 32 bytes, atomics on vectors."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from ptxsan import PtxError
from tests.ptxsan.rig import Array, execute, hazards, kernel, launch, numbers, per_lane

CELLS = ".shared .align 16 .b8 cells[512];\n"
AT = "mov.u32 %r20, cells;\nshl.b32 %r21, %r1, 4;\nadd.u32 %r20, %r20, %r21;\n"


def copied(copy: str, source: Array, column: int) -> list[int]:
    """A word of what a cp.async of 16 bytes a lane leaves in shared memory; %r10 is the lane mod 17."""
    body = AT + "rem.u32 %r10, %r1, 17;\nsetp.gt.u32 %p1, %r10, 8;\nmov.b64 %rd7, 0;\n"
    body += (
        copy + f"\ncp.async.wait_all;\nld.shared.u32 %r11, [%r20+{4 * column}];\nst.global.u32 [%rd6], %r11;"
    )
    out, report = execute(kernel(body, inside=CELLS), source)
    assert report.hazards == []
    return [int(v) for v in out[:, 0]]


def test_cp_async_of_a_part_of_its_bytes() -> None:
    """The first bytes are copied, the rest is zeros; and only the first are read."""
    source = numbers(32) + 0x01020304
    for column in range(4):
        got = copied("cp.async.cg.shared.global [%r20], [%rd4], 16, %r10;", source, column)
        octets = source.view(np.uint8).reshape(32, 16).copy()
        for lane in range(32):
            octets[lane, min(lane % 17, 16) :] = 0
        assert got == octets.view(np.uint32)[:, column].tolist()


def test_cp_async_that_ignores_its_source() -> None:
    source = numbers(32) + 1
    got = copied("cp.async.ca.shared.global.L2::cache_hint [%r20], [%rd4], 16, %p1, %rd7;", source, 1)
    assert got == [0 if lane % 17 > 8 else int(source[lane, 1]) for lane in range(32)]


def test_cp_async_past_the_end_of_a_buffer() -> None:
    """Zeros may be copied from anywhere; a byte more than there is may not."""
    body = (
        AT + "add.s64 %rd7, %rd4, 8;\nmov.u32 %r10, {};\ncp.async.ca.shared.global [%r20], [%rd7], 8, %r10;\n"
    )
    last = "setp.ne.u32 %p1, %r1, 31;\n@%p1 bra END;\nadd.s64 %rd7, %rd4, 16;\nbra COPY;\nEND:\n"
    last += "add.s64 %rd7, %rd4, 0;\nCOPY:\n"
    text = body.replace("add.s64 %rd7, %rd4, 8;\n", last)
    assert hazards(text.format(0), CELLS) == []
    assert any("bounds: " in said for said in hazards(text.format(1), CELLS))


def test_sizes_that_cp_async_has_not() -> None:
    with pytest.raises(PtxError, match=r"unknown form of cp, .* \(8 bytes\)"):
        hazards(AT + "cp.async.cg.shared.global [%r20], [%rd4], 8;", CELLS)


def test_cache_hints_change_nothing() -> None:
    body = "createpolicy.fractional.L2::evict_last.L2::evict_unchanged.b64 %rd7, 1.0;\n"
    body += "prefetch.global.L2 [%rd4];\n"
    body += "applypriority.global.L2::evict_normal [%rd4], 128;\n"
    body += "ld.global.nc.L1::no_allocate.L2::cache_hint.L2::256B.v2.u32 {%r10, %r11}, [%rd4], %rd7;\n"
    body += "add.u32 %r10, %r10, %r11;\nst.global.L1::no_allocate.L2::cache_hint.u32 [%rd6], %r10, %rd7;\n"
    assert per_lane(body + "fence.acq_rel.cta;\nfence.sc.sys;\nmembar.gl;") == [
        8 * lane + 1 for lane in range(32)
    ]


def test_32_bytes_at_once() -> None:
    source = np.arange(256, dtype=np.uint32).reshape(32, 8)
    names = "{" + ", ".join(f"%r{10 + j}" for j in range(8)) + "}"
    body = "mul.wide.u32 %rd20, %r1, 32;\nadd.s64 %rd21, %rd20, %rd11;\nadd.s64 %rd20, %rd20, %rd10;\n"
    body += (
        f"ld.global.v8.b32 {names}, [%rd21];\nadd.u32 %r17, %r17, %r10;\nst.global.v8.b32 [%rd20], {names};"
    )
    out, report = launch(body, [source], np.zeros((32, 8), np.uint32))
    assert report.hazards == []
    want = source.copy()
    want[:, 7] += want[:, 0]
    assert np.array_equal(out, want)
    _, report = launch(body.replace("[%rd21]", "[%rd21+16]"), [source], np.zeros((32, 8), np.uint32))
    assert [h.check for h in report.hazards] == ["misaligned"]


@pytest.mark.parametrize(
    ("kind", "width", "dtype", "operation"),
    [
        ("add.v2.f32", 8, np.float32, np.add),
        ("add.v4.f32", 16, np.float32, np.add),
        ("add.noftz.v2.f16", 4, np.float16, np.add),
        ("add.noftz.f16x2", 4, np.float16, np.add),
        ("max.noftz.v4.bf16", 8, ml_dtypes.bfloat16, np.maximum),
        ("add.noftz.v2.bf16x2", 8, ml_dtypes.bfloat16, np.add),
        ("min.noftz.v8.f16", 16, np.float16, np.minimum),
    ],
)
def test_atomics_on_vectors(kind: str, width: int, dtype: type, operation: np.ufunc) -> None:
    """Each lane on a place of its own; then all of a warp on one."""
    item = np.dtype(dtype).itemsize
    values: Array = np.random.default_rng(4).integers(-8, 9, (64, width // item)).astype(dtype)
    element = kind.rsplit(".", 1)[1]
    registers, size = ("f", 4) if element == "f32" else ("r", 4) if element.endswith("x2") else ("rs", 2)
    names = [f"%{registers}{j}" for j in range(width // size)]
    names = [n.replace("%r", "%r1") if registers == "r" else n for n in names]
    vector = "{" + ", ".join(names) + "}" if ".v" in kind else names[0]
    body = f"mul.wide.u32 %rd20, %r1, {width};\nadd.s64 %rd21, %rd20, %rd11;\n"
    body += "".join(f"ld.global.b{8 * size} {n}, [%rd21+{size * j}];\n" for j, n in enumerate(names))
    body += f"add.s64 %rd22, %rd20, %rd10;\nred.global.{kind} [%rd22], {vector};\n"
    out, report = launch(body, [values[:32]], values[32:].copy())
    assert report.hazards == []
    assert np.array_equal(out.view(dtype), operation(values[32:], values[:32]))
    one = body.replace("add.s64 %rd22, %rd20, %rd10", "mov.b64 %rd22, %rd10")
    out, report = launch(one, [values[:32]], np.zeros((1, width // item), dtype))
    assert report.hazards == []
    whole = operation.reduce(values[:32].astype(np.float64), axis=0)
    if operation is not np.add:
        whole = operation(whole, 0)
    assert np.array_equal(out.astype(np.float64)[0], whole)


def test_sums_to_global_memory_flush_subnormal_numbers() -> None:
    tiny = np.array([[2.0**-140, 2.0**-126]], np.float32)
    body = "setp.ne.u32 %p1, %r1, 0;\n@%p1 bra END;\nmov.f32 %f1, 0f00000200;\n"
    body += "red.global.add.f32 [%rd10], %f1;\nred.global.add.f32 [%rd10+4], %f1;\nEND:\n"
    out, _ = launch(body, [], tiny.copy())
    assert out.tolist() == [[0, 2.0**-126]]


def test_an_atomic_whose_lanes_mean_several_spaces() -> None:
    body = "mov.b64 %rd20, cells;\ncvta.shared.u64 %rd20, %rd20;\nsetp.lt.u32 %p1, %r1, 16;\n"
    body += "selp.b64 %rd21, %rd20, %rd10, %p1;\nst.shared.u32 [cells], %r1;\nbar.sync 0;\nmov.u32 %r10, 1;\n"
    body = body.replace("st.shared.u32", "setp.ne.u32 %p2, %r1, 0;\n@!%p2 st.shared.u32")
    body += "atom.add.u32 %r11, [%rd21], %r10;\nbar.sync 0;\nld.shared.u32 %r12, [cells];\n"
    body += "@!%p2 st.global.u32 [%rd10+4], %r12;"
    out, report = launch(body, [], np.zeros((1, 2), np.uint32), inside=CELLS)
    assert report.hazards == []
    assert out.tolist() == [[16, 16]]


def test_state_spaces_of_generic_addresses() -> None:
    body = "mov.u64 %rd10, cells;\ncvta.shared.u64 %rd10, %rd10;\nmov.u64 %rd11, fixed;\n"
    body += "cvta.const.u64 %rd11, %rd11;\n"
    body += "mov.u32 %r10, 0;\n"
    bit = 1
    for pointer in ("%rd10", "%rd11", "%rd4"):
        for space in ("shared", "const", "global", "local"):
            body += f"isspacep.{space} %p1, {pointer};\n@%p1 or.b32 %r10, %r10, {bit};\n"
            bit *= 2
    body += "ld.u32 %r11, [%rd11+4];\nshl.b32 %r11, %r11, 16;\nor.b32 %r10, %r10, %r11;\n"
    body += "st.global.u32 [%rd6], %r10;"
    out, report = execute(kernel(body, ".const .align 4 .u32 fixed[2] = {7, 9};", CELLS), numbers(32))
    assert report.hazards == []
    assert set(out[:, 0].tolist()) == {1 << 0 | 1 << 5 | 1 << 10 | 9 << 16}


def test_clocks_go_on_and_sizes_are_known() -> None:
    """A kernel that waits for a time ends."""
    body = "mov.u64 %rd7, %clock64;\nLOOP:\nmov.u64 %rd8, %clock64;\nsub.u64 %rd8, %rd8, %rd7;\n"
    body += "nanosleep.u32 100;\nsetp.lt.u64 %p1, %rd8, 100000;\n@%p1 bra LOOP;\n"
    body += "mov.u32 %r10, %total_smem_size;\n"
    body += "mov.u32 %r11, %dynamic_smem_size;\nadd.u32 %r10, %r10, %r11;\nmov.u32 %r12, %smid;\n"
    body += "mov.u32 %r13, %nsmid;\n"
    body += "setp.lt.u32 %p2, %r12, %r13;\n@%p2 add.u32 %r10, %r10, 1;\nst.global.u32 [%rd6], %r10;"
    out, report = execute(kernel(body, inside=CELLS), numbers(32), dynamic_shared=256)
    assert report.hazards == []
    assert set(out[:, 0].tolist()) == {512 + 256 + 256 + 1}


def test_128_bits_at_once() -> None:
    """Exchanged, and compared by all their bits: −0.0 is no 0.0, and a NaN is itself."""
    wide = np.array([[1, 2], [1 << 63, 2], [0x7FF8 << 48, 5], [7, 7]], np.uint64)
    body = ".reg .b128 %q<4>;\nrem.u32 %r10, %r1, 4;\nmul.wide.u32 %rd20, %r1, 16;\n"
    body += "add.s64 %rd21, %rd20, %rd10;\n"
    body += "mul.wide.u32 %rd22, %r10, 16;\nadd.s64 %rd22, %rd22, %rd11;\nld.global.b128 %q1, [%rd22];\n"
    body += "atom.global.exch.b128 %q2, [%rd21], %q1;\nmov.b128 {%rd23, %rd24}, %q1;\n"
    body += "setp.eq.u32 %p1, %r10, 1;\nselp.b64 %rd23, 0, %rd23, %p1;\nmov.b128 %q3, {%rd23, %rd24};\n"
    body += "mov.b128 %q1, {%rd10, %rd10};\nmov.b64 %rd25, 99;\nmov.b128 %q1, {%rd25, %rd25};\n"
    body += "atom.global.cas.b128 %q2, [%rd21], %q3, %q1;\nadd.s64 %rd21, %rd21, 512;\n"
    body += "st.global.b128 [%rd21], %q2;"
    out, report = launch(body, [wide], np.zeros((64, 2), np.uint64))
    assert report.hazards == []
    held = np.tile(wide, (8, 1))
    assert np.array_equal(out[32:], held)
    held[np.arange(32) % 4 != 1] = 99
    assert np.array_equal(out[:32], held)


def test_a_predicate_that_is_negated_as_an_operand() -> None:
    body = "setp.lt.u32 %p1, %r1, 8;\nsetp.lt.and.u32 %p2, %r1, 16, !%p1;\nselp.u32 %r10, 1, 0, %p2;\n"
    assert per_lane(body + "st.global.u32 [%rd6], %r10;") == [int(8 <= lane < 16) for lane in range(32)]
