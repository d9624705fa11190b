"""Shares of cuBLAS by class: the fastest variant that counts; no mean without every shape."""

from __future__ import annotations

import dataclasses

import pytest

from gemm_regression.baselines import Baseline, BaselineEntry
from gemm_regression.model import Problem
from gemm_regression.project.selection import Choice, select
from lab import classes
from tests.gemm_regression import synthetic
from tests.ladder import LADDER, PROJECT

SQUARE = Problem(4096, 4096, 4096)
LARGE = next(of for of in classes.CLASSES if SQUARE in of.problems and of.dtype == "f32")


def _entry(variant: str, problem: Problem, seconds: float, ratio: float | None) -> BaselineEntry:
    entry = synthetic.entry(synthetic.case(problem=problem), seconds)
    return dataclasses.replace(entry, case_id=f"{variant}-{problem.id}", cublas_ratio=ratio)


def _baseline(*entries: BaselineEntry) -> Baseline:
    return Baseline("nvidia-h200", {}, {}, "", {entry.case_id: entry for entry in entries})


def test_the_fastest_variant_counts_that_computes_the_same() -> None:
    stored = _baseline(
        _entry("lean_loop-f32-tile1", SQUARE, 3e-3, 0.9),
        _entry("lean_loop-f32-tile2", SQUARE, 2e-3, 1.1),
        _entry("lean_loop-f32-tile2", Problem(64, 4096, 4096), 1e-6, 9.0),
        _entry("tf32x3-f32-tile1", SQUARE, 1e-3, 1.5),
        _entry("select-f32", SQUARE, 1e-4, 2.0),
        _entry("cublas-f32", SQUARE, 1e-4, None),
        _entry("mma_sync-f16-tile1", SQUARE, 1e-5, 0.6),
    )
    found = classes.fastest(stored, LARGE, SQUARE)
    assert found is not None
    assert found.case_id == f"lean_loop-f32-tile2-{SQUARE.id}"
    assert classes.fastest(stored, LARGE, Problem(2048, 2048, 2048)) is None


@pytest.mark.parametrize(("share", "reached"), [(1.06, "yes"), (1.04, "no")])
def test_a_class_is_reached_by_its_mean_and_not_with_a_shape_missing(share: float, reached: str) -> None:
    entries = [_entry("lean_loop-f32-tile1", p, 1e-3, share) for p in LARGE.problems]
    page = classes.render(_baseline(*entries), "f")
    assert f"| {LARGE.name} | {share:.3f} | 1.05 | {reached} |" in page
    page = classes.render(_baseline(*entries[1:]), "f")
    assert f"| {LARGE.name} | – | 1.05 | – | not measured: {LARGE.problems[0].id} |" in page


def test_every_shape_of_a_class_is_timed_beside_cublas() -> None:
    timed = {
        (c.kernel.name, c.dtype.name, c.problem) for c in select(PROJECT, Choice(suite="full"), (9, 0)).timed
    }
    for of in classes.CLASSES:
        counted = [kernel.name for kernel in LADDER if kernel.compiled and of.counts(kernel)]
        for problem in of.problems:
            assert any((name, of.dtype, problem) in timed for name in counted), (of.name, problem.id)
            assert problem.batch > 1 or ("cublas", of.dtype, problem) in timed
