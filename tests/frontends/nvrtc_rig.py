"""CUDA C++ compiled by NVRTC, as programs do it at run time, without a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nvidia
from cuda.bindings import nvrtc


def called(result: tuple[Any, ...]) -> Any:
    """What a function of NVRTC gives. Raises RuntimeError for an error."""
    if result[0] != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise RuntimeError(result[0])
    return result[1] if len(result) > 1 else None


def compiled(file: Path, arch: int, names: Sequence[str], include: bool = False) -> tuple[str, list[str]]:
    """PTX of a .cu file for an architecture such as 90, and the mangled names of name expressions.
    ``include``: it has headers of the CUDA Core Compute Libraries."""
    options = [f"--gpu-architecture=compute_{arch}", "-lineinfo", "-std=c++17", "-default-device"]
    for folder in nvidia.__path__ if include else ():
        options += [f"-I{path.parent}" for path in sorted(Path(folder).glob("cu13/include/cuda_runtime.h"))]
        options += [f"-I{path}" for path in sorted(Path(folder).glob("cu13/include/cccl"))]
    source = file.read_bytes()
    program = called(nvrtc.nvrtcCreateProgram(source, str(file).encode(), 0, [], []))
    for name in names:
        called(nvrtc.nvrtcAddNameExpression(program, name.encode()))
    given = [option.encode() for option in options]
    done = nvrtc.nvrtcCompileProgram(program, len(given), given)
    log = bytearray(called(nvrtc.nvrtcGetProgramLogSize(program)))
    called(nvrtc.nvrtcGetProgramLog(program, log))
    assert done[0] == nvrtc.nvrtcResult.NVRTC_SUCCESS, log.decode()
    mangled = [called(nvrtc.nvrtcGetLoweredName(program, name.encode())).decode() for name in names]
    text = bytearray(called(nvrtc.nvrtcGetPTXSize(program)))
    called(nvrtc.nvrtcGetPTX(program, text))
    return text.decode(), mangled
