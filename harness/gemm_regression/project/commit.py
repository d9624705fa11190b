"""The kernels of another commit: checked out from git into a temporary folder, and loaded as any project's.

A folder with a copy of the project, or a wheel, can take a commit's place, as a container may have no git.

The declarations run with the working tree's ``gemm_regression.model``, and the kernels are launched by the
working tree's harness. A commit whose declarations need another harness is rejected, in one line.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from gemm_regression.model import Case, Config, Kernel
from gemm_regression.project.loader import Project, ProjectError, load
from gemm_regression.project.suites import SUITES, Suite
from gemm_regression.project.table import FILE, read

_GIT_SECONDS = 120
WHEEL = ".whl"


class CommitError(Exception):
    """A commit cannot be compared with; one line: what is wrong, and what to do."""


def git(folder: Path, *arguments: str, index: Path | None = None, must: bool = False) -> str:
    """The output of git, empty if it fails. ``index``: a file in place of the repository's index. Raises
    CommitError without a repository or git, and where it ``must`` not fail."""
    # If started from a git hook, git's variables name another repository. And do not run hooks.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")} | {"LC_ALL": "C"}
    if index:
        environment["GIT_INDEX_FILE"] = str(index)
    command = ["git", "-c", "core.hooksPath=/dev/null", *arguments]
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=_GIT_SECONDS
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise CommitError(f"git cannot be run in {folder}: {error}") from None
    if "not a git repository" in done.stderr:
        raise CommitError(f"{folder} is not a git repository: there is no commit to compare with")
    if done.returncode and (must or "dubious ownership" in done.stderr):  # git says what to do against that
        name = next(word for word in arguments if not word.startswith("-"))
        raise CommitError(
            f"git {name} failed in {folder}: {' '.join(done.stderr.split()) or done.returncode}"
        )
    return "" if done.returncode else done.stdout.strip()


def find(name: str, root: Path) -> str:
    """The full hash of a commit. Raises CommitError if there is none with that name."""
    sha = git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    if sha:
        return sha
    if git(root, "rev-parse", "--is-shallow-repository") == "true":
        remedy = "`git fetch --unshallow` (actions/checkout: fetch-depth: 0)"
        raise CommitError(f"no commit {name} in this shallow clone; try {remedy}")
    raise CommitError(f"no commit {name} in this repository; try `git fetch`")


class RepositoryFolder(NamedTuple):
    """A folder in a repository: git's own folder, the top one, and the path from that."""

    git: Path
    top: Path
    within: str


@lru_cache
def place(root: Path) -> RepositoryFolder:
    """Where a folder is in its repository. Raises CommitError without one."""
    said = git(root, "rev-parse", "--absolute-git-dir", "--show-toplevel", "--show-prefix").split("\n")
    if len(said) < 2:
        raise CommitError(f"{root} is in no working tree of git: there is no commit to compare with")
    return RepositoryFolder(Path(said[0]), Path(said[1]), said[2] if len(said) > 2 else ".")


def between(root: Path, good: str, bad: str, paths: Iterable[str]) -> list[str]:
    """The commits after ``good`` up to ``bad`` that touch these paths, the oldest first; of a merge the
    first parent's side alone. Raises CommitError unless ``good`` is an ancestor."""
    if git(root, "merge-base", good, bad) != good:
        raise CommitError(
            f"{good[:12]} is no ancestor of {bad[:12]}: there is nothing to bisect between them"
        )
    walk = ("rev-list", "--first-parent", "--reverse", f"{good}..{bad}", "--", *paths)
    return git(place(root).top, *walk, must=True).split()


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
    if there := ["."] if "." in wanted else [path for path in there if path]:
        index = folder.with_name(f"{folder.name}.index")
        git(folder, *of, "checkout", "--quiet", sha, "--", *there, index=index, must=True)
        index.unlink(missing_ok=True)


