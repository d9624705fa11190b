"""What is compiled of a variant: the text of one file, and the options, for nvcc and for PyCUDA's
SourceModule alike."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from gemm_regression.compiler import tools
from gemm_regression.compiler.cubin import read
from gemm_regression.compiler.objects import instantiation
from gemm_regression.compiler.sources import LISTED, Sources, listed_in, refuse_others, sources
from gemm_regression.compiler.tools import CompileError, Nvcc, cache_entry
from gemm_regression.model import Config, DType, Kernel

UNIT = "kernel.cu"  # the name of the file passed to nvcc, as in PyCUDA
_LIST = "read.d"  # where nvcc lists what it reads


@dataclass(frozen=True)
class Unit:
    """A variant, called ``what``, in CUDA C++; ``entry``: the function's name there. Its text includes the
    copy of the kernel's ``sources``."""

    what: str
    entry: str
    sources: Sources
    options: tuple[str, ...]
    file: ClassVar[str] = UNIT

    @property
    def text(self) -> str:
        # PyCUDA runs the preprocessor at each look-up for a text with "#include" in it. The digest in the
        # path says as much of the files, and the version of nvcc is in PyCUDA's key besides.
        main = self.sources.folders[0].copy / self.sources.main
        return f'# include "{main}"\n{instantiation(self.entry)}'

    @property
    def all_options(self) -> tuple[str, ...]:
        """The options, and those by which a binary depends neither on the folders of the copies nor on that
        of the unit: __FILE__ is told without, and symbols of internal linkage are named after UNIT."""
        maps = (f"-fmacro-prefix-map={folder.copy}/=" for folder in self.sources.folders)
        return (
            *self.options,
            *("-Xcicc", "--orig_src_path_name", "-Xcicc", UNIT),
            *(word for option in maps for word in ("-Xcompiler", option)),
        )

    def identity(self, nvcc: Nvcc, mode: tuple[str, ...] = ()) -> list[object]:
        """What nvcc's output depends on, which json can write; nvcc takes options from two variables, too."""
        options = (*mode, *LISTED, *self.options)
        return [nvcc.version, tools.flags(), options, self.sources.key, instantiation(self.entry)]

    def kept(self, nvcc: Nvcc, mode: tuple[str, ...]) -> Path:
        """Where the cache has what nvcc makes of it."""
        return cache_entry([*self.identity(nvcc, mode), "fixed addresses"])

    def kept_by_module(self, arch: str) -> Path:
        """Where the cache has the PTX that nvcc made for SourceModule."""
        return self.kept(tools.find_nvcc(), (*ptx_mode(arch), "of SourceModule"))

    def beside(self, arch: str) -> tuple[str, ...]:
        """The mode whose output nvcc leaves on its way to a cubin; empty if it leaves nothing new."""
        return ptx_mode(arch)

    def command(self, nvcc: Nvcc, mode: tuple[str, ...]) -> list[str]:
        """The compiler and its options, without the output and the file."""
        include = (f"-I{folder}" for folder in self.sources.include)
        return [str(nvcc.path), *mode, *listed_in(_LIST), *self.all_options, *include]

    def refuse_others(self, folder: Path, nvcc: Nvcc) -> None:
        """Of what was read by the command that ran in a folder. Raises as `sources.refuse_others`."""
        refuse_others(self.what, folder / _LIST, self.sources.copies, nvcc)


@dataclass(frozen=True)
class PtxUnit(Unit):
    """A variant whose ``ptx`` another compiler made: nvcc, or that compiler's ``ptxas``, makes a cubin."""

    ptx: str
    ptxas: Path | None
    file: ClassVar[str] = "kernel.ptx"

    @property
    def text(self) -> str:
        return self.ptx

    def identity(self, nvcc: Nvcc, mode: tuple[str, ...] = ()) -> list[object]:
        by = f"{self.ptxas} {self.ptxas.stat().st_size}" if self.ptxas else nvcc.version
        return [by, tools.flags(), mode, hashlib.sha256(self.ptx.encode()).hexdigest()]

    def beside(self, arch: str) -> tuple[str, ...]:
        return ()

    def command(self, nvcc: Nvcc, mode: tuple[str, ...]) -> list[str]:
        if self.ptxas:
            return [str(self.ptxas), "-v", *(word for word in mode if word.startswith("-arch"))]
        return [str(nvcc.path), *mode]

    def refuse_others(self, folder: Path, nvcc: Nvcc) -> None:
        """PTX includes nothing."""


