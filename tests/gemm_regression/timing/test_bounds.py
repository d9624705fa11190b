"""What bounds a kernel: shares of roofs, by counts of ncu or of the emulated device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gemm_regression.compiler.static.store import StoreError
from gemm_regression.counters import traffic
from gemm_regression.counters.profiler import TRAFFIC
from gemm_regression.counters.traffic import NcuCounts, TrafficData, of_ncu, requested
from gemm_regression.model import F32, Case, Problem
from gemm_regression.report.figures import bound_text
from gemm_regression.report.runs import job_summary, ladder
from gemm_regression.timing.bounds import Level, Roofs, Workload, bound, roofs_of, shares
from tests.gemm_regression.report.made_report import ROOFS
from tests.gemm_regression.report.test_report import ROWS, made
from tests.ladder import LADDER, PROJECT, find_kernel

OWN = Roofs({"f32": 60_000.0}, {"dram": 4000.0, "l2": 8000.0, "shared": 32_000.0}, "measured", 1000.0)
SECONDS = 1e-3
FULL = Workload(60e9, 4e9, 8e9, 32e9, 1e9)  # of a millisecond at every roof
FIELDS = {Level.MATH: "flop", Level.ISSUE: "issued"}


@pytest.mark.parametrize("level", [*Level])
def test_the_bound_is_the_level_that_takes_longest(level: Level) -> None:
    name = FIELDS.get(level, str(level))
    half = {each: (0.9 if each == name else 0.5) * getattr(FULL, each) for each in FULL._fields[:5]}
    found = shares(FULL._replace(**half), OWN, "f32", SECONDS)
    near: Any = bound(found)
    assert near == (level, pytest.approx(0.9))
    assert sorted(found.values())[:-1] == pytest.approx([0.5] * 4)


def test_issue_is_named_where_other_instructions_or_a_memory_take_much() -> None:
    assert bound({Level.ISSUE: 0.9, Level.MATH: 0.66, Level.DRAM: 0.1}) == (Level.ISSUE, 0.9)
    assert bound({Level.ISSUE: 0.9, Level.MATH: 0.69, Level.DRAM: 0.1}) == (Level.MATH, 0.69)
    assert bound({Level.ISSUE: 0.9, Level.MATH: 0.7, Level.SHARED: 0.8}) == (Level.ISSUE, 0.9)
    assert bound({}) is None


def test_slots_are_four_of_each_sm_and_cycle() -> None:
    own, sheet = roofs_of({"roofs": ROOFS}), roofs_of({"name": "NVIDIA H200"})
    assert own
    assert own.issue == pytest.approx(132 * 4 * 1.98, rel=1e-3)
    assert sheet
    assert sheet.issue is None
    assert Level.ISSUE not in shares(FULL, sheet, "f32", SECONDS)
    assert set(shares(Workload(1.0, 1.0), OWN, "s8", SECONDS)) == {Level.DRAM}


def test_what_is_estimated_ends_at_all_and_says_so() -> None:
    over = FULL._replace(shared=2 * 32e9)
    assert bound_text(over, OWN, "f32", SECONDS) == "smem 200"
    assert bound_text(over._replace(estimated=True), OWN, "f32", SECONDS).startswith("~DRAM 100")
    assert (
        bound_text(Workload(60e9, estimated=True), OWN, "f32", 2 * 60e9 / over.flop * SECONDS) == "~math 50"
    )
    assert bound_text(Workload(60e9), OWN, "s8", SECONDS) == ""
    assert bound_text(FULL, OWN, "f32", None) == ""


def test_counts_of_ncu_are_bytes_and_instructions() -> None:
    values = dict(zip(TRAFFIC, (0.0, 10.0, 20.0, 3.0, 5.0, 7.0), strict=True))
    assert of_ncu(values, 99.0) == Workload(99.0, 30.0, 96.0, 640.0, 7.0)


def of(name: str, m: int, n: int, k: int, batch: int = 1) -> Case:
    kernel = find_kernel(name)
    return Case(kernel, F32, kernel.configs[0], Problem(m, n, k, batch=batch))


def test_counts_are_those_of_the_binary_that_ran_also_for_a_choice() -> None:
    case = of("tiled", 1024, 1024, 1024)
    chosen = replace(case, chosen_for=of("select", 1024, 1024, 1024))
    counts = NcuCounts("a" * 64, dict.fromkeys(TRAFFIC, 1.0), {})
    known = TrafficData({"nvidia-h200": {case.id: counts}})
    assert not known.work("nvidia-h200", case, "a" * 64).estimated
    assert not known.work("nvidia-h200", chosen, "a" * 64).estimated
    assert known.work("nvidia-h100", case, "a" * 64).estimated
    other = known.work("nvidia-h200", case, "b" * 64)
    assert (other.estimated, other.dram) == (True, 3 * 4 * 1024**2)  # each operand once


def test_emulated_counts_grow_with_the_problem() -> None:
    """tiled reads each element once a block: 2·M·N·K / 32 words of A and B; and writes C."""
    known, case = TrafficData.of(PROJECT.baselines), of("tiled", 1024, 1024, 1024)
    small = known.work("", of("tiled", 96, 160, 64))
    counts = known.emulated[case.variant]["96x160x64"]
    assert small.l2 == 32 * (counts["loads_sectors"] + counts["stores_sectors"])
    work = known.work("", case)
    assert work.estimated
    assert work.l2 == pytest.approx(4 * (2 * 1024**3 / 32 + 1024**2))
    assert work.shared is not None
    assert small.shared is not None
    assert work.shared / small.shared == pytest.approx(1024**3 / (96 * 160 * 64))
    assert work.issued is None
    naive = known.work("", of("naive", 1024, 1024, 1024))
    assert (naive.l2, naive.dram) == (None, 3 * 4 * 1024**2)
    split = known.work("", of("split_k", 4096, 64, 4096))
    assert (split.l2, split.shared) == (None, None)
    one, many = (of("batched_small", 32, 32, 32, batch=batch) for batch in (3, 30))
    of_batches = known.emulated[one.variant]
    assert requested(many, of_batches) == pytest.approx(10 * requested(one, of_batches))


def test_what_is_not_stored_is_nothing(tmp_path: Path) -> None:
    assert TrafficData.of(tmp_path / "nowhere") == TrafficData()
    counts = NcuCounts("a" * 64, {"m": 1.5}, {"gpu": "NVIDIA H200"})
    traffic.write_seen(tmp_path / "nvidia-h200", {"x": counts})
    (tmp_path / "static").mkdir()
    (tmp_path / "static" / "counters.json").write_text("{}")  # as of another compiler
    known = TrafficData.of(tmp_path)
    assert (list(known.seen), known.emulated) == (["nvidia-h200"], {})
    (tmp_path / "nvidia-h200" / traffic.COUNTED).write_text("{}")
    with pytest.raises(StoreError, match="contains no stored metrics"):
        TrafficData.of(tmp_path)


def test_the_bound_stands_in_the_tables() -> None:
    rows = [*ROWS, made(bound="smem 84")]
    lines = ladder(rows, LADDER).text(False, 200).splitlines()
    assert "bound, %" in lines[0]
    assert sum("smem 84" in line for line in lines) == 1
    assert "bound" not in ladder(ROWS, LADDER).text(False, 200)
    assert "| smem 84 |" in job_summary(rows, [])
