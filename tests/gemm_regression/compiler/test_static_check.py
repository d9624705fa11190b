"""The compiler's figures against stored ones: what is red, what a refresh writes, how planted faults read."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gemm_regression.cli import suite as __main__
from gemm_regression.compiler import static, tools
from gemm_regression.compiler.nvcc import Variant
from gemm_regression.compiler.static import Check, StaticEntry, StaticFigures, entries, store
from gemm_regression.compiler.tools import CompileError, Nvcc, ToolchainError
from gemm_regression.model import F32, Config
from gemm_regression.project.table import ProjectTable
from tests.gemm_regression.compiler.test_static import BEFORE
from tests.ladder import KERNELS_DIR, LADDER, PROJECT, find_kernel

VERSIONS = tools.pins()
TESTS = ("tests/test_static.py", "-m", "static")
NAIVE = [e for e in entries(LADDER, PROJECT.static) if e.name.startswith("naive")]
HERE = [e for e in NAIVE if e.arch == "sm_90a"]


Made = dict[str, StaticFigures | CompileError]
ALIKE = replace(BEFORE, shared_bytes=0)  # as naive's declaration says


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pinned versions, whatever is installed."""
    nvcc, nvdisasm = VERSIONS
    found = Nvcc(Path("nvcc"), nvcc), Nvcc(Path("nvdisasm"), nvdisasm)
    monkeypatch.setattr(tools, "pinned_tools", lambda: found)


@pytest.fixture
def made(pinned: None, monkeypatch: pytest.MonkeyPatch) -> Made:
    """What the compiler makes of a variant, by kernel and config: BEFORE without shared memory, or what
    is put in."""
    told: Made = {}

    def figures(variants: Sequence[Variant], *rest: object) -> list[StaticFigures | CompileError]:
        return [told.get(f"{v[0].name}-{v[1].label}", ALIKE) for v in variants]

    monkeypatch.setattr(static, "all_figures", figures)
    return told


@pytest.fixture
def root(made: dict[str, StaticFigures], tmp_path: Path) -> Path:
    """Stored figures of naive's two configs, as the compiler makes them."""
    for arch in static.ARCHES:
        stored = {e.name: ALIKE for e in NAIVE}
        store.write(stored, arch, *VERSIONS, tmp_path / "static")
    shutil.copy(PROJECT.static / "counters.json", tmp_path / "static")
    return tmp_path / "static"


def findings(root: Path, chosen: Sequence[StaticEntry] = HERE) -> list[str]:
    run = Check(chosen, root)
    return [finding for entry in chosen if (finding := run.finding(entry))]


def test_as_stored_is_green(root: Path) -> None:
    assert findings(root) == []


def test_what_differs_from_what_is_stored_is_red_and_told_with_the_remedy(root: Path, made: Made) -> None:
    def accepted(name: str) -> str:
        return f'nox -s static -- --refresh -k "[naive-f32-{name}-sm_90a]"'

    made["naive-block32x32"] = replace(ALIKE, registers=97)
    stored = store.load("sm_90a", *VERSIONS, root)
    del stored["naive-f32-block16x16"]
    store.write(stored | {"naive-f32-block64x64": BEFORE}, "sm_90a", *VERSIONS, root)
    gone = [e for e in entries(LADDER, root) if e.variant is None]
    changed = f"registers 96 -> 97\nto accept it: {accepted('block32x32')}"
    missing = f"no metrics are stored; store them with `{accepted('block16x16')}`"
    orphan = "metrics are stored for a variant that no longer exists; remove them with"
    assert findings(root, [*HERE, *gone]) == [
        f"naive-f32-block32x32 sm_90a: {changed}",
        f"naive-f32-block16x16 sm_90a: {missing}",
        f"naive-f32-block64x64 sm_90a: {orphan} `{accepted('block64x64')}`",
    ]


def test_a_variant_that_does_not_compile_is_red(root: Path, made: Made) -> None:
    made["naive-block32x32"] = CompileError("naive f32 does not compile", "naive.cu(3): error")
    assert findings(root) == ["naive f32 does not compile\nnaive.cu(3): error"]


