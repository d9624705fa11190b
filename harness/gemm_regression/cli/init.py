"""``gemm-regression init``: creates a project in this folder.

Writes a kernel that is correct for all sizes, its declaration, three test files, a noxfile and two workflows,
and appends the project's table to an existing pyproject.toml, and how git merges baselines to .gitattributes.
The noxfile installs what this command itself was installed from, and that is printed.
Exit status: 0; 1 if one of the files already exists, and nothing was written.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

import gemm_regression
from gemm_regression.cli.common import about, fail
from gemm_regression.cli.main import parsed
from gemm_regression.files import write_whole
from gemm_regression.project.commit import CommitError, git
from gemm_regression.project.table import FILE, TOOL, has_table

# The project's files, and the templates they are written from.
FILES = {
    "kernels/sgemm.cu": "sgemm.cu",
    "kernels/__init__.py": "declarations",
    "tests/test_kernels.py": "test_kernels",
    "tests/test_performance.py": "test_performance",
    "tests/test_static.py": "test_static",
    "noxfile.py": "noxfile",
    ".github/workflows/check.yml": "check.yml",
    ".github/workflows/gpu.yml": "gpu.yml",
}
NEXT = """\
next:  gemm-regression check      check the kernel without a GPU; needs nvcc
       gemm-regression gpu        check and time it on this GPU
       gemm-regression baseline   measure this GPU's baseline, to compare later runs with"""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="gemm-regression init", description=about(__doc__))
    parser.add_argument("--project", type=Path, default=Path(), metavar="PATH", help="default: this folder")
    root = parsed(parser, arguments).project
    try:
        if has_table(root):
            return fail(f"{root / FILE} already has the table [tool.{TOOL}]: this is a project")
        if there := [name for name in FILES if (root / name).exists()]:
            return fail(
                f"{', '.join(there)} already exists and is not overwritten; move it, or use another folder"
            )
        installed, said = _installed()
        for name, template in FILES.items():
            _write(root / name, _template(template).replace("INSTALL = ()", installed))
        _write_table(root / FILE)
        _write_attributes(root / ".gitattributes")
        if not (root / ".gitignore").exists():
            _write(root / ".gitignore", _template("gitignore"))
    except OSError as error:
        return fail(f"{error.filename}: {error.strerror}")
    print("\n".join([*said, NEXT]))
    return 0


def _installed() -> tuple[str, list[str]]:
    """What the noxfile installs, as its line of Python; and lines that say so."""
    try:
        found = requirements()
    except UnknownOriginError as error:
        return "INSTALL = ()", [f"to do: fill in INSTALL in noxfile.py: {error}, so nox cannot install it"]
    lines = ["this project installs:", *(f"  {one}" for one in found)]
    if any("file://" in one for one in found):
        lines.append("that is on this machine alone: for others, and for CI, put URLs in noxfile.py")
    return "\n".join(["INSTALL = (", *(f'    "{one}",' for one in found), ")"]), lines


def _template(name: str) -> str:
    return (files("gemm_regression.cli") / "templates" / f"{name}.template").read_text(encoding="utf-8")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text)
    print(f"wrote {os.path.relpath(path)}")


def _write_table(path: Path) -> None:
    """Appends the project's table, and pytest's options if the file has none."""
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    parts = [before.rstrip()] * bool(before.strip()) + [_template("table").rstrip()]
    if "[tool.pytest" not in before:
        parts.append(_template("pytest").rstrip())
    _write(path, "\n\n".join(parts) + "\n")


def _write_attributes(path: Path) -> None:
    """Appends what git is to know of baselines."""
    before = path.read_text(encoding="utf-8").rstrip() if path.exists() else ""
    _write(path, f"{before}\n{_template('gitattributes')}".lstrip())


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
    if (archive := direct.get("archive_info")) is not None:
        sha256 = archive.get("hashes", {}).get("sha256") or _sha256(url)  # not every pip records it
        marks = [f"sha256={sha256}"] * bool(sha256) + [f"subdirectory={inside}"] * bool(inside)
        return url + "#" * bool(marks) + "&".join(marks)
    folder = Path(unquote(urlsplit(url).path))
    top = next((up for up in (folder, *folder.parents) if (up / ".git").exists()), folder)
    within = folder.relative_to(top).as_posix()
    return _in_checkout(top, "" if within == "." else within)


def _sha256(url: str) -> str:
    """Of a file on this machine; empty for any other URL."""
    parts = urlsplit(url)
    file = Path(unquote(parts.path))
    return hashlib.sha256(file.read_bytes()).hexdigest() if parts.scheme == "file" and file.is_file() else ""


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
