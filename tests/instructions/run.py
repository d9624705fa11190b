"""Probes as one module of PTX, run on the emulated device or on a GPU."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from gemm_regression.compiler.tools import find_nvcc
from ptxsan import Buffer, GlobalMemory, PreparedKernel, parse
from tests.instructions.probe import BLOCKS, IN, LANES, OUT, THREADS, Array, Probe, Type, operands_of, split

ARCH = "sm_90a"
_HEAD = ".version 9.0\n.target {arch}\n.address_size 64\n"
_ENTRY = Path(__file__).with_name("entry.ptx").read_text(encoding="utf-8")


def _registers(token: str, counts: dict[str, int]) -> tuple[Type, list[str]]:
    kind, count = split(token)
    first = counts.get(kind.register, 0)
    counts[kind.register] = first + count
    return kind, [f"%{kind.register}{first + j}" for j in range(count)]


def _operand(names: list[str], token: str) -> str:
    return "{" + ", ".join(names) + "}" if "*" in token else names[0]


def _body(probe: Probe) -> str:
    counts: dict[str, int] = {}
    results = [_registers(token, counts) for token in probe.results]
    operands = [_registers(token, counts) for token in probe.operands]
    spare = f"%r{counts.get('r', 0)}"
    lines, at = [], 0
    for (kind, names), token in zip(operands, probe.operands, strict=True):
        for j, name in enumerate(names):
            place = f"[%src+{at + j * kind.size}]"
            if kind.register == "p":
                lines += [f"ld.global.u32 {spare}, {place};", f"and.b32 {spare}, {spare}, 1;"]
                lines.append(f"setp.ne.u32 {name}, {spare}, 0;")
            else:
                lines.append(f"ld.global.{kind.kind} {name}, {place};")
        at += -(-kind.size * split(token)[1] // 8) * 8
    places = [
        *(_operand(names, token) for (_, names), token in zip(results, probe.results, strict=True)),
        *(_operand(names, token) for (_, names), token in zip(operands, probe.operands, strict=True)),
    ]
    if "{" in probe.code:
        lines.append(probe.code.format(*places))
    else:
        lines.append(f"{probe.code} {', '.join(places)};")
    at = 0
    for kind, names in results:
        for name in names:
            if kind.register == "p":
                lines += [f"selp.u32 {spare}, 1, 0, {name};", f"st.global.u32 [%dst+{at}], {spare};"]
            else:
                lines.append(f"st.global.{kind.kind} [%dst+{at}], {name};")
            at += kind.size
    assert at <= OUT, probe
    return "\n".join(lines)


def text_of(probes: Sequence[Probe], arch: str = ARCH) -> str:
    """A module with an entry p0, p1 … for each probe."""
    sizes = {"threads": THREADS, "size_in": IN, "size_out": OUT, "shared": 16 * THREADS}
    entries = (_ENTRY.format(number=n, body=_body(probe), **sizes) for n, probe in enumerate(probes))
    return _HEAD.format(arch=arch) + "".join(entries)


def assembled(probes: Sequence[Probe]) -> bytes:
    """A cubin of them. Raises CalledProcessError where ptxas refuses one."""
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder, "probes.ptx"), Path(folder, "probes.cubin")
        source.write_text(text_of(probes), encoding="utf-8")
        ptxas = find_nvcc().path.with_name("ptxas")
        command = [str(ptxas), f"-arch={ARCH}", "-O1", str(source), "-o", str(out)]
        subprocess.run(command, check=True, capture_output=True, text=True)
        return out.read_bytes()


def emulated(probe: Probe) -> Array:
    """(LANES, OUT) bytes, of a kernel with nothing to report."""
    given = operands_of(probe)
    source = Buffer("in", 0, [given.reshape(1, -1).view(np.uint32)])
    target = Buffer("out", 1, [np.zeros((1, LANES * OUT // 4), np.uint32)], writable=True)
    machine = PreparedKernel(parse(text_of([probe]), "p0"), "probes.ptx")
    parameters = [[np.int64(source.address(0)), np.int64(target.address(0))]]
    memory = GlobalMemory([source, target])
    report = machine.run((BLOCKS, 1, 1), (THREADS, 1, 1), 0, parameters, memory, 10_000)
    assert report.hazards == []
    return target.values(0).view(np.uint8).reshape(LANES, OUT)


def on_gpu(probes: Sequence[Probe]) -> Iterator[Array]:
    """The same of each probe, on the GPU of the current context."""
    import pycuda.driver as cuda

    module = cuda.module_from_buffer(assembled(probes))
    source, target = cuda.mem_alloc(LANES * IN), cuda.mem_alloc(LANES * OUT)
    for number, probe in enumerate(probes):
        cuda.memcpy_htod(source, operands_of(probe))
        cuda.memset_d8(target, 0, LANES * OUT)
        module.get_function(f"p{number}")(source, target, block=(THREADS, 1, 1), grid=(BLOCKS, 1))
        out = np.empty((LANES, OUT), np.uint8)
        cuda.memcpy_dtoh(out, target)
        yield out
