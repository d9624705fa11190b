"""nvcc without PyCUDA: where it is, the one place for its options, cubins and PTX cached on disk.

The cache lies in $GEMM_CACHE_DIR, else $XDG_CACHE_HOME/gemm-regression, else ~/.cache/gemm-regression;
removing it costs time only.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import warnings
import zipfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from harness.model import Config, DType, Kernel, Resources

COMPILE_SECONDS = 300  # A compile takes about a second; one that takes minutes has gone wrong.
PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
_INSTALL = f"{sys.executable} -m pip install --group compiler"

Variant = tuple[Kernel, Config, DType]


class ToolchainError(Exception):
    """There is no compiler that runs. One line: what was looked for and what to do."""


class CompileError(Exception):
    """A kernel that does not compile. The message is one line; ``log`` has the compiler's own lines."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message, log)
        self.message, self.log = message, log

    def __str__(self) -> str:
        return f"{self.message}\n{self.log}".rstrip()


@dataclass(frozen=True)
class Nvcc:
    path: Path
    version: str


@dataclass(frozen=True)
class Disassembler:
    """NVIDIA's nvdisasm."""

    path: Path
    version: str


class PtxasFigures(NamedTuple):
    """What ``ptxas -v`` says of an entry: registers and bytes of stack and of spills a thread, barriers and
    bytes of static shared memory a block. The stack holds the spills, and is that of callees too."""

    registers: int
    barriers: int
    shared_bytes: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int


@dataclass(frozen=True)
class Binary:
    """A cubin, what it needs to run, and the lines the compiler wrote about it."""

    cubin: bytes
    resources: Resources
    log: str


def find_nvcc() -> Nvcc:
    """The nvcc of PATH, else of $CUDA_HOME or $CUDA_PATH, else of NVIDIA's wheels in this environment.

    Raises ToolchainError where there is none, where it does not run, or where g++ is missing.
    """
    found = next(iter(_candidates("nvcc")), None)
    if not found:
        raise ToolchainError(
            f"no nvcc in {_looked()}, NVIDIA's wheels: set CUDA_HOME, or, "
            f"in the checkout and with pip 25.1 or newer, `{_INSTALL}`"
        )
    return Nvcc(Path(found), _version(found, os.environ.get("PATH", "")))


def pinned_tools() -> tuple[Nvcc, Disassembler]:
    """The compiler and the disassembler of the versions that pyproject.toml pins, wherever they are.

    What a compiler makes of a kernel depends on its version: figures are compared between equal ones only.
    Raises ToolchainError, one line, where either is missing or there in other versions only.
    """
    return pinned_nvcc(), Disassembler(*_pinned("nvdisasm", pins()[1]))


def pinned_nvcc() -> Nvcc:
    """The compiler of the version that pyproject.toml pins. Raises ToolchainError."""
    return Nvcc(*_pinned("nvcc", pins()[0]))


@functools.cache
def pins() -> tuple[str, str]:
    """The versions of nvcc and nvdisasm that pyproject.toml pins."""
    group = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["dependency-groups"]["compiler"]
    versions = dict(requirement.split("==") for requirement in group)
    return versions["nvidia-cuda-nvcc"], versions["nvidia-cuda-nvdisasm"]


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
    there = "; ".join(others) or f"there is none in {_looked()}, NVIDIA's wheels"
    raise ToolchainError(
        f"the stored figures are those of {name} {wanted}, and {there}; for the pinned one, "
        f"in the checkout and with pip 25.1 or newer, `{_INSTALL}`"
    )


def find_tool(name: str) -> str:
    """A program of the CUDA toolkit, of PATH, else of $CUDA_HOME or $CUDA_PATH. Raises ToolchainError."""
    found = next(iter(_installed(name)), None)
    if not found:
        raise ToolchainError(
            f"no {name} in {_looked()}: it comes with the CUDA toolkit; "
            "install that, and set PATH or CUDA_HOME"
        )
    return found


def _candidates(name: str) -> list[str]:
    """Where a program is, the one to prefer first."""
    return [*_installed(name), *filter(None, (shutil.which(str(path)) for path in _in_wheels(name)))]


