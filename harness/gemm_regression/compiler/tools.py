"""The programs of the CUDA toolkit: where nvcc and nvdisasm are, their versions, and the versions pinned."""

from __future__ import annotations

import ctypes
import functools
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from gemm_regression.compiler.errors import ToolchainError

# Those of the dependency group `compiler`, with which the stored metrics were made.
PINS = ("13.0.88", "13.5.37")  # nvcc, nvdisasm
_INSTALL = f"{sys.executable} -m pip install --group compiler"
FLAGS = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")
# Where gcc searches for more headers, and what nvcc adds to its own profile, are of whoever set them.
_ADDED = (
    "CPATH",
    "C_INCLUDE_PATH",
    "CPLUS_INCLUDE_PATH",
    "INCLUDES",
    "SYSTEM_INCLUDES",
    "CUDAFE_FLAGS",
    "PTXAS_FLAGS",
)
_ADDR_NO_RANDOMIZE, _UNCHANGED = 0x0040000, 0xFFFFFFFF


@dataclass(frozen=True)
class Nvcc:
    path: Path
    version: str


@dataclass(frozen=True)
class Disassembler:
    """NVIDIA's nvdisasm."""

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
    found = next(iter(_candidates("nvcc")), None)
    if not found:
        raise ToolchainError(
            f"no nvcc found (searched {_searched()}, NVIDIA's wheels): set CUDA_HOME, or, "
            f"in the checkout and with pip 25.1 or newer, `{_INSTALL}`"
        )
    return Nvcc(Path(found), _version(found, os.environ.get("PATH", "")))


def pinned_tools() -> tuple[Nvcc, Disassembler]:
    """The compiler and the disassembler of the versions pinned, wherever they are.

    Metrics depend on the compiler version, so they are compared between equal versions only.
    Raises ToolchainError, one line, where either is missing or there in other versions only.
    """
    return pinned_nvcc(), Disassembler(*_pinned("nvdisasm", pins()[1]))


def pinned_nvcc() -> Nvcc:
    """The compiler of the version pinned. Raises ToolchainError."""
    return Nvcc(*_pinned("nvcc", pins()[0]))


def pins() -> tuple[str, str]:
    """The versions of nvcc and nvdisasm that are pinned."""
    return PINS


def _pinned(name: str, wanted: str) -> tuple[Path, str]:
    others = []
    for path in _candidates(name):
        try:
            version = _version(path, os.environ.get("PATH", ""))
        except ToolchainError as error:
            others.append(str(error))
            continue
        if version == wanted:
            return Path(path), version
        others.append(f"{path} is {version}")
    there = "; ".join(others) or f"none was found (searched {_searched()}, NVIDIA's wheels)"
    raise ToolchainError(
        f"the stored metrics are from {name} {wanted}, but {there}; install the pinned version, "
        f"in the checkout and with pip 25.1 or newer, with `{_INSTALL}`"
    )


def nvcc_at(path: Path) -> Nvcc:
    """The nvcc of this path, or of the toolkit in this folder. Raises ToolchainError, in one line."""
    program = path.absolute() / "bin" / "nvcc" if path.is_dir() else path.absolute()
    try:
        return Nvcc(program, _version(str(program), os.environ.get("PATH", ""), "Cuda compiler driver"))
    except ToolchainError as error:
        raise ToolchainError(f"{path} is no nvcc: {error}") from None


def find_tool(name: str) -> str:
    """A program of the CUDA toolkit, of PATH, else of $CUDA_HOME or $CUDA_PATH. Raises ToolchainError."""
    found = next(iter(_installed(name)), None)
    if not found:
        raise ToolchainError(
            f"no {name} found (searched {_searched()}): it is part of the CUDA toolkit; "
            "install that, and set PATH or CUDA_HOME"
        )
    return found


def _candidates(name: str) -> list[str]:
    """Where a program is, the one to prefer first; each once, however many ways lead to it."""
    found: dict[Path, str] = {}
    for path in (*_installed(name), *filter(None, (shutil.which(str(path)) for path in _in_wheels(name)))):
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
    spec = find_spec("nvidia")
    folders = spec.submodule_search_locations or [] if spec else []
    return sorted(path for folder in folders for path in Path(folder).glob(f"cu[0-9]*/bin/{name}"))


@functools.cache
def _version(program: str, path: str, title: str = "") -> str:
    """The version of an nvcc or nvdisasm, once for each PATH, since nvcc looks for g++ there; of one that
    calls itself by this ``title``."""
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise ToolchainError(f"{program} cannot be run: {error}") from None
    version = re.search(r"\bV(\d+\.\d+\.\d+)", said.stdout)
    if said.returncode or not version or title not in said.stdout:
        shown = " ".join((said.stderr or said.stdout).split())[:200]
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
