"""Compiler metrics: read from a listing of nvdisasm's, compared, and stored so that what cannot be trusted is
refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gemm_regression.compiler import objects
from gemm_regression.compiler.nvcc import compile_cubin
from gemm_regression.compiler.static import StaticFigures, compare, store
from gemm_regression.compiler.static.store import StoreError
from gemm_regression.compiler.tools import Nvcc, ToolchainError
from gemm_regression.model import F32, BlockShape, Config, Kernel
from tests.ladder import PROJECT

# A copy of a float4 each through shared memory, then c = v.x * v.y + v.z * v.w; and c = 1.
LISTING = (Path(__file__).parent / "nvdisasm_sm_90a.txt").read_text()
SIZES = [640, 384]


def test_the_recorded_kernels_are_told_apart() -> None:
    found = objects.count_opcodes(LISTING, SIZES)
    first, second = map(objects.instruction_mix, found)
    assert first == {
        **{"BAR": 1, "BRA": 1, "FFMA": 1, "FMUL": 1, "LDG.128": 1, "LDS.128": 1, "STG.32": 1, "STS.128": 1},
        "total": 26,
    }
    assert second == {"BRA": 1, "STG.32": 1, "total": 9}
    assert found[0]["EXIT"] == 2  # one of them @P0
    assert sum(found[0].values()) == 640 / 16


@pytest.mark.parametrize(
    "damaged",
    [
        LISTING.replace("        /*0160*/                   FFMA R5, R4, R5, R7 ;\n", ""),
        *(LISTING[:1500], "", LISTING.replace("/*", "<").replace("*/", ">")),
    ],
    ids=["a line lost", "truncated", "empty", "another format"],
)
def test_a_listing_that_lacks_instructions_is_refused(damaged: str) -> None:
    """Counted as fewer, they would be a change of the kernel that nobody made."""
    with pytest.raises(ToolchainError, match=r"listed \d+ instructions, but the code has 64"):
        objects.count_opcodes(damaged, SIZES)


@pytest.mark.parametrize(
    ("opcode", "counted"),
    [
        *(("LDS", "LDS.32"), ("LDS.U.64", "LDS.64"), ("STS.U16", "STS.16"), ("LDG.E.U8.CONSTANT", "LDG.8")),
        *(("LDG.E.LTC128B.64.CONSTANT", "LDG.64"), ("LDGSTS.E.BYPASS.128", "LDGSTS.128")),
        *(("LD.E", "LD.32"), ("LDL.LU", "LDL.32"), ("LDSM.16.MT88.4", "LDSM"), ("FFMA.FTZ", "FFMA")),
        *((whole, whole) for whole in ("HMMA.16816.F32.BF16", "HMMA.16816.F16", "FFMA2")),
        ("HGMMA.64x256x16.F32.BF16", "HGMMA.64x256x16.F32.BF16"),
        *(("BAR.SYNC.DEFER_BLOCKING", "BAR"), ("BRA.U", "BRA")),
    ],
)
def test_an_opcode_is_counted_as(opcode: str, counted: str) -> None:
    assert objects.instruction_mix({opcode: 3}) == {counted: 3, "total": 3}


def test_the_rest_counts_in_the_total_only_and_padding_not_at_all() -> None:
    """HFMA2.MMA has nothing of tensor cores: it is how a constant reaches a register."""
    rest = {"HFMA2.MMA": 1, "LDC.64": 1, "IMAD": 1, "BSSY": 1, "LEA.HI": 1, "NOP": 14}
    assert objects.instruction_mix(rest) == {"total": 5}


def planted(folder: Path, body: str, name: str = "planted") -> Kernel:
    source = folder / f"{name}.cu"
    source.write_text(body)
    shape = BlockShape((32, 1), (1, 32))
    return Kernel(name, source, "gemm_planted", shape)


@pytest.fixture
def nvdisasm(pinned_compiler: tuple[Nvcc, Nvcc]) -> Nvcc:
    return pinned_compiler[1]


@pytest.mark.compile
@pytest.mark.usefixtures("cache")
class TestTheDisassembler:
    ONE = 'extern "C" __global__ void gemm_planted(float* c) { c[threadIdx.x] = 1.0f; }\n'
    TWO = 'extern "C" __global__ void gemm_planted(float4* c) { c[threadIdx.x] = c[threadIdx.x + 1]; }\n'

    def cubins(self, folder: Path, arch: str) -> list[bytes]:
        kernels = [planted(folder, body, f"k{i}") for i, body in enumerate((self.ONE, self.TWO))]
        made = [compile_cubin(kernel, Config(), F32, arch) for kernel in kernels]
        return [objects.code(binary.cubin, binary.symbol) for binary in made]

    @pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a", "sm_120a"])
    def test_reads_every_architecture(self, arch: str, tmp_path: Path, nvdisasm: Nvcc) -> None:
        one, two = map(objects.instruction_mix, objects.opcodes(self.cubins(tmp_path, arch), arch, nvdisasm))
        assert (one["STG.32"], two["LDG.128"], two["STG.128"]) == (1, 1, 1)
        assert "LDG.128" not in one

    def test_what_the_cache_holds_is_not_read_again(self, tmp_path: Path, nvdisasm: Nvcc) -> None:
        one, two = self.cubins(tmp_path, "sm_80")
        first = objects.opcodes([two], "sm_80", nvdisasm)
        gone = replace(nvdisasm, path=Path("/nowhere"))
        assert objects.opcodes([two, two], "sm_80", gone) == first * 2
        with pytest.raises(ToolchainError, match="/nowhere cannot be run"):
            objects.opcodes([one, two], "sm_80", gone)

    def test_a_failure_of_it_is_one_line(self, tmp_path: Path, nvdisasm: Nvcc) -> None:
        with pytest.raises(ToolchainError, match="nvdisasm failed") as caught:
            objects.opcodes(self.cubins(tmp_path, "sm_80"), "sm_999", nvdisasm)
        assert "\n" not in str(caught.value)


# What a change reads like

COUNTS: dict[str, Any] = {
    **{"registers": 96, "shared_bytes": 8192, "local_bytes": 0, "constant_bytes": 588, "barriers": 1},
    **{"spill_store_bytes": 0, "spill_load_bytes": 0, "blocks": 2},
}
BEFORE = StaticFigures(
    **COUNTS,
    occupancy=0.25,
    limited_by="registers",
    instruction_mix={
        **{"BAR": 2, "FFMA": 512, "LDG.128": 2, "LDS.128": 16, "STG.128": 16, "STS.32": 4},
        "total": 900,
    },
)


def with_mix(**changes: int) -> StaticFigures:
    made = dict(BEFORE.instruction_mix) | {name.replace("_", "."): count for name, count in changes.items()}
    return replace(BEFORE, instruction_mix={name: count for name, count in made.items() if count})


def test_equal_figures_are_no_change_and_several_changes_are_all_told() -> None:
    again = dict(reversed(list(BEFORE.instruction_mix.items())))
    assert compare(BEFORE, replace(BEFORE, instruction_mix=again)) == []
    after = replace(with_mix(LDS_128=0, LDS_32=64), registers=128, blocks=1, occupancy=0.125)
    assert "; ".join(compare(BEFORE, after)) == (
        "LDS.128 16 -> 0; LDS.32 0 -> 64; registers 96 -> 128; occupancy 25 % -> 12.5 % (registers)"
    )


@pytest.mark.parametrize(
    ("after", "phrases"),
    [
        (with_mix(LDG_128=3), "LDG.128 2 -> 3"),
        (
            with_mix(FFMA=0, FADD=512, **{"HMMA.16816.F32": 8}),
            "FADD 0 -> 512; FFMA 512 -> 0; HMMA.16816.F32 0 -> 8",
        ),
        (with_mix(BAR=1, total=901), "BAR 2 -> 1; instructions 900 -> 901"),
        (
            replace(with_mix(LDL_32=3), local_bytes=8, spill_store_bytes=8, spill_load_bytes=12),
            "LDL.32 0 -> 3; local memory 0 -> 8 bytes; spill stores 0 -> 8 bytes; spill loads 0 -> 12 bytes",
        ),
        (replace(BEFORE, shared_bytes=8448), "shared memory 8192 -> 8448 bytes"),
        (replace(BEFORE, constant_bytes=592), "constant banks 588 -> 592 bytes"),
        (replace(BEFORE, barriers=2), "barriers 1 -> 2"),
        (replace(BEFORE, limited_by="shared memory"), "occupancy 25 % limited by registers -> shared memory"),
        (replace(BEFORE, blocks=4), "blocks per SM 2 -> 4 (registers)"),
    ],
)
def test_a_change_reads(after: StaticFigures, phrases: str) -> None:
    assert compare(BEFORE, after) == phrases.split("; ")


@pytest.mark.parametrize(
    "name",
    # The digest of what the metrics follow from is no metric.
    [name for name in StaticFigures.__dataclass_fields__ if name not in ("instruction_mix", "made_of")],
)
def test_no_figure_changes_unseen(name: str) -> None:
    value = getattr(BEFORE, name)
    other = value + 1 if not isinstance(value, str) else "blocks"
    assert compare(BEFORE, replace(BEFORE, **{name: other}))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [*BEFORE.instruction_mix, "LDSM", "SHFL"])
def test_no_count_changes_unseen(name: str) -> None:
    mix = dict(BEFORE.instruction_mix) | {name: BEFORE.instruction_mix.get(name, 0) + 1}
    (phrase,) = compare(BEFORE, replace(BEFORE, instruction_mix=mix))
    assert f"{BEFORE.instruction_mix.get(name, 0)} -> {mix[name]}" in phrase


# Files

FIGURES = {"naive-f32-block32x32": BEFORE, "tiled-f32-tile32-pad0": replace(BEFORE, registers=40)}
VERSIONS = ("13.0.88", "13.5.37")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return store.write(FIGURES, "sm_90a", *VERSIONS, tmp_path)


def load(root: Path) -> object:
    return store.load("sm_90a", *VERSIONS, root)


def test_what_is_written_is_read_and_the_order_does_not_show(path: Path, tmp_path: Path) -> None:
    assert path == tmp_path / "nvcc-13.0.88" / "sm_90a.json"
    assert load(tmp_path) == FIGURES
    assert load(tmp_path / "elsewhere") == {}
    first = path.read_bytes()
    store.write(dict(reversed(FIGURES.items())), "sm_90a", *VERSIONS, tmp_path)
    assert path.read_bytes() == first


def test_one_changed_count_changes_two_lines_of_its_own_variant(path: Path, tmp_path: Path) -> None:
    """The figure and its checksum: what git shows, and all that two branches can clash in."""
    first = path.read_text().splitlines()
    changed_one = {"naive-f32-block32x32": with_mix(BAR=3)}
    store.write(FIGURES | changed_one, "sm_90a", *VERSIONS, tmp_path)
    second = path.read_text().splitlines()
    changed = [new for old, new in zip(first, second, strict=True) if old != new]
    assert (['"BAR": 3' in changed[0], "checksum" in changed[1]], len(changed)) == ([True, True], 2)


def edited(old: str, new: str) -> Callable[[str], str]:
    def edit(text: str) -> str:
        assert old in text
        return text.replace(old, new, 1)

    return edit


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda text: text[: len(text) // 2], "not valid JSON: truncated or damaged"),
        (lambda text: "", "not valid JSON: truncated or damaged"),
        (lambda text: "<<<<<<< ours\n" + text, "not valid JSON: truncated or damaged"),
        (lambda text: "[]", "contains no stored metrics"),
        (lambda text: "{}", "contains no stored metrics"),
        (lambda text: "[" * 100000, "recursion"),
        (edited('"schema": 1', '"schema": 2'), "its schema is 2, not 1"),
        (edited("sm_90a", "sm_80"), "its arch is 'sm_80', not 'sm_90a'"),
        (edited("13.0.88", "12.9.41"), "its nvcc is '12.9.41', not '13.0.88'"),
        (edited("13.5.37", "13.2.51"), "its nvdisasm is '13.2.51', not '13.5.37'"),
        (edited('"registers": 96', '"registers": 95'), "naive-f32-block32x32: its metrics do"),
        (edited('"registers": 96', '"registers": "96"'), "naive-f32-block32x32: its metrics do"),
        (edited('"registers": 96, ', ""), "naive-f32-block32x32: its metrics do"),
        (edited('"registers": 96', '"more": 1, "registers": 96'), "naive-f32-block32x32: its metrics do"),
        (edited('"BAR": 2, ', ""), "naive-f32-block32x32: its metrics do"),
        (edited('"sass": {', '"sass": 5, "mine": {'), "naive-f32-block32x32: its metrics do"),
        (edited("naive-f32-block32x32", "naive-f32-block16x16"), "naive-f32-block16x16: its metrics do"),
        (edited("naive-f32-block32x32", "tiled-f32-tile32-pad0"), "contains tiled-f32-tile32-pad0 twice"),
        (edited('"variants": {', '"variants": {"x": null,'), "x: its metrics do"),
    ],
)  # fmt: skip
def test_what_cannot_be_trusted_is_refused_in_one_line(
    damage: Callable[[str], str], why: str, path: Path, tmp_path: Path
) -> None:
    path.write_text(damage(path.read_text()))
    with pytest.raises(StoreError, match="nox -s static -- --refresh") as caught:
        load(tmp_path)
    message = str(caught.value)
    assert why in message
    assert str(path) in message
    assert "\n" not in message


def test_a_full_disk_leaves_what_was_there(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match=r"No space left on device.*unchanged"):
        store.write({}, "sm_90a", *VERSIONS, tmp_path)
    monkeypatch.undo()
    assert load(tmp_path) == FIGURES
    assert list(path.parent.iterdir()) == [path]


def test_the_stored_figures_of_this_checkout_are_written_as_they_stand() -> None:
    """A file of another layout would show as changed in full at the next refresh."""
    found = sorted(PROJECT.static.glob("nvcc-*/*.json"))
    assert found
    for file in found:
        document = json.loads(file.read_text())
        head = (file.stem, document["nvcc"], document["nvdisasm"])
        stored = store.load(*head, PROJECT.static)
        records = {name: store.groups(figures) for name, figures in stored.items()}
        assert store.text_of(store.head(*head), records) == file.read_text()
