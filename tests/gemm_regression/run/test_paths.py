"""Mistakes where several conditions meet, which no problem of the suite shows."""

from __future__ import annotations

from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemm_regression.cli import init
from gemm_regression.model import Case, Problem
from gemm_regression.run.paths import paths, tried
from tests.gemm_regression.cli.repo import harness
from tests.ladder import find_kernel

RIGHT = "*c = alpha * sum"


@pytest.mark.compile
def test_a_mistake_where_conditions_meet(tmp_path: Path) -> None:
    assert init.main(["--project", str(tmp_path)]) == 0
    source = tmp_path / "kernels" / "sgemm.cu"
    text = source.read_text(encoding="utf-8")
    assert text.count(RIGHT) == 1
    wrong = f"if (M % 8 == 0 && N % 8 == 0 && K % 8 == 3) sum += 1.0f;\n        {RIGHT}"
    source.write_text(text.replace(RIGHT, wrong), encoding="utf-8")
    done = harness(tmp_path, "check", "-n", "0", "--config", "tile16")
    assert done.returncode == 1
    assert "1 variant checked without a GPU: 1 WRONG" in done.stdout
    assert "FAILED tests/test_kernels.py::test_paths[sgemm-f32-tile16-paths] - exact\n" in done.stdout
    assert "FAILED tests/test_kernels.py::test_kernel[" not in done.stdout


@pytest.mark.compile
def test_a_kernel_that_does_not_compile_fails_here_too(tmp_path: Path) -> None:
    assert init.main(["--project", str(tmp_path)]) == 0
    source = tmp_path / "kernels" / "sgemm.cu"
    source.write_text(source.read_text(encoding="utf-8").replace("float sum", "flaot sum"), encoding="utf-8")
    done = harness(tmp_path, "check", "-n", "0", "-k", "test_paths")
    assert done.returncode == 1
    assert "flaot" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


class Conditioned:
    """A device whose kernel has these conditions."""

    def __init__(self, *conditions: Any) -> None:
        self._conditions = conditions

    def conditions(self, cases: list[Case]) -> Any:
        return np.array([[holds(case.problem) for holds in self._conditions] for case in cases], bool)


def _aligned(name: str, problem: Problem) -> bool:
    return bool(getattr(problem, name) % 4 == 0)


def _bit(bit: int, problem: Problem) -> int:
    return (problem.m >> bit % 9) + problem.n * bit & 1


ALIGNED = [partial(_aligned, name) for name in ("m", "n", "k", "ldc")]


def test_every_combination_of_three_has_a_problem_and_none_more_than_needed() -> None:
    kernel = find_kernel("naive")
    known = [Case(kernel, kernel.dtypes[0], kernel.configs[0], problem) for problem in tried()[:3]]
    found = paths(Conditioned(*ALIGNED), known)  # type: ignore[arg-type]
    met = {
        tuple(holds(case.problem) for holds in three)
        for three in [ALIGNED[:3], ALIGNED[1:]]
        for case in (*known, *found.cases)
    }
    assert met == set(product((True, False), repeat=3))
    assert (found.conditions, found.known + found.others) == (4, 4 * 8)
    assert len(found.cases) <= 13
    assert max(case.problem.flops for case in found.cases) < 2**20


def test_conditions_that_no_problem_tells_apart_are_one_and_none_are_no_work() -> None:
    kernel = find_kernel("naive")
    known = [Case(kernel, kernel.dtypes[0], kernel.configs[0], tried()[0])]
    assert paths(Conditioned(ALIGNED[0], ALIGNED[0]), known).conditions == 1  # type: ignore[arg-type]
    assert paths(Conditioned(), known)[:3] == (0, 1, 0)  # type: ignore[arg-type]
    many = [partial(_bit, bit) for bit in range(80)]
    assert paths(Conditioned(*many), known).cases  # type: ignore[arg-type]