@dataclass(frozen=True)
class CubinUnit(Unit):
    """A variant whose ``cubin`` another build made."""

    cubin: bytes

    def identity(self, nvcc: Nvcc, mode: tuple[str, ...] = ()) -> list[object]:
        return [hashlib.sha256(self.cubin).hexdigest()]


def ptx_mode(arch: str) -> tuple[str, ...]:
    """The options by which nvcc makes PTX for an architecture."""
    return ("-ptx", f"-arch={arch.replace('sm_', 'compute_')}")


def unit_of(kernel: Kernel, config: Config, dtype: DType, arch: str) -> Unit:
    """What is compiled of a variant for an architecture; the copies are there after ``sources.write()``.

    Raises CompileError for sources or an entry that cannot be read or that another compiler refuses, and for
    empty PTX; ValueError for a library kernel.
    """
    what, entry = name_of(kernel, config, dtype), entry_name(kernel, config, dtype)
    if kernel.by_nvcc or kernel.source is None:
        return Unit(what, entry, sources(kernel), compile_options(kernel, config, dtype))
    if kernel.from_cubin:
        return CubinUnit(what, entry, sources(kernel), (), read(kernel.source, arch, what))
    ptxas = kernel.frontend.ptxas(arch) if kernel.frontend else None
    return PtxUnit(what, entry, sources(kernel), (), _ptx_of(kernel, config, dtype, arch), ptxas)


def _ptx_of(kernel: Kernel, config: Config, dtype: DType, arch: str) -> str:
    """What another compiler made, or makes. Raises CompileError."""
    assert kernel.source is not None
    what = name_of(kernel, config, dtype)
    try:
        if kernel.frontend:
            ptx = kernel.frontend.ptx(kernel.source, config, dtype, arch)
        else:
            ptx = kernel.source.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise CompileError(f"{what}: {error}") from None
    if not ptx.strip():
        raise CompileError(f"{what}: {kernel.source}: the PTX is empty; write it again with its compiler")
    return ptx


@dataclass(frozen=True)
class ModuleSource:
    """What PyCUDA's SourceModule is given for a variant, ``name``, and one architecture: the text of its
    `Unit`, ``file`` by name, its options, the folders that are searched and those that are its ``own``;
    ``ptx``: the file of the cache for the PTX that is made on the way."""

    name: str
    file: str
    entry: str
    text: str
    options: tuple[str, ...]
    arch: str
    include: tuple[str, ...]
    own: tuple[str, ...]
    ptx: Path


def source_of(kernel: Kernel, config: Config, dtype: DType, arch: str, name: str = "") -> ModuleSource:
    """Its copies are written. Raises as `unit_of`."""
    unit = unit_of(kernel, config, dtype, arch)
    unit.sources.write()
    file = kernel.source.name if kernel.source else ""
    folders = unit.sources.include, unit.sources.copies
    ptx = unit.kept_by_module(arch)
    return ModuleSource(name or unit.what, file, unit.entry, unit.text, unit.all_options, arch, *folders, ptx)


def compile_options(kernel: Kernel, config: Config, dtype: DType) -> tuple[str, ...]:
    """The options that make a kernel of a config and dtype."""
    defines = (f"-D{name}={value}" for name, value in config.items())
    return ("-std=c++17", "-O3", *kernel.flags, *(f"-D{macro}" for macro in dtype.macros), *defines)


def name_of(kernel: Kernel, config: Config, dtype: DType) -> str:
    """What messages call a variant."""
    return f"{kernel.name} {dtype} {config.label}".rstrip()


def entry_name(kernel: Kernel, config: Config, dtype: DType) -> str:
    """The C++ name of its entry. Raises CompileError."""
    try:
        return kernel.entry_of(config, dtype)
    except ValueError as error:
        raise CompileError(str(error)) from None
