"""Where the suite and its interpreter come from, as requirements for pip: what a new project is to install.

In a checkout, where nothing need be installed, it is the commit if the remote has it, else the folder.
Elsewhere it is what pip recorded of each distribution (PEP 610): a commit, a file by its hash, a folder.
"""

from __future__ import annotations

import json
import re
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

import gemm_regression
from gemm_regression.project.commit import CommitError, git

# The distributions, each with its folder in the repository; {extras} is for whoever installs them.
FOLDERS = {"ptxsan": "harness/ptxsan", "gemm-regression[{extras}]": ""}


class UnknownOriginError(Exception):
    """It is not known where a distribution comes from; one line."""


def requirements() -> tuple[str, ...]:
    """One for each distribution. Raises UnknownOriginError."""
    checkout = Path(gemm_regression.__file__).parents[2]
    if (checkout / "harness" / "ptxsan" / "pyproject.toml").is_file():
        return tuple(f"{name} @ {_in_checkout(checkout, folder)}" for name, folder in FOLDERS.items())
    return tuple(f"{name} @ {_recorded(name.partition('[')[0])}" for name in FOLDERS)


def _recorded(name: str) -> str:
    """The URL of an installed distribution."""
    try:
        text = distribution(name).read_text("direct_url.json")
    except PackageNotFoundError:
        raise UnknownOriginError(f"{name} is not installed") from None
    if not text:  # from a package index, or by other means
        raise UnknownOriginError(f"pip recorded no URL of {name}")
    return url_of(json.loads(text))


def url_of(direct: dict[str, Any]) -> str:
    """What pip installs again the same, of a direct_url.json."""
    url, inside = _without_password(direct["url"]), direct.get("subdirectory", "")
    if vcs := direct.get("vcs_info"):
        return f"{vcs['vcs']}+{url}@{vcs['commit_id']}" + f"#subdirectory={inside}" * bool(inside)
    if archive := direct.get("archive_info"):
        sha256 = archive.get("hashes", {}).get("sha256")
        marks = [f"sha256={sha256}"] * bool(sha256) + [f"subdirectory={inside}"] * bool(inside)
        return url + "#" * bool(marks) + "&".join(marks)
    folder = Path(unquote(urlsplit(url).path))
    top = next((up for up in (folder, *folder.parents) if (up / ".git").exists()), folder)
    within = folder.relative_to(top).as_posix()
    return _in_checkout(top, "" if within == "." else within)


def _in_checkout(top: Path, folder: str) -> str:
    """A commit that the remote has and the working tree is; else the folder of the distribution."""
    try:
        commit, remote = git(top, "rev-parse", "HEAD"), git(top, "remote", "get-url", "origin")
        dirty = git(top, "status", "--porcelain", "--untracked-files=normal")
        there = remote and not dirty and git(top, "branch", "--remotes", "--contains", commit)
    except CommitError:
        there = ""
    if not there:
        return (top / folder).as_uri()
    return f"git+{_as_url(remote)}@{commit}" + f"#subdirectory={folder}" * bool(folder)


def _as_url(remote: str) -> str:
    """A remote of git, which may be a path or ``git@host:path``."""
    if "://" in remote:
        return _without_password(remote)
    if scp := re.fullmatch(r"([^/:]+):(?!/)(.+)", remote):
        return f"ssh://{scp[1]}/{scp[2]}"
    return Path(remote).resolve().as_uri()


def _without_password(url: str) -> str:
    """A token that somebody cloned with is nothing for a file; the user of ssh is."""
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    kept = user.partition(":")[0] + at if "ssh" in parts.scheme else ""
    return urlunsplit(parts._replace(netloc=kept + host))
