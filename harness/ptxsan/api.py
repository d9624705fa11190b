"""A launch in one call: CUDA or PTX and NumPy values in; arrays, hazards and counts out."""

from __future__ import annotations

import os
import re
import shutil
import site
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ptxsan.checks import Hazard
from ptxsan.frontend import Entry, PtxError, parameter_bytes, size_of
from ptxsan.frontend.parser import parse
from ptxsan.isa.bulk import BYTES, TensorMapDescriptor
from ptxsan.kernel import PreparedKernel
from ptxsan.lanes import Array
from ptxsan.machine.counters import Counters, Tally
from ptxsan.machine.memory.buffer import Buffer
from ptxsan.machine.memory.global_memory import GlobalMemory

STEPS = 1_000_000  # basic blocks that a chunk of lanes may execute before the kernel counts as hanging


@dataclass(frozen=True)
class Empty:
    """An uninitialised array argument: reading an element before the kernel has written it is a hazard if the
    value matters."""

    shape: int | tuple[int, ...]
    dtype: Any = np.float32


@dataclass(frozen=True)
class Tiled:
    """A CUtensorMap for a ``__grid_constant__`` parameter, as cuTensorMapEncodeTiled makes it.

    ``array``: the tensor, or the number of the argument that is the tensor. ``box``: the elements that one
    copy transfers, in the order of the array's axes. ``swizzle``: 0, 32, 64 or 128 bytes. ``nan``: elements
    outside the tensor are filled with NaN, not with zero. ``steps``: the element strides, in the order of the
    axes. ``tf32``: FP32 elements are rounded to TF32 when they are copied to shared memory.
    """

    array: Array | Empty | int
    box: tuple[int, ...]
    swizzle: int = 0
    nan: bool = False
    steps: tuple[int, ...] = ()
    tf32: bool = False

    def at(self, address: int, array: Array | Empty) -> TensorMapDescriptor:
        """The tensor map of ``array`` at this address. Raises PtxError for what the driver rejects."""
        more = {"swizzle": self.swizzle, "nan": self.nan, "steps": tuple(reversed(self.steps))}
        return TensorMapDescriptor.of_array(address, array, self.box, self.tf32, **more)


@dataclass(frozen=True)
class LaunchResult:
    """What a launch did.

    ``names``: the names of all parameters, those of the .cu file where they are known. ``arrays``: each array
    argument after the launch, by its position; a member of a struct by (position, number of the member). They
    are copies: the caller's arrays do not change.

    ``hazards``: in the order of detection, at most one for each instruction. ``stopped``: the launch could
    not continue after the last hazard. ``notes``: code that is undefined in CUDA C++ but defined in PTX, and
    undefined values on which no result depends. ``clean``: there are no hazards; notes do not count.

    ``printed``: the output of printf, in order. ``counts``: the memory counters of the whole launch.
    ``counters``: the same for each instruction (``tallies()``) and each buffer. ``lane_instructions``: thread
    instructions, that is, instructions × active threads.
    """

    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    names: tuple[str, ...]
    arrays: dict[Any, Array]
    hazards: tuple[Hazard, ...]
    notes: tuple[Hazard, ...]
    printed: tuple[str, ...]
    stopped: bool
    counts: Tally
    counters: Counters
    lane_instructions: int

    @property
    def clean(self) -> bool:
        return not self.hazards


