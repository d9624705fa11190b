"""The kernels of another commit: checked out from git into a temporary folder, and loaded as any project's.

A folder with another copy of the project can take the place of a commit, since a container may have no git.

The declarations run with the working tree's ``gemm_regression.model``, and the kernels are launched by the
working tree's harness. A commit whose declarations need another harness is rejected, in one line.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from gemm_regression import model
from gemm_regression.model import Case, Config, Constraints, Kernel
from gemm_regression.project.loader import Project, ProjectError, load_kernels
from gemm_regression.project.suites import SUITES, Suite
from gemm_regression.project.table import FILE, read

_GIT_SECONDS = 120


class CommitError(Exception):
    """A commit cannot be compared with; one line: what is wrong, and what to do."""


def git(folder: Path, *arguments: str, index: Path | None = None) -> str:
    """The output of git, empty if it fails. ``index``: a file in place of the repository's index. Raises
    CommitError without a repository or git."""
    done = _run(folder, arguments, index)
    if "not a git repository" in done.stderr:
        raise CommitError(f"{folder} is not a git repository: there is no commit to compare with")
    if "dubious ownership" in done.stderr:
        raise CommitError(
            f"git rejects {folder}, because another user owns it; "
            f"allow it with `git config --global --add safe.directory {folder}`"
        )
    return "" if done.returncode else done.stdout.strip()


def must(folder: Path, *arguments: str, index: Path | None = None) -> str:
    """The output of git. Raises CommitError if it fails."""
    done = _run(folder, arguments, index)
    if done.returncode:
        text = " ".join(done.stderr.split()) or f"exit status {done.returncode}"
        command = next(word for word in arguments if not word.startswith("-"))
        raise CommitError(f"git {command} failed: {text}")
    return done.stdout.strip()


def find(name: str, root: Path) -> str:
    """The full hash of a commit. Raises CommitError if there is none with that name."""
    sha = git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    if sha:
        return sha
    if git(root, "rev-parse", "--is-shallow-repository") == "true":
        raise CommitError(
            f"{name} is not in this shallow clone; get it with `git fetch --unshallow` "
            "(actions/checkout: fetch-depth: 0)"
        )
    raise CommitError(f"no commit {name} in this repository; try `git fetch`")


class Place(NamedTuple):
    """A folder in a repository: git's own folder, the top one, and the path from that."""

    git: Path
    top: Path
    within: str


@lru_cache
def place(root: Path) -> Place:
    """Where a folder is in its repository. Raises CommitError without one."""
    said = git(root, "rev-parse", "--absolute-git-dir", "--show-toplevel", "--show-prefix").split("\n")
    if len(said) < 2:
        raise CommitError(f"{root} is in no working tree of git: there is no commit to compare with")
    own, top, *within = said
    return Place(Path(own), Path(top), within[0] if within else ".")


def between(root: Path, good: str, bad: str, paths: Iterable[str]) -> list[str]:
    """The commits after ``good`` up to ``bad`` that touch these paths, the oldest first; of a merge the
    first parent's side alone. Raises CommitError unless ``good`` is an ancestor."""
    if git(root, "merge-base", good, bad) != good:
        raise CommitError(
            f"{good[:12]} is no ancestor of {bad[:12]}: there is nothing to bisect between them"
        )
    walk = ("rev-list", "--first-parent", "--reverse", f"{good}..{bad}", "--", *paths)
    return must(place(root).top, *walk).split()


def described(root: Path, sha: str) -> str:
    """Hash, author, date and message, as git shows a commit."""
    return git(root, "show", "--no-patch", "--format=medium", "--no-color", sha)


def subject(root: Path, sha: str) -> str:
    return git(root, "show", "--no-patch", "--format=%s", sha)


