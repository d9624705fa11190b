"""Counts against stored ones: what is red and how it reads, what a refresh writes, planted faults."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from gemm_regression.cli import suite as __main__
from gemm_regression.compiler import tools
from gemm_regression.compiler.nvcc import compile_ptx
from gemm_regression.compiler.static import store
from gemm_regression.compiler.static.store import StoreError
from gemm_regression.compiler.tools import ToolchainError
from gemm_regression.counters import check as counters
from gemm_regression.counters.check import CounterCheck, CounterEntry, compare, entries
from gemm_regression.model import Problem
from gemm_regression.project.table import ProjectTable
from tests.ladder import LADDER, PROJECT
from tests.mutants import Edits, Mutant, build

NVCC = tools.pins()[0]
NAIVE = {
    **{"loads_requests": 1000, "loads_sectors": 4000, "copies_requests": 0, "copies_sectors": 0},
    **{"stores_requests": 10, "stores_sectors": 40},
    **{f"shared_{kind}_wavefronts": 0 for kind in ("loads", "stores", "copies")},
    **{f"shared_{kind}_conflicts": 0 for kind in ("loads", "stores", "copies")},
    **{"barriers": 8, "divergent": 0, "flop": 64, "shared_bytes": 1024},
    **{"a_read": 4096, "b_read": 4096, "c_read": 0, "c_written": 128},
}  # fmt: skip


def changes(**made: int) -> list[str]:
    lines = {"loads": "x.cu:27", "shared_stores": "x.cu:30"}
    return compare(NAIVE, {**NAIVE, **made}, lambda what: lines.get(what, ""))


LOST = "global loads: 4.00 -> 18.20 sectors per request: coalescing lost at x.cu:27"
MORE = "global stores: 10 -> 20 requests: narrower accesses, coalescing lost"
NARROW = "global loads: 1000 -> 4000 requests, 4.00 -> 1.00 sectors per request: narrower accesses"


@pytest.mark.parametrize(
    ("made", "text"),
    [
        ({"loads_sectors": 18200}, LOST),
        ({"loads_sectors": 2000}, "global loads: 4.00 -> 2.00 sectors per request"),
        ({"loads_requests": 4000}, NARROW),
        ({"stores_requests": 20, "stores_sectors": 80}, MORE),
        ({"copies_requests": 5, "copies_sectors": 20}, "cp.async: 0 -> 5 requests"),
        ({"stores_requests": 0, "stores_sectors": 0}, "global stores: 10 -> 0 requests"),
        ({"shared_stores_conflicts": 31}, "shared stores: 0 -> 31 conflicts at x.cu:30"),
        ({"shared_loads_wavefronts": 31}, "shared loads: 0 -> 31 wavefronts"),
        ({"barriers": 4}, "barriers of all warps 8 -> 4"),
        ({"shared_bytes": 1056}, "shared memory 1024 -> 1056 bytes per block"),
        ({"something": 1}, "something: None -> 1"),
    ],
)
def test_a_change_reads_before_and_after(made: Mapping[str, int], text: str) -> None:
    assert changes(**made) == [text]


def test_no_count_can_change_unseen() -> None:
    assert changes() == []
    for name in NAIVE:
        assert changes(**{name: NAIVE[name] + 7}), name
        without = {k: v for k, v in NAIVE.items() if k != name}
        assert compare(NAIVE, without, lambda what: "") or not NAIVE[name]


# The stored file


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return shutil.copytree(PROJECT.static, tmp_path / "static")


def test_every_variant_of_the_checkout_has_its_counts() -> None:
    stored = counters.load_counters(NVCC, PROJECT.static)
    declared = {entry.name: entry.variant for entry in entries(LADDER, PROJECT.static) if entry.variant}
    assert set(declared) == set(stored)
    for name, variant in stored.items():
        kernel, config, _ = declared[name]
        if own := kernel.operation.problems:
            assert variant
            assert set(variant) <= {Problem(m, n, k, batch=(*batch, 1)[0]).id for m, n, k, *batch in own}
            continue
        odd, even = Problem(67, 45, 33), Problem(96, 160, 64)
        taken = [kernel.constraints.near(kernel.narrowed(problem), config) for problem in (odd, even)]
        batch = "-batch3" * kernel.operation.batched
        assert set(variant) == {f"{problem.id}{batch}" for problem in taken}


def test_the_file_of_the_checkout_is_written_as_it_stands() -> None:
    text = store.text_of(counters.counters_head(NVCC), counters.load_counters(NVCC, PROJECT.static))
    assert text == counters.counters_path(PROJECT.static).read_text()


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('"barriers": 0', '"barriers": 1', "its metrics do not match their checksum"),
        (f'"nvcc": "{NVCC}"', '"nvcc": "12.9.41"', "its nvcc is '12.9.41'"),
    ],
)
def test_a_file_that_cannot_be_trusted_is_refused(old: str, new: str, why: str, root: Path) -> None:
    path = counters.counters_path(root)
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(StoreError, match=f"{why}.*nox -s static -- --refresh"):
        counters.load_counters(NVCC, root)


def refresh(root: Path, *options: str) -> int:
    project = replace(PROJECT, table=ProjectTable(baselines=str(root.parent)))
    return __main__.refresh(project, ["tests/test_static.py", "-m", "static", *options])


# By the pinned compiler


@pytest.fixture
def check(root: Path) -> CounterCheck:
    try:
        return CounterCheck(root)
    except ToolchainError as error:
        pytest.skip(str(error))


def entry(name: str) -> CounterEntry:
    return next(e for e in entries(LADDER, PROJECT.static) if e.name == name)


def planted(name: str, folder: Path, *edits: tuple[str, str]) -> CounterEntry:
    """The variant, its source edited."""
    variant = entry(name).variant
    assert variant
    kernel, config, dtype = variant
    return CounterEntry(name, (build(Mutant("planted", kernel.name, "", edits), folder), config, dtype))


@pytest.mark.compile
def test_the_kernel_as_it_is_is_green(check: CounterCheck) -> None:
    assert check.finding(entry("naive-f32-block32x32")) == ""


SECOND_BARRIER = "        __syncthreads();  // no thread still reads what the next round overwrites\n"
PLANTED: dict[str, tuple[str, Edits, list[str]]] = {
    "uncoalesced": (
        "naive-f32-block32x32",
        (
            ("BLOCK_Y + threadIdx.y", "BLOCK_Y + threadIdx.x"),
            ("BLOCK_X + threadIdx.x", "BLOCK_X + threadIdx.y"),
        ),
        [
            "global loads: 2.50 -> 16.50 sectors per request: coalescing lost at planted.cu:27",
            "global stores: 4.00 -> 32.00 sectors per request: coalescing lost at planted.cu:31",
        ],
    ),
    "padding": (
        "tiled-f32-tile16-pad0",
        (("As[TILE_SIZE][TILE_SIZE + PADDING]", "As[TILE_SIZE][TILE_SIZE + PADDING + 1]"),),
        ["shared stores: 0 -> 1920 conflicts at planted.cu:31", "shared memory 2048 -> 2112 bytes per block"],
    ),
    "vectorisation lost": (
        "vectorized-f32-tile128x128x8-thread8x8-pad4",
        (("if (aligned && col + 4 <= width) return", "if (width < 0) return"),),
        ["global loads: 224 -> 896 requests: narrower accesses, coalescing lost at planted.cu:53"],
    ),
    "a barrier dropped": (
        *("tiled-f32-tile32-pad0", ((SECOND_BARRIER, ""),), ["barriers of all warps 1920 -> 960"]),
    ),
}


@pytest.mark.compile
@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_red(fault: str, check: CounterCheck, tmp_path: Path) -> None:
    name, edits, says = PLANTED[fault]
    finding = check.finding(planted(name, tmp_path, *edits))
    assert finding.startswith(f"{name}: on 96x160x64 ")
    assert finding.endswith(f'to accept it: nox -s static -- --refresh -k "[{name}-counters]"')
    for text in says:
        assert text in finding


def doubled(ptx: str, op: str) -> str:
    """The PTX with the first such instruction twice."""
    return re.sub(rf"^\t{op}\b.*;$", r"\g<0>\n\g<0>", ptx, count=1, flags=re.MULTILINE)


def halved(ptx: str) -> str:
    """The PTX with the second half of a vector loaded on its own, as nvcc leaves it by chance."""
    vector = re.compile(r"(ld\.shared\.v4\.f32 \t\{%f\d+, %f\d+), (%f\d+, %f\d+)\}, \[(%\w+)(?:\+(\d+))?\];")
    found = vector.search(ptx)
    assert found
    half = f"ld.shared.v2.f32 {{{found[2]}}}, [{found[3]}+{int(found[4] or 0) + 8}];"
    whole = f"{found[1]}, %f90001, %f90002}}, [{found[3]}+{found[4] or 0}];"
    ptx = ptx.replace(found[0], f'.pragma "used_bytes_mask 255";\n{whole}\n{half}', 1)
    return re.sub(r"(\.reg \.f32\s+%f)<\d+>", r"\1<90003>", ptx)


@pytest.mark.compile
@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("vectorized-f32-tile64x64x8-thread8x8-pad4", halved, ""),
        ("tiled-f32-tile16-pad0", partial(doubled, op="ld.shared"), "shared loads: 61440 -> "),
        ("tiled-f32-tile16-pad0", partial(doubled, op="st.shared"), "shared stores: "),
        ("tiled-f32-tile16-pad0", partial(doubled, op="bar.sync"), "barriers of all warps"),
    ],
)
def test_a_vector_that_nvcc_leaves_in_two_is_no_finding(
    name: str, change: Callable[[str], str], says: str, check: CounterCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But another access or barrier is."""
    real = compile_ptx
    changed = "gemm_regression.devices.emulated.compile_ptx"
    monkeypatch.setattr(changed, lambda *a, **how: change(real(*a, **how)))
    check.device.lines = lambda case: {}  # type: ignore[method-assign]
    finding = check.finding(entry(name))
    assert says in finding
    assert bool(finding) is bool(says)


