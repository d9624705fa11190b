"""PyCUDA's SourceModule compiles what is declared: from a source to its binary, by PyCUDA's cache on disk."""

from __future__ import annotations

import hashlib
import os
import shutil
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gemm_regression.compiler import objects, tools
from gemm_regression.compiler.nvcc import compile_error
from gemm_regression.compiler.sources import listed_in, refuse_others
from gemm_regression.compiler.tools import CompileError, ToolchainError
from gemm_regression.compiler.units import ModuleSource
from gemm_regression.devices import DeviceError
from gemm_regression.devices.cuda.backend import compiler, cuda
from ptxsan.native import alone, cache_dir

for _name in os.environ.keys() - tools.environment().keys():
    del os.environ[_name]  # PyCUDA gives nvcc those of this process

_READ: set[Path] = set()  # lists of which this process knows that all in them may be read


def _list(source: ModuleSource) -> Path:
    """Where nvcc lists the files that it reads. The name is among the options by which PyCUDA finds a cubin
    again; it has what PyCUDA leaves out, the options in variables."""
    of = (source.text, source.options, source.include, source.arch, tools.flags())
    return cache_dir() / "pycuda" / f"{hashlib.sha256(repr(of).encode()).hexdigest()}.d"


def _arguments(source: ModuleSource) -> dict[str, Any]:
    listed = _list(source)
    listed.parent.mkdir(parents=True, exist_ok=True)
    return {
        "nvcc": str(tools.find_nvcc().path),
        "options": [*source.options, *listed_in(str(listed)), "-keep", f"-keep-dir={_way(listed)}"],
        "include_dirs": list(source.include),
        "no_extern_c": True,
        "arch": source.arch,
        "cache_dir": str(listed.parent),
    }


def _way(listed: Path) -> Path:
    """Where nvcc leaves what it makes on its way to a cubin, the PTX among it; there while it runs."""
    return listed.with_suffix(".way")


def _call(makes: Callable[..., Any], source: ModuleSource, **more: Any) -> Any:
    """What a function of PyCUDA makes of a source, one at a time; keeps the PTX that nvcc made, if it ran."""
    way = _way(_list(source))
    way.mkdir(parents=True, exist_ok=True)
    try:
        made = makes(source.text, **{**_arguments(source), **more})
        for ptx in way.glob("*.ptx"):
            tools.store_entry(source.ptx, ptx.read_bytes(), "")
        return made
    finally:
        shutil.rmtree(way, ignore_errors=True)


def compile_source(source: ModuleSource) -> tuple[bytes, str]:
    """The cubin, from SourceModule's own disk cache or the compiler, and the symbol of its entry. Needs no
    context.

    Raises DeviceError COMPILE_ERROR with the compiler's lines, or for a file that may not be read."""
    listed = _list(source)
    try:
        with alone(listed):
            cubin: bytes = _call(compiler.compile, source)
            if not (_is_whole(cubin) and listed.is_file()):
                cubin = _call(compiler.compile, source, cache_dir=False)
            if listed not in _READ:
                refuse_others(source.name, listed, source.own, tools.find_nvcc())
                _READ.add(listed)
        return cubin, objects.symbol_of(source.entry, objects.symbols(cubin), source.name)
    except cuda.CompileError as error:
        raise DeviceError("COMPILE_ERROR", _compiler_lines(source, error)) from None
    except (CompileError, ToolchainError) as error:
        raise DeviceError("COMPILE_ERROR", str(error)) from None


def _is_whole(cubin: bytes) -> bool:
    """PyCUDA writes its cache in place: a process killed while writing leaves half a binary behind."""
    try:
        objects.symbols(cubin)
    except objects.DAMAGE:
        return False
    return True


def _compiler_lines(source: ModuleSource, error: Any) -> str:
    """The compiler's messages, with the file names of the kernel's author."""
    said = [text for text in (error.stdout, error.stderr) if text] or [str(error)]
    text = "\n".join(t.decode("utf-8", "replace") if isinstance(t, bytes) else t for t in said)
    return str(compile_error(f"{source.name}: {source.file}", source.entry, text))


def compile_all(sources: Sequence[ModuleSource]) -> list[tuple[bytes, str] | str]:
    """In parallel over the machine's cores; of one that does not compile the error."""

    def one(source: ModuleSource) -> tuple[bytes, str] | str:
        try:
            return compile_source(source)
        except DeviceError as error:
            return str(error)

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return list(pool.map(one, sources))


def source_module(source: ModuleSource) -> Any:
    """In this context. Raises DeviceError COMPILE_ERROR."""
    with warnings.catch_warnings():  # ptxas tells of each wgmma.fence that it adds
        warnings.simplefilter("ignore")
        if _list(source) not in _READ:
            compile_source(source)
        try:
            return compiler.SourceModule(source.text, **_arguments(source))
        except cuda.Error:  # nothing can be kept, or half a binary is
            with alone(_list(source)):
                return _call(compiler.SourceModule, source, cache_dir=False)
