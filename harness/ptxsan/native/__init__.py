"""The C code as a library: from the wheel, or compiled for this processor, once, by what compiler there is.

A compiled one lies in the cache of compiled kernels ($GEMM_CACHE_DIR, else $XDG_CACHE_HOME or ~/.cache,
gemm-regression), under a name made of source, compiler, options and processor. NumPy does the work where
there is neither, no folder to write to, no processor with fused multiply-adds, or where objects do not
look as objects.c declares them; GEMM_NUMPY=1 asks for that.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ptxsan.native.source import COMPILERS, OPTIONS, WHEEL, compile_text, text, wheel_name

# Registers by what they hold, in the order that programs number them.
KINDS = tuple(np.dtype(kind) for kind in (bool, np.uint16, np.int32, np.int64, np.float32, np.float64))


class _Unfit(Exception):
    """Why there is no library, in a few words."""


# What each function takes: o an object, n a number, p an address.
_FUNCTIONS = {
    "prepare": "opo",
    "run": "pooon",
    "shared_places": "onoonnnnnnoooo",
    "all_set": "oon",
    "set_all": "oon",
    "apart": "oono",
    "tag": "ooonnoon",
    "unordered": "ooonnoo",
    "wavefronts": "ooono",
    "wrote_unordered": "oooonoon",
    "write_cells": "ooooonnn",
    "note_cells": "oooonnn",
    "accessed_unordered": "oooonoon",
    "copy_unseen": "oooonon",
    "read_unseen": "oooonn",
    "copy_uncovered": "oooonon",
    "write_uncovered": "oooonooonn",
    "numbers_of": "ooo",
    "largest_of": "ooo",
    "raise_to": "ooo",
    "show_known": "ooonn",
    "meet_warps": "ooonnnn",
    "global_places": "onooonnnnno",
    "disputed": "ooonn",
    "claim": "oooonn",
    "note_readers": "ooonn",
    "read_by_others": "ooon",
    "maybe_unordered": "oooooonoo",
    "maybe_disordered": "oooonnnooonoo",
    "multiply": "pooon",
    "multiply_tiles": "ooo",
}
_TYPES = {"o": ctypes.py_object, "n": ctypes.c_long, "p": ctypes.c_void_p}


class CLibrary:
    """The functions of the C sources, as attributes; ``note`` says which compiler made them, ``built`` is
    another for all that they depend on."""

    def __init__(self, shared: ctypes.PyDLL, note: str, built: str) -> None:
        for name, takes in _FUNCTIONS.items():
            function = getattr(shared, name)
            function.argtypes, function.restype = [_TYPES[each] for each in takes], ctypes.c_long
            setattr(self, name, function)
        self.note, self.built = note, built
        held = [np.arange(7, dtype=np.int32)]  # which nobody else has
        wrong = self.prepare(held, held[0].__array_interface__["data"][0], np.int64(-7))
        if wrong:
            fused = "the processor has no fused multiply-add"
            raise _Unfit(fused if wrong == 1 else "objects do not lie in memory as expected")

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


@cache
def _found() -> CLibrary | str:
    if os.environ.get("GEMM_NUMPY", "0") not in ("", "0"):
        return "GEMM_NUMPY is set"
    try:
        path, note = _built()
        return CLibrary(ctypes.PyDLL(str(path)), note, path.name)
    except (_Unfit, OSError, AttributeError, ImportError, subprocess.SubprocessError) as error:
        return str(error).splitlines()[0]


def library() -> CLibrary | None:
    """The compiled functions, or None where NumPy has to do."""
    found = _found()
    return found if isinstance(found, CLibrary) else None


def describe() -> str:
    """What runs straight-line code, in a few words."""
    found = _found()
    return f"C, by {found.note}" if isinstance(found, CLibrary) else f"NumPy alone: {found}"


def identity() -> str:
    """Another for all that straight-line code may depend on: source, compiler, options and processor."""
    found = _found()
    return found.built if isinstance(found, CLibrary) else found


def _built() -> tuple[Path, str]:
    if platform.python_implementation() != "CPython" or sys.byteorder != "little":
        raise _Unfit("only CPython on a little-endian processor is supported")
    of_wheel = Path(__file__).with_name(wheel_name())
    if of_wheel.is_file() and WHEEL[platform.machine()][1] <= set(_processor().split()):
        return of_wheel, "the wheel"
    source, problem = text(), "no C compiler"
    for compiler in filter(None, map(shutil.which, COMPILERS)):
        made = Path(compiler).resolve()
        stamp = f"{made} {made.stat().st_mtime_ns} {made.stat().st_size}"
        key = "\n".join((source, stamp, *OPTIONS, _processor(), sys.version, np.__version__))
        name = f"ptx-{hashlib.sha256(key.encode()).hexdigest()[:32]}.so"
        folder = cache_dir()
        if (path := folder / name).is_file():
            return path, Path(compiler).name
        try:
            _compile(compiler, source, path)
            return path, Path(compiler).name
        except subprocess.CalledProcessError as error:
            problem = f"{compiler} failed: {(error.stderr.strip().splitlines() or ['?'])[0]}"
    raise _Unfit(problem)


def _compile(compiler: str, source: str, path: Path) -> None:
    """Whole or not at all. Of several processes that need it at once, one compiles."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with alone(path):
        if not path.is_file():
            compile_text(compiler, source, "-march=native", path)


@contextlib.contextmanager
def alone(entry: Path) -> Iterator[None]:
    """One at a time, of all processes: who waited finds the entry made. Where nothing can be locked, all
    make it."""
    lock = entry.with_suffix(".lock")
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            entry.parent.mkdir(parents=True, exist_ok=True)
            while True:
                file = held.enter_context(lock.open("w"))
                fcntl.flock(file, fcntl.LOCK_EX)
                with contextlib.suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(file.fileno()), lock.stat()):
                        break  # else who held it has removed it, and another may hold a new one
            held.callback(lock.unlink, missing_ok=True)
        yield


def cache_dir() -> Path:
    """Where compiled kernels are kept, too."""
    if folder := os.environ.get("GEMM_CACHE_DIR"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gemm-regression"


def _processor() -> str:
    """Model and features: what -march=native means."""

    def lines() -> Iterator[str]:
        try:
            text = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0]
        except OSError:
            return
        yield from (
            line for line in text.splitlines() if line.startswith(("model name", "flags", "Features"))
        )

    return "\n".join([platform.machine(), platform.processor(), *lines()])