@pytest.mark.parametrize(
    ("figures", "why"),
    [
        (replace(ALIKE, blocks=0, occupancy=0.0), "cannot be launched: too many registers"),
        (replace(BEFORE, shared_bytes=4), "uses 4 bytes of shared memory, but its declaration says 0"),
    ],
)
def test_what_is_wrong_in_itself_is_red_though_stored(
    figures: StaticFigures, why: str, root: Path, made: Made
) -> None:
    stored = {HERE[0].name: figures, HERE[1].name: ALIKE}
    store.write(stored, "sm_90a", *VERSIONS, root)
    made["naive-block32x32"] = figures
    assert findings(root) == [f"naive-f32-block32x32 sm_90a: {why}"]


def test_every_variant_on_every_architecture_is_an_entry() -> None:
    found = entries(LADDER, PROJECT.static)
    assert len({str(entry) for entry in found}) == len(found)
    arches = " ".join(dict.fromkeys(entry.arch for entry in found))
    assert arches == "sm_80 sm_90a sm_100a sm_120a sm_75 sm_86 sm_89"
    assert "wmma-f16-tile128x128x32-warp64x32-sm_75" in map(str, found)
    turing = [entry.name for entry in found if entry.arch == "sm_75"]
    assert not [name for name in turing if name.startswith(("wmma-bf16", "wmma-tf32", "async_copy"))]
    assert "register-f32-tile128x128x8-thread8x8-pad0-sm_120a" in map(str, found)
    assert not [entry for entry in found if entry.name.startswith(("cublas", "tiled-f32-tile64"))]


