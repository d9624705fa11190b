"""The planted bugs without a GPU: on ptxsan, and on Numba's CUDA simulator where it is installed."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import ptxsan
from ptxsan.nvcc import find_nvcc
from tests.tools.bugs import ARCH, BUGS, VARIANTS, Bug, array, shape_of

ROOT = Path(__file__).parents[2]
STEPS = 20_000  # basic blocks until a launch counts as hanging
PATIENCE = 60  # seconds for a launch of Numba's simulator


@cache
def _module(file: Path, variant: str) -> ptxsan.Module:
    return ptxsan.load(file, arch=ARCH, defines=("BUG",) if variant == "bug" else ())


def launch(bug: Bug, variant: str) -> ptxsan.LaunchResult:
    """A launch on ptxsan."""
    given: list[object] = []
    for argument in bug.arguments:
        before = argument if isinstance(argument, int) else array(argument)
        given.append(ptxsan.Empty(*shape_of(str(argument))) if before is None else before)
    kernel = _module(bug.path, variant).kernel(bug.name)
    return kernel[bug.grid, bug.block, bug.shared](*given, steps=STEPS)


def said(result: ptxsan.LaunchResult) -> list[str]:
    """What ptxsan says, notes with their name before them."""
    hazards = [f"{each.check}: {each.message}" for each in result.hazards]
    return hazards + [f"note: {each.check}: {each.message}" for each in result.notes]


def digest(result: ptxsan.LaunchResult) -> str:
    """The SHA-256 of all arrays, as tests/tools/launch.py has it of a GPU's."""
    return hashlib.sha256(b"".join(held.tobytes() for held in result.arrays.values())).hexdigest()


def nvcc_version() -> str:
    """``13.0.88``: of the compiler whose PTX is executed."""
    said = subprocess.run([str(find_nvcc()), "--version"], capture_output=True, text=True, check=True)
    return str(re.findall(r"V(\d[\d.]*)", said.stdout)[0])


def on_ptxsan() -> dict[str, dict[str, str]]:
    """The first check that finds each bug, and each twin; and the digest of the twin."""
    found = {}
    for bug in BUGS:
        results = {variant: launch(bug, variant) for variant in VARIANTS}
        kinds = {v: re.sub(r"^((?:note: )?\w+): .*", r"\1", (said(r) or [""])[0]) for v, r in results.items()}
        found[bug.name] = kinds | {"digest": digest(results["twin"])}
    return found


def on_numba() -> dict[str, dict[str, str]] | None:
    """What the simulator shows: an exception, wrong values, a hang; None where Numba is not installed."""
    if importlib.util.find_spec("numba") is None:
        return None
    found = {}
    for bug in BUGS:
        if not bug.numba:
            continue
        both = {variant: _simulated(bug.name, variant) for variant in VARIANTS}
        right = re.fullmatch("[0-9a-f]{64}", both["twin"])
        wrong = "wrong values" if re.fullmatch("[0-9a-f]{64}", both["bug"]) else both["bug"]
        found[bug.name] = {
            "bug": "" if both["bug"] == both["twin"] else wrong,
            "twin": "" if right else both["twin"],
        }
    return found


def _simulated(name: str, variant: str) -> str:
    """The digest of the arrays, or what ended the launch."""
    command = [sys.executable, "-m", "tests.tools.numba_kernels", name, variant]
    environment = {"NUMBA_ENABLE_CUDASIM": "1", "PYTHONPATH": str(ROOT)}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE, env=environment, cwd=ROOT, check=False
        )
    except subprocess.TimeoutExpired:
        return "hang"
    if done.returncode not in (0, 3):
        raise RuntimeError(f"{name}: {done.stderr[-500:]}")
    return done.stdout.strip().splitlines()[-1]