def run(
    source: str | Path,
    *,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    arguments: Sequence[Any] = (),
    entry: str | None = None,
    shared: int = 0,
    arch: str = "sm_90a",
    defines: Sequence[str] = (),
    flags: Sequence[str] = (),
    steps: int = STEPS,
    cluster: int | Sequence[int] | None = None,
    cooperative: bool = False,
    schedule: int | None = None,
    inexact: int | None = None,
) -> LaunchResult:
    """Launches a kernel: ``entry<<<grid, block, shared>>>(arguments...)``.

    ``source``: the path of a .cu or .ptx file, or the text of one. nvcc compiles CUDA for ``arch``, with
    ``defines`` (NAME or NAME=VALUE) and ``flags``. ``entry``: the kernel's name in the .cu file, with the
    arguments of a template (``gemm<128, 8>``, which is then instantiated), or the mangled name; it may be
    left out if there is only one kernel. ``grid`` and ``block``: up to three extents, x first. ``shared``:
    bytes of dynamic shared memory; more than 48 KiB are allowed, as if the host had called
    cudaFuncSetAttribute. ``cluster``: blocks in a cluster, if the kernel has no __cluster_dims__. ``steps``:
    basic blocks that a group of thread blocks may execute before the launch counts as hanging.
    ``cooperative``: a cooperative launch (cudaLaunchCooperativeKernel), whose blocks may meet as a grid. Of
    other launches, so many blocks are there to wait for one another as a GPU of the target holds at once.
    ``schedule``: a seed, by which warps are late at random, mostly before they write or arrive somewhere; by
    default the warps of a group run in step. ``inexact``: a seed, by which FP32 results of .approx
    instructions (and __expf, __sinf, ...) are off by the error bounds of the PTX ISA, up or down.

    ``arguments``: a pointer takes a NumPy array of any shape, ``Empty(shape, dtype)``, or None for a null
    pointer. A tensor map takes a
    ``Tiled``. A number takes a NumPy scalar of exactly its type (np.int32(5)), a bool, or a Python number
    that fits. A struct by value takes its bytes, an np.void, or a tuple of its members: arrays and NumPy
    scalars, each aligned to its size.

    Raises PtxError with a message of one line: the source does not compile, an instruction is not supported
    (with its line), or the arguments do not match the parameters. Raises LaunchError, a PtxError, for a
    launch that a GPU rejects. Errors of the kernel itself are in the result.
    """
    name, text, cuda = _load(source, arch, defines, flags, entry or "")
    found = parse(text, _entry_name(text, entry), name)
    plain = entry or _plain(found.name)
    names = _parameter_names(cuda, _plain(found.name)) if cuda else []
    if len(names) != len(found.parameters):
        names = [f"arg{i}" for i in range(len(found.parameters))]
    buffers, values = _arguments(found, plain, names, arguments)
    memory, counters = GlobalMemory(list(buffers.values())), Counters()
    extents = _extents(grid, "grid"), _extents(block, "block")
    if cluster is not None:
        found.limits["reqnctapercluster"] = _extents(cluster, "cluster")
    report = PreparedKernel(found, name).run(
        *(*extents, shared, [values], memory, steps, counters),
        cooperative=cooperative,
        schedule=schedule,
        inexact=inexact,
    )
    counts = sum((tally for _, tally in counters.tallies()), Tally())
    arrays = {at: buffer.values(0).reshape(_array(arguments, at).shape) for at, buffer in buffers.items()}
    return LaunchResult(
        plain,
        *extents,
        tuple(names),
        arrays,
        tuple(report.hazards),
        tuple(report.notes),
        tuple(text for _, text in report.printed),
        report.stopped,
        counts,
        counters,
        report.lane_instructions,
    )


def _load(
    source: str | Path, arch: str, defines: Sequence[str], flags: Sequence[str], entry: str
) -> tuple[str, str, str]:
    """File name, PTX, and the CUDA source ("" for PTX input). An ``entry`` such as f<4> is instantiated."""
    more = f"\nauto* ptxsan_entry = &{entry};\n" if "<" in entry else ""
    if isinstance(source, str) and "\n" in source:
        if re.search(r"^\s*\.version\b", source, re.MULTILINE):
            return _file(source, "kernel.ptx"), source, ""
        return "kernel.cu", compile_text(source + more, arch, defines, flags), source
    path = Path(source)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PtxError(f"cannot read {path}: {error}") from None
    if path.suffix == ".ptx":
        return _file(text, path.name), text, ""
    if more:
        here = [*flags, f"-I{path.parent.absolute()}"]
        return path.name, compile_text(text + more, arch, defines, here, path.name), text
    return path.name, compile_file(path, arch, defines, flags), text


def _file(ptx: str, name: str) -> str:
    """The name of the .cu file that the PTX was compiled from; without a .file directive, ``name``."""
    file = re.search(r'^\s*\.file\s+1\s+"([^"]+)"', ptx, re.MULTILINE)
    return Path(file[1]).name if file else name


def _plain(mangled: str) -> str:
    """The name of a C++ function without its arguments: _Z3sumPf and _ZN1a3sumEPf are sum."""
    name, at = mangled, re.match(r"_ZN?", mangled)
    rest = mangled[at.end() :] if at else ""
    while match := re.match(r"(\d+)", rest):
        name = rest[match.end() : match.end() + int(match[1])]
        rest = rest[match.end() + int(match[1]) :]
    return name


def _entry_name(text: str, wanted: str | None) -> str:
    names = re.findall(r"\.entry\s+([\w$]+)", text)
    found = [n for n in names if n == wanted] or [n for n in names if wanted in (None, _plain(n))]
    if wanted is not None and "<" in wanted:
        found = _instances(names, wanted)
    if len(found) == 1:
        return str(found[0])
    there = ", ".join(names) or "none"
    if wanted is None:
        raise PtxError(f"say which entry to run; there are: {there}")
    many = "there are several instances of" if found else "there is no entry"
    raise PtxError(f"{many} {wanted}; the entries are: {there}")