@dataclass(frozen=True)
class Commit:
    """``name`` as given by the user, the full ``sha``, and the ``kernels`` and ``suites`` that the commit
    declares, in the folder ``root``. For a folder or a wheel, ``name`` is the last part and ``sha`` is empty;
    for the working tree, both are."""

    name: str
    sha: str
    kernels: tuple[Kernel, ...]
    root: Path | None = None
    suites: Mapping[str, Suite] = field(default_factory=lambda: SUITES)

    @property
    def label(self) -> str:
        """``main (1a2b3c4d5e6f)``, or only the short hash if the user gave a hash."""
        if not self.sha:
            what = "wheel" if self.name.endswith(WHEEL) else "folder"
            return f"the {what} {self.name}" if self.name else "the working tree"
        short = self.sha[:12]
        return short if self.sha.startswith(self.name) else f"{self.name} ({short})"

    def counterpart(self, case: Case) -> Case | str:
        """This commit's case with the same kernel, dtype, config and problem; where the config was edited,
        with the nearest one of those that the case's kernel has no more. Or why there is none."""
        kernel = next((k for k in self.kernels if k.name == case.kernel.name), None)
        if kernel is None:
            return f"{self.label} has no kernel {case.kernel.name}"
        dtype = next((d for d in kernel.dtypes if d.name == case.dtype.name), None)
        known = [dict(config) for config in case.kernel.declared]
        same = next((c for c in kernel.declared if dict(c) == dict(case.config)), None)
        config = same or _nearest(case.config, [c for c in kernel.declared if dict(c) not in known])
        if dtype is None or config is None:
            missing = f"dtype {case.dtype.name}" if dtype is None else f"config {case.config.label}"
            return f"{self.label} has {case.kernel.name}, but not its {missing}"
        return Case(kernel, dtype, config, case.problem)


def _nearest(config: Config, others: Iterable[Config]) -> Config | None:
    """The one of the fewest other parameters, then of the smallest changes."""

    def distance(other: Config) -> tuple[int, int]:
        changes = [abs(config.get(n, 0) - other.get(n, 0)) for n in {*config, *other}]
        return sum(map(bool, changes)), sum(changes)

    return min(others, key=distance, default=None)


@dataclass(frozen=True)
class Tree:
    """The working tree: its commit ``sha``, empty without git, and whether tracked or untracked files differ
    from it (``dirty``). Or what was named in its place, as ``other``."""

    sha: str
    dirty: bool
    other: str = ""

    @property
    def label(self) -> str:
        if self.other:
            return self.other
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
    """The kernels of a commit, folder or wheel, whose sources exist until the block ends. Raises
    CommitError."""
    if other := folder_of(name, project):
        yield _declared_in(other, project, Commit(other.name, "", ()))
        return
    if name.endswith(WHEEL):
        with tempfile.TemporaryDirectory(prefix="gemm-base-") as folder:
            yield _unpacked(Path(name), project, Path(folder))
        return
    sha = find(name, project.root)
    with tempfile.TemporaryDirectory(prefix="gemm-base-") as folder:
        yield taken(name, sha, project, Path(folder, sha[:12]), whole(project))


def _unpacked(wheel: Path, project: Project, folder: Path) -> Commit:
    """The kernels of a wheel, which has none of the folders above its packages. Raises CommitError."""
    try:
        zipfile.ZipFile(wheel).extractall(folder)
    except (OSError, zipfile.BadZipFile) as error:
        raise CommitError(f"{wheel} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    parts = Path(project.table.kernels).parts
    inside = [Path(*parts[first:]) for first in range(len(parts))]
    found = next((path for path in inside if (folder / path).exists()), None)
    if found is None:
        raise CommitError(f"{wheel} has no {project.table.kernels}, where this project declares its kernels")
    there = replace(project, table=replace(project.table, kernels=found.as_posix()))
    return _declared_in(folder, there, Commit(wheel.name, "", ()))


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


def _declared_in(root: Path, project: Project, commit: Commit) -> Commit:
    """With what another copy of the project declares, each kernel with the sources of its own."""
    try:
        theirs = load(root, read(root) or project.table)
    except ProjectError as error:
        raise CommitError(
            f"the kernels of {commit.label} are declared for another version of the harness ({error}); "
            "compare with a later commit"
        ) from None
    return replace(commit, kernels=theirs.kernels, suites=theirs.suites, root=root)
