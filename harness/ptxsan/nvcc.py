"""CUDA C++ to PTX by nvcc, and the entries of PTX by the names that they have in C++."""

from __future__ import annotations

import os
import re
import shutil
import site
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ptxsan.frontend import PtxError


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


def parameter_names(source: str, entry: str) -> list[str]:
    """The names of a kernel's parameters in the .cu file; [] if its declaration cannot be parsed."""
    source = re.sub(r"//[^\n]*|/\*.*?\*/", "", source, flags=re.DOTALL)
    head = re.search(rf"__global__[^;{{}}]*?\b{re.escape(entry)}\s*\(([^(){{}};]*)\)\s*\{{", source)
    if not head or not head[1].strip():
        return []
    found = [
        re.search(r"(\w+)\s*(?:\[\w*\])?\s*$", piece) for piece in re.sub(r"<[^<>]*>", "", head[1]).split(",")
    ]
    return [match[1] for match in found if match] if all(found) else []


@dataclass(frozen=True)
class Compiled:
    """PTX and where it comes from. ``name``: of the .cu file, in messages; ``source``: the CUDA C++, "" if
    there is none; ``paths``: of the files that the PTX names, by their last part."""

    name: str
    ptx: str
    source: str
    paths: Mapping[str, str]


def read(
    source: str | Path, arch: str, defines: Sequence[str], flags: Sequence[str], entry: str = ""
) -> Compiled:
    """The PTX of a file or text, of CUDA C++ by nvcc. An ``entry`` such as f<4> is instantiated. Raises
    PtxError for a file that cannot be read, and for source that does not compile."""
    more = f"\nauto* ptxsan_entry = &{entry};\n" if "<" in entry else ""
    if isinstance(source, str) and "\n" in source:
        if re.search(r"^\s*\.version\b", source, re.MULTILINE):
            return _of_ptx(source, "kernel.ptx")
        return _of_ptx(compile_text(source + more, arch, defines, flags), "kernel.cu", source)
    path = Path(source)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PtxError(f"cannot read {path}: {error}") from None
    if path.suffix == ".ptx":
        return _of_ptx(text, path.name)
    if more:
        here = [*flags, f"-I{path.parent.absolute()}"]
        ptx = compile_text(text + more, arch, defines, here, path.name)
    else:
        ptx = compile_file(path, arch, defines, flags)
    made = _of_ptx(ptx, path.name, text)
    return replace(made, paths={**made.paths, path.name: str(path)})


def _of_ptx(ptx: str, name: str, source: str = "") -> Compiled:
    files = re.findall(r'^\s*\.file\s+(\d+)\s+"([^"\n]+)"', ptx, re.MULTILINE)
    first = [Path(path).name for number, path in files if number == "1"]
    paths = {Path(path).name: path for _, path in reversed(files)}
    return Compiled(name if source or not first else first[0], ptx, source, paths)


def plain(mangled: str) -> str:
    """The name of a C++ function without its arguments: _Z3sumPf and _ZN1a3sumEPf are sum."""
    name, at = mangled, re.match(r"_ZN?", mangled)
    rest = mangled[at.end() :] if at else ""
    while match := re.match(r"(\d+)", rest):
        name = rest[match.end() : match.end() + int(match[1])]
        rest = rest[match.end() + int(match[1]) :]
    return name


def entries(ptx: str) -> list[str]:
    """The names of a module's entries."""
    return re.findall(r"\.entry\s+([\w$]+)", ptx)


def entry_name(ptx: str, wanted: str | None) -> str:
    """The entry that C++ or PTX calls so; the only one if no name is ``wanted``. Raises PtxError."""
    names = entries(ptx)
    found = [n for n in names if n == wanted] or [n for n in names if wanted in (None, plain(n))]
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
