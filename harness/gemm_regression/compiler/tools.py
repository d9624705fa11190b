"""The programs of the CUDA toolkit: where they are, their versions, what they make, kept on disk, and errors.

The cache lies in $GEMM_CACHE_DIR, else $XDG_CACHE_HOME/gemm-regression, else ~/.cache/gemm-regression;
removing it costs time only.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gemm_regression.files import write_whole
from gemm_regression.hints import install
from ptxsan.native import cache_dir

# Where a message of nvcc, ptxas or the host's compiler begins.
_BEGINS = re.compile(r"^(?=\S+\(\d+\): |\S+:\d+(?::\d+)?: |(?:ptxas|nvlink|nvcc) \S+\s*: )", re.MULTILINE)
_ERROR = re.compile(r"\b(?:error|fatal)\b")
SHOWN, LINES = 2, 6  # errors shown, and lines of each
SECONDS = 120  # for a program to answer


class ToolchainError(Exception):
    """There is no usable compiler. One line: where it was searched, and what to do."""


class CompileError(Exception):
    """A kernel does not compile. The message is one line; ``log`` contains the compiler's messages, of which
    the text of the exception has the first errors."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message, log)
        self.message, self.log = message, log

    def __str__(self) -> str:
        return f"{self.message}\n{excerpt(self.log)}".rstrip()


def excerpt(log: str) -> str:
    """The first errors of a compiler's log, without warnings; where that leaves something out, the whole log
    is kept in a file, which the last line names."""
    errors = [message for message in _BEGINS.split(log) if _ERROR.search(message.partition("\n")[0])]
    shown = [line[:300] for message in errors[:SHOWN] for line in message.splitlines()[:LINES]]
    text = "\n".join(shown or log.strip().splitlines()[-2 * LINES :])
    if text.count("\n") + 2 * LINES >= log.strip().count("\n"):
        return text
    path = Path(tempfile.gettempdir()) / f"gemm-compiler-{hashlib.sha256(log.encode()).hexdigest()[:12]}.log"
    with contextlib.suppress(OSError):
        path.write_text(log, encoding="utf-8")
    more = f"{len(errors) - SHOWN} more errors; " if len(errors) > SHOWN else ""
    return f"{text}\n({more}all lines of the compiler: {path})"


def said(command: Sequence[str], **more: Any) -> subprocess.CompletedProcess[str]:
    """Runs a program; its output as text, and a status below 0 for one that does not finish. Raises
    ToolchainError where it cannot be run."""
    more = {"capture_output": True, "errors": "replace", "timeout": SECONDS, **more}
    try:
        return subprocess.run(command, text=True, **more)
    except subprocess.TimeoutExpired as late:
        return subprocess.CompletedProcess(command, -signal.SIGKILL, "", str(late))
    except OSError as error:
        raise ToolchainError(f"{command[0]} cannot be run: {error}") from None


def cache_entry(key: object) -> Path:
    """The file of the cache that belongs to a key, which json can write."""
    return cache_dir() / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()}.zip"


def load_entry(entry: Path) -> tuple[bytes, str] | None:
    """What was stored, or None. A zip checks its own sums; a damaged entry, whatever the damage, is none."""
    try:
        with zipfile.ZipFile(entry) as stored:
            return stored.read("out"), stored.read("log").decode()
    except Exception:
        return None


def store_entry(entry: Path, out: bytes, log: str) -> None:
    """Keep an output; whole or not at all, also under a kill, a full disk or another process."""
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as stored:
            stored.writestr("out", out)
            stored.writestr("log", log)
        write_whole(entry, packed.getvalue())
    except OSError as error:
        warnings.warn(
            f"compiled kernels cannot be kept in {entry.parent} ({error.strerror}): every run compiles all;"
            " set GEMM_CACHE_DIR",
            stacklevel=2,
        )


