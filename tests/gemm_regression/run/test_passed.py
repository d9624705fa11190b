"""What passed is answered from the cache as long as nothing that it depends on changes, and never else."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import gemm_regression
import ptxsan
from gemm_regression.compiler import tools
from gemm_regression.compiler.tools import Nvcc, load_entry, store_entry
from gemm_regression.project.loader import Project, load
from gemm_regression.project.selection import Choice, select
from gemm_regression.pytest_plugin import left_out
from gemm_regression.run import passed
from gemm_regression.run.passed import Keys, Passed
from tests.gemm_regression.cli.repo import harness as run

PACKAGES = (gemm_regression, ptxsan)
PARAMETERS = "const float *A, const float *B, float *C, int M, int N, int K"
SOURCE = f"""#include "edge.cuh"
extern "C" __global__ void gemm({PARAMETERS}) {{
    __shared__ float row[8][8];
    int i = blockIdx.y * 8 + threadIdx.y, j = blockIdx.x * 8 + threadIdx.x;
    float sum = 0;
    for (int k = 0; k < K; k += 8) {{
        row[threadIdx.y][threadIdx.x] = INSIDE(i, M) && k + threadIdx.x < K ? A[i * K + k + threadIdx.x] : 0;
        __syncthreads();
        for (int l = 0; l < 8 && k + l < K && INSIDE(j, N); ++l)
            sum += row[threadIdx.y][l] * B[(k + l) * N + j];
        __syncthreads();
    }}
    if (INSIDE(i, M) && INSIDE(j, N)) C[i * N + j] = sum;
}}
"""
HEADER = "#define INSIDE(i, n) ((i) < (n))\n"
DECLARED = f"""from gemm_regression.model import BlockShape, Kernel, Problem, Waiver
from gemm_regression.project.suites import Suite
from numbers_of_mine import SIZE

SMALL = Problem(3, 2, 7)
SUITES = (Suite("full", (Problem(13, 11, 9), SMALL), ()), Suite("smoke", (SMALL,), ()))
SHAPE = BlockShape((SIZE, SIZE), (SIZE, SIZE))
KERNELS = (
    Kernel("gemm", "gemm.cu", "gemm", SHAPE, parameters="{PARAMETERS}"),
    Kernel("other", "other.cu", "gemm", SHAPE, parameters="{PARAMETERS}"),
)
"""
SETTINGS = ("sm_90a", False, 60.0)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep_library: Callable[[Path], None]) -> Path:
    """A project of two kernels, whose declarations import a module of its own; a cache; a harness to edit."""
    keep_library(tmp_path / "cache")
    monkeypatch.setenv("GEMM_CACHE_DIR", str(tmp_path / "cache"))
    root = tmp_path / "mine"
    (root / "kernels").mkdir(parents=True)
    (root / "tests").mkdir()
    (root / "pyproject.toml").write_text("[tool.gemm-regression]\n")
    (root / "numbers_of_mine.py").write_text("SIZE = 8\n")
    (root / "kernels" / "__init__.py").write_text(DECLARED)
    (root / "kernels" / "gemm.cu").write_text(SOURCE)
    (root / "kernels" / "other.cu").write_text(SOURCE.replace('#include "edge.cuh"\n', HEADER))
    (root / "kernels" / "edge.cuh").write_text(HEADER)
    judged = "from gemm_regression.pytest_plugin.judged import test_kernel\n"
    (root / "tests" / "test_kernels.py").write_text(judged)
    (root / "tests" / "test_static.py").write_text("")
    monkeypatch.syspath_prepend(root)
    for package in PACKAGES:
        copy, unwanted = tmp_path / "harness" / package.__name__, shutil.ignore_patterns("__pycache__")
        shutil.copytree(Path(str(package.__file__)).parent, copy, ignore=unwanted)
        monkeypatch.setattr(package, "__file__", str(copy / "__init__.py"))
    monkeypatch.setattr(gemm_regression, "BEGAN", 2e10)
    imported = passed._imported
    # Those of this process are of the real one.
    monkeypatch.setattr(passed, "_imported", lambda: (p for p in imported() if p.is_relative_to(tmp_path)))
    return root


def project_of(root: Path) -> Project:
    sys.modules.pop("numbers_of_mine", None)
    return load(root)


def keys(root: Path, settings: tuple[object, ...] = SETTINGS) -> dict[str, str]:
    """The keys of the tests of the project's cases as it is now."""
    project = project_of(root)
    known = Keys(Passed(project, settings).keys, project)
    cases = select(project, Choice(), (9, 0), emulated=True).verify
    return {case.id: known.of(case) for case in cases}


