"""Compiles kernels with nvcc: cubins and PTX, cached on disk, and the resources reported by ptxas."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from gemm_regression.compiler import objects, tools
from gemm_regression.compiler.objects import instantiation, ptx_symbols, symbol_of
from gemm_regression.compiler.sources import LISTED, Sources, listed_in, readable, refuse_others, sources
from gemm_regression.compiler.tools import (
    CompileError,
    Nvcc,
    ToolchainError,
    alone,
    cache_entry,
    load_entry,
    store_entry,
)
from gemm_regression.model import Config, DType, Kernel, Resources

COMPILE_SECONDS = (
    600  # A compilation takes about a second, with CUTLASS up to a minute; longer means something is wrong.
)
UNIT = "kernel.cu"  # the name of the file passed to nvcc, as in PyCUDA

Variant = tuple[Kernel, Config, DType]
_REFUSED: dict[tuple[str, Path], CompileError] = {}  # what this process has seen not to compile


class PtxasFigures(NamedTuple):
    """What ``ptxas -v`` reports for an entry: registers and bytes of stack and of spills per thread, barriers
    and bytes of static shared memory per block. The stack includes spills and callees."""

    registers: int
    barriers: int
    shared_bytes: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int


@dataclass(frozen=True)
class Binary:
    """A cubin, the symbol of the entry in it, what that needs to run, and the lines the compiler wrote."""

    cubin: bytes
    symbol: str
    resources: Resources
    log: str


@dataclass(frozen=True)
class Unit:
    """What nvcc and SourceModule alike are given for a variant, called ``what``: the ``text`` of one file,
    which includes the copy of the kernel's ``sources``, and the options. ``entry`` is the function's name
    in C++."""

    what: str
    entry: str
    sources: Sources
    options: tuple[str, ...]

    @property
    def text(self) -> str:
        # PyCUDA runs the preprocessor at each look-up for a text with "#include" in it. The digest in the
        # path says as much of the files, and the version of nvcc is in PyCUDA's key besides.
        return f'# include "{self.sources.main_copy}"\n{instantiation(self.entry)}'

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


def unit_of(kernel: Kernel, config: Config, dtype: DType) -> Unit:
    """What is compiled of a variant; the copies are there after ``sources.write()``.

    Raises CompileError for sources or an entry that cannot be read, ValueError for a library kernel.
    """
    what = _what(kernel, config, dtype)
    own = sources(kernel)
    try:
        entry = kernel.entry_of(config, dtype)
    except ValueError as error:
        raise CompileError(str(error)) from None
    return Unit(what, entry, own, compile_options(kernel, config, dtype))


def _what(kernel: Kernel, config: Config, dtype: DType) -> str:
    return f"{kernel.name} {dtype} {config.label}".rstrip()


def compile_options(kernel: Kernel, config: Config, dtype: DType) -> tuple[str, ...]:
    """The options that make a kernel of a config and dtype; the same for nvcc and for SourceModule."""
    defines = (f"-D{name}={value}" for name, value in config.items())
    return ("-std=c++17", "-O3", *kernel.flags, *(f"-D{macro}" for macro in dtype.macros), *defines)


def compile_cubin(
    kernel: Kernel, config: Config, dtype: DType, arch: str, nvcc: Nvcc | None = None
) -> Binary:
    """Compiles for one architecture ("sm_90a"), or takes it from the cache; by default with ``find_nvcc``'s.

    Raises CompileError with the compiler's lines, also where the entry is not there; ToolchainError without a
    compiler; ValueError for a library kernel.
    """
    unit = unit_of(kernel, config, dtype)
    cubin, log = _compile_both(unit, arch, nvcc)
    symbol = symbol_of(unit.entry, objects.symbols(cubin), unit.what)
    found = read_ptxas(symbol, log)
    resources = Resources(
        found.registers, found.shared_bytes, found.stack_bytes, hashlib.sha256(cubin).hexdigest()
    )
    return Binary(cubin, symbol, resources, log)


def compile_ptx(
    kernel: Kernel,
    config: Config,
    dtype: DType,
    arch: str,
    lines: bool = False,
    nvcc: Nvcc | None = None,
    cubin_too: bool = False,
) -> str:
    """The PTX of a kernel, for one architecture ("sm_90a"). Raises as ``compile_cubin`` does.

    With ``lines`` it names the lines of the .cu file, and can differ by a few instructions from what runs.
    ``cubin_too``: ``compile_cubin`` is going to be asked for this variant, too: one run of nvcc makes both.
    """
    unit = unit_of(kernel, config, dtype)
    mode = (*_ptx_mode(arch), *(("-lineinfo",) if lines else ()))
    if cubin_too and not lines and not _entry(unit, mode, nvcc).is_file():
        try:
            _compile_both(unit, arch, nvcc)
        except CompileError as error:
            if "ptxas" not in error.log:  # which refuses what can be told from the PTX
                raise
    ptx = readable(_compile(unit, mode, nvcc)[0].decode())
    return _numbered(ptx, unit.sources.main) if lines else ptx


def _numbered(ptx: str, main: str) -> str:
    """PTX in which the .cu file is number 1, as readers expect, and no other file is: nvcc numbers them as it
    comes upon them, and it may come upon a header first."""
    files = {name[2]: name[1] for name in re.finditer(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', ptx, re.MULTILINE)}
    number = files.get(main, "0")
    others = {number: "1", "1": number}
    return re.sub(
        r"(\.file\s+|\.loc\s+|inlined_at\s+)(\d+)",
        lambda word: str(word[1]) + others.get(str(word[2]), str(word[2])),
        ptx,
    )


def entry_symbol(kernel: Kernel, config: Config, dtype: DType, ptx: str) -> str:
    """The symbol of a kernel's entry in its PTX. Raises CompileError if there is none, or several."""
    what = _what(kernel, config, dtype)
    try:
        return symbol_of(kernel.entry_of(config, dtype), ptx_symbols(ptx), what)
    except ValueError as error:
        raise CompileError(str(error)) from None