_INSTALL = f"{sys.executable} -m {install('compiler')}"
FLAGS = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")
# Where gcc searches for more headers, and what nvcc adds to its own profile, are of whoever set them.
_ADDED = {
    *("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "INCLUDES", "SYSTEM_INCLUDES"),
    *("CUDAFE_FLAGS", "PTXAS_FLAGS"),
}
_ADDR_NO_RANDOMIZE, _UNCHANGED = 0x0040000, 0xFFFFFFFF


@dataclass(frozen=True)
class Nvcc:
    """A compiler, or another program of the toolkit with a version."""

    path: Path
    version: str


def fixed_addresses() -> None:
    """What this thread starts from now on finds its memory at the same addresses in every run: by random ones
    nvcc (13.0.88) orders its tables, and loads some vectors of a large kernel in one piece or in two. Where
    that is not allowed, as in some containers, nothing changes.

    Source: personality(2), ADDR_NO_RANDOMIZE."""
    if personality := getattr(ctypes.CDLL(None), "personality", None):
        personality(personality(_UNCHANGED) | _ADDR_NO_RANDOMIZE)


def environment() -> dict[str, str]:
    """The variables for nvcc: without those by which it would find other headers, or take other options, than
    its command says. ``flags`` are left."""
    return {name: value for name, value in os.environ.items() if name not in _ADDED}


def flags() -> list[str]:
    """The options that nvcc takes from two variables, before and after those of its command."""
    return [os.environ.get(name, "") for name in FLAGS]


def find_nvcc() -> Nvcc:
    """The nvcc of PATH, else of $CUDA_HOME or $CUDA_PATH, else of NVIDIA's wheels in this environment.

    Raises ToolchainError if there is none, if it cannot be run, or if g++ is missing.
    """
    for found in _candidates("nvcc"):
        return _program(found)
    raise ToolchainError(
        f"no nvcc found (searched {_searched()}, NVIDIA's wheels): set CUDA_HOME, or, "
        f"with pip 25.1 or newer, `{_INSTALL}`"
    )


def pins() -> tuple[str, str]:
    """The versions of nvcc and nvdisasm with which the stored metrics were made: those of the dependency
    group `compiler`."""
    return "13.0.88", "13.5.37"


def pinned_tools() -> tuple[Nvcc, Nvcc]:
    """The compiler and the disassembler of the versions pinned, wherever they are.

    Metrics depend on the compiler version, so they are compared between equal versions only.
    Raises ToolchainError, one line, where either is missing or there in other versions only.
    """
    return pinned_nvcc(), _pinned("nvdisasm", pins()[1])


def pinned_nvcc() -> Nvcc:
    """The compiler of the version pinned. Raises ToolchainError."""
    return _pinned("nvcc", pins()[0])


def _pinned(name: str, wanted: str) -> Nvcc:
    others = []
    for path in _candidates(name):
        try:
            found = _program(path)
        except ToolchainError as error:
            others.append(str(error))
            continue
        if found.version == wanted:
            return found
        others.append(f"{path} is {found.version}")
    there = "; ".join(others) or f"none was found (searched {_searched()}, NVIDIA's wheels)"
    raise ToolchainError(
        f"the stored metrics are from {name} {wanted}, but {there}; install the pinned version, "
        f"with pip 25.1 or newer, with `{_INSTALL}`"
    )


def nvcc_at(path: Path) -> Nvcc:
    """The nvcc of this path, or of the toolkit in this folder. Raises ToolchainError, in one line."""
    program = path.absolute() / "bin" / "nvcc" if path.is_dir() else path.absolute()
    try:
        return _program(str(program), "Cuda compiler driver")
    except ToolchainError as error:
        raise ToolchainError(f"{path} is no nvcc: {error}") from None


def find_tool(name: str) -> str:
    """A program of the CUDA toolkit, of PATH, else of $CUDA_HOME or $CUDA_PATH. Raises ToolchainError."""
    for found in _installed(name):
        return found
    raise ToolchainError(
        f"no {name} found (searched {_searched()}): it is part of the CUDA toolkit; "
        "install that, and set PATH or CUDA_HOME"
    )


def _candidates(name: str) -> list[str]:
    """Where a program is, the one to prefer first; each once, however many ways lead to it."""
    return _ways(tuple(_installed(name)), tuple(_in_wheels(name)))


@functools.cache
def _ways(installed: tuple[str, ...], wheels: tuple[Path, ...]) -> list[str]:
    found: dict[Path, str] = {}
    for path in (*installed, *filter(None, map(shutil.which, wheels))):
        found.setdefault(Path(path).resolve(), path)
    return list(found.values())


def _installed(name: str) -> list[str]:
    places = [name, *(str(Path(home, "bin", name)) for home in _homes().values())]
    return list(filter(None, map(shutil.which, places)))


def _homes() -> dict[str, str]:
    return {name: home for name in ("CUDA_HOME", "CUDA_PATH") if (home := os.environ.get(name))}


def _searched() -> str:
    """Where a program was searched for."""
    return ", ".join(["PATH", *(f"{name}={home}" for name, home in _homes().items())])


def _in_wheels(name: str) -> list[Path]:
    return _wheels(name, tuple(sys.path))


@functools.cache
def _wheels(name: str, path: tuple[str, ...]) -> list[Path]:
    """Once for each module search path."""
    spec = find_spec("nvidia")
    folders = spec.submodule_search_locations or [] if spec else []
    return sorted(path for folder in folders for path in Path(folder).glob(f"cu[0-9]*/bin/{name}"))


def _program(path: str, title: str = "") -> Nvcc:
    return Nvcc(Path(path), _version(path, os.environ.get("PATH", ""), title))


@functools.cache
def _version(program: str, path: str, title: str) -> str:
    """The version of an nvcc or nvdisasm, once for each PATH, since nvcc looks for g++ there; of one that
    calls itself by this ``title``."""
    done = said([program, "--version"])
    version = re.search(r"\bV(\d+\.\d+\.\d+)", done.stdout)
    if done.returncode or not version or title not in done.stdout:
        shown = " ".join((done.stderr or done.stdout).split())[:200]
        raise ToolchainError(f"{program} --version failed: {shown}")
    if Path(program).name == "nvcc" and not shutil.which("g++", path=path):
        raise ToolchainError(
            f"{program} needs g++, which is not on PATH: install it (Debian, Ubuntu: apt install g++)"
        )
    return version[1]


def arch(capability: tuple[int, int]) -> str:
    """nvcc's name of a compute capability: 8.0 is sm_80, 9.0 is sm_90a (wgmma needs the a, as do
    the tensor cores of later ones)."""
    major, minor = capability
    return f"sm_{major}{minor}" + ("a" if capability >= (9, 0) else "")