def replaced(path: str, old: str, new: str) -> Callable[[Path], None]:
    def edit(root: Path) -> None:
        file = root / path
        text = file.read_text()
        assert text.count(old) >= 1
        file.write_text(text.replace(old, new, 1))

    return edit


EDITS = {
    "source": replaced("kernels/gemm.cu", "sum = 0", "sum = 0.0f"),
    "comment of the source": replaced("kernels/gemm.cu", "__syncthreads", "// one\n__syncthreads"),
    "header": replaced("kernels/edge.cuh", "<", "<="),
    "flags": replaced("kernels/__init__.py", '"gemm", SHAPE', '"gemm", SHAPE, flags=("-G",)'),
    "waiver": replaced(
        "kernels/__init__.py", '"gemm", SHAPE', '"gemm", SHAPE, waived=(Waiver("race", "a", "b"),)'
    ),
    "module of the declaration": replaced("numbers_of_mine.py", "8", "16"),
    "conftest": lambda root: (root / "conftest.py").write_text("import os\n") and None,
    "helper of the tests": lambda root: (root / "tests" / "mine.py").write_text("") and None,
    "pytest's options": replaced("pyproject.toml", "[", "[tool.pytest.ini_options]\n["),
    "interpreter": replaced("../harness/ptxsan/rounding.py", "def ", "# edited\ndef "),
    "interpreter in C": replaced("../harness/ptxsan/native/blocks.c", "{", "{ "),
    "oracle": replaced("../harness/gemm_regression/oracle/verify.py", "_LITTLE = 1000", "_LITTLE = 999"),
    "model": replaced("../harness/gemm_regression/model/operation.py", "alpha", "alpha "),
}


@pytest.mark.parametrize("what", EDITS)
def test_whatever_decides_a_verdict_makes_another_key(what: str, root: Path) -> None:
    before = keys(root)
    assert before == keys(root)
    EDITS[what](root)
    after = keys(root)
    assert before.keys() == after.keys()
    assert all(before[case] != after[case] for case in before if case.startswith("gemm-"))
    own = what in ("source", "comment of the source", "header")
    assert all((before[case] == after[case]) is own for case in before if case.startswith("other-"))


def test_an_address_in_memory_makes_no_other_key(root: Path) -> None:
    """Of a function in the declarations, which are loaded anew in each process."""
    workspace = '"gemm", SHAPE, workspace=Workspace(lambda c, d, p: 4)'
    for old, new in (("Kernel,", "Kernel, Workspace,"), ('"gemm", SHAPE', workspace)):
        replaced("kernels/__init__.py", old, new)(root)
    one, two = project_of(root), project_of(root)
    assert one.kernels[0].workspace != two.kernels[0].workspace
    assert Passed(one, SETTINGS).keys == Passed(two, SETTINGS).keys


def test_bytecode_and_hidden_files_make_no_other_key(root: Path) -> None:
    before = keys(root)
    for folder in (root.parent / "harness" / "ptxsan", root / "kernels"):
        (folder / "__pycache__").mkdir(exist_ok=True)
        (folder / "__pycache__" / "machine.cpython-311.pyc.139823").write_bytes(b"half")
        (folder / ".machine.py.swp").write_bytes(b"an editor's")
    assert keys(root) == before


def test_a_problem_is_a_case_of_its_own(root: Path) -> None:
    before = keys(root)
    replaced("kernels/__init__.py", "Problem(13, 11, 9)", "Problem(13, 11, 9, alpha=1.0000001)")(root)
    (other,) = (key for case, key in keys(root).items() if re.fullmatch("gemm-f32-13x11x9(-alpha1)?", case))
    assert other not in before.values()
    assert len({*before.values()}) == len(before) >= 4


