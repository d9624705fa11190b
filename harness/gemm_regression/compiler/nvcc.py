"""Compiles kernels with nvcc: cubins and PTX, cached on disk, and the resources reported by ptxas."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple

from gemm_regression.compiler import cubin, objects, tools
from gemm_regression.compiler.objects import ptx_symbols, symbol_of
from gemm_regression.compiler.sources import readable
from gemm_regression.compiler.tools import CompileError, Nvcc, load_entry, store_entry
from gemm_regression.compiler.units import (
    UNIT,
    CubinUnit,
    PtxUnit,
    Unit,
    entry_name,
    name_of,
    ptx_mode,
    unit_of,
)
from gemm_regression.model import Argument, Config, DType, Kernel, Resources
from ptxsan.native import alone

# A compilation takes about a second, with CUTLASS up to a minute; longer means something is wrong.
COMPILE_SECONDS = 600

Variant = tuple[Kernel, Config, DType]


class PtxasFigures(NamedTuple):
    """What ``ptxas -v`` reports for an entry: registers and bytes of local memory (the stack) and of spills
    per thread, barriers and bytes of static shared memory per block. Local memory includes spills and
    callees. Of spills a cubin by itself says nothing: 0."""

    registers: int
    barriers: int
    shared_bytes: int
    local_bytes: int
    spill_store_bytes: int = 0
    spill_load_bytes: int = 0


@dataclass(frozen=True)
class Binary:
    """A cubin, the symbol of the entry in it, what that needs to run, and the lines the compiler wrote: none
    where the cubin is the source."""

    cubin: bytes
    symbol: str
    figures: PtxasFigures
    log: str = ""

    @cached_property
    def resources(self) -> Resources:
        of, digest = self.figures, hashlib.sha256(self.cubin).hexdigest()
        return Resources(of.registers, of.shared_bytes, of.local_bytes, digest)


def ptx_at_hand(kernel: Kernel, config: Config, dtype: DType, arch: str) -> str:
    """The PTX that SourceModule left, or else that of `compile_ptx`, which is the same in every run of nvcc;
    the other may differ by a few instructions. Raises as `compile_ptx`."""
    kept = load_entry(unit_of(kernel, config, dtype, arch).kept_by_module(arch))
    return readable(kept[0].decode()) if kept else compile_ptx(kernel, config, dtype, arch)


def compile_cubin(
    kernel: Kernel, config: Config, dtype: DType, arch: str, nvcc: Nvcc | None = None
) -> Binary:
    """Compiles for one architecture ("sm_90a"), or takes it from the cache; by default with ``find_nvcc``'s.

    Raises CompileError with the compiler's lines, also where the entry is not there; ToolchainError without a
    compiler; ValueError for a library kernel.
    """
    unit = unit_of(kernel, config, dtype, arch)
    if isinstance(unit, CubinUnit):
        symbol = symbol_of(unit.entry, objects.symbols(unit.cubin), unit.what)
        return Binary(unit.cubin, symbol, PtxasFigures(*cubin.needs(unit.cubin, symbol)))
    made, log = _compile(unit, arch, nvcc or tools.find_nvcc())
    symbol = symbol_of(unit.entry, objects.symbols(made), unit.what)
    return Binary(made, symbol, read_ptxas(symbol, log), log)


def refusal(variant: Variant, arch: str, arguments: Sequence[Argument], nvcc: Nvcc | None = None) -> str:
    """Why a compiled kernel does not take these arguments, in one line, or empty. Raises as
    `compile_cubin`."""
    if variant[0].from_cubin:
        made = compile_cubin(*variant, arch)
        return cubin.mismatch(made.cubin, made.symbol, arguments) or ""
    ptx = compile_ptx(*variant, arch, nvcc=nvcc) if nvcc else ptx_at_hand(*variant, arch)
    return objects.mismatch(ptx, entry_symbol(*variant, ptx), arguments) or ""


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
    unit, nvcc, mode = unit_of(kernel, config, dtype, arch), nvcc or tools.find_nvcc(), ptx_mode(arch)
    if isinstance(unit, PtxUnit):
        return unit.ptx
    if isinstance(unit, CubinUnit):
        raise CompileError(f"{unit.what}: {unit.sources.main} is a binary, which has no PTX")
    if lines:
        mode = (*mode, "-lineinfo")
    elif cubin_too and not unit.kept(nvcc, mode).is_file():
        try:
            _compile(unit, arch, nvcc)
        except CompileError as error:
            if "ptxas" not in error.log:  # which refuses what can be told from the PTX
                raise
    ptx = readable(_cached(unit, mode, nvcc)[0].decode())
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
    entry = entry_name(kernel, config, dtype)
    return symbol_of(entry, ptx_symbols(ptx), name_of(kernel, config, dtype))


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

    def one(variant: Variant) -> Binary | CompileError:
        try:
            return compile_cubin(*variant, arch, nvcc)
        except CompileError as error:
            return error

    todo, made = list(variants), []
    with ThreadPoolExecutor(jobs or len(os.sched_getaffinity(0))) as pool:
        for variant, result in zip(todo, pool.map(one, todo), strict=True):
            step(name_of(*variant))
            made.append(result)
    return made


def _compile(unit: Unit, arch: str, nvcc: Nvcc) -> tuple[bytes, str]:
    """The cubin and the log. The PTX that it is made of is that of ``-ptx``, and is kept beside it."""
    return _cached(unit, ("-cubin", f"-arch={arch}", "-Xptxas=-v"), nvcc, unit.beside(arch))


def _cached(unit: Unit, mode: tuple[str, ...], nvcc: Nvcc, beside: tuple[str, ...] = ()) -> tuple[bytes, str]:
    """nvcc's output file and log, from the cache where sources, options and compiler are the same.
    ``beside``: the mode whose output is the PTX that this one leaves on its way."""
    entry = unit.kept(nvcc, mode)
    if cached := load_entry(entry):
        return cached
    with alone(entry):
        if cached := load_entry(entry):
            return cached
        out, log, ptx = _run_nvcc(nvcc, unit, (*mode, "-keep") if beside else mode)
        store_entry(entry, out, log)
        if ptx and not (other := unit.kept(nvcc, beside)).is_file():
            store_entry(other, ptx, "")
        return out, log


def _run_nvcc(nvcc: Nvcc, unit: Unit, mode: tuple[str, ...]) -> tuple[bytes, str, bytes]:
    """nvcc's output file, its log, and the PTX that it leaves where the mode says ``-keep``."""
    unit.sources.write()
    with tempfile.TemporaryDirectory(prefix="gemm-") as folder:
        Path(folder, unit.file).write_text(unit.text, encoding="utf-8")
        tools.fixed_addresses()
        done = tools.said(
            [*unit.command(nvcc, mode), "-o", "out", unit.file],
            cwd=folder,
            timeout=COMPILE_SECONDS,
            env={**tools.environment(), "TMPDIR": folder},  # where nvcc leaves files of what fails
        )
        log = (done.stdout + done.stderr).strip()
        if done.returncode < 0:
            raise CompileError(f"{unit.what}: nvcc was ended by signal {-done.returncode}", log)
        if done.returncode:
            raise compile_error(unit.what, unit.entry, log, unit.options)
        unit.refuse_others(Path(folder), nvcc)
        out, ptx = Path(folder, "out"), Path(folder, UNIT).with_suffix(".ptx")
        if not out.is_file() or not out.stat().st_size:
            raise CompileError(f"{unit.what}: nvcc ended without an error, and wrote nothing", log)
        return out.read_bytes(), readable(log), ptx.read_bytes() if ptx.is_file() else b""