def _installed(name: str) -> list[str]:
    places = [name, *(str(Path(home, "bin", name)) for home in _homes().values())]
    return list(filter(None, map(shutil.which, places)))


def _homes() -> dict[str, str]:
    return {name: home for name in ("CUDA_HOME", "CUDA_PATH") if (home := os.environ.get(name))}


def _looked() -> str:
    """Where a program was looked for."""
    return ", ".join(["PATH", *(f"{name}={home}" for name, home in _homes().items())])


def _in_wheels(name: str) -> list[Path]:
    spec = find_spec("nvidia")
    folders = spec.submodule_search_locations or [] if spec else []
    return sorted(path for folder in folders for path in Path(folder).glob(f"cu[0-9]*/bin/{name}"))


@functools.cache
def _version(program: str, path: str) -> str:
    """The version of an nvcc or nvdisasm, once for each PATH, since nvcc looks for g++ there."""
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise ToolchainError(f"{program} does not run: {error}") from None
    version = re.search(r"\bV(\d+\.\d+\.\d+)", said.stdout)
    if said.returncode or not version:
        raise ToolchainError(f"{program} --version failed: {(said.stderr or said.stdout).strip()[:200]}")
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


def compile_options(kernel: Kernel, config: Config, dtype: DType) -> tuple[str, ...]:
    """The options that make a kernel of a config and dtype; the same for nvcc and for SourceModule."""
    defines = (f"-D{name}={value}" for name, value in config.items())
    return ("-std=c++17", "-O3", *kernel.flags, *(f"-D{macro}" for macro in dtype.macros), *defines)


def compile_cubin(
    kernel: Kernel, config: Config, dtype: DType, arch: str, nvcc: Nvcc | None = None
) -> Binary:
    """Compile for one architecture ("sm_90a"), or take it from the cache; by ``find_nvcc``'s unless told.

    Raises CompileError with the compiler's lines, ToolchainError without a compiler, ValueError for a
    library kernel.
    """
    cubin, log = _compile(kernel, config, dtype, ("-cubin", f"-arch={arch}", "-Xptxas=-v"), nvcc)
    return Binary(cubin, _resources(kernel.entry, cubin, log), log)


def compile_ptx(
    kernel: Kernel,
    config: Config,
    dtype: DType,
    arch: str,
    lines: bool = False,
    nvcc: Nvcc | None = None,
) -> str:
    """The PTX of a kernel, for one architecture ("sm_90a"). Raises as ``compile_cubin`` does.

    With ``lines`` it names the lines of the .cu file, and can differ by a few instructions from what runs.
    """
    virtual = arch.replace("sm_", "compute_")
    mode = ("-ptx", f"-arch={virtual}", *(("-lineinfo",) if lines else ()))
    return _compile(kernel, config, dtype, mode, nvcc)[0].decode()


def compile_all(
    variants: Iterable[Variant], arch: str, jobs: int | None = None, nvcc: Nvcc | None = None
) -> list[Binary | CompileError]:
    """Compile (kernel, config, dtype) variants, ``jobs`` at a time (one a core); results in their order.

    A variant that does not compile gives its CompileError in place of a Binary.
    """

    def one(variant: Variant) -> Binary | CompileError:
        try:
            return compile_cubin(*variant, arch, nvcc)
        except CompileError as error:
            return error

    with ThreadPoolExecutor(jobs or len(os.sched_getaffinity(0))) as pool:
        return list(pool.map(one, variants))


