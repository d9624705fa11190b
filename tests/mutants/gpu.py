"""What a GPU's values, and compute-sanitizer, see of the mutants.

Stored in tests/mutants/gpu.json: the values' part by ``GEMM_MUTANTS_ON_GPU=1 pytest tests/test_mutants.py
-m gpu``, the sanitizer's by ``python -m tests.mutants.gpu``. ``python -m tests.mutants.matrix`` shows them.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pytest_benchmark.utils import get_commit_info

from harness.baselines.provenance import nvcc_version
from harness.commands import sanitize
from harness.compiler.errors import ToolchainError
from harness.compiler.tools import find_tool
from harness.devices import Device, DeviceError, NoDevice, open_cuda
from harness.devices.cuda.environment import GpuInfo
from harness.oracle import make_inputs, verify
from harness.project.suites import VERIFIED
from tests.mutants import WRONG, Mutant, build, cases, real

FILE = Path(__file__).with_name("gpu.json")
STORE = "GEMM_MUTANTS_ON_GPU"  # set in the environment of a run on a GPU, to store what it sees
PATIENCE = 40.0  # seconds for a launch, which takes many times longer under a sanitizer
AT_ONCE = 8  # processes under the sanitizer; each keeps a core busy, and the GPU hardly


@dataclass(frozen=True)
class Results:
    """By mutant the check, error code or tool that caught it, empty where none did; by part the commit that
    ran last; ``gpu`` says what it ran on."""

    gpu: str = ""
    values: Mapping[str, str] = field(default_factory=dict)
    sanitizer: Mapping[str, str] = field(default_factory=dict)
    commits: Mapping[str, str] = field(default_factory=dict)


def load(path: Path = FILE) -> Results:
    """What is stored; nothing where there is no file."""
    return Results(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else Results()


def store(gpu: str, part: str, found: Mapping[str, str], path: Path = FILE) -> None:
    """Adds to ``part``, values or sanitizer; what another GPU saw is dropped."""
    before = load(path)
    kept = asdict(before if before.gpu == gpu else Results(gpu))
    kept[part] = dict(sorted({**kept[part], **found}.items()))
    kept["commits"][part] = get_commit_info()["id"]  # type: ignore[no-untyped-call]
    path.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def describe(info: GpuInfo) -> str:
    """What the results depend on."""
    return f"{info.name}, driver {info.driver}, nvcc {nvcc_version()}"


def caught_by_values(mutant: Mutant, folder: Path, device: Device) -> str:
    """The first check that fails on a device, or the code of its error; empty where all is right."""
    for case in cases(mutant, build(mutant, folder), (*VERIFIED, *mutant.problems)):
        try:
            findings = verify(device, case)
        except DeviceError as error:
            return error.code
        if findings:
            return findings[0].check
    return ""


def caught_by_sanitizer(name: str, sanitizer: str) -> str:
    """The first of compute-sanitizer's tools that reports anything. Raises ToolchainError where one fails."""
    watched = sanitize.watched(real(mutant) for mutant in WRONG if mutant.name == name)
    for tool in sanitize.TOOLS:
        program = [sys.executable, "-m", "tests.mutants.gpu", "--launch", name]
        said = sanitize.watch(sanitizer, tool, watched, program)
        why = sanitize.verdict(tool, said.returncode, said.stdout, watched)
        if why.endswith(" found"):
            return tool
        if why:
            raise ToolchainError(f"{name}: {why}: {said.stdout[-500:]}")
    return ""


def launch(mutant: Mutant) -> None:
    """Launches a mutant once on each of its problems, until one crashes or hangs. Raises NoDevice."""
    device = open_cuda(PATIENCE)
    with tempfile.TemporaryDirectory() as folder:
        for case in cases(mutant, build(mutant, Path(folder))):
            try:
                device.run(case, make_inputs(case.kernel.operation, case.problem, case.dtype, "exact"))
            except DeviceError as error:
                print(f"{case.id}: {error.code}")
                break  # The next problems would take as long to hang.
    device.close()


def main(args: list[str]) -> int:
    """Exit status: 0; 1 where a run under the sanitizer failed; 2 without a GPU or compute-sanitizer."""
    try:
        if args[:1] == ["--launch"]:
            launch(next(mutant for mutant in WRONG if mutant.name == args[1]))
            return 0
        device = open_cuda(120.0)
        device.close()
        sanitizer = find_tool("compute-sanitizer")
    except (NoDevice, ToolchainError) as error:
        print(f"mutants: {error}", file=sys.stderr)
        return 2
    # One of another signature is not launched.
    never = [name for name, check in load().values.items() if check == "SIGNATURE"]
    names = [mutant.name for mutant in WRONG if not mutant.sparse and mutant.name not in never]
    found: dict[str, str] = {}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        runs = {pool.submit(caught_by_sanitizer, name, sanitizer): name for name in names}
        for run in as_completed(runs):
            try:
                found[runs[run]] = run.result()
            except ToolchainError as error:
                print(f"mutants: {error}", file=sys.stderr)
                continue
            print(f"{runs[run]}: {found[runs[run]] or 'not caught'}", flush=True)
            store(describe(device.info), "sanitizer", found)  # each is there if the next takes too long
    return 0 if len(found) == len(names) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