def compile_error(what: str, entry: str, log: str, options: Sequence[str] = ()) -> CompileError:
    """The error of a compiler that said this, about a variant of these options."""
    lines = re.sub(rf"(/\S*/)?\b{re.escape(UNIT)}\b", f"the entry {entry}", readable(log))
    if gone := re.search(r"^(\S+?:\d+):\d+: fatal error: (.+): No such file", lines, re.MULTILINE):
        return CompileError(
            f"{what}: {gone[1]} includes {gone[2]}, which was not found (only a plain #include is followed: "
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
    barriers, shared = (re.search(rf"(\d+) {what}", used[2]) for what in ("barriers", "bytes smem"))
    counts = (int(found[1]) if found else 0 for found in (used, barriers, shared))
    return PtxasFigures(*counts, *map(int, stack.groups()))


CUDA_CORES, TENSOR_CORES = "cuda", "tensor"
_PRODUCT = re.compile(r"^\s*(?:@!?%\w+\s+)?(?:mma|wmma\.mma|wgmma\.mma_async|tcgen05\.mma)\b", re.MULTILINE)


@lru_cache(maxsize=1024)
def core_of(kernel: Kernel, config: Config, dtype: DType, arch: str) -> str:
    """The kind of core, "cuda" or "tensor". Of a library, FP32 is asked for without TF32; a binary is as one.
    One that does not compile has none: "cuda"."""
    if kernel.library or kernel.from_cubin:
        return CUDA_CORES if dtype.name == "f32" else TENSOR_CORES
    try:
        ptx = ptx_at_hand(kernel, config, dtype, arch)
    except CompileError:
        return CUDA_CORES
    return TENSOR_CORES if _PRODUCT.search(ptx) else CUDA_CORES
