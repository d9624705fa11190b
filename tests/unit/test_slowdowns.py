"""The planted slowdowns are edits of today's kernels; what the gate says of them decides the status."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.compiler.nvcc import compile_all
from harness.model import Case
from harness.project.selection import Choice, select
from tests.ladder import LADDER, PROJECT
from tests.slowdowns import PLANTED, Rotten, Slowdown, __main__, gate, together
from tests.slowdowns.gate import Judged

NAMED = {slowdown.name: slowdown for slowdown in PLANTED}
NAIVE = NAMED["naive_twice"]


@pytest.mark.parametrize("slowdown", PLANTED, ids=lambda s: s.name)
def test_each_matches_its_kernel_and_changes_it(slowdown: Slowdown) -> None:
    assert slowdown.edited() != slowdown.source.read_text(encoding="utf-8")
    assert slowdown.real.config in slowdown.real.kernel.configs


def test_as_many_as_are_asked_for_in_as_many_cases() -> None:
    assert len(PLANTED) >= 21
    assert len(NAMED) == len({slowdown.real.id for slowdown in PLANTED}) == len(PLANTED)
    timed = {case.id for case in select(PROJECT, Choice(suite="full"), (9, 0)).timed}
    assert {slowdown.real.id for slowdown in PLANTED} <= timed
    assert not any(slowdown.kernel == "warp_tiled" for slowdown in PLANTED)


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
    moved = [
        (replace(k, source=tmp_path / k.source.name), c, d) for k, c, d in variants if k.source is not None
    ]
    built: list[Any] = compile_all([*variants, *moved], "sm_90a")
    before, after = built[: len(variants)], built[len(variants) :]
    for (kernel, config, dtype), old, new in zip(variants, before, after, strict=True):
        variant = Case(kernel, dtype, config, NAIVE.problem).variant
        planted = variant in {slowdown.real.variant for slowdown in chosen}
        assert (old.cubin == new.cubin) != planted, variant


def test_as_many_cases_without_one_stand_beside() -> None:
    timed = select(PROJECT, Choice(suite="full"), (9, 0)).timed
    others = gate.beside(PLANTED, timed)
    assert len(others) == len(PLANTED) == len({case.id for case in others})
    assert not {case.variant for case in others} & {s.real.variant for s in PLANTED}
    assert all(case.kernel.compiled for case in others)


# What the command concludes

OTHER = Judged("other", "PASS", "WITHIN_THRESHOLD", False, 0.0, None, None)


def judged(slowdown: Slowdown, verdict: str = "REGRESSED", reason: str = "SLOWER_PAIRED") -> Judged:
    return Judged(slowdown.real.id, verdict, reason, verdict != "PASS", -0.01, 0.01, (0.009, 0.011))


@pytest.mark.parametrize(
    ("found", "unlike", "status"),
    [
        (("REGRESSED", "SLOWER_PAIRED", OTHER), 0, 0),
        (("PASS", "WITHIN_MARGIN", OTHER), 0, 1),
        (("AMBIGUOUS", "PAIR_AMBIGUOUS", OTHER), 0, 1),
        (("REGRESSED", "SLOWER_PAIRED", replace(OTHER, verdict="DRIFTED", red=True)), 0, 1),
        (("REGRESSED", "SLOWER_PAIRED", OTHER), 1, 1),
    ],
    ids=["found", "missed", "ambiguous", "another", "evidence"],
)
def test_status_of_the_gate(
    found: tuple[str, str, Judged], unlike: int, status: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    verdict, reason, other = found
    told = {one.case: one for one in (judged(NAIVE, verdict, reason), other)}
    info = SimpleNamespace(name="GPU", capability=(9, 0))
    monkeypatch.setattr(__main__, "open_cuda", lambda _: SimpleNamespace(info=info, close=lambda: None))
    monkeypatch.setattr(gate, "run", lambda *_: (told, unlike))
    monkeypatch.setattr(__main__, "MEASURED", tmp_path / "measured.json")
    assert __main__.main(["gate", "--only", NAIVE.name]) == status
    known = {__main__._name(info): {NAIVE.name: {"change": 0.001, "interval": [0.0, 0.002]}}}  # type: ignore[arg-type]
    (tmp_path / "measured.json").write_text(json.dumps(known))
    slight = status if verdict == "REGRESSED" else 0
    assert __main__.main(["gate", "--only", NAIVE.name]) == slight, "too slight on this GPU to be missed"
