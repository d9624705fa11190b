"""Little kernels of PTX, executed a lane a row: operands in, results out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from ptxsan import Buffer, GlobalMemory, PreparedKernel, Report, parse

Array = np.ndarray[Any, np.dtype[Any]]

# What NumPy calls the types of tensor cores.
TYPES: dict[str, Any] = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "tf32": np.float32, "f32": np.float32, "f64": np.float64,
    "s8": np.int8, "u8": np.uint8, "s32": np.int32,
    "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2,
}  # fmt: skip

HEAD = (Path(__file__).parent / "snippets" / "head.ptx").read_text(encoding="utf-8")


def kernel(body: str, outside: str = "", inside: str = "", target: str = "sm_90a") -> str:
    """PTX of a kernel: lane i finds 16 bytes of operands at [%rd4] and leaves 8 bytes at [%rd6]; its number
    in the grid is %r4, its thread %r1, its block %r2; k_n is %r9."""
    head = HEAD.format(outside=outside, inside=inside).replace("sm_90a", target)
    return head + body + "\nret;\n}\n"


def execute(
    text: str,
    operands: Array,
    threads: int = 32,
    n: int = 0,
    launches: int = 1,
    budget: int = 10_000,
    known: Array | None = None,
    dynamic_shared: int = 0,
) -> tuple[Array, Report]:
    """Runs rows of operands (lanes, 4) uint32, so many lanes a block; results (lanes, 2) uint32 and the
    report. Launch i of several has the rows i further up, results (launches, lanes, 2), and n + i.

    ``known`` (lanes, 4) bool tells which operands the kernel may read."""
    machine = PreparedKernel(parse(text, "k"), "k.cu")
    operands = np.ascontiguousarray(operands, np.uint32)
    lanes = len(operands)
    given = [np.roll(operands, -i, axis=0) for i in range(launches)]
    source = Buffer("X", 0, given, known=None if known is None else [known] * launches)
    target = Buffer("Y", 1, [np.zeros((lanes, 2), np.uint32)] * launches, writable=True)
    parameters = [
        [np.int64(source.address(i)), np.int64(target.address(i)), np.int32(n + i)] for i in range(launches)
    ]
    grid = (lanes // threads, 1, 1)
    memory = GlobalMemory([source, target])
    report = machine.run(grid, (threads, 1, 1), dynamic_shared, parameters, memory, budget)
    out = [target.values(i) for i in range(launches)]
    return (out[0] if launches == 1 else np.stack(out)), report


def results(body: str, *columns: Sequence[int] | Array, wide: bool = False) -> Array:
    """What a body makes of operands by column; the first word of each result, or both as 64 bits."""
    count = max(len(c) for c in columns)
    rows = -(-count // 32) * 32
    operands = np.zeros((rows, 4), np.uint32)
    for i, column in enumerate(columns):
        operands[:count, i] = np.asarray(column).astype(np.uint32)
    out, report = execute(kernel(body), operands)
    assert report.hazards == []
    return out.view(np.uint64)[:count, 0] if wide else out[:count, 0]


# Shared memory of a little kernel.
CELLS = ".shared .align 16 .b8 cells[512];"


def numbers(lanes: int) -> Array:
    """Operands that differ: 4 · lane + column."""
    return np.arange(4 * lanes, dtype=np.uint32).reshape(lanes, 4)


def per_lane(body: str, inside: str = "", threads: int = 32, blocks: int = 1) -> list[int]:
    """The first word that each lane leaves, of a body with nothing to report."""
    out, report = execute(kernel(body, inside=inside), numbers(threads * blocks), threads)
    assert report.hazards == []
    return [int(v) for v in out[:, 0]]


def program(body: str, inputs: int, inside: str = "", outside: str = "") -> str:
    """PTX of a kernel of a result and so many inputs: the address of the result is %rd10, those of the inputs
    %rd11, %rd12 …; %r1 is the thread."""
    names = ["out", *(f"in{i}" for i in range(inputs))]
    parameters = ", ".join(f".param .u64 k_{name}" for name in names)
    text = f".version 9.0\n.target sm_90a\n.address_size 64\n{outside}\n.visible .entry k({parameters})\n{{\n"
    text += (
        ".reg .pred %p<4>;\n.reg .b16 %rs<10>;\n.reg .b32 %r<60>;\n.reg .f32 %f<60>;\n.reg .b64 %rd<30>;\n"
    )
    text += f"{inside}\n" + "".join(f"ld.param.u64 %rd1{i}, [k_{name}];\n" for i, name in enumerate(names))
    return text + f"mov.u32 %r1, %tid.x;\n{body}\nret;\n}}\n"


def launch(
    body: str, inputs: Sequence[Array], result: Array, threads: int = 32, inside: str = "", outside: str = ""
) -> tuple[Array, Report]:
    """Runs a program on one block; its arrays are (rows, columns). The result, and what is reported."""
    text = program(body, len(inputs), inside, outside)
    buffers = [Buffer("R", 0, [result], writable=True)]
    buffers += [Buffer(f"I{i}", 1 + i, [each]) for i, each in enumerate(inputs)]
    values = [np.int64(buffer.address(0)) for buffer in buffers]
    memory = GlobalMemory(buffers)
    report = PreparedKernel(parse(text, "k"), "k.cu").run(
        (1, 1, 1), (threads, 1, 1), 0, [values], memory, 1000
    )
    return buffers[0].values(0), report
