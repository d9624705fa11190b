"""The two wheels, installed beside a repository that has folders of the same names as this one's."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from gemm_regression.__main__ import COMMANDS
from ptxsan import native
from ptxsan.native.source import wheel_name
from tests.ptxsan.rig import program

pytest.importorskip("setuptools", minversion="77", reason="setuptools is not installed: group packages")

ROOT = Path(__file__).parents[1]
PTXSAN = ROOT / "harness" / "ptxsan"
BUILD = "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"
MADE = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")


def run(*words: object, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """A program that knows nothing of this checkout."""
    unwanted = ("PYTEST_", "PYTHON", "NOX_CURRENT_SESSION")  # these tests may themselves run below nox
    kept = {k: v for k, v in os.environ.items() if not k.startswith(unwanted) and k != "CI"}
    command = [str(word) for word in words]
    return subprocess.run(
        command, cwd=folder, env=kept | {"COLUMNS": "160"} | variables, capture_output=True, text=True
    )


def build(folder: Path, made: Path, **variables: str) -> Path:
    """A wheel of this folder."""
    done = run(sys.executable, "-c", BUILD, made, folder=folder, **variables)
    assert done.returncode == 0, done.stderr
    return made / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By the name of the package. Made of a copy, since setuptools leaves its work where it builds."""
    copy, made = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("dist")
    shutil.copytree(ROOT / "harness", copy / "harness", ignore=MADE)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    places = {"gemm_regression": copy, "ptxsan": copy / "harness" / "ptxsan"}
    return {name: build(folder, made) for name, folder in places.items()}