def put(root: Path, sha: str, folder: Path, paths: Iterable[str]) -> None:
    """Puts those of these paths of the repository that a commit contains into a folder, which git does not
    notice. Raises CommitError."""
    of = f"--git-dir={place(root).git}", f"--work-tree={folder}", "--literal-pathspecs"
    wanted = list(dict.fromkeys(paths))
    there = git(folder, *of, "ls-tree", "-z", "--name-only", sha, "--", *wanted).split("\0")
    if "." in wanted:
        there = ["."]
    if there := [path for path in there if path]:
        index = folder.with_name(f"{folder.name}.index")
        must(folder, *of, "checkout", "--quiet", sha, "--", *there, index=index)
        index.unlink(missing_ok=True)


def _run(folder: Path, arguments: Iterable[str], index: Path | None) -> subprocess.CompletedProcess[str]:
    # If started from a git hook, git's variables name another repository. And do not run hooks.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")} | {"LC_ALL": "C"}
    if index:
        environment["GIT_INDEX_FILE"] = str(index)
    command = ["git", "-c", "core.hooksPath=/dev/null", *arguments]
    try:
        return subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=_GIT_SECONDS
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise CommitError(f"git cannot be run in {folder}: {error}") from None


__all__ = [
    "Commit",
    "CommitError",
    "Tree",
    "checked_out",
    "find",
    "folder_of",
    "here",
    "taken",
    "touched",
    "whole",
    "working_tree",
]


@dataclass(frozen=True)
class Commit:
    """``name`` as given by the user, the full ``sha``, and the ``kernels`` and ``suites`` that the commit
    declares, in the folder ``root``. For a folder, ``name`` is its last part and ``sha`` is empty; for the
    working tree, both are."""

    name: str
    sha: str
    kernels: tuple[Kernel, ...]
    root: Path | None = None
    suites: Mapping[str, Suite] = field(default_factory=lambda: SUITES)

    @property
    def label(self) -> str:
        """``main (1a2b3c4d5e6f)``, or only the short hash if the user gave a hash."""
        if not self.sha:
            return f"the folder {self.name}" if self.name else "the working tree"
        short = self.sha[:12]
        return short if self.sha.startswith(self.name) else f"{self.name} ({short})"

    def counterpart(self, case: Case) -> Case | str:
        """This commit's case with the same kernel, dtype, config and problem; where the config was edited,
        with the nearest one of those that the case's kernel has no more. Or why there is none."""
        kernel = next((k for k in self.kernels if k.name == case.kernel.name), None)
        if kernel is None:
            return f"{self.label} has no kernel {case.kernel.name}"
        dtype = next((d for d in kernel.dtypes if d.name == case.dtype.name), None)
        here = [dict(config) for config in case.kernel.declared]
        same = next((c for c in kernel.declared if dict(c) == dict(case.config)), None)
        config = same or _nearest(case.config, [c for c in kernel.declared if dict(c) not in here])
        if dtype is None or config is None:
            missing = f"dtype {case.dtype.name}" if dtype is None else f"config {case.config.label}"
            return f"{self.label} has {case.kernel.name}, but not its {missing}"
        return Case(kernel, dtype, config, case.problem)


def _nearest(config: Config, others: Sequence[Config]) -> Config | None:
    """The one of the fewest other parameters, then of the smallest changes, as ratios."""

    def distance(other: Config) -> tuple[int, float]:
        names = {name for name in (*config, *other) if config.get(name) != other.get(name)}
        return len(names), sum(_change(config.get(name), other.get(name)) for name in names)

    return min(others, key=distance, default=None)


