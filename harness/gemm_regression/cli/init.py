"""``gemm-regression init``: creates a project in this folder."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
from importlib.metadata import PackageNotFoundError, distribution
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

import gemm_regression
from gemm_regression.cli.common import command, option
from gemm_regression.cli.declare import Draft, of_cuda, text_of
from gemm_regression.cli.declare_triton import of_triton
from gemm_regression.compiler.sources import closure
from gemm_regression.files import write_whole
from gemm_regression.model import Config
from gemm_regression.project.commit import CommitError, git
from gemm_regression.project.table import FILE, TOOL, ProjectTable, has_table, read

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
NOXFILE, BESIDE = "noxfile.py", "gemm_noxfile.py"
NEXT = """\
next:  gemm-regression check      check the kernel without a GPU; needs nvcc
       gemm-regression gpu        check and time it on this GPU
       gemm-regression baseline   measure this GPU's baseline, to compare later runs with"""


@command(
    "init",
    option("--project", type=Path, default=Path(), metavar="PATH", help="its folder (default: this one)"),
    option(
        "--from",
        type=Path,
        metavar="FILE",
        dest="source",
        help="declare the kernel of a .cu or Triton .py file",
    ),
    option("--entry", default="", metavar="NAME", help="which function of the file, if it has several"),
    option(
        "-D",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        dest="defined",
        help="a macro or constant of it",
    ),
    failed=1,
)
def main(given: argparse.Namespace) -> int:
    """Creates a project in this folder.

    Writes a kernel that is correct for all sizes, its declaration, three test files, a noxfile and two
    workflows. Appends the project's table to pyproject.toml, and the merge rule for baselines to
    .gitattributes. The noxfile installs the suite from where this command was installed; the source is
    printed. If there is a noxfile already, it stays, and the suite's is gemm_noxfile.py.

    With --from, the kernel is that of a file, and the declaration is guessed by its compiled signature, and
    tried on the interpreter: the command says what it guessed, and what is to be filled in. In a project that
    is there it prints the declaration, and writes nothing. Without --from it writes there the test files that
    the project lacks.

    Exit status: 0 done; 1 one of the files already exists, or --from failed, and nothing was written.
    """
    root, draft = given.project, _draft(given) if given.source else None
    if draft and has_table(root):
        declared = root / (read(root) or ProjectTable()).kernels
        folder = declared.parent if declared.suffix == ".py" else declared
        print(text_of(draft, _name(given.source), _from(folder, given.source)), *_said(draft), sep="\n")
        return 0
    if has_table(root):
        return _tests_of(root)
    nox = BESIDE if (root / NOXFILE).exists() else NOXFILE
    written = {(nox if name == NOXFILE else name): template for name, template in FILES.items()}
    if draft:
        del written["kernels/sgemm.cu"]
        source = _into(root, given.source, draft)
        written |= {f"kernels/{source}": ""} if "/" not in source else {}
    if there := [name for name in written if (root / name).exists()]:
        raise ValueError(f"{', '.join(there)} already exists and is not overwritten; use another folder")
    installed, said = requirements(nox)
    for name, template in written.items():
        if draft and template == "declarations":
            text = text_of(draft, _name(given.source), source)
        elif template:
            text = _template(template).replace("INSTALL = ()", installed).replace(NOXFILE, nox)
            text = text.replace("nox -s", f"nox -f {BESIDE} -s") if nox == BESIDE else text
        else:
            text = given.source.read_text(encoding="utf-8")
        _write(root / name, text)
    if nox == BESIDE:
        said.append(
            f"{NOXFILE} is yours and stays: the suite's sessions are `nox -f {BESIDE} -s check` and so on"
        )
    table = root / FILE
    has_pytest = table.exists() and "[tool.pytest" in table.read_text(encoding="utf-8")
    _append(table, "table", *([] if has_pytest else ["pytest"]), between="\n\n")
    _append(root / ".gitattributes", "gitattributes")
    if not (root / ".gitignore").exists():
        _write(root / ".gitignore", _template("gitignore"))
    print("\n".join([*said, *(_said(draft) if draft else []), NEXT]))
    return 0


def _tests_of(root: Path) -> int:
    """Writes the test files that a project lacks. Raises ValueError if it lacks none."""
    folder = root / (read(root) or ProjectTable()).tests
    tests = {folder / Path(name).name: of for name, of in FILES.items() if name.startswith("tests/")}
    lacking = {path: of for path, of in tests.items() if not path.exists()}
    if not lacking:
        raise ValueError(f"{root / FILE} already has the table [tool.{TOOL}]: this is a project")
    for path, template in lacking.items():
        _write(path, _template(template))
    print(NEXT)
    return 0


