"""What PTX's rules, an H200 and compute-sanitizer's synccheck say of each pattern of barriers.

``python -m tests.mutants.synccheck`` writes docs/results/synccheck.md; with a GPU it first runs every pattern
there, alone and under synccheck, and stores what it saw in tests/mutants/synccheck.json.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

import ptxsan
from gemm_regression.cli import suite
from gemm_regression.compiler.tools import ToolchainError, find_tool
from ptxsan.nvcc import compile_text

ARCH = "sm_90a"
THREADS = 128
FILE = Path(__file__).with_suffix(".json")
LIST = Path(__file__).with_suffix(".toml")
PAGE = Path(__file__).parents[2] / "docs" / "results" / "synccheck.md"
PATIENCE = 15.0  # seconds, of which a launch takes none
AT_ONCE = 4  # processes
HUNG = -9  # the exit status of `timeout --signal=KILL` that had to kill

_SOURCE = """
extern "C" __global__ void pattern(int* out)
{{
    __shared__ int s[256];
    int t = threadIdx.x, warp = t / 32, lane = t % 32, v = 0;
    s[t] = t;
    {body}
    out[t] = v;
}}
"""


@dataclass(frozen=True)
class Pattern:
    """An entry of synccheck.toml: ``body`` of a kernel of 4 warps; ``verdict``: clean, note or error."""

    about: str
    body: str
    verdict: str


PATTERNS = {name: Pattern(**of) for name, of in tomllib.loads(LIST.read_text(encoding="utf-8")).items()}


@dataclass(frozen=True)
class Seen:
    """On a GPU, by pattern: whether it ends, and what synccheck says; ``gpu`` is its name."""

    gpu: str = ""
    ends: Mapping[str, str] = field(default_factory=dict)
    synccheck: Mapping[str, str] = field(default_factory=dict)


def source(name: str) -> str:
    """The pattern as a kernel, CUDA."""
    return _SOURCE.format(body=PATTERNS[name].body)


@cache
def emulate(name: str) -> ptxsan.LaunchResult:
    """The pattern without a GPU."""
    out = np.zeros(THREADS, np.int32)
    return ptxsan.run(source(name), grid=1, block=THREADS, arguments=[out], arch=ARCH)


def checks(name: str) -> str:
    """What is told of a pattern here: the checks that are errors, or those that are notes."""
    result = emulate(name)
    told = [hazard.check for hazard in result.hazards or result.notes]
    kind = "error" if result.hazards else "note"
    return f"{kind}: {', '.join(dict.fromkeys(told))}" if told else "clean"


def render(seen: Seen) -> str:
    """The page."""
    on = f"on an {seen.gpu}" if seen.gpu else "not run on a GPU yet"
    lines = [
        "# Barriers: PTX's rules, a GPU, synccheck\n",
        "What is told of each pattern of barriers without a GPU, with the reasons in",
        "[emulation.md](../emulation.md#barriers), next to what happens on a GPU and what",
        f"compute-sanitizer's synccheck says, {on}. Four warps a block. Written by",
        "`python -m tests.mutants.synccheck`; do not edit.\n",
        "| pattern | here | ends on the GPU | synccheck |",
        "| --- | --- | --- | --- |",
    ]
    for name, pattern in PATTERNS.items():
        cells = pattern.about, checks(name), seen.ends.get(name, ""), seen.synccheck.get(name, "")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


# On a GPU


def launch(name: str) -> None:
    """Launches a pattern once and prints its values as JSON, in a process of its own: it may hang."""
    import pycuda.autoinit
    import pycuda.driver as cuda

    text = compile_text(source(name), ARCH, (), ())
    function = cuda.module_from_buffer(text.encode() + b"\0").get_function("pattern")
    out = np.zeros(THREADS, np.int32)
    function(cuda.InOut(out), block=(THREADS, 1, 1), grid=(1, 1))
    print(json.dumps([pycuda.autoinit.device.name(), *out.tolist()]))


def look(name: str, sanitizer: str) -> tuple[str, str, str]:
    """The GPU's name, whether the pattern ends, what synccheck says of it."""
    program = [sys.executable, "-m", "tests.mutants.synccheck", "--launch", name]
    status, said = _run(program)
    last = (said.strip().splitlines() or [""])[-1]
    gpu, ends = "", "hangs" if status == HUNG else f"fails: {last}"
    if not status:
        gpu, *values = json.loads(last)
        ours = emulate(name)
        same = "same" if values == ours.arrays[0].tolist() else "other"
        ends = "yes" if ours.stopped else f"yes, {same} values"
    status, said = _run([sanitizer, "--tool", "synccheck", "--target-processes", "all", *program])
    kinds = sorted({finding.kind for finding in suite.findings(said, ["pattern"])})
    return gpu, ends, ", ".join([*kinds, *["hangs"] * (status == HUNG)]) or "nothing"


def _run(command: list[str]) -> tuple[int, str]:
    """Exit status, HUNG after PATIENCE, and output of a program, which ``timeout`` ends with its children."""
    limited = ["timeout", "--signal=KILL", str(PATIENCE), *command]
    done = subprocess.run(limited, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    return done.returncode, done.stdout.decode(errors="replace")


def examine() -> Seen:
    """All patterns. Raises ToolchainError without compute-sanitizer."""
    sanitizer = find_tool("compute-sanitizer")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        looks = list(pool.map(lambda name: look(name, sanitizer), PATTERNS))
    gpus, ends, said = zip(*looks, strict=True)
    gpu = next(filter(None, gpus), "")
    return Seen(gpu, dict(zip(PATTERNS, ends, strict=True)), dict(zip(PATTERNS, said, strict=True)))


def load() -> Seen:
    """What is stored; nothing where there is no file."""
    return Seen(**json.loads(FILE.read_text(encoding="utf-8"))) if FILE.exists() else Seen()


def main(args: list[str]) -> int:
    """Exit status: 0; 2 without compute-sanitizer, where there is a GPU."""
    if args[:1] == ["--launch"]:
        launch(args[1])
        return 0
    has_gpu = Path("/dev/nvidiactl").exists()
    try:
        seen = examine() if has_gpu else load()
    except ToolchainError as error:
        print(f"synccheck: {error}", file=sys.stderr)
        return 2
    if has_gpu:
        FILE.write_text(json.dumps(asdict(seen), indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(render(seen), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
