"""The planted slowdowns are edits of today's kernels; what the gate says of them decides the status."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gemm_regression.compiler.nvcc import compile_all
from gemm_regression.devices import DeviceError
from gemm_regression.model import Case
from gemm_regression.project.selection import Choice, select
from lab.study import frozen
from lab.study.trials import KINDS
from tests.gemm_regression.simulated import SimulatedDevice
from tests.ladder import LADDER, PROJECT
from tests.slowdowns import (
    IN_LOOPS,
    PLANTED,
    Rotten,
    Slowdown,
    __main__,
    beside,
    firsts,
    gate,
    measured,
    page,
    together,
)
from tests.slowdowns.gate import Judged

NAMED = {slowdown.name: slowdown for slowdown in PLANTED}
NAIVE = NAMED["naive_twice"]


@pytest.mark.parametrize("slowdown", PLANTED, ids=lambda s: s.name)
def test_each_matches_its_kernel_and_changes_it(slowdown: Slowdown) -> None:
    assert slowdown.edited() != slowdown.unedited()
    assert slowdown.real.config in slowdown.real.kernel.configs


def test_as_many_as_are_asked_for() -> None:
    assert len(NAMED) == len(PLANTED)
    assert len(firsts(PLANTED)) == len({slowdown.real.variant for slowdown in PLANTED}) >= 50
    timed = {case.id for case in select(PROJECT, Choice(suite="nightly"), (9, 0)).timed}
    assert {slowdown.real.id for slowdown in PLANTED} <= timed
    assert not any(slowdown.kernel == "warp_tiled" for slowdown in PLANTED)


@pytest.mark.parametrize("kernel", KINDS)
def test_each_kind_of_kernel_has_several(kernel: str) -> None:
    mine = [slowdown for slowdown in IN_LOOPS if slowdown.kernel == kernel]
    assert len(mine) >= 8
    assert len(firsts(mine)) >= 2


def test_the_header_of_a_loop_is_copied_into_the_kernel() -> None:
    for slowdown in firsts(IN_LOOPS):
        text = slowdown.unedited()
        assert text.count("#ifndef BAND_ROWS") == 1
        assert "#pragma once" not in text


def test_a_kernel_that_has_changed_is_said() -> None:
    rotten = replace(NAIVE, edits=(("no such line", ""),))
    with pytest.raises(Rotten, match=r"naive_twice: occurs 0 times in s01_naive.cu: 'no such line'"):
        rotten.edited()


def test_one_variant_has_one() -> None:
    with pytest.raises(ValueError, match="naive_twice and other are both planted in naive-f32-block32x32"):
        together([NAIVE, replace(NAIVE, name="other")])


def test_planted_together_each_is_in_its_variant_alone(tmp_path: Path) -> None:
    """Other variants of the kernel compile to the same binary as before."""
    chosen = [NAIVE, *(s for s in PLANTED if s.kernel == "tiled")][:3]
    for source, text in together(chosen).items():
        (tmp_path / source.name).write_text(text)
    kernels = [kernel for kernel in LADDER if kernel.name in ("naive", "tiled")]
    variants = [(k, c, k.dtypes[0]) for k in kernels for c in k.configs[:4]]
    own = [(k, k.source, c, d) for k, c, d in variants if k.source]
    moved = [(replace(k, source=tmp_path / source.name), c, d) for k, source, c, d in own]
    built: list[Any] = compile_all([*variants, *moved], "sm_90a")
    before, after = built[: len(variants)], built[len(variants) :]
    for (kernel, config, dtype), old, new in zip(variants, before, after, strict=True):
        variant = Case(kernel, dtype, config, NAIVE.problem).variant
        planted = variant in {slowdown.real.variant for slowdown in chosen}
        assert (old.cubin == new.cubin) != planted, variant


def test_as_many_cases_without_one_stand_beside() -> None:
    timed = select(PROJECT, Choice(suite="nightly"), (9, 0)).timed
    chosen = firsts(PLANTED)
    others = gate.beside(chosen, timed)
    assert len(others) == len(chosen) == len({case.id for case in others})
    assert not {case.variant for case in others} & {s.real.variant for s in PLANTED}
    assert all(case.kernel.compiled for case in others)


@pytest.mark.parametrize("name", ["lean_loop_stages_32", "tf32x3_barriers_64"])
def test_a_copied_header_compiles_to_the_same_and_the_edit_to_another(name: str, tmp_path: Path) -> None:
    slowdown = NAMED[name]
    cases = [slowdown.real, replace(slowdown, edits=()).alone(tmp_path)]
    (tmp_path / "edited").mkdir()
    cases.append(slowdown.alone(tmp_path / "edited"))
    built: list[Any] = compile_all([(c.kernel, c.config, c.dtype) for c in cases], "sm_90a")
    real, copied, edited = built
    assert real.cubin == copied.cubin != edited.cubin


def test_check_finds_an_edit_that_spoils_the_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fine = NAMED["lean_loop_stages_32"]
    spoilt = replace(fine, name="spoilt", edits=(("sum[m][n] += a[k % 2][m]", "sum[m][n] -= a[k % 2][m]"),))
    monkeypatch.setattr(__main__, "PLANTED", (fine, spoilt))
    monkeypatch.setattr(__main__, "IN_LOOPS", (fine, spoilt))
    assert __main__.main(["check", "--only", fine.name]) == 0
    assert __main__.main(["check"]) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[0].split() == [fine.name, "correct"]
    assert said[2].startswith("spoilt ")
    assert "correct" not in said[2].split()


# What the commands conclude

OTHER = Judged("other", "PASS", "SAME_BINARY", False)


def judged(slowdown: Slowdown, verdict: str = "REGRESSED", reason: str = "SLOWER") -> Judged:
    return Judged(slowdown.real.id, verdict, reason, verdict != "PASS", 0.01, (0.009, 0.011))


@pytest.mark.parametrize(
    ("found", "unlike", "status"),
    [
        (("REGRESSED", "SLOWER", OTHER), 0, 0),
        (("PASS", "NOT_SLOWER", OTHER), 0, 1),
        (("AMBIGUOUS", "MAYBE_SLOWER", OTHER), 0, 1),
        (("REGRESSED", "SLOWER", replace(OTHER, verdict="AMBIGUOUS", red=True)), 0, 1),
        (("REGRESSED", "SLOWER", OTHER), 1, 1),
    ],
    ids=["found", "missed", "ambiguous", "another", "evidence"],
)
def test_status_of_the_gate(
    found: tuple[str, str, Judged], unlike: int, status: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    verdict, reason, other = found
    told = {one.case: one for one in (judged(NAIVE, verdict, reason), other)}
    info = SimpleNamespace(name="GPU", board="b", capability=(9, 0))
    monkeypatch.setattr(__main__, "open_cuda", lambda _: SimpleNamespace(info=info, close=lambda: None))
    monkeypatch.setattr(gate, "run", lambda *_: (told, unlike))
    file = tmp_path / "measured.json"
    run = ["gate", "--only", NAIVE.name, "--into", str(file)]
    assert __main__.main(run) == status
    (stored,) = measured.read(file)
    assert stored["found"][NAIVE.name]["said"]["verdict"] == verdict
    assert (stored["how"], stored["board"], stored["others"]) == ("gate", "b", 1)
    slight = {NAIVE.name: {"change": 0.001, "interval": [0.0, 0.002], "us": 100.0}}
    measured.add(file, measured.MEASURE, cast("Any", info), "c", slight)
    status_now = status if verdict == "REGRESSED" else 0
    assert __main__.main(run) == status_now, "too slight on this GPU to be missed"


def seconds_of(**slower: float) -> Callable[[Any], float]:
    """An edited case takes so much longer, by the name of its slowdown."""
    return lambda side: 1e-4 * (1 + slower.get(str(getattr(side, "id", "")).split("+")[-1].split("-")[0], 0))


def test_each_is_measured_beside_the_kernel_as_it_is_and_judged(tmp_path: Path) -> None:
    chosen = [NAMED[name] for name in ("naive_twice", "strided_twice", "wgmma_stages", "tf32x3_edge")]
    device = SimulatedDevice(seconds=seconds_of(naive_twice=0.02, strided_twice=0.004, wgmma_stages=0.003))
    found = beside.measure(device, chosen, {s.name: s.alone(tmp_path) for s in chosen})
    costs = {name: cost for name, cost in found.items() if isinstance(cost, beside.Cost)}
    assert list(costs) == [s.name for s in chosen]
    assert costs["naive_twice"].change == pytest.approx(0.02, abs=0.001)
    assert costs["naive_twice"].judged.verdict == "REGRESSED"
    assert costs["wgmma_stages"].change == pytest.approx(0.003, abs=0.001)
    assert costs["tf32x3_edge"].judged.verdict == "PASS"
    assert costs["tf32x3_edge"].interval[0] < 0 < costs["tf32x3_edge"].interval[1]


def test_what_cannot_be_timed_is_said_and_the_others_are_measured(tmp_path: Path) -> None:
    def fail(base: Any, case: Any) -> None:
        if "wgmma_stages" in getattr(case, "id", ""):
            raise DeviceError("WRONG", "wgmma+wgmma_stages: wrong output")

    chosen = [NAMED[name] for name in ("naive_twice", "wgmma_stages")]
    found = beside.measure(SimulatedDevice(fail=fail), chosen, {s.name: s.alone(tmp_path) for s in chosen})
    assert found["wgmma_stages"] == "wgmma+wgmma_stages: wrong output"
    assert isinstance(found["naive_twice"], beside.Cost)


@pytest.mark.parametrize("cost", [0.02, 0.0])
def test_status_of_measure(
    cost: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    device = SimulatedDevice(seconds=seconds_of(naive_twice=cost))
    monkeypatch.setattr(__main__, "open_cuda", lambda _: device)
    file = tmp_path / "measured.json"
    run = ["measure", "--only", "naive_twice", "--into", str(file)]
    assert __main__.main(run) == 0
    assert "missed, of 0.7 % and more or not measured: none" in capsys.readouterr().out
    (stored,) = measured.read(file)
    found = stored["found"]["naive_twice"]
    assert found["change"] == pytest.approx(cost, abs=0.001)
    assert found["said"]["verdict"] == ("REGRESSED" if cost else "PASS")
    monkeypatch.setattr(__main__, "LEAST", -1.0)
    assert __main__.main(run) == int(not cost), "one that the gate's rule does not find is missed"


# The page


def test_the_page_tells_classes_costs_and_the_freeze(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(frozen, "COMMIT", "")
    info = cast("Any", SimpleNamespace(name="GPU", board="b0", capability=(9, 0)))
    file = tmp_path / "measured.json"

    def found(verdict: str, change: float) -> dict[str, Any]:
        said = {"verdict": verdict, "reason": "…", "change": change, "interval": [0.0, 0.1]}
        return {"change": change, "interval": [change - 0.001, change + 0.001], "us": 99.0, "said": said}

    first = {"wgmma_stages": found("REGRESSED", 0.011), "wgmma_barriers": found("AMBIGUOUS", 0.0071)}
    measured.add(file, measured.MEASURE, info, "c" * 40, {**first, "naive_twice": found("PASS", 0.002)})
    said = {"wgmma_stages": {"said": {"verdict": "REGRESSED", "reason": "SLOWER"}}}
    measured.add(file, measured.GATE, info, "c" * 40, said, others=3, red=[])
    text = page.text(PLANTED, measured.read(file))
    assert "before the freeze" in text
    assert "after the freeze" not in text
    assert "| wgmma | – | – | – | 2 of 3 REGRESSED, 1 AMBIGUOUS; red 100.0 (29.2–100.0) % |" in text
    short = "| CUDA cores, at most 100 µs | 0 of 1 REGRESSED; red 0.0 (0.0–97.5) % | – | – | – |"
    assert short in text
    assert "- `gate`: board b0, commit cccccccccccc, nvcc " in text
    assert "1 edits; 0 of 3 other cases red" in text
    assert f"| `{NAMED['wgmma_stages'].real.id}` | 99 | +1.10 % (+1.00 … +1.20) | 2 REGRESSED |" in text
    assert "| not measured | – |" in text
    monkeypatch.setattr(frozen, "COMMIT", "f" * 40)
    monkeypatch.setattr(frozen, "DATE", "2026-01-01T00:00:00+00:00")
    assert "GPU, after the freeze of the rule" in page.text(PLANTED, measured.read(file))