@pytest.fixture(scope="module")
def installed(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with both; their requirements are those of this one."""
    home = tmp_path_factory.mktemp("environment")
    assert run(sys.executable, "-m", "venv", home, folder=home).returncode == 0
    (site,) = home.glob("lib/python*/site-packages")
    (site / "theirs.pth").write_text(sysconfig.get_path("purelib"))
    command = (home / "bin" / "python", "-m", "pip", "install", "--no-index", "--no-deps")
    done = run(*command, *wheels.values(), folder=home)
    assert done.returncode == 0, done.stderr
    return home / "bin"


def test_a_wheel_has_one_package_and_all_of_it(wheels: dict[str, Path]) -> None:
    for name, wheel in wheels.items():
        names = {path for path in zipfile.ZipFile(wheel).namelist() if not path.endswith("/")}
        assert {path.partition("/")[0] for path in names} == {name, f"{name}-0.1.0.dist-info"}
        home = ROOT / "harness" / name
        there = {
            path.relative_to(home.parent).as_posix()
            for path in home.rglob("*")
            if path.is_file() and not {"__pycache__", "build"}.intersection(path.parts)
        }
        there = {path for path in there if ".egg-info/" not in path}
        of_the_project = {f"ptxsan/{file}" for file in ("README.md", "LICENSE", "pyproject.toml", "setup.py")}
        assert there - of_the_project - names == set()


@pytest.mark.parametrize(
    ("extra", "package"), [("numba", "numba"), ("triton", "triton"), ("cute", "nvidia-cutlass-dsl")]
)
def test_pip_finds_versions_for_a_frontend(
    extra: str, package: str, wheels: dict[str, Path], tmp_path: Path
) -> None:
    """Of all that the suite needs; with Numba a NumPy that it runs with. Without a package index: nothing."""
    suite = f"{wheels['gemm_regression']}[{extra}]"
    words = (
        "install",
        "--dry-run",
        "--ignore-installed",
        "--quiet",
        "--report",
        "-",
        wheels["ptxsan"],
        suite,
    )
    done = run(sys.executable, "-m", "pip", *words, folder=tmp_path)
    if (
        done.returncode
        and "No matching distribution found" in done.stderr
        and "from versions: none" in done.stderr
    ):
        pytest.skip("no package index answers")
    assert done.returncode == 0, done.stderr
    found = {
        one["metadata"]["name"]: one["metadata"]["version"] for one in json.loads(done.stdout)["install"]
    }
    assert package in found
    if extra == "numba":
        assert tuple(map(int, found["numpy"].split(".")[:2])) < (2, 5)


# What uv chose for torch 2.11 and vLLM 0.26.0 on Python 3.12, of what the suite asks for, too.
BESIDE_VLLM = {
    **{"argcomplete": "3.7.2", "cuda-bindings": "13.4.4", "jinja2": "3.1.6", "ml_dtypes": "0.6.0"},
    **{"numpy": "2.3.5", "nvidia-cublas": "13.1.0.3", "nvidia-ml-py": "13.615.71", "nvmath-python": "1.0.0"},
    **{"pydantic": "2.14.4", "rich": "15.0.0", "ruptures": "1.1.10", "scipy": "1.18.1"},
}


def test_it_is_installed_beside_others_and_with_the_oldest_numpy(wheels: dict[str, Path]) -> None:
    """Also with those that pin an older NumPy than the suite's own; the groups' own versions are allowed."""
    asked = _metadata(wheels).get_all("Requires-Dist") or []
    allowed = {each.name: each.specifier for each in map(Requirement, reversed(asked))}  # extras come last
    assert {name for name, version in BESIDE_VLLM.items() if version not in allowed[name]} == set()
    assert all(version in allowed["numpy"] for version in ("1.26.0", "1.26.4", "2.0.0", "2.4.6", "2.5.5"))
    assert "1.25.2" not in allowed["numpy"]
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]
    pins = dict(one.split("==") for one in groups["run"])
    assert {name for name, version in pins.items() if version not in allowed[name]} == set()


def test_the_list_of_packages_of_the_interpreter_is_complete() -> None:
    table = tomllib.loads((PTXSAN / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    there = {path.parent.relative_to(PTXSAN.parent) for path in PTXSAN.rglob("__init__.py")}
    assert set(table["packages"]) == {".".join(p.parts) for p in there if "build" not in p.parts}


NATIVE = """
import sys
from pathlib import Path
from ptxsan import native
if sys.argv[1:]:
    native._processor = lambda: "flags : sse2"
print(native.describe())
"""
needs_c = pytest.mark.skipif(not native.library(), reason=f"straight-line code runs on {native.describe()}")


@needs_c
def test_a_wheel_has_the_compiled_code_and_needs_no_compiler(
    wheels: dict[str, Path], installed: Path, tmp_path: Path
) -> None:
    """Unless the processor is too old for it."""
    (library,) = (name for name in zipfile.ZipFile(wheels["ptxsan"]).namelist() if name.endswith(".so"))
    assert library == f"ptxsan/native/{wheel_name()}"
    assert wheels["ptxsan"].name.startswith("ptxsan-0.1.0-py3-none-manylinux_2_17_")
    nowhere = {"PATH": str(tmp_path), "GEMM_CACHE_DIR": str(tmp_path / "cache")}
    said = [
        run(installed / "python", "-c", NATIVE, *old, folder=tmp_path, **nowhere).stdout
        for old in ((), ("old",))
    ]
    assert said == ["C, by the wheel\n", "NumPy alone: no C compiler\n"]
    (tmp_path / "add.ptx").write_text(program("add.f32 %f1, %f1, %f1;\nst.global.f32 [%rd10], %f1;", 0))
    done = run(
        *(installed / "ptxsan", "run", "add.ptx", "--grid", "1", "--block", "32", "zeros:float32:32"),
        folder=tmp_path,
        **nowhere,
    )
    assert done.returncode == 1, done.stderr
    assert "uninit: " in done.stdout
    assert not (tmp_path / "cache").exists()


def test_a_pure_wheel_is_for_all_machines(tmp_path: Path) -> None:
    shutil.copytree(PTXSAN, tmp_path / "ptxsan", ignore=MADE)
    wheel = build(tmp_path / "ptxsan", tmp_path, PTXSAN_PURE="1")
    assert wheel.name == "ptxsan-0.1.0-py3-none-any.whl"
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]


def test_both_distributions_have_the_same_version(wheels: dict[str, Path]) -> None:
    version = wheels["ptxsan"].name.split("-")[1]
    assert f"ptxsan=={version}" in (_metadata(wheels).get_all("Requires-Dist") or [])


def _metadata(wheels: dict[str, Path]) -> Message:
    """Of the suite's wheel."""
    wheel = zipfile.ZipFile(wheels["gemm_regression"])
    (name,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
    return message_from_bytes(wheel.read(name))


def test_a_repository_with_folders_of_these_names_is_tested_as_ever(installed: Path, tmp_path: Path) -> None:
    """Its own harness, tests and kernels are imported; neither suite nor interpreter is in the way."""
    for name in ("harness", "tests", "kernels"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"MINE = {name!r}\n")
    (tmp_path / "tests" / "test_mine.py").write_text(
        "import sys\n\nimport harness\nimport kernels\nimport tests\n\n\n"
        "def test_mine():\n"
        "    assert [harness.MINE, kernels.MINE, tests.MINE] == ['harness', 'kernels', 'tests']\n"
        "    assert 'gemm_regression.pytest_plugin.entry' in sys.modules\n"
        "    assert 'gemm_regression.pytest_plugin.plugin' not in sys.modules\n"
    )
    done = run(installed / "python", "-m", "pytest", "-p", "no:cacheprovider", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def test_a_project_begun_there_installs_these_wheels(
    wheels: dict[str, Path], installed: Path, tmp_path: Path
) -> None:
    (tmp_path / "harness").mkdir()
    (tmp_path / "harness" / "__init__.py").write_text("raise ImportError('of the user')\n")
    done = run(installed / "gemm-regression", "init", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    for name, wheel in (("ptxsan", "ptxsan"), ("gemm-regression[{extras}]", "gemm_regression")):
        assert f"  {name} @ {wheels[wheel].as_uri()}#sha256=" in done.stdout
        assert f'    "{name} @ {wheels[wheel].as_uri()}#sha256=' in (tmp_path / "noxfile.py").read_text()
    assert "on this machine alone" in done.stdout
    done = run(installed / "gemm-regression", "check", "--list-cases", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "sgemm-f32-tile16" in done.stdout
    done = run(installed / "python", "-m", "pytest", "--co", "-q", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test_kernel[sgemm-f32-tile16" in done.stdout


def test_what_to_do_is_said_as_it_is_typed_there(installed: Path, tmp_path: Path) -> None:
    """By the program; below nox by its session, whose environment alone has the program."""
    assert run(installed / "gemm-regression", "init", folder=tmp_path).returncode == 0
    for under, typed in (("", "gemm-regression check"), ("check", "nox -s check --")):
        command = (installed / "gemm-regression", "check", "-k", "nothing")
        done = run(*command, folder=tmp_path, **({"NOX_CURRENT_SESSION": under} if under else {}))
        assert f"-k 'nothing' matches no case; `{typed} --list-cases` lists them" in done.stdout, done.stderr
    done = run(installed / "gemm-regression", "baseline", "show", folder=tmp_path)
    assert "baselines contains no baseline; measure one with `gemm-regression baseline`" in done.stderr
    # Each of its sessions is a command, and hints are worded in one place.
    listed = re.findall(r'^    \("(\w+)", "[\w,]+", "', (tmp_path / "noxfile.py").read_text(), re.MULTILINE)
    assert len(listed) > 10
    assert set(listed) < set(COMMANDS)
    suite = ROOT / "harness" / "gemm_regression"
    assert [path.name for path in suite.rglob("*.py") if "nox -s " in path.read_text()] == ["hints.py"]


def test_of_a_commit_the_commit_is_installed(installed: Path, tmp_path: Path) -> None:
    """As pip would have recorded it, had it installed both from a repository."""
    home = tmp_path / "environment"
    shutil.copytree(installed.parent, home, symlinks=True)
    (site,) = home.glob("lib/python*/site-packages")
    url, commit = "https://token@example.org/suite.git", "0123456789" * 4
    for name, inside in (("ptxsan", "harness/ptxsan"), ("gemm_regression", "")):
        (file,) = site.glob(f"{name}-*.dist-info/direct_url.json")
        direct = {"url": url, "vcs_info": {"vcs": "git", "commit_id": commit}}
        file.write_text(json.dumps(direct | ({"subdirectory": inside} if inside else {})))
    (project := tmp_path / "mine").mkdir()
    done = run(home / "bin" / "python", "-m", "gemm_regression", "init", folder=project)
    assert done.returncode == 0, done.stderr
    assert (
        f"  ptxsan @ git+https://example.org/suite.git@{commit}#subdirectory=harness/ptxsan\n" in done.stdout
    )
    assert f"  gemm-regression[{{extras}}] @ git+https://example.org/suite.git@{commit}\n" in done.stdout
    assert "on this machine alone" not in done.stdout


def test_the_interpreter_is_a_program_and_needs_nothing_of_the_suite(installed: Path, tmp_path: Path) -> None:
    done = run(installed / "ptxsan", "--help", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: ptxsan ")
    code = (
        "import sys, ptxsan; print([m for m in sys.modules if m.startswith(('gemm', 'pydantic', 'pytest'))])"
    )
    assert run(installed / "python", "-c", code, folder=tmp_path).stdout == "[]\n"
