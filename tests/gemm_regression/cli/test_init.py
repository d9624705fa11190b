"""A project begun in an empty folder: green without a GPU, red once broken; and pytest elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from gemm_regression.cli import init
from gemm_regression.model import F32, Config, Problem
from gemm_regression.project.loader import load
from tests.gemm_regression.cli.repo import git, harness
from tests.gemm_regression.rig import Printed
from tests.ladder import PROJECT


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    folder = tmp_path / "mine"
    folder.mkdir()
    assert init.main(["--project", str(folder)]) == 0
    return folder


def test_what_init_writes_is_a_project(begun: Path) -> None:
    project = load(begun)
    (kernel,) = project.kernels
    assert kernel.name == "sgemm"
    declared = project.declarations.read_text().splitlines()
    assert len([line for line in declared if line.strip()]) <= 15
    assert {path.name for path in begun.rglob("*.yml")} == {"check.yml", "gpu.yml"}
    for name in ("check.yml", "gpu.yml"):
        text = (begun / ".github" / "workflows" / name).read_text()
        assert yaml.safe_load(text)["permissions"] == {}
        ours = (PROJECT.root / ".github" / "workflows").glob("*.yml")
        pins = {pin for file in ours for pin in re.findall(r"uses: (.*)", file.read_text())}
        assert set(re.findall(r"uses: (.*)", text)) <= pins


def test_a_folder_is_installed_as_its_commit_where_the_remote_has_that(tmp_path: Path) -> None:
    remote, checkout = tmp_path / "remote.git", tmp_path / "checkout"
    (checkout / "harness" / "ptxsan").mkdir(parents=True)
    (checkout / "pyproject.toml").touch()
    git(tmp_path, "init", "-q", "--bare", str(remote))
    git(checkout, "init", "-q", "-b", "main")
    git(checkout, "remote", "add", "origin", str(remote))
    git(checkout, "add", ".")
    git(checkout, "commit", "-q", "-m", "one")
    inner = checkout / "harness" / "ptxsan"
    direct = [{"url": folder.as_uri(), "dir_info": {}} for folder in (checkout, inner)]
    assert [init.url_of(one) for one in direct] == [checkout.as_uri(), inner.as_uri()]  # not pushed
    git(checkout, "push", "-q", "origin", "main")
    pinned = f"git+{remote.as_uri()}@{git(checkout, 'rev-parse', 'HEAD')}"
    assert [init.url_of(one) for one in direct] == [pinned, f"{pinned}#subdirectory=harness/ptxsan"]
    (checkout / "pyproject.toml").write_text("# edited")
    assert init.url_of(direct[1]) == inner.as_uri()


@pytest.mark.parametrize(
    ("remote", "url"),
    [
        ("https://me:token@example.org/a/b.git", "https://example.org/a/b.git"),
        ("git@example.org:a/b.git", "ssh://git@example.org/a/b.git"),
        ("ssh://git@example.org/a/b.git", "ssh://git@example.org/a/b.git"),
        ("/srv/b.git", "file:///srv/b.git"),
    ],
)
def test_a_remote_as_a_url_without_a_token(remote: str, url: str) -> None:
    assert init._as_url(remote) == url


COMMIT = {"vcs": "git", "commit_id": "0123"}


@pytest.mark.parametrize(
    ("direct", "url"),
    [
        ({"url": "file:///srv/suite", "dir_info": {}}, "file:///srv/suite"),
        ({"url": "file:///a.whl", "archive_info": {"hashes": {"sha256": "12"}}}, "file:///a.whl#sha256=12"),
        ({"url": "https://me:token@example.org/a.whl", "archive_info": {}}, "https://example.org/a.whl"),
        (
            {"url": "https://token@example.org/a.git", "subdirectory": "harness/ptxsan", "vcs_info": COMMIT},
            "git+https://example.org/a.git@0123#subdirectory=harness/ptxsan",
        ),
        (
            {"url": "ssh://git@example.org/a.git", "vcs_info": COMMIT},
            "git+ssh://git@example.org/a.git@0123",
        ),
    ],
)
def test_what_was_installed_is_installed_again_without_a_token(direct: dict[str, Any], url: str) -> None:
    assert init.url_of(direct) == url


def test_without_a_known_origin_nothing_is_guessed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: Printed
) -> None:
    monkeypatch.setattr(init, "_recorded", lambda name: "")
    monkeypatch.setattr("gemm_regression.__file__", str(tmp_path / "lib" / "gemm_regression" / "__init__.py"))
    assert init.main(["--project", str(tmp_path)]) == 0
    assert "\nto do: fill in INSTALL in noxfile.py: pip recorded no URL" in printed.out
    assert "INSTALL = ()\n" in (tmp_path / "noxfile.py").read_text()


def test_nothing_is_overwritten(begun: Path, tmp_path: Path, printed: Printed) -> None:
    assert init.main(["--project", str(begun)]) == 1
    assert "already has the table [tool.gemm-regression]" in printed.err
    other = tmp_path / "other"
    (other / "tests").mkdir(parents=True)
    (other / "tests" / "test_static.py").write_text("mine")
    assert init.main(["--project", str(other)]) == 1
    assert "tests/test_static.py already exists and is not overwritten" in printed.err
    assert [path.name for path in other.rglob("*")] == ["tests", "test_static.py"]


def test_a_pyproject_that_is_there_is_kept(tmp_path: Path) -> None:
    before = '[project]\nname = "mine"\n[tool.pytest.ini_options]\naddopts = "-q"'
    (tmp_path / "pyproject.toml").write_text(before)
    assert init.main(["--project", str(tmp_path)]) == 0
    text = (tmp_path / "pyproject.toml").read_text()
    assert text.startswith(f"{before}\n\n")
    assert text.count("[tool.pytest") == 1
    assert load(tmp_path).kernels


def test_branches_that_measure_merge_as_here(begun: Path, tmp_path: Path) -> None:
    ours = (PROJECT.root / ".gitattributes").read_text()
    assert "merge=union" in ours
    assert (begun / ".gitattributes").read_text() == ours
    other = tmp_path / "other"
    other.mkdir()
    (other / ".gitattributes").write_text("*.cu text")
    assert init.main(["--project", str(other)]) == 0
    assert (other / ".gitattributes").read_text() == f"*.cu text\n{ours}"


@pytest.mark.compile
@pytest.mark.usefixtures("pinned_compiler")
def test_a_new_project_is_green_without_a_gpu_and_red_once_it_is_broken(begun: Path) -> None:
    options = ("check", "-n", "0", "--suite", "smoke")
    done = harness(begun, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 variant checked without a GPU: 1 PASS" in done.stdout
    assert ".venv/" in (begun / ".gitignore").read_text().splitlines()
    assert re.search(
        r"SKIPPED \[7\] .*: nothing to compare with: `gemm-regression static --refresh` stores", done.stdout
    )
    kernel = begun / "kernels" / "sgemm.cu"
    kernel.write_text(kernel.read_text().replace("__syncthreads();  // The tiles", "// The tiles", 1))
    done = harness(begun, *options)
    assert done.returncode == 1
    assert re.search(
        r"race at kernels/sgemm.cu:\d+(.|\n)* with no barrier between "
        r"\(the other access is at kernels/sgemm.cu:\d+\) at kernels/sgemm.cu:\d+",
        done.stdout,
    )
    # From below it, and by its path from elsewhere.
    assert "sgemm-f32-tile16" in harness(begun / "kernels", "check", "--list-cases").stdout
    named = harness(begun.parent, "check", "--project", "mine", "--list-cases", "--kernel", "sgem")
    assert (named.returncode, named.stdout) == (4, "")
    assert "unknown kernel 'sgem' (did you mean 'sgemm'?)" in named.stderr


@pytest.mark.compile
@pytest.mark.usefixtures("pinned_compiler")
def test_figures_once_stored_are_held_to(begun: Path) -> None:
    one = ("--kernel", "sgemm", "--config", "tile16")
    done = harness(begun, "static", "--refresh", *one)
    assert done.returncode == 0, done.stderr
    assert "wrote baselines/static/counters.json" in done.stdout
    assert harness(begun, "static", *one).returncode == 0
    done = harness(begun, "static", "--config", "tile32", "-k", "sm_90a")
    assert done.returncode == 1
    assert "sgemm-f32-tile32 sm_90a: no metrics are stored; store them with" in done.stdout


def test_pytest_without_a_table_is_as_if_nothing_were_installed(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "import sys\n"
        "def pytest_addoption(parser):\n    parser.addoption('--device', default='mine')\n"
        "def pytest_sessionfinish(session):\n"
        "    names = ('gemm_regression', 'ptxsan')\n"
        "    print('loaded:', *sorted(m for m in sys.modules if m.partition('.')[0] in names))\n"
    )
    (tmp_path / "test_it.py").write_text(
        "def test_it(request):\n    assert request.config.option.device == 'mine'\n"
    )
    names = ("gemm_regression.pytest_plugin.entry", "no:benchmark", "no:hypothesispytest")
    done = harness(tmp_path, "-q", *(word for name in names for word in ("-p", name)), module="pytest")
    assert done.returncode == 0, done.stdout
    loaded = ("", ".project", ".project.table", ".pytest_plugin", ".pytest_plugin.entry")
    assert f"loaded: {' '.join(f'gemm_regression{name}' for name in loaded)}\n" in done.stdout
    assert "gpu:" not in done.stdout


def test_a_broken_declaration_ends_pytest_in_one_line(begun: Path) -> None:
    (begun / "kernels" / "__init__.py").write_text("KERNELS = (\n")
    done = harness(begun, "check")
    assert done.returncode == 2
    assert done.stderr == "error: kernels/__init__.py:1: SyntaxError: '(' was never closed\n"
    done = harness(begun, "-p", "gemm_regression.pytest_plugin.entry", module="pytest")
    assert done.returncode == 4
    assert "ERROR: kernels/__init__.py:1: SyntaxError: '(' was never closed" in done.stderr


# A noxfile of one's own, and a kernel that is there


def test_a_noxfile_that_is_there_stays_and_the_suites_is_beside_it(tmp_path: Path, printed: Printed) -> None:
    own = "import nox\n\n\n@nox.session\ndef check(session):\n    pass\n"
    (tmp_path / "noxfile.py").write_text(own)
    assert init.main(["--project", str(tmp_path)]) == 0
    assert (tmp_path / "noxfile.py").read_text() == own
    assert "noxfile.py is yours and stays" in printed.out
    listed = [sys.executable, "-m", "nox", "-f", str(tmp_path / "gemm_noxfile.py"), "-l"]
    assert (
        "* check -> Check every kernel without a GPU."
        in subprocess.run(listed, capture_output=True, text=True).stdout
    )
    for name, session in (("check.yml", "check"), ("gpu.yml", "gpu")):
        assert f"nox -f gemm_noxfile.py -s {session} " in (tmp_path / ".github/workflows" / name).read_text()
    assert "noxfile.py" not in (tmp_path / "gemm_noxfile.py").read_text().replace("gemm_noxfile.py", "")


# Tiles of 16 × 16, the names and the order of nobody; ROWS: x along the rows of C.
CUDA = """
#ifndef TILE
#error "needs TILE"
#endif
__global__ void mine(
    float* d_out, const float* __restrict__ matA, const float matB[], int M, int wB, int wA, float alpha)
{
    __shared__ float left[TILE][TILE], right[TILE][TILE];
    int x = threadIdx.x, y = threadIdx.y;
    int row = (ROWS ? blockIdx.x : blockIdx.y) * TILE + y;
    int column = (ROWS ? blockIdx.y : blockIdx.x) * TILE + x;
    float sum = 0;
    for (int k = 0; k < wA; k += TILE) {
        left[y][x] = GUARD(row < M && k + x < wA) ? matA[row * wA + k + x] : 0;
        right[y][x] = GUARD(k + y < wA && column < wB) ? matB[(k + y) * wB + column] : 0;
        __syncthreads();
        for (int i = 0; i < TILE; i++) sum += left[y][i] * right[i][x];
        __syncthreads();
    }
    if (GUARD(row < M && column < wB)) d_out[row * wB + column] = alpha * sum;
}
"""
MACROS = {"any size": "(x) (x)\n", "whole tiles": "(x) true\n"}


@pytest.mark.compile
@pytest.mark.parametrize("rows", [0, 1])
@pytest.mark.parametrize("guard", MACROS)
def test_a_kernel_is_declared_by_its_signature_and_what_gives_right_results(
    guard: str, rows: int, tmp_path: Path, printed: Printed
) -> None:
    source = tmp_path / "src" / "my-gemm.cu"
    source.parent.mkdir()
    source.write_text(f"#define ROWS {rows}\n#define GUARD{MACROS[guard]}{CUDA}")
    given = ["--project", str(tmp_path), "--from", str(source), "-D", "TILE=16"]
    assert init.main(given) == 0
    (kernel,) = load(tmp_path).kernels
    assert (kernel.name, kernel.entry) == ("my_gemm", "mine")
    assert kernel.source
    assert kernel.source.samefile(source)
    assert [one.means for one in kernel.signature] == ["C", "A", "B", "M", "N", "K", "alpha"]
    shape = kernel.shape_of(kernel.configs[0], F32)
    assert (shape.block, shape.tile, kernel.configs) == ((16, 16, 1), (16, 16), (Config(TILE=16),))
    assert kernel.launch(kernel.configs[0], F32, Problem(16, 64, 1)).grid == (
        (1, 4, 1) if rows else (4, 1, 1)
    )
    assert dict(kernel.constraints.multiples) == ({} if guard == "any size" else {"m": 16, "n": 16, "k": 16})
    said = printed.out
    assert "guessed: parameter d_out is C\n" in said
    assert "to do" not in said.replace("to do: fill in INSTALL", "")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert init.main(given) == 0  # a project now
    assert printed.out.count("KERNELS = (") == 1
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.compile
def test_what_cannot_be_guessed_is_said_and_the_project_says_it_again(
    tmp_path: Path, printed: Printed
) -> None:
    source = tmp_path / "odd.cu"
    source.write_text(
        "#include <cuda_fp16.h>\n"
        "namespace a { template <int T> __global__ void __launch_bounds__(T) f(const half* A, const half* B,"
        " half* C, int M, int N, int K, int pitch) { C[pitch] = A[M] + B[N * K]; } }\n"
        "template __global__ void a::f<64>(const half*, const half*, half*, int, int, int, int);\n"
    )
    project = tmp_path / "project"
    project.mkdir()
    assert init.main(["--project", str(project), "--from", str(source)]) == 0
    said = printed.out
    assert "to do: parameter pitch: say what is passed, pitch=ROLE\n" in said
    assert "to do: shape: state the threads of a block, its tile of C, and the grid\n" in said
    text = (project / "kernels" / "__init__.py").read_text()
    assert 'entry="a::f<64>",' in text
    assert "dtypes=(with_output(F16, F16),)," in text
    assert (project / "kernels" / "odd.cu").read_bytes() == source.read_bytes()
    assert (
        init.main(["--project", str(tmp_path / "third"), "--from", str(source), "--entry", "a::f<64>"]) == 0
    )
    with pytest.raises(ValueError, match=r"'int pitch': state the meaning of pitch as pitch=ROLE"):
        load(project)


@pytest.mark.compile
@pytest.mark.parametrize(
    ("name", "text", "more", "said"),
    [
        (
            "a.cu",
            "__global__ void f(double* A, double* B, double* C, int N) {}",
            [],
            "f takes double, which no dtype",
        ),
        (
            "a.cu",
            "__global__ void f(int) {}\n__global__ void g(int) {}",
            [],
            r"a.cu: say which function, --entry NAME; there are: f, g",
        ),
        ("a.cu", "template <int T> __global__ void f(int) {}", [], "name an instance: --entry 'gemm<16>'"),
        ("a.cu", "__global__ void f(int) {", [], "a f32 does not compile|k f32 does not compile"),
        ("a.cu", "", ["-D", "TILE"], "-D TILE: write -D NAME=NUMBER"),
        ("a.ptx", "", [], "--from takes a .cu file, or a .py file with a kernel of Triton"),
        ("a.py", "x = 1", [], "a.py: say which function, --entry NAME; there are: none under @triton.jit"),
    ],
)
def test_what_is_no_kernel_is_said_in_one_line_and_nothing_is_written(
    name: str, text: str, more: list[str], said: str, tmp_path: Path, printed: Printed
) -> None:
    (tmp_path / name).write_text(text)
    assert init.main(["--project", str(tmp_path), "--from", str(tmp_path / name), *more]) == 1
    assert re.search(said, printed.err)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.compile
def test_a_source_of_another_folder_is_copied_if_it_is_whole_and_nothing_is_there(
    tmp_path: Path, printed: Printed
) -> None:
    source, project = tmp_path / "mine.cu", tmp_path / "project"
    source.write_text(f"#define ROWS 0\n#define GUARD(x) (x)\n{CUDA}")
    (project / "kernels").mkdir(parents=True)
    (project / "kernels" / "mine.cu").write_text("other")
    given = ["--project", str(project), "--from", str(source), "-D", "TILE=8"]
    assert init.main(given) == 1
    assert "kernels/mine.cu already exists and is not overwritten" in printed.err
    assert [path.name for path in project.rglob("*") if path.is_file()] == ["mine.cu"]
    (project / "kernels" / "mine.cu").unlink()
    (tmp_path / "guard.cuh").write_text("#define GUARD(x) (x)\n")
    source.write_text(f'#define ROWS 0\n#include "guard.cuh"\n{CUDA}')
    assert init.main(given) == 1
    assert "mine.cu includes guard.cuh: put both into the project first" in printed.err


def test_a_project_that_lacks_tests_gets_them_and_nothing_else(tmp_path: Path, printed: Printed) -> None:
    table = '[tool.gemm-regression]\nkernels = "mine.py"\ntests = "checks"\n'
    (tmp_path / "pyproject.toml").write_text(table)
    (tmp_path / "checks").mkdir()
    (tmp_path / "checks" / "test_static.py").write_text("mine")
    assert init.main(["--project", str(tmp_path)]) == 0
    found = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    tests = {f"checks/test_{name}.py" for name in ("kernels", "performance", "static")}
    assert found == {"pyproject.toml", *tests}
    assert (tmp_path / "checks" / "test_static.py").read_text() == "mine"
    assert (tmp_path / "pyproject.toml").read_text() == table
    assert init.main(["--project", str(tmp_path)]) == 1
    assert "this is a project" in printed.err


@pytest.mark.compile
def test_a_project_says_of_which_architectures_metrics_are_stored(tmp_path: Path) -> None:
    assert init.main(["--project", str(tmp_path)]) == 0
    table = tmp_path / "pyproject.toml"
    right = table.read_text().replace(
        'tests = "tests"\n', 'tests = "tests"\narchitectures = "sm_80 sm_90a"\n', 1
    )
    table.write_text(right)
    assert harness(tmp_path, "static", "--refresh", "-k", "tile16").returncode == 0
    stored = sorted(path.name for path in (tmp_path / "baselines" / "static").glob("nvcc-*/*"))
    assert stored == ["sm_80.json", "sm_90a.json"]
    done = harness(tmp_path, "static", "-k", "tile16")
    assert (done.returncode, "3 passed" in done.stdout) == (0, True), done.stdout
    table.write_text(right.replace("sm_80", "sm_81"))
    for command in ("static", "check"):
        done = harness(tmp_path, command, "-k", "tile16")
        assert done.returncode != 0
        said = [
            line for line in done.stderr.splitlines() if "architectures: 'sm_81' is none of sm_80" in line
        ]
        assert len(said) == 1
        assert "Traceback" not in done.stderr
