"""A .cu file to PTX, by nvcc."""

from __future__ import annotations

import os
import re
import shutil
import site
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from ptxsan.frontend import PtxError


def find() -> Path:
    """The nvcc of PATH, else of $CUDA_HOME or $CUDA_PATH, else of NVIDIA's wheels. Raises PtxError."""
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
    """The PTX of a .cu file, with the lines of the file. ``defines`` are NAME or NAME=VALUE, ``flags`` more
    of nvcc's own. Raises PtxError with the compiler's first error."""
    if not source.is_file():
        raise PtxError(f"there is no file {source}")
    target = arch.replace("sm_", "compute_")
    options = [
        "-ptx",
        f"-arch={target}",
        "-lineinfo",
        "-std=c++17",
        "-O3",
        *(f"-D{d}" for d in defines),
        *flags,
    ]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "kernel.ptx")
        command = [str(find()), *options, str(source), "-o", str(out)]
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
    text: str, arch: str = "sm_90a", defines: Sequence[str] = (), flags: Sequence[str] = ()
) -> str:
    """The PTX of CUDA C++ as text, which becomes the file kernel.cu."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cu")
        path.write_text(text, encoding="utf-8")
        return compile_file(path, arch, defines, flags)


def parameter_names(source: str, entry: str) -> list[str]:
    """The names of a kernel's parameters as the text of the .cu file has them; [] where it cannot be read."""
    source = re.sub(r"//[^\n]*|/\*.*?\*/", "", source, flags=re.DOTALL)
    head = re.search(rf"__global__[^;{{}}]*?\b{re.escape(entry)}\s*\(([^(){{}};]*)\)\s*\{{", source)
    if not head or not head[1].strip():
        return []
    found = [
        re.search(r"(\w+)\s*(?:\[\w*\])?\s*$", piece) for piece in re.sub(r"<[^<>]*>", "", head[1]).split(",")
    ]
    return [match[1] for match in found if match] if all(found) else []
