"""The kernels of another commit: checked out from git into a temporary folder, and loaded as any project's.

A folder with another copy of the project can take the place of a commit, since a container may have no git.

The declarations run with the working tree's ``harness.model``, and the kernels are launched by the working
tree's harness. A commit whose declarations need another harness is rejected, in one line.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from harness.model import Case, Kernel
from harness.project.loader import Project, ProjectError, load_kernels
from harness.project.table import read

_GIT_SECONDS = 120


class CommitError(Exception):
    """A commit cannot be compared with; one line: what is wrong, and what to do."""


@dataclass(frozen=True)
class Commit:
    """``name`` as given by the user, the full ``sha``, and the ``kernels`` that the commit declares, in the
    folder ``root``. For a folder, ``name`` is its last part and ``sha`` is empty."""

    name: str
    sha: str
    kernels: tuple[Kernel, ...]
    root: Path | None = None

    @property
    def label(self) -> str:
        """``main (1a2b3c4d5e6f)``, or only the short hash if the user gave a hash."""
        if not self.sha:
            return f"the folder {self.name}"
        short = self.sha[:12]
        return short if self.sha.startswith(self.name) else f"{self.name} ({short})"

    def counterpart(self, case: Case) -> Case | str:
        """This commit's case with the same kernel, dtype, config and problem, or why there is none."""
        kernel = next((k for k in self.kernels if k.name == case.kernel.name), None)
        if kernel is None:
            return f"{self.label} has no kernel {case.kernel.name}"
        dtype = next((d for d in kernel.dtypes if d.name == case.dtype.name), None)
        config = next((c for c in kernel.declared if dict(c) == dict(case.config)), None)
        if dtype is None or config is None:
            missing = f"dtype {case.dtype.name}" if dtype is None else f"config {case.config.label}"
            return f"{self.label} has {case.kernel.name}, but not its {missing}"
        return Case(kernel, dtype, config, case.problem)


@dataclass(frozen=True)
class Tree:
    """The working tree: its commit ``sha``, empty without git, and whether tracked or untracked files differ
    from it (``dirty``)."""

    sha: str
    dirty: bool

    @property
    def label(self) -> str:
        return self.sha[:12] + (" with changes" if self.dirty else "") if self.sha else "the working tree"


def working_tree(root: Path) -> Tree:
    """Raises CommitError if there is no git repository, or no commit in it."""
    head = _git(root, "rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    if not head:
        raise CommitError(f"{root} contains no commit to compare with")
    return Tree(head, bool(_git(root, "status", "--porcelain", "--untracked-files=normal")))


def folder_of(name: str, project: Project) -> Path | None:
    """The folder with a path such as ``../old``, if it contains kernels; else None."""
    path = Path(name)
    if (os.sep in name or name in (".", "..")) and _declared(path, project).exists():
        return path.resolve()
    return None


def _declared(root: Path, project: Project) -> Path:
    """Where the kernels of another copy are declared: as its own table says, else as in this project."""
    return root / (read(root) or project.table).kernels


def find(name: str, root: Path) -> str:
    """The full hash of a commit. Raises CommitError if there is none with that name."""
    sha = _git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    if sha:
        return sha
    if _git(root, "rev-parse", "--is-shallow-repository") == "true":
        raise CommitError(
            f"{name} is not in this shallow clone; get it with `git fetch --unshallow` "
            "(actions/checkout: fetch-depth: 0)"
        )
    raise CommitError(f"no commit {name} in this repository; try `git fetch`")


@contextlib.contextmanager
def checked_out(name: str, project: Project) -> Iterator[Commit]:
    """The kernels of a commit or folder, whose sources exist until the block ends. Raises CommitError.

    Git's list of worktrees is restored, however the block ends.
    """
    if other := folder_of(name, project):
        found = Commit(other.name, "", ())
        yield replace(found, kernels=_kernels(other, project, found.label), root=other)
        return
    root = project.root
    sha = find(name, root)
    with tempfile.TemporaryDirectory(prefix="gemm-base-") as folder:
        tree = Path(folder, sha[:12])
        try:
            _must(root, "worktree", "add", "--detach", "--no-checkout", "--quiet", str(tree), sha)
            home = tree / _git(root, "rev-parse", "--show-prefix")
            _take(tree, sha, [home, *_included(project.kernels, root, tree)])
            if not _declared(home, project).exists():
                missing = project.declarations.relative_to(root)
                raise CommitError(f"{name} does not contain {missing}; compare with a later commit")
            commit = Commit(name, sha, ())
            kernels = _kernels(home, project, commit.label)
            yield replace(commit, kernels=kernels, root=home)
        finally:
            _git(root, "worktree", "remove", "--force", str(tree))
            _git(root, "worktree", "prune")


def _take(tree: Path, sha: str, folders: Iterable[Path]) -> None:
    """Checks out those of these folders that the commit contains."""
    for path in dict.fromkeys(folder.relative_to(tree).as_posix() for folder in folders):
        if path == "." or _git(tree, "ls-tree", sha, "--", path):
            _must(tree, "checkout", "--quiet", sha, "--", path)


def _included(kernels: Iterable[Kernel], root: Path, tree: Path) -> Iterator[Path]:
    """Folders of the repository outside the project that kernels include from, as paths in the worktree."""
    top = Path(_git(root, "rev-parse", "--show-toplevel"))
    for path in (Path(folder).resolve() for kernel in kernels for folder in kernel.include):
        if path.is_relative_to(top) and not path.is_relative_to(root):
            yield tree / path.relative_to(top)


def _kernels(root: Path, project: Project, label: str) -> tuple[Kernel, ...]:
    """What another copy of the project declares, each kernel with the sources of its own."""
    try:
        return load_kernels(root, (read(root) or project.table).kernels)[0]
    except ProjectError as error:
        raise CommitError(
            f"the kernels of {label} are declared for another version of the harness ({error}); compare with "
            "a "
            "later commit"
        ) from None


def _run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # If started from a git hook, git's variables name another repository. And do not run hooks.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")} | {"LC_ALL": "C"}
    command = ["git", "-c", "core.hooksPath=/dev/null", *arguments]
    try:
        return subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=_GIT_SECONDS
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise CommitError(f"git cannot be run in {folder}: {error}") from None


def _git(folder: Path, *arguments: str) -> str:
    """The output of git, empty if it fails. Raises CommitError without a repository or git."""
    done = _run(folder, *arguments)
    if "not a git repository" in done.stderr:
        raise CommitError(f"{folder} is not a git repository: there is no commit to compare with")
    if "dubious ownership" in done.stderr:
        raise CommitError(
            f"git rejects {folder}, because another user owns it; "
            f"allow it with `git config --global --add safe.directory {folder}`"
        )
    return "" if done.returncode else done.stdout.strip()


def _must(folder: Path, *arguments: str) -> None:
    done = _run(folder, *arguments)
    if done.returncode:
        text = " ".join(done.stderr.split()) or f"exit status {done.returncode}"
        raise CommitError(f"git {arguments[0]} failed: {text}")
