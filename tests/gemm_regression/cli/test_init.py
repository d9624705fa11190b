"""A project begun in an empty folder: green without a GPU, red once broken; and pytest elsewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gemm_regression.cli import init
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