def compile_all(
    variants: Iterable[Variant],
    arch: str,
    jobs: int | None = None,
    nvcc: Nvcc | None = None,
    step: Callable[[str], None] = lambda what: None,
) -> list[Binary | CompileError]:
    """Compile (kernel, config, dtype) variants, ``jobs`` at a time (one a core); results in their order.

    A variant that does not compile gives its CompileError in place of a Binary. ``step`` is called for each
    that is done, with what it is.
    """
    todo, made = list(variants), []

    def one(variant: Variant) -> Binary | CompileError:
        try:
            return compile_cubin(*variant, arch, nvcc)
        except CompileError as error:
            return error

    with ThreadPoolExecutor(jobs or len(os.sched_getaffinity(0))) as pool:
        for variant, result in zip(todo, pool.map(one, todo), strict=True):
            step(_what(*variant))
            made.append(result)
    return made


def _ptx_mode(arch: str) -> tuple[str, ...]:
    return ("-ptx", f"-arch={arch.replace('sm_', 'compute_')}")


def _compile_both(unit: Unit, arch: str, nvcc: Nvcc | None) -> tuple[bytes, str]:
    """The cubin and the log. The PTX that it is made of is that of ``-ptx``, and is kept beside it."""
    return _compile(unit, ("-cubin", f"-arch={arch}", "-Xptxas=-v"), nvcc, beside=_ptx_mode(arch))


def _compile(
    unit: Unit, mode: tuple[str, ...], nvcc: Nvcc | None, beside: tuple[str, ...] = ()
) -> tuple[bytes, str]:
    """nvcc's output file and log, from the cache where sources, options and compiler are the same.
    ``beside``: the mode whose output is the PTX that this one leaves on its way."""
    nvcc = nvcc or tools.find_nvcc()
    entry = _entry(unit, mode, nvcc)
    if cached := load_entry(entry):
        return cached
    with alone(entry):
        if (cached := load_entry(entry)) is None:
            if refused := _REFUSED.get((unit.what, entry)):
                raise CompileError(refused.message, refused.log)
            try:
                out, log, ptx = _run_nvcc(nvcc, unit, (*mode, "-keep") if beside else mode)
            except CompileError as error:
                _REFUSED[unit.what, entry] = error.with_traceback(None)
                raise
            cached = out, log
            store_entry(entry, *cached)
            if ptx and not (other := _entry(unit, beside, nvcc)).is_file():
                store_entry(other, ptx, "")
    return cached


def _entry(unit: Unit, mode: tuple[str, ...], nvcc: Nvcc | None) -> Path:
    """Where the cache has what nvcc makes of a unit."""
    return cache_entry([*unit.identity(nvcc or tools.find_nvcc(), mode), "fixed addresses"])