def _change(one: int | None, other: int | None) -> float:
    if not one or not other or one * other < 0:
        return math.inf
    return abs(math.log(one / other))


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
    head = git(root, "rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    if not head:
        raise CommitError(f"{root} contains no commit to compare with")
    return Tree(head, bool(git(root, "status", "--porcelain", "--untracked-files=normal")))


def folder_of(name: str, project: Project) -> Path | None:
    """The folder with a path such as ``../old``, if it contains kernels; else None."""
    path = Path(name)
    if (os.sep in name or name in (".", "..")) and _declared(path, project).exists():
        return path.resolve()
    return None


def _declared(root: Path, project: Project) -> Path:
    """Where the kernels of another copy are declared: as its own table says, else as in this project."""
    return root / (read(root) or project.table).kernels


@contextlib.contextmanager
def checked_out(name: str, project: Project) -> Iterator[Commit]:
    """The kernels of a commit or folder, whose sources exist until the block ends. Raises CommitError."""
    if other := folder_of(name, project):
        yield _declared_in(other, project, Commit(other.name, "", ()))
        return
    sha = find(name, project.root)
    with tempfile.TemporaryDirectory(prefix="gemm-base-") as folder:
        yield taken(name, sha, project, Path(folder, sha[:12]), whole(project))


def here(project: Project) -> Commit:
    """The working tree's kernels."""
    return Commit("", "", project.kernels, project.root, project.suites)


def taken(name: str, sha: str, project: Project, folder: Path, paths: Iterable[str]) -> Commit:
    """The kernels of a commit, of which these paths are put into a new folder. Raises CommitError."""
    folder.mkdir()
    put(project.root, sha, folder, paths)
    home = folder / place(project.root).within
    if not _declared(home, project).exists():
        missing = project.declarations.relative_to(project.root)
        raise CommitError(f"{name} does not contain {missing}; compare with a later commit")
    return _declared_in(home, project, Commit(name, sha, ()))


def whole(project: Project) -> list[str]:
    """The paths in the repository of a project and of what its kernels include from elsewhere in it."""
    _, top, within = place(project.root)
    folders = (Path(folder).resolve() for kernel in project.kernels for folder in kernel.include)
    outside = [folder for folder in folders if not folder.is_relative_to(project.root)]
    return [within, *(f.relative_to(top).as_posix() for f in outside if f.is_relative_to(top))]


def touched(project: Project, files: Iterable[Path], top: Path) -> list[str]:
    """The paths in the repository of what declares kernels, and of the folders of some ``files`` below
    ``top``, its top folder or a copy of that."""
    home = Path(place(project.root).within)
    declared = project.declarations.relative_to(project.root)
    inside = (file.parent.relative_to(top) for file in files if file.is_relative_to(top))
    return list(dict.fromkeys(p.as_posix() for p in (home / FILE, home / declared.parent, *inside)))


@contextlib.contextmanager
def _former_names() -> Iterator[None]:
    """Meanwhile what declarations import has its former names, too: older commits can be compared
    with. A package ``harness`` of the project's own comes first."""
    own = find_spec("harness")
    renamed = own is None or own.origin is None
    before = {
        name: sys.modules.pop(name)
        for name in list(sys.modules)
        if renamed and name.partition(".")[0] == "harness"
    }
    former = {
        f"harness{name.removeprefix('gemm_regression')}": module
        for name, module in sys.modules.items()
        if renamed and re.match(r"gemm_regression(\.model|\.project|$)", name)
    }
    sys.modules.update(former)
    vars(model).update(Takes=Constraints, Kernel=_former_kernel)
    try:
        yield
    finally:
        vars(model)["Kernel"] = Kernel
        del vars(model)["Takes"]
        for name in former:
            sys.modules.pop(name, None)
        sys.modules.update(before)


def _former_kernel(*given: Any, **named: Any) -> Kernel:
    """A kernel as it was declared before two of its fields were renamed."""
    names = {"takes": "constraints", "chooses": "is_dispatcher"}
    return Kernel(*given, **{names.get(name, name): value for name, value in named.items()})


def _declared_in(root: Path, project: Project, commit: Commit) -> Commit:
    """With what another copy of the project declares, each kernel with the sources of its own."""
    try:
        with _former_names():
            kernels, suites, _ = load_kernels(root, (read(root) or project.table).kernels)
    except ProjectError as error:
        raise CommitError(
            f"the kernels of {commit.label} are declared for another version of the harness ({error}); "
            "compare with a later commit"
        ) from None
    return replace(commit, kernels=kernels, suites=suites, root=root)
