"""Tensor memory: our kernels run clean and right, planted mistakes are found. No chip has run them."""

from __future__ import annotations

import re
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ptxsan
from tests.blackwell import cases
from tests.hopper import together
from tests.hopper.cases import Launch

# By the kernel, what is said of each mistake.
MISTAKES = tomllib.loads(Path(__file__).with_name("blackwell_mutants.toml").read_text(encoding="utf-8"))
LEGAL = [
    ("gemm", "ONE_WARP_WAITS_AND_FENCES"),
    ("relay", "HANDS_ON_RELAXED"),
    ("relay", "HANDS_ON_BY_A_COMMIT"),
    ("relay", "TAKES_BY_A_BARRIER"),
    ("pair", "NO_MEETING_AT_THE_END"),
    ("pair", "COPIES_FOR_THE_PAIR"),
]


@pytest.fixture(scope="module", autouse=True)
def compiled_together(request: pytest.FixtureRequest) -> None:
    for given in together.needed(request):
        if "mistake" in given:
            getattr(cases, given["kernel"])(given["mistake"]).expect()
        elif "more" in given:
            cases.form(*given["given"], **given["more"]).expect()
        elif "packs" in given:
            for launch in moved(**given):
                launch.expect()
        elif "kernel" in given and "said" not in given:
            getattr(cases, given["kernel"])(*given.get("defines", ())).expect()


def ran(kernel: str, *defines: str) -> tuple[ptxsan.LaunchResult, bool]:
    """What the emulated device says of a launch, and whether it is right."""
    launch: Launch = getattr(cases, kernel)(*defines)
    result = launch.emulate()
    return result, launch.right(result.arrays)


def check(launch: Launch) -> None:
    result = launch.emulate()
    assert launch.right(result.arrays)
    assert (result.hazards, result.notes) == ((), ())


@pytest.mark.turns
@pytest.mark.parametrize(
    ("kernel", "mistake"), [(kernel, mistake) for kernel, of in MISTAKES.items() for mistake in of]
)
def test_a_mistake_is_found(kernel: str, mistake: str) -> None:
    wanted = MISTAKES[kernel][mistake]
    result, right = ran(kernel, mistake)
    if not wanted:
        assert not right
        return
    found = result.notes if wanted.startswith("note: ") else result.hazards
    said = [f"{h.check}: {h.message}" for h in found]
    assert any(re.search(wanted.removeprefix("note: "), one) for one in said), said
    places = {
        (h.file, h.line) for h in found if re.search(wanted.removeprefix("note: "), f"{h.check}: {h.message}")
    }
    assert all(file == f"{kernel}.cu" and line for file, line in places)


@pytest.mark.parametrize(
    ("kernel", "defines"),
    [*((kernel, ()) for kernel in MISTAKES), *((kernel, (legal,)) for kernel, legal in LEGAL)],
)
def test_what_is_right_and_legal_is_not_reported(kernel: str, defines: tuple[str, ...]) -> None:
    check(getattr(cases, kernel)(*defines))


@pytest.mark.parametrize("kernel", list(MISTAKES))
def test_what_is_right_stays_so_in_another_schedule(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ptxsan, "run", partial(ptxsan.run, schedule=7))
    check(getattr(cases, kernel)())


def test_a_pair_with_64_rows_a_block() -> None:
    check(cases.pair(rows=128))


def test_an_mbarrier_that_expects_half_of_what_a_pair_copies() -> None:
    result, _ = ran("pair", "COPIES_FOR_THE_PAIR", "EXPECTS_ITS_OWN_HALF")
    assert re.search(
        "to which a cp.async.bulk.tensor.* is still writing|waits for ever", result.hazards[0].message
    )


F16 = ("f16", "f16", "f32")
FORMS: list[tuple[tuple[str, ...], dict[str, Any]]] = [
    (F16, {}),
    (("f16", "f16", "f16"), {}),
    (("bf16", "f16", "f32"), {}),
    (("tf32", "tf32", "f32"), {}),
    (("u8", "s8", "s32"), {}),
    (("e4m3", "e5m2", "f32"), {}),
    (("e5m2", "e4m3", "f16"), {}),
    ((*F16, "TURN_A=1"), {}),
    ((*F16, "TURN_B=1"), {}),
    ((*F16, "TURN_A=1", "TURN_B=1"), {"swizzle": 64}),
    ((*F16, "TURN_A=1", "TURN_B=1"), {"swizzle": 0}),
    (("s8", "s8", "s32", "TURN_A=1", "TURN_B=1"), {"swizzle": 64}),
    (F16, {"swizzle": 0}),
    (F16, {"swizzle": 32}),
    (F16, {"swizzle": 64}),
    (F16, {"rows": 64}),
    (("f16", "f16", "f16", "MINUS_A=1"), {"rows": 64}),
    ((*F16, "A_IN_TENSOR_MEMORY"), {}),
    ((*F16, "A_IN_TENSOR_MEMORY"), {"rows": 64}),
    (("tf32", "tf32", "f32", "A_IN_TENSOR_MEMORY"), {}),
    (("e4m3", "e4m3", "f32", "A_IN_TENSOR_MEMORY", "MINUS_B=1"), {}),
    ((*F16, "SCALED"), {}),
    ((*F16, "LEAVES_OUT"), {}),
]


@pytest.mark.turns
@pytest.mark.parametrize(("given", "more"), FORMS, ids=lambda each: "-".join(map(str, each)))
def test_a_form(given: tuple[str, ...], more: dict[str, Any]) -> None:
    check(cases.form(*given, **more))