class TestChangedOnly:
    """sm_75 and others are compiled for only where what the stored metrics follow from has changed."""

    OLDER = tuple(entry._replace(arch="sm_75") for entry in HERE)

    @pytest.fixture
    def compiled_for(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """What is compiled; metrics are stored with the digests of now."""
        nvcc = tools.pinned_tools()[0]
        for arch in ("sm_75", "sm_90a"):
            digests = {e.name: static.made_of(e.variant, arch, nvcc) for e in self.OLDER if e.variant}
            kept = {name: of if arch == "sm_75" else "" for name, of in digests.items()}
            stored = {name: replace(ALIKE, made_of=of) for name, of in kept.items()}
            store.write(stored, arch, *VERSIONS, root)
        seen: list[str] = []
        made: Callable[..., list[StaticFigures | CompileError]] = vars(static)["all_figures"]

        def figures(variants: Sequence[Variant], *rest: Any) -> list[StaticFigures | CompileError]:
            seen.extend(f"{v[0].name}-{v[1].label} {rest[0]}" for v in variants)
            return made(variants, *rest)

        monkeypatch.setattr(static, "all_figures", figures)
        return seen

    def found(self, root: Path, every: bool = False, changed: bool = True) -> list[str]:
        run = Check([*self.OLDER, *HERE], root, every, changed)
        return [finding for entry in [*self.OLDER, *HERE] if (finding := run.finding(entry))]

    def test_unchanged_is_not_compiled_and_green(self, root: Path, compiled_for: list[str]) -> None:
        assert self.found(root) == []
        assert compiled_for == ["naive-block32x32 sm_90a", "naive-block16x16 sm_90a"]
        assert self.found(root, every=True) == []
        assert len(compiled_for) == 6

    def test_a_change_is_compiled_and_judged(
        self, root: Path, made: Made, compiled_for: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made["naive-block32x32"] = replace(ALIKE, registers=97)
        assert [line.partition("\n")[0] for line in self.found(root)] == [
            "naive-f32-block32x32 sm_90a: registers 96 -> 97"
        ]
        monkeypatch.setenv("NVCC_APPEND_FLAGS", "--maxrregcount=32")
        compiled_for.clear()
        assert len(self.found(root)) == 2
        assert "naive-block32x32 sm_75" in compiled_for
        compiled_for.clear()
        assert len(self.found(root, changed=False)) == 1
        assert compiled_for == ["naive-block32x32 sm_90a", "naive-block16x16 sm_90a"]

    def test_outside_ci_a_change_is_left_to_a_later_run_and_said(
        self, root: Path, compiled_for: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        early = Check([*self.OLDER, *HERE], root, every=False, changed=False)
        assert not any(early.later(entry) for entry in (*self.OLDER, *HERE))
        monkeypatch.setenv("NVCC_APPEND_FLAGS", "--maxrregcount=32")
        run = Check([*self.OLDER, *HERE], root, every=False, changed=False)
        assert [run.later(entry) for entry in (*self.OLDER, *HERE)] == [True] * 2 + [False] * 2
        checks = [Check(self.OLDER, root, every, True) for every in (False, True)]
        assert not any(check.later(entry) for check in checks for entry in self.OLDER)
        gone = StaticEntry("nothing-f32-like-it", "sm_75", None)
        assert "no longer exists" in run.finding(gone)

    def test_the_digest_is_of_all_that_metrics_follow_from(self, monkeypatch: pytest.MonkeyPatch) -> None:
        variant = HERE[0].variant
        assert variant
        kernel, config, dtype = variant
        tiled = replace(kernel, source=find_kernel("tiled").source)
        nvcc = Nvcc(Path("nvcc"), "13.0")
        same = static.made_of(variant, "sm_75", nvcc)
        assert same == static.made_of(variant, "sm_75", nvcc)
        others = {
            static.made_of(variant, "sm_86", nvcc),
            static.made_of(variant, "sm_75", Nvcc(Path("nvcc"), "13.1")),
            static.made_of((replace(kernel, flags=("-G",)), config, dtype), "sm_75", nvcc),
            static.made_of((kernel, kernel.configs[1], dtype), "sm_75", nvcc),
            static.made_of((tiled, config, dtype), "sm_75", nvcc),
        }
        assert len(others | {same}) == 6

    def test_a_damaged_file_is_red(self, root: Path, compiled_for: list[str]) -> None:
        path = store.path_of("sm_75", VERSIONS[0], root)
        path.write_text(path.read_text().replace('"registers": 96', '"registers": 95', 1))
        run = Check(self.OLDER, root, every=False)
        with pytest.raises(store.StoreError, match="edited by hand"):
            run.finding(self.OLDER[0])
        assert run.made("sm_75")  # compiled all the same


class TestRefresh:
    @pytest.fixture
    def refresh(self, root: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
        """Refreshes with these options; gives what it said."""

        def run(*options: str) -> str:
            project = replace(PROJECT, table=ProjectTable(baselines=str(root.parent)))
            assert __main__.refresh(project, [*TESTS, *options]) == 0
            return capsys.readouterr().out

        return run

    def test_of_some_leaves_the_others(self, root: Path, made: Made, refresh: Callable[..., str]) -> None:
        for name in ("naive-block32x32", "naive-block16x16"):
            made[name] = replace(ALIKE, registers=97)
        others = {arch: store.path_of(arch, VERSIONS[0], root).read_bytes() for arch in ("sm_80", "sm_120a")}
        said = refresh("-k", "block32x32 and naive and sm_90a").splitlines()
        stored = store.load("sm_90a", *VERSIONS, root)
        registers = {name: figures.registers for name, figures in stored.items()}
        assert registers == {"naive-f32-block32x32": 97, "naive-f32-block16x16": 96}
        assert others == {arch: store.path_of(arch, VERSIONS[0], root).read_bytes() for arch in others}
        assert said[0] == "naive-f32-block32x32 sm_90a: registers 96 -> 97"
        assert said[1].startswith("wrote ")

    def test_without_a_change_writes_nothing(self, root: Path, refresh: Callable[..., str]) -> None:
        file = store.path_of("sm_90a", VERSIONS[0], root)
        before = file.stat().st_mtime_ns
        assert refresh("-k", "naive and sm_90a") == "sm_90a: nothing changed\n"
        assert file.stat().st_mtime_ns == before

    def test_of_all_drops_what_is_gone_and_replaces_a_damaged_file(
        self, root: Path, monkeypatch: pytest.MonkeyPatch, refresh: Callable[..., str]
    ) -> None:
        monkeypatch.setattr(__main__, "entries", lambda kernels, root, architectures: NAIVE)
        monkeypatch.setattr(__main__, "selected", lambda options: NAIVE)
        store.path_of("sm_80", VERSIONS[0], root).write_text("{")
        said = refresh()
        assert set(store.load("sm_80", *VERSIONS, root)) == {e.name for e in HERE}
        assert "regenerated: " in said
        assert "naive-f32-block32x32 sm_80: new: 96 registers, occupancy 25 % (registers), 900" in said

    def test_of_some_refuses_a_damaged_file(self, root: Path, refresh: Callable[..., str]) -> None:
        file = store.path_of("sm_90a", VERSIONS[0], root)
        file.write_text("{")
        with pytest.raises(store.StoreError, match="without -k"):
            refresh("-k", "naive and sm_90a")
        assert file.read_text() == "{"

    def test_stores_nothing_where_a_variant_does_not_compile(
        self, root: Path, made: Made, refresh: Callable[..., str]
    ) -> None:
        made["naive-block16x16"] = CompileError("naive f32 does not compile")
        before = store.load("sm_90a", *VERSIONS, root)
        with pytest.raises(CompileError):
            refresh("-k", "naive and sm_90a")
        assert store.load("sm_90a", *VERSIONS, root) == before

    def test_of_nothing_is_no_success(
        self, refresh: Callable[..., str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit) as caught:
            refresh("-k", "misspelt")
        assert caught.value.code == 5
        assert " deselected" in capsys.readouterr().out


class TestTheCommand:
    @pytest.mark.parametrize("options", [[], ["--refresh"]])
    def test_another_compiler_is_one_line_and_red(
        self, options: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def other() -> None:
            raise ToolchainError("nvcc is 12.9.41")

        monkeypatch.setattr(pytest, "main", lambda given: pytest.fail("pytest was started"))
        monkeypatch.setattr(tools, "pinned_tools", other)
        assert __main__.static(options) == 1
        assert capsys.readouterr().err == "error: nvcc is 12.9.41\n"

    def test_no_figures_of_this_compiler_is_one_line_and_red(self, root: Path) -> None:
        (root / f"nvcc-{VERSIONS[0]}").rename(root / "nvcc-12.9.41")
        with pytest.raises(store.StoreError, match=r"sm_89 \(stored: nvcc-12\.9\.41\)"):
            __main__.require_stored(root)

    def test_one_damaged_file_is_one_line_and_red(self, root: Path) -> None:
        __main__.require_stored(root)
        store.path_of("sm_100a", VERSIONS[0], root).write_text("")
        with pytest.raises(store.StoreError, match=r"sm_100a\.json: not valid JSON"):
            __main__.require_stored(root)


@pytest.mark.compile
@pytest.mark.usefixtures("pinned_compiler")
class TestPlantedFaults:
    """A real kernel made worse, by the pinned compiler."""

    def test_spills(self, tmp_path: Path) -> None:
        kernel = find_kernel("register")
        assert kernel.source
        source, count = re.subn(r"__launch_bounds__\([^)]*\)", "", kernel.source.read_text())
        assert count == 1
        (tmp_path / "spilling.cu").write_text(source)
        spilling: dict[str, Any] = {"source": tmp_path / "spilling.cu", "flags": ("-maxrregcount=64",)}
        planted = replace(kernel, include=(KERNELS_DIR,), **spilling)
        before, after = (static.figures(k, kernel.configs[0], F32, "sm_90a") for k in (kernel, planted))
        said = "; ".join(static.compare(before, after))
        assert re.search(r"LDL\.\d+ 0 -> \d+", said)
        assert re.search(r"spill stores 0 -> \d+ bytes; spill loads 0 -> \d+ bytes", said)
        assert re.search(r"registers \d+ -> 64", said)
        assert "occupancy 25 % -> 50 % (registers)" in said

    def test_what_has_no_figures_is_refused(self) -> None:
        kernel = find_kernel("naive")
        with pytest.raises(ValueError, match="unknown architecture 'sm_70'; known: sm_80"):
            static.figures(kernel, kernel.configs[0], F32, "sm_70")
        with pytest.raises(ValueError, match="library call"):
            static.figures(find_kernel("cublas"), Config(), F32, "sm_90a")
        with pytest.raises(CompileError, match="#error"):
            static.figures(find_kernel("naive"), Config(), F32, "sm_90a")
