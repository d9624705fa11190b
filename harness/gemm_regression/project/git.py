"""What is asked of git, of the repository of a project."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

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