def _draft(given: argparse.Namespace) -> Draft:
    """What can be said of the kernel of a file. Raises ValueError and CompileError."""
    if not given.source.is_file():
        raise ValueError(f"there is no file {given.source}")
    try:
        config = Config(**{name: int(value) for name, value in (each.split("=") for each in given.defined)})
    except ValueError:
        raise ValueError(f"-D {' -D '.join(given.defined)}: write -D NAME=NUMBER") from None
    make = {".cu": of_cuda, ".py": of_triton}.get(given.source.suffix)
    if make is None:
        raise ValueError(f"{given.source}: --from takes a .cu file, or a .py file with a kernel of Triton")
    return make(given.source.absolute(), given.entry, config)


def _name(source: Path) -> str:
    return re.sub(r"\W", "_", source.stem)


def _from(folder: Path, source: Path) -> str:
    """The path of a source from the declarations' folder."""
    return Path(os.path.relpath(source.resolve(), folder.resolve())).as_posix()


def _into(root: Path, source: Path, draft: Draft) -> str:
    """The path of a source from ``kernels/``, into which it is copied if it is in no folder of the project.
    Raises ValueError for one that includes files beside it."""
    if source.resolve().is_relative_to(root.resolve()):
        return _from(root / "kernels", source)
    if source.suffix == ".cu" and (others := closure(draft.kernel)[1:]):
        raise ValueError(f"{source} includes {others[0].name}: put both into the project first")
    return source.name


def _said(draft: Draft) -> list[str]:
    return [*(f"guessed: {one}" for one in draft.guessed), *(f"to do: {one}" for one in draft.left)]


def _template(name: str) -> str:
    return (files("gemm_regression.cli") / "templates" / f"{name}.template").read_text(encoding="utf-8")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text)
    print(f"wrote {os.path.relpath(path)}")


def _append(path: Path, *templates: str, between: str = "\n") -> None:
    """Each after what the file has so far."""
    before = path.read_text(encoding="utf-8").rstrip() if path.exists() else ""
    parts = [before, *(_template(name).strip() for name in templates)]
    _write(path, between.join(filter(None, parts)) + "\n")


# The distributions, each with its folder in the repository; {extras} is for whoever installs them.
FOLDERS = {"ptxsan": "harness/ptxsan", "gemm-regression[{extras}]": ""}


def requirements(noxfile: str = NOXFILE) -> tuple[str, list[str]]:
    """What the noxfile installs, as its line of Python: the checkout that this is, or what pip was told to
    install; and lines that say so."""
    checkout = Path(gemm_regression.__file__).parents[2]
    if (checkout / "harness" / "ptxsan" / "pyproject.toml").is_file():
        found = {name: _in_checkout(checkout, folder) for name, folder in FOLDERS.items()}
    else:
        found = {name: _recorded(name.partition("[")[0]) for name in FOLDERS}
    if not all(found.values()):
        return "INSTALL = ()", [f"to do: fill in INSTALL in {noxfile}: pip recorded no URL of this package"]
    each = [f"{name} @ {url}" for name, url in found.items()]
    lines = ["this project installs:", *(f"  {one}" for one in each)]
    if any("file://" in one for one in each):
        lines.append(f"that is on this machine alone: for others, and for CI, put URLs in {noxfile}")
    return "\n".join(["INSTALL = (", *(f'    "{one}",' for one in each), ")"]), lines


def _recorded(name: str) -> str:
    """The URL of an installed distribution; empty if pip recorded none, as of one from a package index."""
    try:
        text = distribution(name).read_text("direct_url.json")
    except PackageNotFoundError:
        text = None
    return url_of(json.loads(text)) if text else ""


def url_of(direct: dict[str, Any]) -> str:
    """What pip installs again the same, of a direct_url.json."""
    url, archive = _without_password(direct["url"]), direct.get("archive_info")
    file = Path(unquote(urlsplit(url).path))
    if vcs := direct.get("vcs_info"):
        url = f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
    elif archive is None:
        top = next((up for up in (file, *file.parents) if (up / ".git").exists()), file)
        return _in_checkout(top, file.relative_to(top).as_posix())
    sha256 = (archive or {}).get("hashes", {}).get("sha256")
    if archive is not None and not sha256 and url.startswith("file:"):  # not every pip records it
        sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    marks = {"sha256": sha256, "subdirectory": direct.get("subdirectory")}
    return "#".join(filter(None, (url, "&".join(f"{name}={mark}" for name, mark in marks.items() if mark))))


def _in_checkout(top: Path, folder: str) -> str:
    """A commit that the remote has and the working tree is; else the folder of the distribution."""
    inside = folder.removeprefix(".")
    try:
        commit, remote = git(top, "rev-parse", "HEAD"), git(top, "remote", "get-url", "origin")
        dirty = git(top, "status", "--porcelain", "--untracked-files=normal")
        if remote and not dirty and git(top, "branch", "--remotes", "--contains", commit):
            return f"git+{_as_url(remote)}@{commit}" + f"#subdirectory={inside}" * bool(inside)
    except CommitError:
        pass
    return (top / inside).as_uri()


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
