"""C and NumPy give the same bits, the same hazards and the same counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness import ptx
from harness.devices.emulated import device as emulated
from harness.devices.emulated.device import EmulatedDevice
from harness.model import Case, Kernel
from harness.oracle import make_inputs
from harness.ptx import Counters
from harness.ptx.native import build
from harness.ptx.native.operations import OPERATIONS, SIZES
from tests.ladder import LADDER, select
from tests.mutants import MUTANTS, Mutant, real
from tests.mutants import build as build_mutant

needs_c = pytest.mark.skipif(build.library() is None, reason=f"straight-line code runs on {build.describe()}")
LANES = 2080  # more than a strip, and not a multiple of one


def on_numpy(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(build, "_found", lambda: "the test asks for it")


# Every operation

_SUFFIX = {1: "u8", 2: "b16", 4: "b32", 8: "b64"}
_SPECIAL32 = [0, 1, 2, 3, 5, 31, 32, 33, 63, 64, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x3F800000, 0xBF800000]
_SPECIAL32 += [0x00000001, 0x807FFFFF, 0x00800000, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7F800001, 0xFFC12345]


def operands(count: int, seed: int) -> list[Any]:
    """Any bits, and often those where something special happens."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        any_bits = rng.integers(0, 1 << 64, LANES, np.uint64)
        special = rng.choice(np.array(_SPECIAL32, np.uint64), LANES)
        far = rng.choice(np.array([0, 0xFFFFFFFF00000000, 0x8000000000000000], np.uint64), LANES)
        kind = rng.integers(0, 3, LANES)
        found.append(np.where(kind == 0, any_bits, special | np.where(kind == 1, far, np.uint64(0))))
    return found


def one_operation(op: str, masked: bool) -> str:
    """A kernel of one instruction on 8 bytes of each operand; ``masked``: in a part of the threads."""
    operation = OPERATIONS[op]
    lines, names = [], []
    for i, kind in enumerate((operation.result, *operation.operands)):
        size = SIZES[kind]
        names.append(f"%v{i}_{size}" if kind != "float" else f"%v{i}_f")
        if i:
            load = {1: "u32 %narrow", 2: f"u16 {names[-1]}"}.get(size, f"{_SUFFIX[size]} {names[-1]}")
            lines.append(f"ld.global.{load}, [%at{i}];")
            if size == 1:
                lines += ["and.b32 %narrow, %narrow, 1;", f"setp.ne.u32 {names[-1]}, %narrow, 0;"]
    d, *sources = names
    before = {
        1: f"setp.ne.u32 {d}, 1, 1;",
        4: f"mov.b32 {d}, 7;",
        8: f"mov.b64 {d}, 7;",
        2: f"mov.b16 {d}, 7;",
    }
    lines.append(before[SIZES[operation.result]])
    lines += ["@%half bra $END;"] if masked else []
    ptx_op = (
        op
        if not op.startswith("copy")
        else f"mov.{'pred' if op.endswith('1') else 'b' + str(8 * int(op[-1]))}"
    )
    lines += [f"{ptx_op} {d}, {', '.join(sources)};", "$END:"]
    store = {1: "u32", 2: "u16"}.get(SIZES[operation.result], _SUFFIX[SIZES[operation.result]])
    if SIZES[operation.result] == 1:
        lines.append(f"selp.b32 %narrow, 1, 0, {d};")
        d = "%narrow"
    lines.append(f"st.global.{store} [%at0], {d};")
    kinds = {1: "pred", 2: "b16", 4: "b32", 8: "b64"}
    registers = "\n".join(f".reg .{kind} %v{i}_{size};" for i in range(4) for size, kind in kinds.items())
    registers += "\n".join(f".reg .f32 %v{i}_f;" for i in range(4))
    addresses = "\n".join(
        f"ld.param.u64 %at{i}, [p{i}];\nadd.s64 %at{i}, %at{i}, %offset;" for i in range(1 + len(sources))
    )
    parameters = ", ".join(f".param .u64 p{i}" for i in range(1 + len(sources)))
    return f"""
.version 9.0
.target sm_90a
.address_size 64
.visible .entry k({parameters})
{{
{registers}
.reg .b64 %at<4>;
.reg .b64 %offset;
.reg .b32 %t<5>;
.reg .b32 %narrow;
.reg .pred %half;
mov.u32 %t1, %tid.x;
mov.u32 %t2, %ctaid.x;
mov.u32 %t3, %ntid.x;
mad.lo.s32 %t1, %t2, %t3, %t1;
mul.wide.u32 %offset, %t1, 8;
{addresses}
and.b32 %t4, %t1, 5;
setp.eq.u32 %half, %t4, 4;
{chr(10).join(lines)}
ret;
}}
"""


