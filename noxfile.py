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
from pathlib import Path

import nox

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


def suite(session: nox.Session, python: str, command: str) -> None:
    """One of `python -m gemm_regression --help`."""
    run(session, python, "gemm_regression", command)


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
    ignored = [f"--ignore={file}" for file in (*CHECKED, "tests/browser")]
    run(session, python, "pytest", "-n", "auto", "-m", "not gpu", *ignored)


@nox.session(default=False)
def docs(session: nox.Session) -> None:
    """Recordings and generated pages: what changed, is it allowed, how to refresh it; `-- --refresh`."""
    python = install(session, "tests")
    run(session, python, "tests.documents")


@nox.session
def check(session: nox.Session) -> None:
    """Check every kernel without a GPU: execute its PTX, compare compiler metrics with stored ones."""
    suite(session, install(session, "test"), "check")


@nox.session
def browser(session: nox.Session) -> None:
    """Open the report in headless Chromium; skipped where there is none."""
    python = install(session, "browser")
    run(session, python, "pytest", "-m", "browser", "tests/browser")


@nox.session(default=False)
def judge(session: nox.Session) -> None:
    """`gpu` if there is a GPU, otherwise `check`."""
    session.notify("gpu" if gpu_there(session) else "check", session.posargs)


@nox.session(default=False)
def static(session: nox.Session) -> None:
    """Compare registers, occupancy, SASS and memory counters with stored ones; `-- --refresh` stores them."""
    suite(session, install(session, "test"), "static")


@nox.session(default=False)
def gpu(session: nox.Session) -> None:
    """Check and time every kernel on this GPU, and compare with its baseline. Fails without a GPU."""
    suite(session, install_gpu(session), "gpu")


@nox.session(default=False)
def compare(session: nox.Session) -> None:
    """Time the working tree side by side with another commit on this GPU: `-- main`, `-- --nvcc PATH`."""
    suite(session, install_gpu(session), "compare")


@nox.session(default=False)
def bisect(session: nox.Session) -> None:
    """Which commit made a case slower on this GPU: `-- CASE [GOOD [BAD]]`."""
    suite(session, install_gpu(session), "bisect")


@nox.session(default=False)
def lab(session: nox.Session) -> None:
    """What is never installed: `-- study measure`, `-- study report`, `-- claims`, `-- advice`, …"""
    words = session.posargs
    if "--measure" in words or words[:2] == ["study", "measure"]:
        python = install_gpu(session)
    else:
        python = install(session, "study" if words[:1] == ["study"] else "report")
    run(session, python, "lab")


@nox.session(default=False)
def baseline(session: nox.Session) -> None:
    """Measure this GPU in five runs and append it to its baseline, if all is correct and nothing creeps."""
    suite(session, install_gpu(session), "baseline")


@nox.session(default=False)
def tune(session: nox.Session) -> None:
    """Search a kernel's space for its fastest config; `-- --simulate FILE` compares strategies, no GPU."""
    words = ("--simulate", "emulated", "--device=emulated", "--list-strategies")
    with_gpu = not any(word.startswith(words) for word in session.posargs)
    python = install_gpu(session, "tune-gpu") if with_gpu else install(session, "tune")
    suite(session, python, "tune")


@nox.session(default=False)
def sanitize(session: nox.Session) -> None:
    """Memory errors, races, uninitialised reads and barrier errors, with compute-sanitizer."""
    suite(session, install_gpu(session), "sanitize")


@nox.session(default=False)
def profile(session: nox.Session) -> None:
    """Hardware counters side by side, with ncu; `-- --emulated` compares the emulated ones with them."""
    suite(session, install_gpu(session), "profile")


@nox.session(default=False)
def select(session: nox.Session) -> None:
    """Which kernel and config to use for a problem on a measured GPU: `-- 4096x64x4096 --why`."""
    suite(session, install(session, "test"), "select")


@nox.session(default=False)
def report(session: nox.Session) -> None:
    """One HTML file with charts, of the stored baselines and the given JSON of runs and comparisons."""
    suite(session, install(session, "report"), "report")


@nox.session(default=False)
def shards(session: nox.Session) -> None:
    """Add up the parts of a run that several machines made: `-- FOLDER`."""
    suite(session, install(session, "test"), "shards")


@nox.session(default=False)
def evidence(session: nox.Session) -> None:
    """Judge stored runs again, from their JSON alone: `-- RUN.json`."""
    suite(session, install(session, "test"), "evidence")


@nox.session(default=False)
def doctor(session: nox.Session) -> None:
    """What this machine has for the suite, one line each, and what to do."""
    suite(session, install(session, "test"), "doctor")


if __name__ == "__main__":
    nox.main()
