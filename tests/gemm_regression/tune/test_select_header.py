"""The C++ header answers as Python does: compiled, and asked about many random problems."""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from gemm_regression.model import F32, Constraints, Problem
from gemm_regression.tune.figures import SelectError
from gemm_regression.tune.select import Selector, exported, header
from gemm_regression.tune.table import key_of
from tests.gemm_regression.tune.test_select import (
    BATCH,
    CUBES,
    EVEN,
    FIGURES,
    LARGE,
    MAPPED,
    SMALL,
    figure,
    kernel,
    selector,
)
from tests.ladder import PROJECT

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")

MAIN = """
#include <cstdio>
#include <cstring>
#include "choices.h"
namespace select_ = gemm_select::NAMESPACE;
static_assert(select_::select(select_::DType::f32, {SIZE, SIZE, SIZE})->tile[0] > 0, "at compile time");
int main() {
  select_::Problem p;
  char dtype[16];
  while (std::scanf("%15s %ld %ld %ld %ld %ld %ld %ld %ld %ld %ld", dtype, &p.m, &p.n, &p.k, &p.batch, &p.lda,
                    &p.ldb, &p.ldc, &p.start_a, &p.start_b, &p.start_c) == 11) {
    const select_::Choice* chosen = nullptr;
    DTYPES
    std::printf("%s %s\\n", chosen ? chosen->stage : "none", chosen ? chosen->config : "");
  }
}
"""


def program(folder: Path, of: Selector, size: int) -> Path:
    """A program that reads problems and answers each in a line."""
    (folder / "choices.h").write_text(header(of))
    dtypes = dict.fromkeys(key[0] for key in exported(of).tables)
    asked = (
        f'if (!std::strcmp(dtype, "{d}")) chosen = select_::select(select_::DType::{d}, p);' for d in dtypes
    )
    text = MAIN.replace("NAMESPACE", of.gpu.replace("-", "_")).replace("DTYPES", "\n    ".join(asked))
    (folder / "main.cpp").write_text(text.replace("SIZE", str(size)))
    options = "-std=c++17 -O1 -Wall -Wextra -Werror -fsanitize=undefined -fno-sanitize-recover=all"
    command = ["g++", *options.split(), "main.cpp", "-o", "asked"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return folder / "asked"


def answers(path: Path, asked: Sequence[tuple[str, Problem]]) -> list[str]:
    lines = (
        f"{d} {p.m} {p.n} {p.k} {p.batch} {p.lda} {p.ldb} {p.ldc} {' '.join(map(str, p.starts))}"
        for d, p in asked
    )
    done = subprocess.run([path], input="\n".join(lines), capture_output=True, text=True, check=True)
    return [line.strip() for line in done.stdout.splitlines()]


def expected(of: Selector, dtype: str, problem: Problem) -> str:
    try:
        found = of.select(problem, next(d for k in of.kernels for d in k.dtypes if d.name == dtype))
    except SelectError:
        return "none"
    return found.variant.stage if found.found else "none"


def random_problem(rng: random.Random, batches: bool) -> Problem:
    def size() -> int:
        exact = rng.choice([0, 1, 8, 16, 64, 512, 513, 4096, 5001, 65535 * 16 + 1, 2**31 - 1])
        return exact if rng.random() < 0.3 else round(2 ** rng.uniform(0, 14))

    m, n, k = size(), size(), size()
    if rng.random() < 0.3:
        n = k = m
    batch = round(2 ** rng.uniform(0, 16)) if batches and rng.random() < 0.3 else 1
    starts = (0, 0, 0) if rng.random() < 0.7 else (rng.choice([1, 2, 8]), rng.choice([0, 4]), 0)
    problem = Problem(m, n, k, batch=batch, starts=starts)
    if max(m, n, k) < 2**30 and rng.random() < 0.3:
        more = {name: getattr(problem, name) + rng.choice([0, 1, 4]) for name in ("lda", "ldb", "ldc")}
        problem = problem.with_leading(more)
    return problem


def compare(folder: Path, of: Selector, size: int, count: int) -> set[str]:
    rng = random.Random(12)
    dtypes = sorted({key[0] for key in of.tables})
    asked = [(rng.choice(dtypes), random_problem(rng, batches=True)) for _ in range(count)]
    plain = dict.fromkeys(f.problem for f in of.measured if f.problem.layout == "NN")  # the header's
    asked += [(d, p) for d in dtypes for p in plain]
    got = answers(program(folder, of, size), asked)
    held = exported(of)
    wanted = [expected(held, dtype, problem) for dtype, problem in asked]
    assert [*zip(asked, got, strict=True)] == [*zip(asked, wanted, strict=True)]
    return set(got)


def test_the_ladder_of_an_h200(tmp_path: Path) -> None:
    assert len(compare(tmp_path, Selector.of(PROJECT, "nvidia-h200"), 4096, 5_000)) > 6


def test_kernels_that_refuse_problems(tmp_path: Path) -> None:
    square = kernel("square", 64, constraints=Constraints(square=True))
    speeds = ((EVEN, 2.0), (MAPPED, 3.0), (square, 1.5))
    figures = [*FIGURES, *(figure(each, Problem(n, n, n), by * n) for each, by in speeds for n in CUBES)]
    figures.append(figure(BATCH, Problem(8, 8, 8, batch=1000), 1.0))
    of = selector(figures, SMALL, LARGE, EVEN, MAPPED, square, BATCH)
    got = compare(tmp_path, of, 512, 5_000)
    stages = ("small tile16", "large tile32", "even tile64", "mapped tile32", "square tile64", "batch tile8")
    assert got == {*stages, "none"}


def test_a_kernel_that_is_no_rules_is_left_out_and_named() -> None:
    own = kernel("own", constraints=Constraints(unless=lambda problem, config: None))
    problem = Problem(512, 512, 512)
    of = selector([*FIGURES, figure(own, problem, 1e9)], SMALL, LARGE, own)
    assert of.select(problem).variant.kernel is own
    assert exported(of).select(problem).variant.kernel is LARGE
    assert "// Without own, which no rule below describes." in header(of)
    assert "Without" not in header(selector())
    with pytest.raises(SelectError, match="no figures for a header"):
        header(selector([figure(own, problem, 1.0)], own))


def test_sizes_that_no_kernel_can_be_given_are_null(tmp_path: Path) -> None:
    asked = program(tmp_path, selector(), 512)
    for line in ("f32 -1 4 4 1 0 0 0 0 0 0", "f32 4 4 8 1 4 0 0 0 0 0", "f32 4294967296 4 4 1 0 0 0 0 0 0"):
        done = subprocess.run([asked], input=line, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "none", line
    assert key_of(Problem(1, 1, 1), F32.name) in selector().tables