@pytest.mark.compile
def test_what_cannot_be_compiled_or_is_stopped_is_red(check: CounterCheck, tmp_path: Path) -> None:
    broken = planted("naive-f32-block32x32", tmp_path, ("float sum = 0.0f;", "float sum = nothing;"))
    assert "does not compile" in check.finding(broken)
    wild = planted("naive-f32-block16x16", tmp_path, ("lda + k]", "lda + k + 9999999]"))
    assert "cannot be counted" in check.finding(wild)


@pytest.mark.compile
def test_a_new_variant_and_one_that_is_gone_are_red(check: CounterCheck, root: Path) -> None:
    stored = counters.load_counters(NVCC, root)
    stored["gone-f32"] = stored.pop("naive-f32-block16x16")
    counters.write_counters(stored, NVCC, root)
    assert "no counters are stored; store" in check.finding(entry("naive-f32-block16x16"))
    (gone,) = [e for e in entries(LADDER, root) if e.variant is None]
    orphan = "gone-f32: counters are stored for a variant that no longer exists; remove them"
    assert check.finding(gone).startswith(orphan)


@pytest.mark.compile
class TestRefresh:
    @pytest.fixture(autouse=True)
    def counted_only(self, check: CounterCheck) -> None:
        """Skips without the pinned compiler."""

    def test_without_a_change_writes_nothing(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        before = counters.counters_path(root).stat().st_mtime_ns
        assert refresh(root, "-k", "naive and counters") == 0
        assert capsys.readouterr().out == "counters: nothing changed\n"
        assert counters.counters_path(root).stat().st_mtime_ns == before

    def test_of_some_leaves_the_others(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        right = counters.load_counters(NVCC, root)
        wrong = {name: {problem: {**f, "flop": 1} for problem, f in v.items()} for name, v in right.items()}
        wrong["naive-f32-gone"] = wrong["naive-f32-block32x32"]
        counters.write_counters(wrong, NVCC, root)
        assert refresh(root, "-k", "naive-f32-block32x32-counters") == 0
        now = counters.load_counters(NVCC, root)
        assert now == {**wrong, "naive-f32-block32x32": right["naive-f32-block32x32"]}
        said = capsys.readouterr().out.splitlines()
        changed = "naive-f32-block32x32 counters: on 96x160x64 FLOP 1 -> 1981440; on 67x45x33"
        assert said[0].startswith(changed)
        assert said[1].startswith("wrote ")

    def test_a_damaged_file_is_kept_where_something_of_it_is_to_stay(self, root: Path) -> None:
        counters.counters_path(root).write_text("{")
        with pytest.raises(StoreError, match="without -k"):
            refresh(root, "-k", "naive and counters")
        assert counters.counters_path(root).read_text() == "{"


def test_without_stored_counts_the_command_says_so(root: Path) -> None:
    __main__.require_stored(root)
    counters.counters_path(root).unlink()
    with pytest.raises(StoreError, match=r"no counters are stored in .*counters\.json"):
        __main__.require_stored(root)