def test_the_options_of_the_run_the_compilers_and_the_packages_count(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = (SETTINGS, ("sm_80", False, 60.0), ("sm_90a", True, 60.0), ("sm_90a", False, 1.0))
    seen = [keys(root, of) for of in settings]
    monkeypatch.setattr(tools, "find_nvcc", lambda: Nvcc(Path("nvcc"), "13.1.0"))
    seen.append(keys(root))
    monkeypatch.setattr(passed, "identity", lambda: "ptx-another.so")
    seen.append(keys(root))
    monkeypatch.setattr("numpy.__version__", "9.9")
    seen.append(keys(root))
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-G")
    seen.append(keys(root))
    made = [key for found in seen for key in found.values()]
    assert len({*made}) == len(made)


def results(root: Path) -> Passed:
    return Passed(project_of(root), SETTINGS)


RECORDS = [("variant", "gemm-f32"), ("registers", 32)]


def test_passes_are_kept_and_failures_forgotten(root: Path) -> None:
    one, two, *_ = keys(root).values()
    results(root).keep({one: RECORDS, two: RECORDS}, ())
    assert results(root).answers == {one: RECORDS, two: RECORDS}
    results(root).keep({}, [one])
    assert results(root).answers == {two: RECORDS}
    EDITS["source"](root)
    assert results(root).answers == {}


def test_a_torn_or_foreign_entry_is_none(root: Path) -> None:
    one = next(iter(keys(root).values()))
    results(root).keep({one: RECORDS}, ())
    (entry,) = (root.parent / "cache").glob("*.zip")
    whole, found = entry.read_bytes(), load_entry(entry)
    assert found
    flipped = whole[:60] + bytes([whole[60] ^ 1]) + whole[61:]
    for torn in (b"", whole[: len(whole) // 2], flipped):
        entry.write_bytes(torn)
        assert results(root).answers == {}, torn
    another_state = re.sub(rb'"state": "..', b'"state": "zz', found[0])
    assert another_state != found[0]
    for foreign in (b'{"passed": [1, 2]}', another_state, b"\xff"):
        store_entry(entry, foreign, "")
        assert results(root).answers == {}, foreign
    store_entry(entry, *found)
    assert results(root).answers == {one: RECORDS}


@pytest.mark.parametrize("file", ["kernels/gemm.cu", "kernels/edge.cuh", "numbers_of_mine.py", ""])
def test_nothing_is_kept_where_a_file_changed_meanwhile(
    file: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it was changed back: what ran is not known; or where it was before, but after this process
    had read it."""
    one = next(key for case, key in keys(root).items() if case.startswith("gemm-"))
    run = results(root)
    if file:
        text = (root / file).read_text()
        (root / file).write_text(text + "\n")
        (root / file).write_text(text)
    else:
        monkeypatch.setattr(gemm_regression, "BEGAN", os.stat(root / "numbers_of_mine.py").st_ctime - 60)
    run.keep({one: RECORDS}, ())
    assert results(root).answers == {}


# Through the command


@pytest.mark.compile
def test_a_check_answers_what_passed_and_nothing_that_is_broken(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CI", raising=False)

    def checked(status: int, answered: str, *options: str) -> str:
        done = run(root, "check", *options)
        found = "".join(re.findall(r"(\d+ of \d+) tests answered from the cache", done.stdout))
        assert (done.returncode, found) == (status, answered), done.stdout
        return done.stdout

    assert "4 passed" in checked(0, "", "-n", "2")
    said = checked(0, "4 of 4")
    assert "2 variants checked without a GPU: 2 PASS" in said
    assert "4 from the cache" in said.splitlines()[-1]
    assert "matches no case" not in checked(0, "2 of 2", "-k", "3x2x7")
    replaced("kernels/gemm.cu", "__syncthreads", "// __syncthreads")(root)
    for workers in ("2", "0"):  # it is no pass that could be kept
        said = checked(1, "2 of 4", "-n", workers)
        assert "2 variants checked without a GPU: 1 WRONG, 1 PASS" in said
    replaced("kernels/gemm.cu", "// __syncthreads", "__syncthreads")(root)
    assert "4 passed" in checked(0, "", "-n", "0", "--no-cache")
    EDITS["header"](root)
    checked(1, "", "-n", "0", "tests/test_kernels.py::test_kernel[gemm-f32-3x2x7]")


@pytest.mark.parametrize(
    ("chosen", "ci", "reads"),
    [
        *(({}, "", True), ({}, "false", True), ({}, "true", False)),
        *(({name: True}, "", False) for name in ("no_cache", "lf", "failedfirst", "stepwise")),
    ],
)
def test_in_ci_and_where_the_user_picks_all_run(
    chosen: dict[str, bool], ci: str, reads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", ci)
    usual = {"no_cache": False, "lf": False, "failedfirst": False, "stepwise": False}
    config: Any = SimpleNamespace(option=SimpleNamespace(**usual | chosen))
    assert left_out._reads(config) is reads


@pytest.mark.compile
def test_a_waiver_that_matches_nothing_stays_red(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though each test passed."""
    monkeypatch.delenv("CI", raising=False)
    EDITS["waiver"](root)
    for number in ("2 passed", "2 from the cache"):
        done = run(root, "check", "-n", "0", "--kernel", "gemm")
        assert done.returncode == 1, done.stdout
        assert "matches no finding any more, remove it: gemm: waiver of race" in done.stdout
        assert number in done.stdout.splitlines()[-1]
