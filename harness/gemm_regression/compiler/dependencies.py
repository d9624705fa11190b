"""The files that a run of nvcc read, by the list that its preprocessor makes of them.

Each must be of the copies of the kernel's own files, by whose digest outputs are kept, of the CUDA toolkit,
or of the host compiler. Any other, by whatever way it was found, could be edited unnoticed: it is refused."""

from __future__ import annotations

import functools
import os
import re
import shlex
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from gemm_regression.compiler import tools
from gemm_regression.compiler.errors import CompileError, ToolchainError
from gemm_regression.compiler.tools import Nvcc

# Made on the way, which takes no time; for its own -MD nvcc runs the preprocessor once more (0.1 s).
LISTED = ("-Xcompiler", "-MD")
_LOCAL = "/usr/local/include"  # gcc's own folder by default, and where people install libraries of theirs
_SECONDS = 60


def listed_in(file: str) -> tuple[str, ...]:
    """The options by which nvcc lists there what it reads."""
    return *LISTED, *("-Xcompiler", "-MF", "-Xcompiler", file)


def refuse_others(what: str, listed: Path, own: Iterable[str], nvcc: Nvcc) -> None:
    """Of what nvcc listed when it compiled a unit in an empty folder. ``own``: the folders of the copies of
    its files.

    Raises CompileError for a file that is of nobody known, ToolchainError where that cannot be told.
    """
    known = _system(str(nvcc.path), tuple(tools.flags()), os.environ.get("PATH", ""))
    files = [*_files(listed.read_text(encoding="utf-8", errors="replace"))] if listed.is_file() else []
    if not any(_within(os.path.dirname(file), known) for file in files):  # of the toolkit some always are
        raise CompileError(f"{what}: nvcc did not list the files that it read: remove -M… from its flags")
    folders = (*own, *known)
    for file in files:
        in_the_units = not os.path.isabs(file) and ".." not in file.split("/")
        if not in_the_units and not _within(os.path.dirname(file), folders):
            raise CompileError(
                f"{what}: nvcc reads {file}, which could be edited unnoticed: include it by a relative path, "
                "in a plain #include, and add its folder to `include` of the declaration"
            )


def _files(listed: str) -> Iterator[str]:
    """The names in a rule of make: escaped, and continued over lines."""
    names = listed.replace("\\\n", " ").partition(": ")[2]
    for name in re.findall(r"(?:\\.|\S)+", names):
        yield re.sub(r"\\(.)", r"\1", name).replace("$$", "$")


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
    said = _said([nvcc, "--dryrun", "-E", "-x", "cu", os.devnull])
    toolkit = [
        re.sub("^-I", "", word)
        for line in re.findall(r"^#\$ (?:SYSTEM_)?INCLUDES=(.*)", said, re.MULTILINE)
        for word in shlex.split(line)
        if word != "-isystem"
    ]
    commands = re.findall(r"^#\$ (.* -E .*)", said, re.MULTILINE)
    host = _said([shlex.split(commands[0])[0], "-E", "-v", "-x", "c++", os.devnull]) if commands else ""
    searched = re.search(r"#include <\.\.\.> search starts here:\n(.*?)End of search list", host, re.DOTALL)
    if not toolkit or not searched:
        raise ToolchainError(f"{nvcc} --dryrun does not say where it searches for headers")
    folders = (line.strip() for line in searched[1].splitlines())
    return tuple(toolkit + [folder for folder in folders if folder != _LOCAL])


def _said(command: list[str]) -> str:
    environment = {**tools.environment(), "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_SECONDS, env=environment
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ToolchainError(f"{command[0]} cannot be run: {error}") from None
    return done.stdout + done.stderr
