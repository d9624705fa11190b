"""What the worker uses of pycuda.compiler, by the same names: nvcc, and the suite's cache."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gemm_regression.compiler import tools
from gemm_regression.compiler.nvcc import COMPILE_SECONDS
from gemm_regression.compiler.units import UNIT
from gemm_regression.devices.cuda import bindings


def compile(
    source: str,
    nvcc: str,
    options: Sequence[str],
    include_dirs: Sequence[str],
    no_extern_c: bool,
    arch: str,
    cache_dir: str | bool,
) -> bytes:
    """The cubin, from the suite's cache unless ``cache_dir`` is False. Raises bindings.CompileError with
    nvcc's lines."""
    command = [nvcc, "-cubin", *options, f"-arch={arch}", *(f"-I{folder}" for folder in include_dirs)]
    entry = tools.cache_entry([tools.find_nvcc().version, command, source])
    if cache_dir and (kept := tools.load_entry(entry)):
        return kept[0]
    with tempfile.TemporaryDirectory(prefix="gemm-") as folder:
        Path(folder, UNIT).write_text(source, encoding="utf-8")
        tools.fixed_addresses()
        environment = {**tools.environment(), "TMPDIR": folder}
        command += ["-o", "out", UNIT]
        done = tools.said(command, cwd=folder, timeout=COMPILE_SECONDS, env=environment)
        if done.returncode:
            raise bindings.CompileError(done.stdout, done.stderr)
        made = Path(folder, "out").read_bytes()
    tools.store_entry(entry, made, "")
    return made


def SourceModule(source: str, **given: Any) -> bindings.Module:
    """Compiled as by `compile`, and loaded."""
    return bindings.Module(compile(source, **given))
