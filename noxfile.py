# /// script
# requires-python = ">=3.11"
# dependencies = ["nox>=2025.2.9"]
# ///
"""The commands of the suite. `nox --list` shows them; pytest's own options go after `--`.

In a container with everything preinstalled: `nox --no-venv --no-install -s gpu`.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import nox

sys.path.insert(0, "harness")
from gemm_regression.__main__ import COMMANDS

nox.needs_version = ">=2025.2.9"
nox.options.error_on_missing_interpreters = True
nox.options.reuse_venv = "yes"
nox.options.default_venv_backend = "uv" if shutil.which("uv") else "virtualenv"

PYPROJECT = nox.project.load_toml("pyproject.toml")
CHECKED = ("tests/test_kernels.py", "tests/test_static.py")  # by the session of that name


# Words after `--` with which a session of the GPU only shows or edits what is stored.
NO_GPU = {"-h", "--help", "--list-cases", "--collect-only", "--co", "show", "history", "export", "prune"}


def install(session: nox.Session, group: str) -> str:
    """A python that has a dependency group: that of an environment of nox's own, where it is installed unless
    one has all of it already. A session with options that only show something may need less than others."""
    if not session.virtualenv.is_sandboxed:
        return "python"
    wanted = nox.project.dependency_groups(PYPROJECT, group)
    own = Path(session.virtualenv.location)
    version = [path.name for path in own.glob("lib/python*")]
    for folder in (own, *sorted(own.parent.iterdir())):
        installed = folder / "installed.txt"
        if not installed.is_file() or [path.name for path in folder.glob("lib/python*")] != version:
            continue
        if set(wanted) <= set(installed.read_text(encoding="utf-8").split("\n")):
            return str(folder / "bin" / "python")
    session.install(*wanted)
    (own / "installed.txt").write_text("\n".join(wanted), encoding="utf-8")
    return str(own / "bin" / "python")


def install_gpu(session: nox.Session, group: str = "gpu") -> str:
    """Install what a GPU needs, on a machine that has one and can build PyCUDA."""
    if NO_GPU.intersection(session.posargs):
        return install(session, "test")
    if session.virtualenv.is_sandboxed:
        if not gpu_there(session):
            session.error("nvidia-smi shows no GPU on this machine; `nox -s check` needs none")
        if not any(Path(folder, "cuda.h").is_file() for folder in include_folders()):
            session.error(
                "no cuda.h found (PATH, CUDA_HOME, CPATH), with which PyCUDA is built: install the "
                "CUDA toolkit and put its bin folder on PATH"
            )
    return install(session, group)


def gpu_there(session: nox.Session) -> bool:
    """Whether the driver shows a GPU."""
    found = shutil.which("nvidia-smi") and session.run(
        "nvidia-smi", "-L", external=True, silent=True, success_codes=range(256)
    )
    return "GPU 0" in str(found)


def include_folders() -> list[Path]:
    """Where the headers of a CUDA toolkit may be."""
    nvcc = shutil.which("nvcc")
    homes = [Path(nvcc).resolve().parents[1]] if nvcc else []
    homes += [
        Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_ROOT", "CUDA_PATH") if os.environ.get(name)
    ]
    given = [Path(folder) for folder in os.environ.get("CPATH", "").split(os.pathsep) if folder]
    plain = [Path("/usr/local/cuda/include"), Path("/usr/include")]
    return [*given, *(home / "include" for home in homes), *plain]


def run(session: nox.Session, python: str, *words: str) -> None:
    """`python -m` with the packages of harness/ on its path, as they are here."""
    path = os.pathsep.join(filter(None, (str(Path("harness").resolve()), os.environ.get("PYTHONPATH"))))
    session.run(python, "-m", *words, *session.posargs, external=True, env={"PYTHONPATH": path})


@nox.session
def lint(session: nox.Session) -> None:
    """Python style, import contracts, lines of code; schemas and security of the workflows. No network."""
    python = install(session, "lint")
    workflows = [str(path) for path in sorted(Path(".github/workflows").glob("*.yml"))]
    session.run("ruff", "check")
    session.run("ruff", "format", "--check", "--diff")
    session.run("lint-imports", "--no-cache", "--no-logo", env={"PYTHONPATH": "harness"})
    session.run(python, "-m", "lab", "lines", external=True, env={"PYTHONPATH": "harness"})
    session.run("check-jsonschema", "--builtin-schema", "vendor.github-workflows", *workflows)
    session.run("check-jsonschema", "--builtin-schema", "vendor.dependabot", ".github/dependabot.yml")
    if shutil.which("actionlint"):
        session.run("actionlint", *workflows, external=True)
    session.run("zizmor", "--offline", "--no-progress", "--persona", "pedantic", ".github")


@nox.session
def typing(session: nox.Session) -> None:
    """Type check with mypy --strict."""
    install(session, "typing")
    session.run("mypy")


@nox.session
def tests(session: nox.Session) -> None:
    """The suite's own tests, including planted bugs that must be caught."""
    python = install(session, "tests")
    ignored = [f"--ignore={file}" for file in (*CHECKED, "tests/browser", "tests/frontends")]
    run(session, python, "pytest", "-n", "auto", "--dist", "worksteal", "-m", "not gpu", *ignored)


