"""Small git repositories with kernels of their own, and the harness run in a folder."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gemm_regression.devices import NoDevice
from gemm_regression.model import F32, BlockShape, Case, Config, Kernel, Problem
from gemm_regression.project.loader import Project
from tests.gemm_regression.rig import Printed
from tests.gemm_regression.simulated import SimulatedDevice
from tests.ladder import PROJECT

PARAMETERS = (
    "int M, int N, int K, float alpha, const float* A, int lda, const float* B, int ldb, "
    "float beta, float* C, int ldc"
)
PROBLEM = Problem(64, 64, 64)


def harness(
    folder: Path, *arguments: str, module: str = "gemm_regression"
) -> subprocess.CompletedProcess[str]:
    """The checkout's harness, in that folder, as where it is installed; not as in CI, which compiles for all
    architectures."""
    environment = {k: v for k, v in os.environ.items() if k != "CI" and not k.startswith("PYTEST_")}
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=folder,
        env=environment | {"PYTHONPATH": str(PROJECT.root / "harness"), "COLUMNS": "160"},
        capture_output=True,
        text=True,
    )


def git(folder: Path, *words: str) -> str:
    """What git says, as somebody without a configuration. Raises CalledProcessError."""
    who = ("-c", "user.name=A", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def source(body: str = "C[0] = alpha;", parameters: str = PARAMETERS, entry: str = "gemm_one") -> str:
    return f'extern "C" __global__ void {entry}({parameters})\n{{\n    {body}\n}}\n'


def declarations(name: str = "one", threads: int = 32, tail: str = "") -> str:
    return f'''
from gemm_regression.model import F32, BlockShape, Config, Kernel

def shape(config, dtype):
    return BlockShape(threads=({threads}, 1), tile=(1, {threads}))

KERNELS = (
    Kernel(
        name="{name}", idea="", source="one.cu", entry="gemm_one", dtypes=(F32,),
        configs=(Config(SIZE=1),), shape=shape,
    ),
)
{tail}'''


class Command:
    """Runs a command in a repository, on a device or, of a string, without one for that reason; it leaves no
    work tree behind. Gives its status, output and errors."""

    def __init__(self, main: Callable[..., int], repo: Repo, printed: Printed, *always: str) -> None:
        self.main, self.repo, self.printed, self.always = main, repo, printed, always

    def __call__(self, *arguments: str, on: Any) -> tuple[int, str, str]:
        def opened(limit: float) -> Any:
            if isinstance(on, str):
                raise NoDevice(on)
            return on

        status = self.main([*arguments, *self.always, "--project", str(self.repo.root)], opened)
        assert self.repo.git("worktree", "list").count("\n") == 0
        assert self.repo.git("stash", "list") == ""
        return (status, *self.printed.both())

    def needs_a_free_gpu(self, *arguments: str) -> None:
        assert self(*arguments, on="no driver here") == (2, "", "error: no driver here\n")
        status, _, err = self(*arguments, on=SimulatedDevice(others=["pid 7 (train)"]))
        assert (status, "in use by pid 7 (train)" in err) == (2, True), err


class Repo:
    """A repository whose ``kernels/`` has one kernel; ``case`` is the working tree's."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "kernels").mkdir(parents=True)
        (root / "pyproject.toml").write_text("[tool.gemm-regression]\n")
        self.git("init", "--quiet", "--initial-branch=main")
        self.commit(source())

    @property
    def project(self) -> Project:
        """The working tree as a project, whatever its declarations are."""
        return Project(self.root.resolve(), (), self.root.resolve() / "kernels" / "__init__.py")

    def git(self, *words: str) -> str:
        return git(self.root, *words)

    def write(self, cu: str | None = None, declared: str | None = None) -> None:
        if cu is not None:
            (self.root / "kernels" / "one.cu").write_text(cu)
        (self.root / "kernels" / "__init__.py").write_text(declared or declarations())

    def commit(self, cu: str | None = None, declared: str | None = None) -> str:
        self.write(cu, declared)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "-m", "a change")
        return self.git("rev-parse", "HEAD")

    def case(self, config: Config | None = None, threads: int = 32, name: str = "one") -> Case:
        kernel = Kernel(
            name=name,
            idea="",
            source=self.root / "kernels" / "one.cu",
            entry="gemm_one",
            dtypes=(F32,),
            configs=(Config(SIZE=1), Config(SIZE=2)),
            shape=lambda config, dtype: BlockShape(threads=(threads, 1), tile=(1, threads)),
        )
        return Case(kernel, F32, config or kernel.configs[0], PROBLEM)