def moved(name: str, stores: bool, packs: bool) -> list[Launch]:
    """Of the first lanes of a warp, and of the others."""
    places = (0,) if name.startswith("32x") else (0, 16)
    return [cases.moves(name, at=at, stores=stores, packs=packs) for at in places]


@pytest.mark.turns
@pytest.mark.parametrize("name", cases.MOVES)
@pytest.mark.parametrize("stores", [False, True], ids=["load", "store"])
@pytest.mark.parametrize("packs", [False, True], ids=["words", "halves"])
def test_a_move(name: str, stores: bool, packs: bool) -> None:
    for launch in moved(name, stores, packs):
        check(launch)


@pytest.mark.parametrize("name", cases.COPIES)
def test_a_copy(name: str) -> None:
    check(cases.copy(name))


# What is not known is told, not computed


@pytest.mark.parametrize(
    ("given", "kernel", "said"),
    [
        (("f16", "f16", "f32", "TYPE_B=3"), "form", "type 3 of .kind::f16 is not one"),
        (("e4m3", "e4m3", "f32", "TYPE_B=5"), "form", "e2m1 of .kind::f8f6f4 is not supported"),
        (("tf32", "tf32", "f32", "TURN_B=1"), "form", "a transposed matrix of tf32"),
    ],
)
def test_a_form_that_is_not_supported(given: tuple[str, ...], kernel: str, said: str) -> None:
    found = getattr(cases, kernel)(*given).emulate().hazards[-1]
    assert found.check == "unsupported"
    assert said in found.message


HEAD = """.version 9.0
.target sm_100a
.address_size 64
.visible .entry k()
{
.reg .b32 %r<9>;
.reg .b64 %rd<9>;
.reg .pred %p<3>;
.shared .align 8 .b32 at;
"""
ALLOC = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [at], 32;\nld.shared.u32 %r1, [at];\n"
FREE = "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r1, 32;\nret;\n}\n"
STORE = (
    "mov.u32 %r2, 7;\ntcgen05.st.sync.aligned.32x32b.x1.b32 [%r1], {%r2};\ntcgen05.wait::st.sync.aligned;\n"
)
LOAD = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r3}, [%r1];\n"
WAIT = "tcgen05.wait::ld.sync.aligned;\n"


@pytest.mark.parametrize(
    ("columns", "meeting", "said"),
    [(64, "bar.sync 0;", ()), (512, "", ()), (512, "bar.sync 0;", ("waits for ever for 512 free columns",))],
)
def test_warps_that_allocate_at_once(columns: int, meeting: str, said: tuple[str, ...]) -> None:
    """Who finds no free columns waits until the other warp gives up its own."""
    text = f"""{HEAD.replace("at;", "at[2];")}mov.u32 %r2, %tid.x;
    shr.u32 %r2, %r2, 5;
    mov.u32 %r3, at;
    mad.lo.u32 %r3, %r2, 4, %r3;
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r3], {columns};
    ld.shared.u32 %r1, [%r3];
    {meeting}
    {FREE.replace("32;", f"{columns};")}"""
    for schedule in (0, 1, 2):
        result = ptxsan.run(text, grid=1, block=64, schedule=schedule)
        assert len(result.hazards) == len(said)
        assert all(one in hazard.message for one, hazard in zip(said, result.hazards, strict=True))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (LOAD + "mov.u32 %r3, 1;\n" + WAIT, "sets %r3, which a tcgen05.ld in flight sets"),
        (LOAD + LOAD + WAIT, "sets %r3, which a tcgen05.ld in flight sets"),
        (LOAD + "add.u32 %r4, %r3, 1;\nmov.u32 %r3, 1;\n" + WAIT, ""),
        (LOAD + WAIT + "mov.u32 %r3, 1;\n", ""),
    ],
)
def test_a_register_that_a_load_sets(body: str, said: str) -> None:
    """Who reads it waits for it (PTX ISA §9.7.16.6.4.5)."""
    result = ptxsan.run(HEAD + ALLOC + STORE + body + FREE, grid=1, block=32)
    assert [said in hazard.message for hazard in result.hazards] == ([True] if said else [])


def test_an_undefined_value_through_tensor_memory() -> None:
    body = STORE.replace("mov.u32 %r2, 7;\n", "") + LOAD + WAIT + "ld.param.u64 %rd1, [out];\n"
    text = HEAD.replace("k()", "k(.param .u64 out)") + ALLOC + body + "st.global.u32 [%rd1], %r3;\n" + FREE
    (found,) = ptxsan.run(text, grid=1, block=32, arguments=[ptxsan.Empty(1, np.uint32)]).hazards
    assert found.check == "uninit"
    assert "stores an undefined value to arg0[0], which comes from register %r2" in found.message


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("tcgen05.shift.cta_group::1.down [%r1];", r"§9\.7\.16\.9\.2, rows of tensor memory moved down"),
        (
            "tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale [%r1], %rd1, %rd2, %r2, [%r3], [%r4], %p1;",
            "with scales or with matrices that stay, is not supported",
        ),
        ("tcgen05.cp.cta_group::1.4x256b [%r1], %rd1;", "of this shape or format is not supported"),
        ("tcgen05.mma.ws.cta_group::1.kind::f16 [%r1], %rd1, %rd2, %r2, %p1;", "with one matrix that stays"),
    ],
)
def test_an_instruction_that_is_not_supported(code: str, said: str) -> None:
    with pytest.raises(ptxsan.PtxError, match=said):
        ptxsan.run(HEAD + ALLOC + code + "\n" + FREE, grid=1, block=32)
