# /// script
# requires-python = ">=3.11"
# dependencies = ["nox>=2025.2.9"]
# ///
"""The commands of the suite. `nox --list` shows them; pytest's own options go after `--`.

In a container with everything preinstalled: `nox --no-venv --no-install -s gpu`.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.error_on_missing_interpreters = True

PYPROJECT = nox.project.load_toml("pyproject.toml")
CHECKED = ("tests/test_kernels.py", "tests/test_static.py")  # by the session of that name


def install(session: nox.Session, group: str) -> None:
    """Install a dependency group, unless the session runs in an environment that is not nox's own."""
    if session.virtualenv.is_sandboxed:
        session.install(*nox.project.dependency_groups(PYPROJECT, group))


def harness(session: nox.Session, command: str) -> None:
    """One of `python -m harness --help`."""
    session.run("python", "-m", "harness", command, *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Python style and import contracts; schemas and security of the workflows. Needs no network."""
    install(session, "lint")
    workflows = [str(path) for path in sorted(Path(".github/workflows").glob("*.yml"))]
    session.run("ruff", "check")
    session.run("ruff", "format", "--check", "--diff")
    session.run("lint-imports", "--no-cache", "--no-logo")
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
    """The harness's own tests, including planted bugs that must be caught."""
    install(session, "tests")
    ignored = [f"--ignore={file}" for file in CHECKED]
    session.run("python", "-m", "pytest", "-n", "auto", "-m", "not gpu", *ignored, *session.posargs)


@nox.session
def check(session: nox.Session) -> None:
    """Check every kernel without a GPU: execute its PTX, compare compiler metrics with stored ones."""
    install(session, "test")
    harness(session, "check")


@nox.session(default=False)
def judge(session: nox.Session) -> None:
    """`gpu` if there is a GPU, otherwise `check`."""
    found = shutil.which("nvidia-smi") and session.run(
        "nvidia-smi", "-L", external=True, silent=True, success_codes=range(256)
    )
    session.notify("gpu" if found and "GPU 0" in str(found) else "check", session.posargs)


@nox.session(default=False)
def static(session: nox.Session) -> None:
    """Compare registers, occupancy, SASS and memory counters with stored ones; `-- --refresh` stores them."""
    install(session, "test")
    harness(session, "static")


@nox.session(default=False)
def gpu(session: nox.Session) -> None:
    """Check and time every kernel on this GPU, and compare with its baseline. Fails without a GPU."""
    install(session, "gpu")
    harness(session, "gpu")


@nox.session(default=False)
def compare(session: nox.Session) -> None:
    """Time the working tree side by side with another commit on this GPU: `-- main`."""
    install(session, "gpu")
    harness(session, "compare")


@nox.session(default=False)
def study(session: nox.Session) -> None:
    """How small a slowdown is detected here? `-- measure FILE` plants some, `-- report` judges them."""
    install(session, "study" if session.posargs[:1] == ["report"] else "gpu")
    session.run("python", "-m", "harness.study", *session.posargs)


@nox.session(default=False)
def baseline(session: nox.Session) -> None:
    """Measure this GPU's baseline in five runs and write it, if every case is correct."""
    install(session, "gpu")
    harness(session, "baseline")


@nox.session(default=False)
def sanitize(session: nox.Session) -> None:
    """Memory errors, races, uninitialised reads and barrier errors, with compute-sanitizer."""
    install(session, "gpu")
    harness(session, "sanitize")


@nox.session(default=False)
def profile(session: nox.Session) -> None:
    """Coalescing, bank conflicts and occupancy, with ncu; `-- --emulated` compares memory counters."""
    install(session, "gpu")
    harness(session, "profile")


if __name__ == "__main__":
    nox.main()