def _instances(names: Sequence[str], wanted: str) -> list[str]:
    """The mangled names of templates that C++ calls so, in any spelling of the arguments that are numbers."""
    try:
        shown = subprocess.run(
            ["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise PtxError(f"--entry {wanted}: needs c++filt, of binutils: {error}") from None
    return [n for n, full in zip(names, shown.stdout.splitlines(), strict=True) if _is_called(full, wanted)]


def _is_called(full: str, wanted: str) -> bool:
    def spelt(name: str) -> str:
        # Of (E)1 and 5u the number.
        return re.sub(r"\s+|\([\w:]+\)(?=-?\d)|(?<=\d)[uUlL]+\b", "", name)

    return spelt(full.removeprefix("void ")).startswith(spelt(wanted) + "(")


def _extents(given: int | Sequence[int], what: str) -> tuple[int, int, int]:
    values = (given,) if isinstance(given, int) else tuple(int(v) for v in given)
    if not 1 <= len(values) <= 3 or min(values) < 1:
        raise PtxError(f"{what} {given}: one to three extents of at least 1")
    x, y, z = (*values, 1, 1)[:3]
    return x, y, z


def _arguments(
    entry: Entry, name: str, names: Sequence[str], given: Sequence[Any]
) -> tuple[dict[Any, Buffer], list[Any]]:
    if len(given) != len(entry.parameters):
        wanted = ", ".join(f"{n}: .{kind}" for n, (_, kind) in zip(names, entry.parameters, strict=True))
        raise PtxError(f"{name} takes {len(entry.parameters)} arguments ({wanted}), {len(given)} given")
    buffers: dict[Any, Buffer] = {}
    values: list[Any] = []
    for i, (argument, (_, kind)) in enumerate(zip(given, entry.parameters, strict=True)):
        where = f"argument {i} of {name}, {names[i]}"
        if isinstance(argument, Tiled):
            if parameter_bytes(kind) != BYTES:
                raise PtxError(f"{where}: a tensor map, where the kernel takes .{kind}")
            values.append(argument)
            if not isinstance(argument.array, int):
                buffers[i] = _buffer(names[i], len(buffers), argument.array, where)
            continue
        if isinstance(argument, np.ndarray | Empty):
            # A pointer, also as the one member of a struct.
            if kind not in ("u64", "s64", "b64", "b8[8]"):
                raise PtxError(f"{where}: an array, where the kernel takes a number of type .{kind}")
            buffers[i] = _buffer(names[i], len(buffers), argument, where)
            values.append(np.int64(buffers[i].address(0)))
        elif argument is None and kind in ("u64", "s64", "b64", "b8[8]"):
            values.append(bytes(8) if parameter_bytes(kind) else np.int64(0))
        elif size := parameter_bytes(kind):
            if isinstance(argument, tuple):
                members = list(argument)
                for j, member in enumerate(members):
                    if isinstance(member, np.ndarray | Empty):
                        buffers[i, j] = _buffer(f"{names[i]}.{j}", len(buffers), member, where)
                        members[j] = np.int64(buffers[i, j].address(0))
                argument = _struct(members, where)
            held = argument if isinstance(argument, bytes) else getattr(argument, "tobytes", bytes)()
            if len(held) != size:
                raise PtxError(f"{where}: {len(held)} bytes, where the kernel takes a struct of {size} bytes")
            values.append(held)
        else:
            values.append(_number(argument, kind, where))
    for i, argument in enumerate(values):
        if isinstance(argument, Tiled):
            of = i if not isinstance(argument.array, int) else argument.array
            if of not in buffers:
                raise PtxError(f"argument {i} of {name}, {names[i]}: argument {of} is no array")
            values[i] = argument.at(buffers[of].address(0), _array(given, of)).encode()
    return buffers, values


def _array(given: Sequence[Any], place: Any) -> Any:
    """The array at a place among the arguments."""
    found = given[place] if isinstance(place, int) else given[place[0]][place[1]]
    return found.array if isinstance(found, Tiled) else found


def _struct(members: Sequence[Any], where: str) -> bytes:
    """A struct of NumPy scalars, laid out as a C compiler does it."""
    data, widest = b"", 1
    for number, member in enumerate(members):
        if not isinstance(member, np.generic):
            raise PtxError(f"{where}: member {number} is neither an array nor a NumPy scalar")
        widest = max(widest, member.itemsize)
        data += bytes(-len(data) % member.itemsize) + member.tobytes()
    return data + bytes(-len(data) % widest)


def _buffer(name: str, number: int, argument: Array | Empty, where: str) -> Buffer:
    if isinstance(argument, Empty):
        argument = np.zeros(argument.shape, argument.dtype)
        known = np.zeros((1, argument.size), bool)
    else:
        known = np.ones((1, argument.size), bool)
    if argument.dtype.hasobject or argument.dtype.itemsize not in (1, 2, 4, 8, 16):
        raise PtxError(f"{where}: an array of {argument.dtype} is not supported")
    rows = argument.reshape(1, -1)
    return Buffer(name, number, [rows], known=[known], writable=True, flat=True)


def _number(argument: Any, kind: str, where: str) -> Any:
    """A scalar argument as the bits of a register of type ``kind``."""
    size, real = size_of(kind), kind.startswith("f")
    wanted = np.dtype(f"f{size}") if real else np.dtype(f"i{size}")
    if isinstance(argument, np.generic):
        of = argument.dtype
        fits = of.itemsize == size and (of.kind == "f" if real else of.kind in "iub")
        if not fits:
            raise PtxError(f"{where}: {of.name} given, but the kernel takes .{kind}")
        return argument.view(wanted)
    if not isinstance(argument, float | int if real else int) or (real and isinstance(argument, bool)):
        raise PtxError(f"{where}: {type(argument).__name__} given, but the kernel takes .{kind}")
    if real:
        return wanted.type(argument)
    if not -(1 << 8 * size - 1) <= argument < 1 << 8 * size:
        raise PtxError(f"{where}: {argument} does not fit into .{kind}")
    return np.array(argument % (1 << 8 * size), f"u{size}").view(wanted)[()]


# A .cu file to PTX, by nvcc.


def find_nvcc() -> Path:
    """nvcc from PATH, else from $CUDA_HOME or $CUDA_PATH, else from NVIDIA's wheels. Raises PtxError if there
    is none."""
    found = next(_candidates(), None)
    if found is None:
        raise PtxError("no nvcc on PATH, in $CUDA_HOME or in NVIDIA's wheels: `pip install nvidia-cuda-nvcc`")
    return found


def _candidates() -> Iterator[Path]:
    if on_path := shutil.which("nvcc"):
        yield Path(on_path)
    for home in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"):
        if home and (path := Path(home, "bin", "nvcc")).is_file():
            yield path
    for folder in (*site.getsitepackages(), site.getusersitepackages(), *sys.path):
        yield from sorted(Path(folder).glob("nvidia/cu*/bin/nvcc"), reverse=True)


def compile_file(
    source: Path, arch: str = "sm_90a", defines: Sequence[str] = (), flags: Sequence[str] = ()
) -> str:
    """The PTX of a .cu file, with line information. ``defines``: NAME or NAME=VALUE. ``flags``: further
    options of nvcc. Raises PtxError with the compiler's first error."""
    if not source.is_file():
        raise PtxError(f"there is no file {source}")
    target = arch.replace("sm_", "compute_")
    options = ["-ptx", f"-arch={target}", "-lineinfo", "-std=c++17", "-O3", *(f"-D{d}" for d in defines)]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "kernel.ptx")
        command = [str(find_nvcc()), *options, *flags, str(source), "-o", str(out)]
        try:
            environment = {**os.environ, "TMPDIR": folder}  # nvcc leaves files of what does not compile
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        except OSError as error:
            raise PtxError(f"cannot run {command[0]}: {error}") from None
        if done.returncode:
            said = (done.stderr + done.stdout).strip().splitlines()
            first = next(
                (line for line in said if re.search(r"\berror\b", line)), (said or ["no message"])[0]
            )
            raise PtxError(f"nvcc: {first.strip()}")
        return out.read_text(encoding="utf-8")


def compile_text(
    text: str,
    arch: str = "sm_90a",
    defines: Sequence[str] = (),
    flags: Sequence[str] = (),
    name: str = "kernel.cu",
) -> str:
    """The PTX of CUDA C++ source text. ``name``: of the file, in messages."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_text(text, encoding="utf-8")
        return compile_file(path, arch, defines, flags)


def _parameter_names(source: str, entry: str) -> list[str]:
    """The names of a kernel's parameters in the .cu file; [] if its declaration cannot be parsed."""
    source = re.sub(r"//[^\n]*|/\*.*?\*/", "", source, flags=re.DOTALL)
    head = re.search(rf"__global__[^;{{}}]*?\b{re.escape(entry)}\s*\(([^(){{}};]*)\)\s*\{{", source)
    if not head or not head[1].strip():
        return []
    found = [
        re.search(r"(\w+)\s*(?:\[\w*\])?\s*$", piece) for piece in re.sub(r"<[^<>]*>", "", head[1]).split(",")
    ]
    return [match[1] for match in found if match] if all(found) else []
