"""What a GPU's values, and compute-sanitizer, see of the mutants.

``python -m tests.mutants.gpu [NAME ...]`` stores both in tests/mutants/gpu.json, of all mutants or of those
named; ``python -m tests.mutants.matrix`` shows them.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from queue import SimpleQueue

from pytest_benchmark.utils import get_commit_info

from gemm_regression.baselines.provenance import nvcc_version
from gemm_regression.cli import suite
from gemm_regression.compiler.tools import ToolchainError, find_tool
from gemm_regression.devices import Device, DeviceError, NoDevice, open_cuda
from gemm_regression.devices.cuda.environment import GpuInfo
from gemm_regression.oracle import make_inputs, verify
from gemm_regression.project.suites import VERIFIED
from tests.mutants import WRONG, Mutant, build, cases, real

FILE = Path(__file__).with_name("gpu.json")
PATIENCE = 8.0  # seconds for a launch
PATIENCE_WATCHED = 40.0  # a launch takes many times longer under a sanitizer
AT_ONCE = 8  # processes; each keeps a core busy, and the GPU hardly


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
    watched = suite.watched(real(mutant) for mutant in WRONG if mutant.name == name)
    for tool in suite.TOOLS:
        program = [sys.executable, "-m", "tests.mutants.gpu", "--launch", name]
        said = suite.watch(sanitizer, tool, watched, program)
        why = suite.verdict(tool, said.returncode, said.stdout, watched)
        if why.endswith(" found"):
            return tool
        if why:
            raise ToolchainError(f"{name}: {why}: {said.stdout[-500:]}")
    return ""


def launch(mutant: Mutant) -> None:
    """Launches a mutant once on each of its problems, until one crashes or hangs. Raises NoDevice."""
    device = open_cuda(PATIENCE_WATCHED)
    with tempfile.TemporaryDirectory() as folder:
        for case in cases(mutant, build(mutant, Path(folder))):
            try:
                device.run(case, make_inputs(case.kernel.operation, case.problem, case.dtype, "exact"))
            except DeviceError as error:
                print(f"{case.id}: {error.code}")
                break  # The next problems would take as long to hang.
    device.close()


def examine(part: str, gpu: str, names: Collection[str], look: Callable[[str], str]) -> bool:
    """Looks at mutants side by side and stores what was seen of each at once; False where one failed."""
    found: dict[str, str] = {}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        runs = {pool.submit(look, name): name for name in names}
        for run in as_completed(runs):
            try:
                found[runs[run]] = run.result()
            except ToolchainError as error:
                print(f"mutants: {error}", file=sys.stderr)
                continue
            print(f"{part}: {runs[run]}: {found[runs[run]] or 'not caught'}", flush=True)
            store(gpu, part, found)
    return len(found) == len(names)


def main(args: list[str]) -> int:
    """Exit status: 0; 1 where one failed to run; 2 for an unknown name, or without a GPU."""
    mutants = {mutant.name: mutant for mutant in WRONG if not mutant.sparse}
    if unknown := set(args).difference(mutants, ["--launch"]):
        print(f"mutants: {', '.join(sorted(unknown))}: no mutant that runs on a GPU", file=sys.stderr)
        return 2
    try:
        if args[:1] == ["--launch"]:
            launch(mutants[args[1]])
            return 0
        sanitizer = find_tool("compute-sanitizer")
        devices = [open_cuda(PATIENCE) for _ in range(AT_ONCE)]
    except (NoDevice, ToolchainError) as error:
        print(f"mutants: {error}", file=sys.stderr)
        return 2
    gpu = describe(devices[0].info)
    free: SimpleQueue[Device] = SimpleQueue()
    for device in devices:
        free.put(device)

    def values(name: str) -> str:
        device = free.get()
        try:
            with tempfile.TemporaryDirectory() as folder:
                return caught_by_values(mutants[name], Path(folder), device)
        finally:
            free.put(device)

    names = args or list(mutants)
    done = examine("values", gpu, names, values)
    for device in devices:
        device.close()
    # One of another signature is not launched.
    launched = [name for name in names if load().values.get(name) != "SIGNATURE"]
    watched = examine("sanitizer", gpu, launched, lambda name: caught_by_sanitizer(name, sanitizer))
    return 0 if watched and done else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