@needs_c
@pytest.mark.parametrize("op", OPERATIONS)
def test_an_operation_gives_the_bits_of_numpy(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = operands(len(OPERATIONS[op].operands), seed=list(OPERATIONS).index(op))
    for masked in (False, True):
        text = one_operation(op, masked)
        arguments = [ptx.Empty(LANES, np.uint64), *given]
        fast = ptx.run(text, grid=LANES // 32, block=32, arguments=arguments)
        with monkeypatch.context() as patch:
            on_numpy(patch)
            slow = ptx.run(text, grid=LANES // 32, block=32, arguments=arguments)
        assert fast.hazards == slow.hazards == ()
        np.testing.assert_array_equal(fast.arrays[0], slow.arrays[0], err_msg=text)
        assert len(np.unique(fast.arrays[0])) > 1


# Kernels


def both(run: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    fast = run()
    with monkeypatch.context() as patch:
        on_numpy(patch)
        return fast, run()


def of_case(case: Case, counting: bool = True) -> Any:
    """Everything that a launch gives."""
    emulated._prepared.cache_clear()
    device, counters = EmulatedDevice(), Counters() if counting else None
    inputs = make_inputs(case.kernel.operation, case.problem, case.dtype, "normal")
    (output,) = device.run_all([case], [inputs], counters)
    counts = [(i.line, tally) for i, tally in counters.tallies()] if counters else []
    return output.result.tobytes(), output.violations, counts, device.lane_instructions


def a_case(kernel: Kernel) -> Case:
    """Of the default config, the largest of its small problems."""
    of_default = [c for c in select("full", (kernel.name,)).verify if c.config == kernel.configs[0]]
    small = [c for c in of_default if c.problem.m * c.problem.n * c.problem.k * c.problem.batch < 1_000_000]
    return max(small, key=lambda c: c.problem.m * c.problem.n * c.problem.k)


@needs_c
@pytest.mark.parametrize("kernel", [k for k in LADDER if not k.library], ids=lambda kernel: kernel.name)
def test_a_kernel_gives_what_it_gives_on_numpy(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    case = a_case(kernel)
    for counting in (True, False):
        fast, slow = both(lambda counting=counting: of_case(case, counting), monkeypatch)  # type: ignore[misc]
        assert fast == slow
        assert not fast[1]


WRONG = {"first_barrier", "register_barrier", "wait_missing", "early_return", "barrier_of_some_columns"}
WRONG |= {"syncwarp_before_reading", "overlapping_blocks"}


@needs_c
@pytest.mark.parametrize("mutant", [m for m in MUTANTS if m.name in WRONG], ids=lambda mutant: mutant.name)
def test_a_broken_kernel_breaks_alike(
    mutant: Mutant, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    case = replace(a_case(real(mutant)), kernel=build_mutant(mutant, tmp_path))
    fast, slow = both(lambda: of_case(case), monkeypatch)
    assert fast == slow
    assert fast[1]


# Where it cannot be built


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """As in a process that has not looked yet, with an empty cache."""
    monkeypatch.setattr(build, "_found", build._found.__wrapped__)
    monkeypatch.setenv("GEMM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("GEMM_NUMPY", raising=False)
    return tmp_path


def test_no_compiler(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(fresh))
    assert build.library() is None
    assert build.describe() == "NumPy alone: no C compiler"


def test_a_compiler_that_fails(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (fresh / "cc").write_text("#!/bin/sh\necho no room >&2\nexit 1\n")
    (fresh / "cc").chmod(0o755)
    monkeypatch.setenv("PATH", str(fresh))
    assert build.describe() == f"NumPy alone: {fresh}/cc failed: no room"


def test_a_compiler_that_makes_something_else(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (fresh / "cc").write_text('#!/bin/sh\nfor last; do :; done\necho nothing > "$last"\n')
    (fresh / "cc").chmod(0o755)
    monkeypatch.setenv("PATH", str(fresh))
    assert build.library() is None
    assert build.describe().startswith("NumPy alone: ")


def test_a_cache_that_cannot_be_written(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (fresh / "file").write_text("")
    monkeypatch.setenv("GEMM_CACHE_DIR", str(fresh / "file"))
    assert build.library() is None
    assert build.describe().startswith("NumPy alone: ")


def test_numpy_is_asked_for(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMM_NUMPY", "1")
    assert build.describe() == "NumPy alone: GEMM_NUMPY is set"


@needs_c
def test_it_is_compiled_once(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert build.library() is not None
    (made,) = (fresh / "cache").iterdir()
    monkeypatch.setattr(build, "_compile", lambda *_: pytest.fail("compiled again"))
    assert build.library() is not None
    assert list((fresh / "cache").iterdir()) == [made]