@nox.session(default=False)
def docs(session: nox.Session) -> None:
    """List generated files that are out of date; `-- --refresh` updates them."""
    python = install(session, "tests")
    run(session, python, "tests.documents")


@nox.session
def browser(session: nox.Session) -> None:
    """Test the report and the course in headless Chromium; skipped if there is none."""
    python = install(session, "browser")
    run(session, python, "pytest", "-m", "browser", "tests/browser")


@nox.session(default=False)
def frontends(session: nox.Session) -> None:
    """Test PTX of Triton, Numba-CUDA, the CuTe DSL, NVRTC and, where it is installed, clang."""
    python = install(session, "frontends")
    run(session, python, "pytest", "-n", "auto", "tests/frontends")


@nox.session(default=False)
def judge(session: nox.Session) -> None:
    """`gpu` if there is a GPU, otherwise `check`."""
    session.notify("gpu" if gpu_there(session) else "check", session.posargs)


@nox.session(default=False)
def lab(session: nox.Session) -> None:
    """Experiments about the suite: `-- study measure`, `-- study report`, `-- claims`, `-- advice`, …"""
    words = session.posargs
    measures = "--measure" in words or words[:2] == ["study", "measure"]
    python = install_gpu(session) if measures else install(session, "site")
    run(session, python, "lab")


@nox.session(default=False)
def course(session: nox.Session) -> None:
    """Lay out the exercises of the course: `-- FOLDER`; `check -- --project FOLDER` judges them."""
    run(session, install(session, "test"), "lab", "exercises")


# The group of dependencies that a command needs, where that is not `test`.
GROUPS = dict.fromkeys(("gpu", "compare", "bisect", "baseline", "sanitize", "profile"), "gpu")
GROUPS |= {"tune": "tune-gpu", "report": "report"}
NO_GPU_TUNING = ("--simulate", "emulated", "--device=emulated", "--list-strategies")


def command(name: str, about: str) -> None:
    """The session of a command of the suite, one of `python -m gemm_regression --help`."""

    def run_it(session: nox.Session) -> None:
        group = GROUPS.get(name, "test")
        if name == "tune" and any(word.startswith(NO_GPU_TUNING) for word in session.posargs):
            group = "tune"
        python = install_gpu(session, group) if group.endswith("gpu") else install(session, group)
        try:
            run(session, python, "gemm_regression", name)
        except nox.command.CommandFailed as error:
            # nox makes 1 of every status; those of a comparison mean something.
            if name in ("compare", "bisect") and (status := getattr(error, "return_code", None)):
                sys.exit(status)
            raise

    run_it.__doc__ = about
    nox.session(name=name, default=name == "check")(run_it)


for name, (_, about) in COMMANDS.items():
    if name != "init":
        command(name, about)

if __name__ == "__main__":
    nox.main()
