"""A kernel's own files: its .cu file and everything it includes, except the files of the CUDA toolkit.

nvcc reads a copy of them, in cache folders that are named by the digest of their contents. An edited header
gives another folder, so a stale cache entry is impossible; a file that was not copied is not found, so none
can be missed; and neither messages nor binaries depend on the location of the checkout."""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from gemm_regression.compiler import tools
from gemm_regression.compiler.tools import CompileError, Nvcc, ToolchainError
from gemm_regression.model import Kernel
from ptxsan.native import cache_dir

_INCLUDE = re.compile(
    rb"(?:^[ \t]*#[ \t]*include(?:_next)?|__has_include(?:_next)?[ \t]*\()"
    rb"""[ \t]*(["<])([^">\n]+)[">]""",
    re.MULTILINE,
)
# Options, of nvcc or passed on by it, that read a file or search a folder.
_READING = re.compile(
    r"(?:^|[\s,=\"'])((?:-I|-i[a-z]|-optf|--(?:include-path|system-include|pre-include|options-file|sysroot)\b)[^\s\"']*)"
)
_DIGEST = 32  # hexadecimal digits of SHA-256
_COPY = re.compile(rf"[^\s'\"(]*/sources/[0-9a-f]{{{_DIGEST}}}/")


@dataclass(frozen=True)
class Folder:
    """Files that are found from one folder: ``files`` by path relative to ``base``, which is
    that folder unless some of them lie outside of it."""

    base: Path
    files: Mapping[str, bytes]

    @classmethod
    def of(cls, root: Path, files: Mapping[Path, bytes]) -> Folder:
        base = Path(os.path.commonpath([root, *(path.parent for path in files)]))
        return cls(base, {os.path.relpath(path, base): content for path, content in files.items()})

    @cached_property
    def digest(self) -> str:
        made = hashlib.sha256()
        for name in sorted(self.files):
            made.update(f"{name}\0{len(self.files[name])}\0".encode())
            made.update(self.files[name])
        return made.hexdigest()[:_DIGEST]

    @property
    def copy(self) -> Path:
        """Where the copy is, or is to be."""
        return _copies(cache_dir()) / self.digest

    def write(self) -> None:
        """Makes the copy, and mends one that was changed."""
        for name, content in self.files.items():
            path = self.copy / name
            with contextlib.suppress(OSError):
                if path.read_bytes() == content:
                    continue
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".tmp", delete=False) as file:
                file.write(content)
            # Debug information holds the time; and gcc's #pragma once takes equal files of one time as one.
            os.utime(file.name, (0, 0))
            Path(file.name).replace(path)


@dataclass(frozen=True)
class Sources:
    """A kernel's own files. ``folders``: first that of the .cu file, ``main`` in it; then the include folders
    that something is found in. ``searched``: the include folders in their order, each as (index of the folder
    that its files are in, its own path in that)."""

    main: str
    folders: tuple[Folder, ...]
    searched: tuple[tuple[int, str], ...]

    @property
    def include(self) -> tuple[str, ...]:
        """The copies of the include folders, for nvcc's -I."""
        return tuple(os.path.normpath(self.folders[i].copy / within) for i, within in self.searched)

    @property
    def copies(self) -> tuple[str, ...]:
        """The folders of the copies."""
        return tuple(str(folder.copy) for folder in self.folders)

    @property
    def key(self) -> tuple[object, ...]:
        """What is the same for the same files, wherever they lie."""
        return self.main, self.searched, tuple(folder.digest for folder in self.folders)

    @property
    def paths(self) -> tuple[Path, ...]:
        """The .cu file, then the others."""
        found = dict.fromkeys(Path(os.path.normpath(f.base / name)) for f in self.folders for name in f.files)
        return tuple(found)

    def write(self) -> None:
        for folder in self.folders:
            folder.write()


def closure(kernel: Kernel) -> tuple[Path, ...]:
    """A kernel's own files: the .cu file first, then all that it names in an ``#include``, in whatever branch
    of an ``#if``, and that lies beside the file that includes it or in an include folder.

    Raises CompileError for a file that cannot be read or is included by an absolute path, ValueError for a
    library kernel.
    """
    return sources(kernel).paths


def sources(kernel: Kernel) -> Sources:
    """Reads a kernel's own files. Raises as ``closure`` does."""
    if kernel.source is None:
        raise ValueError(f"{kernel.name} is a library call: there is nothing to compile")
    main = Path(os.path.abspath(kernel.source))
    given = [*(("flag", flag) for flag in kernel.flags), *zip(tools.FLAGS, tools.flags(), strict=True)]
    for where, flags in given:
        if reading := _READING.search(flags):
            what = "add the folder to `include` of the declaration instead, so that changes in it are noticed"
            raise CompileError(f"{kernel.name}: {where} {reading[1]}: {what}")
    roots = [main.parent, *(Path(os.path.normpath(main.parent / folder)) for folder in kernel.include)]
    if missing := [root for root in roots[1:] if not root.is_dir()]:
        raise CompileError(f"{kernel.name}: its include folder {missing[0]} does not exist")
    # An include folder within another is found in the copy of that one.
    home = [next(i for i, outer in enumerate(roots) if root.is_relative_to(outer)) for root in roots]
    found: dict[int, dict[Path, bytes]] = {}
    todo = [(0, main)]
    while todo:
        at, path = todo.pop()
        files = found.setdefault(at, {})
        if path in files:
            continue
        try:
            files[path] = path.read_bytes()
        except OSError as error:
            raise CompileError(f"{kernel.name}: cannot read {path}: {error.strerror}") from None
        for line, quoted, name in _included(files[path]):
            if os.path.isabs(name):
                what = "use a relative path, and add its folder to `include` of the declaration"
                where = f"{path.name}:{line} includes {name} by an absolute path"
                raise CompileError(f"{kernel.name}: {where}: {what}")
            places = [(at, path.parent / name)] * quoted
            places += [(home[i], roots[i] / name) for i in range(1, len(roots))]
            todo += [(i, Path(os.path.normpath(place))) for i, place in places if place.is_file()]
    used = {i: Folder.of(roots[i], found[i]) for i in sorted(found)}
    searched = tuple(
        (list(used).index(at), os.path.relpath(root, used[at].base))
        for root, at in zip(roots[1:], home[1:], strict=True)
        if at in used
    )
    return Sources(os.path.relpath(main, used[0].base), tuple(used.values()), searched)


