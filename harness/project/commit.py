"""The kernels of another commit: out of git into a temporary folder, declared in a namespace of their own.

A folder that holds another checkout's ``kernels/`` stands for a commit, too: a container may have no git.

The declarations run with the working tree's ``harness.model``; what they declare is launched as the working
tree's harness launches. A commit whose declarations need another harness is refused, in one line.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from harness.model import KERNELS_DIR, Case, Kernel

ROOT = KERNELS_DIR.parent
_GIT_SECONDS = 120


class CommitError(Exception):
    """A commit that cannot be compared with; one line: what is wrong with it, and what to do."""


@dataclass(frozen=True)
class Commit:
    """``name`` as the user gave it, ``sha`` in full, and the ladder that the commit declares. Of a folder,
    ``name`` is its last part and ``sha`` empty."""

    name: str
    sha: str
    ladder: tuple[Kernel, ...]

    @property
    def label(self) -> str:
        """``main (1a2b3c4d5e6f)``, or the short hash alone where that is what the user gave."""
        if not self.sha:
            return f"the folder {self.name}"
        short = self.sha[:12]
        return short if self.sha.startswith(self.name) else f"{self.name} ({short})"

    def counterpart(self, case: Case) -> Case | str:
        """The case with the same kernel, dtype, config and problem as this commit declares it, or why there
        is none."""
        kernel = next((k for k in self.ladder if k.name == case.kernel.name), None)
        if kernel is None:
            return f"{self.label} has no kernel {case.kernel.name}"
        dtype = next((d for d in kernel.dtypes if d.name == case.dtype.name), None)
        config = next((c for c in kernel.configs if dict(c) == dict(case.config)), None)
        if dtype is None or config is None:
            missing = f"dtype {case.dtype.name}" if dtype is None else f"config {case.config.label}"
            return f"{self.label} has {case.kernel.name}, but not its {missing}"
        return Case(kernel, dtype, config, case.problem)


@dataclass(frozen=True)
class Tree:
    """The working tree: its commit, and whether its tracked or untracked files differ from that; ``sha`` is
    empty where there is no git to tell."""

    sha: str
    dirty: bool

    @property
    def label(self) -> str:
        return self.sha[:12] + (" with changes" if self.dirty else "") if self.sha else "the working tree"


def working_tree(root: Path = ROOT) -> Tree:
    """Raises CommitError where there is no git repository, or no commit in it."""
    head = _git(root, "rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    if not head:
        raise CommitError(f"{root} has no commit to compare with")
    return Tree(head, bool(_git(root, "status", "--porcelain", "--untracked-files=normal")))


def folder_of(name: str) -> Path | None:
    """The folder with a ``kernels/`` that a name is the path of, such as ``../old``; else None."""
    path = Path(name)
    if (os.sep in name or name in (".", "..")) and (path / "kernels" / "__init__.py").is_file():
        return path.resolve()
    return None


def find(name: str, root: Path = ROOT) -> str:
    """The full hash of a commit. Raises CommitError where there is none of that name."""
    sha = _git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    if sha:
        return sha
    if _git(root, "rev-parse", "--is-shallow-repository") == "true":
        raise CommitError(
            f"{name} is not in this shallow clone: `git fetch --unshallow` brings it "
            "(actions/checkout: fetch-depth: 0)"
        )
    raise CommitError(f"no commit {name} in this repository; `git fetch` may bring it")


@contextlib.contextmanager
def checked_out(name: str, root: Path = ROOT) -> Iterator[Commit]:
    """The kernels of a commit or folder, whose sources are there until the block ends. Raises CommitError.

    Git's own list of worktrees is as before, however the block ends.
    """
    if other := folder_of(name):
        found = Commit(other.name, "", ())
        yield replace(found, ladder=_ladder(other / "kernels", found.label))
        return
    sha = find(name, root)
    with tempfile.TemporaryDirectory(prefix="gemm-base-") as folder:
        tree = Path(folder, sha[:12])
        try:
            _must(root, "worktree", "add", "--detach", "--no-checkout", "--quiet", str(tree), sha)
            if not _git(tree, "ls-tree", sha, "--", "kernels/__init__.py"):
                raise CommitError(f"{name} has no kernels/__init__.py; compare with a later commit")
            _must(tree, "checkout", "--quiet", sha, "--", "kernels")
            commit = Commit(name, sha, ())
            yield replace(commit, ladder=_ladder(tree / "kernels", commit.label))
        finally:
            _git(root, "worktree", "remove", "--force", str(tree))
            _git(root, "worktree", "prune")


def _ladder(folder: Path, label: str) -> tuple[Kernel, ...]:
    """What the ``kernels`` package in a folder declares, each kernel with its own source."""
    name = f"_kernels_of_{folder.parent.name}"
    spec = importlib.util.spec_from_file_location(
        name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        ladder = tuple(module.LADDER)
        if not ladder or not all(isinstance(kernel, Kernel) for kernel in ladder):
            raise TypeError("LADDER is no list of kernels")
        return tuple(_at_home(kernel, folder) for kernel in ladder)
    except (Exception, SystemExit) as error:  # Whatever a file of another time may do.
        text = " ".join(str(error).split())
        raise CommitError(
            f"the kernels of {label} are declared for another harness ({type(error).__name__}: {text}); "
            "compare with a later commit"
        ) from None
    finally:
        for loaded in [m for m in sys.modules if m == name or m.startswith(f"{name}.")]:
            del sys.modules[loaded]


def _at_home(kernel: Kernel, folder: Path) -> Kernel:
    """The kernel with the source of its own commit: it was declared relative to the working tree's."""
    if kernel.source is None:
        return kernel
    return replace(kernel, source=folder / kernel.source.relative_to(KERNELS_DIR))


def _run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # Where a git hook started this, git's own variables name another repository; and no hook is to run.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")} | {"LC_ALL": "C"}
    command = ["git", "-c", "core.hooksPath=/dev/null", *arguments]
    try:
        return subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=_GIT_SECONDS
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise CommitError(f"git does not run in {folder}: {error}") from None


def _git(folder: Path, *arguments: str) -> str:
    """What git says, empty where it fails. Raises CommitError where there is no repository or no git."""
    done = _run(folder, *arguments)
    if "not a git repository" in done.stderr:
        raise CommitError(f"{folder} is no git repository: there is no commit to compare with")
    if "dubious ownership" in done.stderr:
        raise CommitError(
            f"git refuses {folder}, which another user owns: "
            f"`git config --global --add safe.directory {folder}` permits it"
        )
    return "" if done.returncode else done.stdout.strip()


def _must(folder: Path, *arguments: str) -> None:
    done = _run(folder, *arguments)
    if done.returncode:
        text = " ".join(done.stderr.split()) or f"exit status {done.returncode}"
        raise CommitError(f"git {arguments[0]} failed: {text}")