def cache_dir() -> Path:
    """Where compiled kernels are kept."""
    if folder := os.environ.get("GEMM_CACHE_DIR"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gemm-regression"


def _compile(
    kernel: Kernel, config: Config, dtype: DType, mode: tuple[str, ...], nvcc: Nvcc | None = None
) -> tuple[bytes, str]:
    """nvcc's output file and log, from the cache where source, options and compiler are the same."""
    if kernel.source is None:
        raise ValueError(f"{kernel.name} is a library call: there is nothing to compile")
    nvcc = nvcc or find_nvcc()
    options = (*mode, *compile_options(kernel, config, dtype))
    try:
        source = kernel.source.read_bytes()
    except OSError as error:
        raise CompileError(f"{kernel.name}: cannot read {kernel.source}: {error.strerror}") from None
    # nvcc takes options from these variables too.
    more = [os.environ.get(f"NVCC_{end}_FLAGS", "") for end in ("PREPEND", "APPEND")]
    key = [nvcc.version, more, options, kernel.source.name, source.decode(errors="replace")]
    entry = cache_entry(key)
    if cached := load_entry(entry):
        return cached
    with _alone(entry):
        if (cached := load_entry(entry)) is None:
            what = f"{kernel.name} {dtype} {config.label}".rstrip()
            cached = _run_nvcc(nvcc, kernel.source.name, source, options, what)
            store_entry(entry, *cached)
    return cached


@contextlib.contextmanager
def _alone(entry: Path) -> Iterator[None]:
    """One at a time, of all processes: who waited finds the entry made. Where nothing can be locked, all
    make it."""
    lock = entry.with_suffix(".lock")
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            entry.parent.mkdir(parents=True, exist_ok=True)
            fcntl.flock(held.enter_context(lock.open("w")), fcntl.LOCK_EX)
            held.callback(lock.unlink, missing_ok=True)
        yield


def _run_nvcc(nvcc: Nvcc, name: str, source: bytes, options: tuple[str, ...], what: str) -> tuple[bytes, str]:
    with tempfile.TemporaryDirectory(prefix="gemm-") as folder:
        # A copy, alone in its folder: a kernel that needs a file the cache key does not know of fails,
        # and neither messages nor binaries depend on where the checkout lies.
        Path(folder, name).write_bytes(source)
        command = [str(nvcc.path), *options, "-o", "out", name]
        try:
            said = subprocess.run(
                command,
                cwd=folder,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=COMPILE_SECONDS,
            )
        except subprocess.TimeoutExpired:
            raise CompileError(f"{what}: nvcc did not end within {COMPILE_SECONDS} s") from None
        except OSError as error:
            raise ToolchainError(f"{nvcc.path} does not run: {error}") from None
        log = (said.stdout + said.stderr).strip()
        if said.returncode:
            raise CompileError(f"{what} does not compile ({' '.join(options)})", log)
        return Path(folder, "out").read_bytes(), log


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
    temporary: Path | None = None
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=entry.parent, suffix=".tmp", delete=False) as file:
            temporary = Path(file.name)
            with zipfile.ZipFile(file, "w") as stored:
                stored.writestr("out", out)
                stored.writestr("log", log)
        temporary.replace(entry)
    except OSError as error:
        warnings.warn(
            f"compiled kernels cannot be kept in {entry.parent} ({error.strerror}): every run compiles all;"
            " set GEMM_CACHE_DIR",
            stacklevel=2,
        )
        if temporary:
            temporary.unlink(missing_ok=True)


def read_ptxas(entry: str, log: str) -> PtxasFigures:
    """Read what ``ptxas -v`` wrote of an entry function. Raises CompileError where it is not there."""
    used = re.search(rf"entry function '{re.escape(entry)}'.*?Used (\d+) registers([^\n]*)", log, re.DOTALL)
    stack = re.search(
        rf"properties for {re.escape(entry)}\n\s*(\d+) bytes stack frame, "
        r"(\d+) bytes spill stores, (\d+) bytes spill loads",
        log,
    )
    if not used or not stack:
        raise CompileError(f"the compiler made no entry function {entry}", log)
    shared, barriers = (re.search(rf"(\d+) {what}", used[2]) for what in ("bytes smem", "barriers"))
    return PtxasFigures(
        registers=int(used[1]),
        barriers=int(barriers[1]) if barriers else 0,
        shared_bytes=int(shared[1]) if shared else 0,
        stack_bytes=int(stack[1]),
        spill_store_bytes=int(stack[2]),
        spill_load_bytes=int(stack[3]),
    )


def _resources(entry: str, cubin: bytes, log: str) -> Resources:
    found = read_ptxas(entry, log)
    return Resources(
        found.registers, found.shared_bytes, found.stack_bytes, hashlib.sha256(cubin).hexdigest()
    )
