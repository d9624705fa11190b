"""The rules of mbarriers, the async proxy and wgmma: our kernels run clean, planted mistakes are found."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import ptxsan
from ptxsan import native, parse
from ptxsan.nvcc import compile_file
from tests.hopper import cases, together

# By the kernel, what is said of each mistake.
MISTAKES = tomllib.loads(Path(__file__).with_name("hopper_mutants.toml").read_text(encoding="utf-8"))
LEGAL = [
    ("maps", "IN_GLOBAL"),
    ("bulk", "FENCE_AFTER_BARRIER"),
    ("bulk", "WAITS_ENOUGH"),
    ("multicast", "RELAXED_AFTER_FENCE"),
]


@pytest.fixture(scope="module", autouse=True)
def compiled_together(request: pytest.FixtureRequest) -> None:
    for given in together.needed(request):
        if "kernel" in given:
            defines = (given["mistake"],) if "mistake" in given else given.get("defines", ())
            getattr(cases, given["kernel"])(*defines).expect()


def ran(kernel: str, *defines: str) -> tuple[ptxsan.LaunchResult, bool]:
    """What the emulated device says of a launch, and whether it is right."""
    launch: cases.Launch = getattr(cases, kernel)(*defines)
    result = launch.emulate()
    return result, launch.right(result.arrays)


def test_the_code_is_that_of_a_run_of_nvcc_for_it_alone() -> None:
    """And names the same lines."""
    path, variants = cases.HERE / "bulk.cu", ((), ("NO_FENCE",), ("SAME_BUFFER",))
    found = together.compiled(path, "bulk", "sm_90a", variants)
    assert len({*found.values()}) == 3
    for defines, ptx in found.items():
        one, alone = (parse(text, "bulk", "") for text in (ptx, compile_file(path, "sm_90a", defines)))
        told = [[(i.op, i.guard, i.source) for i in entry.code] for entry in (one, alone)]
        assert told[0] == told[1]
        assert len({place.line for _, _, place in told[0]}) > 9
        assert any("hopper.cuh" in place.header for _, _, place in told[0])


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
    assert max(len(h.ptx) for h in found) < 200, said  # an instruction's 64 registers are not the news


@pytest.mark.skipif(native.library() is None, reason=f"straight-line code runs on {native.describe()}")
@pytest.mark.turns
@pytest.mark.parametrize(
    ("kernel", "mistake"), [(kernel, mistake) for kernel, of in MISTAKES.items() for mistake in of]
)
def test_a_mistake_is_told_alike_without_c(
    kernel: str, mistake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast, _ = ran(kernel, mistake)
    monkeypatch.setattr(native, "_found", lambda: "the test asks for it")
    slow, _ = ran(kernel, mistake)
    assert (fast.hazards, fast.notes) == (slow.hazards, slow.notes)


@pytest.mark.parametrize(
    ("kernel", "defines"),
    [*((kernel, ()) for kernel in MISTAKES), *((kernel, (legal,)) for kernel, legal in LEGAL)],
)
def test_what_is_right_and_legal_is_not_reported(kernel: str, defines: tuple[str, ...]) -> None:
    result, right = ran(kernel, *defines)
    assert right
    assert result.clean, result.hazards
    assert defines or not result.notes


@pytest.mark.parametrize("kernel", list(MISTAKES))
def test_what_is_right_stays_so_in_another_schedule(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ptxsan, "run", partial(ptxsan.run, schedule=7))
    result, right = ran(kernel)
    assert (right, result.hazards, result.notes) == (True, (), ())


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        ("NO_RELEASE", "with no fence.proxy.tensormap release after"),
        ("RELEASE_BEFORE", "with no fence.proxy.tensormap release after"),
        ("NO_ACQUIRE", "with no fence.proxy.tensormap acquire of it before"),
        ("ACQUIRE_BEFORE", "with no fence.proxy.tensormap acquire of it before"),
    ],
)
def test_a_tensor_map_that_is_changed_where_it_lies(mistake: str, said: str) -> None:
    result, _ = ran("maps", "IN_GLOBAL", mistake)
    (found,) = result.hazards
    assert f"copies by the tensor map at made[0], which this launch wrote, {said}" in found.message


def test_an_arrival_of_block_scope_tells_no_other_block(tmp_path: Path) -> None:
    text = (cases.HERE / "hopper.cuh").read_text(encoding="utf-8")
    old, new = (f"mbarrier.arrive.release.{scope}.shared::cluster" for scope in ("cluster", "cta"))
    assert old in text
    (tmp_path / "hopper.cuh").write_text(text.replace(old, new), encoding="utf-8")
    (tmp_path / "cluster.cu").write_bytes((cases.HERE / "cluster.cu").read_bytes())
    result = replace(cases.multicast(), file=str(tmp_path / "cluster.cu")).emulate()
    assert any(re.search("copies to .*read with nothing between", h.message) for h in result.hazards)


@pytest.mark.parametrize(
    ("who", "said"),
    [
        ("threadIdx.x == 0", "is executed by a part of its warp"),
        ("threadIdx.x < 32", "is not executed by warp 1, while another warp of its warpgroup executes it"),
        ("threadIdx.x < 128", ""),
    ],
)
def test_setmaxnreg_is_of_a_whole_warpgroup(who: str, said: str) -> None:
    asm = 'asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");'
    source = f'extern "C" __global__ void __launch_bounds__(256) k() {{ if ({who}) {asm} }}\n'
    found = [hazard.message for hazard in ptxsan.run(source, grid=1, block=256).hazards]
    assert [said in message for message in found] == ([True] if said else [])


@pytest.mark.parametrize("gives", [True, False])
def test_registers_that_are_taken_were_given_back(gives: bool) -> None:
    """384 threads start with 168 each: of 256 that have 232 the others must give theirs back."""
    asm = 'asm volatile("setmaxnreg.{}.sync.aligned.u32 {};");'
    give = f"if (threadIdx.x >= 256) {asm.format('dec', 40)} else " if gives else "if (threadIdx.x < 256) "
    source = (
        f'extern "C" __global__ void __launch_bounds__(384, 1) k() {{ {give}{asm.format("inc", 232)} }}\n'
    )
    found = [(hazard.check, hazard.message) for hazard in ptxsan.run(source, grid=2, block=384).hazards]
    said = "registers that no warp gives back: 80896 for the warps of the block, of 65536"
    assert [check == "hang" and said in message for check, message in found] == ([] if gives else [True])


def test_stores_that_nobody_waits_for_are_noted() -> None:
    for mistake in ("NO_STORE_WAIT", "NO_STORE_COMMIT"):
        result, right = ran("pipeline", mistake)
        assert right
        assert any("exits while its bulk copy may still read" in note.message for note in result.notes)


# Undefined values and wgmma: accumulators that are not set, rows of a tile that nobody wrote

SET = "    for (Word& x : d) x = 0;\n"
STORE = "out[row_of(thread, j) * 64 + column_of(thread, j)] = d[j];"
WGMMA = 'asm volatile("wgmma.mma_async'


def edited(folder: Path, rows: int, *edits: tuple[str, str]) -> ptxsan.LaunchResult:
    """The form of FP16 with a tile of A of which so many rows are loaded, its source edited."""
    launch = cases.form("f16", "f32", 128)
    text = (cases.HERE / "forms.cu").read_text(encoding="utf-8")
    whole = "expect_tx(&full, 2 * 64 * 128)"
    for old, new in ((whole, f"expect_tx(&full, (64 + {rows}) * 128)"), *edits):
        assert old in text
        text = text.replace(old, new)
    (folder / "forms.cu").write_text(text, encoding="utf-8")
    (folder / "hopper.cuh").write_bytes((cases.HERE / "hopper.cuh").read_bytes())
    a = ptxsan.Tiled(launch.arguments[0].array, (rows, 64), 128)
    launch = replace(launch, file=str(folder / "forms.cu"), arguments=(a, *launch.arguments[1:]))
    return launch.emulate()


def test_accumulators_that_are_not_set(tmp_path: Path) -> None:
    result = edited(tmp_path, 64, (SET, ""))
    assert {hazard.check for hazard in result.hazards} == {"uninit"}
    assert "which comes from register %f" in result.hazards[0].message


def test_accumulators_that_the_first_product_does_not_read(tmp_path: Path) -> None:
    """With scale-d 0 for the first step, as CUTLASS has it."""
    head, _, tail = WGMMA.partition("wgmma")
    scaled = f"{head}{{.reg .pred p; setp.ne.b32 p, %34, 0; wgmma{tail}"
    edits = [(SET, ""), (WGMMA, scaled), (', 1" SCALES ";"', ', p" SCALES ";}"')]
    edits.append(
        ('"l"(operand(b, step, TURN_B)));\n#endif', '"l"(operand(b, step, TURN_B)), "r"(step));\n#endif')
    )
    result = edited(tmp_path, 64, *edits)
    assert (result.hazards, result.notes) == ((), ())
    assert np.array_equal(result.arrays[3], cases.form("f16", "f32", 128).want[3])


def test_rows_of_a_tile_that_nobody_wrote(tmp_path: Path) -> None:
    """They are rows of the result, and no others: a note where those are not stored."""
    whole = edited(tmp_path, 56)
    places = [int(re.search(r"to out\[(\d+)\]", h.message)[1]) for h in whole.hazards]  # type: ignore[index]
    assert {hazard.check for hazard in whole.hazards} == {"uninit"}
    assert all(place >= 56 * 64 for place in places)
    guarded = edited(tmp_path, 56, (STORE, f"if (row_of(thread, j) < 56) {STORE}"))
    assert guarded.hazards == ()
    assert {note.check for note in guarded.notes} == {"uninit"}
    assert np.array_equal(guarded.arrays[3][:56], cases.form("f16", "f32", 128).want[3][:56])