@functools.lru_cache(4096)
def _included(content: bytes) -> tuple[tuple[int, bool, str], ...]:
    """(line, whether in quotes, name) of each #include of a file, in whatever branch of an #if it stands."""
    return tuple(
        (content.count(b"\n", 0, found.start(1)) + 1, found[1] == b'"', os.fsdecode(found[2]))
        for found in _INCLUDE.finditer(content)
    )


@functools.cache
def _copies(cache: Path) -> Path:
    """The folder of the copies: in the cache, or for this process alone where that cannot be written."""
    folder = cache / "sources"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:  # which whoever stores what is compiled tells
        folder = Path(tempfile.mkdtemp(prefix="gemm-"), "sources")
        atexit.register(shutil.rmtree, folder.parent, ignore_errors=True)
    return folder


def readable(text: str) -> str:
    """A compiler's lines or PTX with files named as the kernel's author knows them, not by their copies."""
    lines = text.splitlines(keepends=True)  # most of a PTX names no file, and the pattern is slow
    return "".join(_COPY.sub("", line) if "/sources/" in line else line for line in lines)


# Made on the way, which takes no time; for its own -MD nvcc runs the preprocessor once more (0.1 s).
LISTED = ("-Xcompiler", "-MD")
_LOCAL = "/usr/local/include"  # gcc's own folder by default, and where people install libraries of theirs


def listed_in(file: str) -> tuple[str, ...]:
    """The options by which nvcc lists there what it reads."""
    return *LISTED, *("-Xcompiler", "-MF", "-Xcompiler", file)


def refuse_others(what: str, listed: Path, own: Iterable[str], nvcc: Nvcc) -> None:
    """Of what nvcc listed when it compiled a unit in an empty folder. ``own``: the folders of the copies of
    its files.

    Raises CompileError for a file that is of nobody known, ToolchainError where that cannot be told.
    """
    known = _system(str(nvcc.path), tuple(tools.flags()), os.environ.get("PATH", ""))
    files = _files(listed.read_text(encoding="utf-8", errors="replace")) if listed.is_file() else []
    of_toolkit = any(_within(folder, known) for folder in set(map(os.path.dirname, files)))
    if not of_toolkit:  # some always are
        raise CompileError(f"{what}: nvcc did not list the files that it read: remove -M… from its flags")
    folders = (*own, *known)
    first = {os.path.dirname(file): file for file in reversed(files)}  # some 200 files of a dozen folders
    for folder, file in reversed(first.items()):
        in_the_units = not os.path.isabs(folder) and ".." not in folder.split("/")
        if not in_the_units and not _within(folder, folders):
            raise CompileError(
                f"{what}: nvcc reads {file}, which could be edited unnoticed: include it by a relative path, "
                "in a plain #include, and add its folder to `include` of the declaration"
            )


def _files(listed: str) -> list[str]:
    """The names in a rule of make: escaped, and continued over lines."""
    names = listed.replace("\\\n", " ").partition(": ")[2]
    if "\\" not in names and "$" not in names:
        return names.split()
    found = re.findall(r"(?:\\.|\S)+", names)
    return [re.sub(r"\\(.)", r"\1", name).replace("$$", "$") for name in found]


@functools.lru_cache(4096)
def _within(folder: str, folders: tuple[str, ...]) -> bool:
    """Whether a folder is one of these or in one, by its name or by where links lead."""
    return any(
        place == outer or place.startswith(f"{outer}/")
        for read in (os.path.normpath, os.path.realpath)
        for place in [read(folder)]
        for outer in map(read, folders)
    )


@functools.cache
def _system(nvcc: str, flags: tuple[str, ...], path: str) -> tuple[str, ...]:
    """The folders of the toolkit's headers, and of the host compiler's, with these flags and PATH."""

    def told(*command: str) -> str:
        done = tools.said(command, env={**tools.environment(), "LC_ALL": "C"})
        return done.stdout + done.stderr

    plan = told(nvcc, "--dryrun", "-E", "-x", "cu", os.devnull)
    toolkit = [
        word.removeprefix("-I")
        for line in re.findall(r"^#\$ (?:SYSTEM_)?INCLUDES=(.*)", plan, re.MULTILINE)
        for word in shlex.split(line)
        if word != "-isystem"
    ]
    commands = re.findall(r"^#\$ (.* -E .*)", plan, re.MULTILINE)
    host = told(shlex.split(commands[0])[0], "-E", "-v", "-x", "c++", os.devnull) if commands else ""
    searched = re.search(r"#include <\.\.\.> search starts here:\n(.*?)End of search list", host, re.DOTALL)
    if not toolkit or not searched:
        raise ToolchainError(f"{nvcc} --dryrun does not say where it searches for headers")
    folders = (line.strip() for line in searched[1].splitlines())
    return tuple(toolkit + [folder for folder in folders if folder != _LOCAL])