def _run_nvcc(nvcc: Nvcc, unit: Unit, mode: tuple[str, ...]) -> tuple[bytes, str, bytes]:
    """nvcc's output file, its log, and the PTX that it leaves where the mode says ``-keep``."""
    unit.sources.write()
    include = (f"-I{folder}" for folder in unit.sources.include)
    with tempfile.TemporaryDirectory(prefix="gemm-") as folder:
        Path(folder, UNIT).write_text(unit.text, encoding="utf-8")
        options = (*mode, *listed_in("read.d"), *unit.all_options, *include)
        command = [str(nvcc.path), *options, "-o", "out", UNIT]
        tools.fixed_addresses()
        try:
            said = subprocess.run(
                command,
                cwd=folder,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=COMPILE_SECONDS,
                env={
                    **tools.environment(),
                    "TMPDIR": folder,
                },  # where nvcc leaves files of what does not compile
            )
        except subprocess.TimeoutExpired:
            raise CompileError(f"{unit.what}: nvcc did not finish within {COMPILE_SECONDS} s") from None
        except OSError as error:
            raise ToolchainError(f"{nvcc.path} cannot be run: {error}") from None
        log = (said.stdout + said.stderr).strip()
        if said.returncode < 0:
            raise CompileError(f"{unit.what}: nvcc was ended by {_signal(-said.returncode)}", log)
        if said.returncode:
            raise compile_error(unit.what, unit.entry, log, unit.options)
        refuse_others(unit.what, Path(folder, "read.d"), unit.sources.copies, nvcc)
        out, ptx = Path(folder, "out"), Path(folder, UNIT).with_suffix(".ptx")
        if not out.is_file() or not out.stat().st_size:
            raise CompileError(f"{unit.what}: nvcc ended without an error, and wrote nothing", log)
        return out.read_bytes(), readable(log), ptx.read_bytes() if ptx.is_file() else b""


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def compile_error(what: str, entry: str, log: str, options: Sequence[str] = ()) -> CompileError:
    """The error of a compiler that said this, about a variant of these options."""
    lines = re.sub(rf"(/\S*/)?\b{re.escape(UNIT)}\b", f"the entry {entry}", readable(log))
    gone = re.search(r"^(\S+?):(\d+):\d+: fatal error: (.+): No such file or directory", lines, re.MULTILINE)
    if gone:
        return CompileError(
            f"{what}: {gone[1]}:{gone[2]} includes {gone[3]}, which is neither next to that file, nor in an "
            "include folder of the declaration, nor in the CUDA toolkit (only a plain #include is followed: "
            "no macro, comment or continued line in it, and no variable such as CPATH)",
            lines,
        )
    shown = f" ({' '.join(options)})" if options else ""
    return CompileError(f"{what} does not compile{shown}", lines)


def read_ptxas(symbol: str, log: str) -> PtxasFigures:
    """Read what ``ptxas -v`` wrote of an entry function. Raises CompileError where it is not there."""
    used = re.search(rf"entry function '{re.escape(symbol)}'.*?Used (\d+) registers([^\n]*)", log, re.DOTALL)
    stack = re.search(
        rf"properties for {re.escape(symbol)}\n\s*(\d+) bytes stack frame, "
        r"(\d+) bytes spill stores, (\d+) bytes spill loads",
        log,
    )
    if not used or not stack:
        raise CompileError(f"ptxas reported nothing about the function {symbol}", log)
    shared, barriers = (re.search(rf"(\d+) {what}", used[2]) for what in ("bytes smem", "barriers"))
    return PtxasFigures(
        registers=int(used[1]),
        barriers=int(barriers[1]) if barriers else 0,
        shared_bytes=int(shared[1]) if shared else 0,
        stack_bytes=int(stack[1]),
        spill_store_bytes=int(stack[2]),
        spill_load_bytes=int(stack[3]),
    )


CUDA_CORES, TENSOR_CORES = "cuda", "tensor"
_PRODUCT = re.compile(r"^\s*(?:@!?%\w+\s+)?(?:mma|wmma\.mma|wgmma\.mma_async|tcgen05\.mma)\b", re.MULTILINE)


@lru_cache(maxsize=1024)
def core_of(kernel: Kernel, config: Config, dtype: DType, arch: str) -> str:
    """The kind of core, "cuda" or "tensor". Of a library, FP32 is asked for without TF32. One that does not
    compile has none: "cuda"."""
    if kernel.library:
        return CUDA_CORES if dtype.name == "f32" else TENSOR_CORES
    try:
        ptx = compile_ptx(kernel, config, dtype, arch)
    except CompileError:
        return CUDA_CORES
    return TENSOR_CORES if _PRODUCT.search(ptx) else CUDA_CORES
