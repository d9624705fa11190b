"""What sees a mutant without a GPU: the emulated device, values alone, the compiler's figures, counters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log
from pathlib import Path

from gemm_regression.compiler.static import compare, figures, store
from gemm_regression.compiler.tools import ToolchainError, pinned_nvcc, pins
from gemm_regression.counters.check import CounterCheck, CounterEntry
from gemm_regression.counters.check import figures as counted
from gemm_regression.devices import DeviceError, Inputs, Outputs, open_emulated
from gemm_regression.devices.emulated import EmulatedDevice
from gemm_regression.model import Case, Problem
from gemm_regression.oracle import verify
from gemm_regression.run.paths import paths
from tests.ladder import PROJECT
from tests.mutants.mutant import Mutant, build, cases, checked

ARCH = "sm_90a"
# The hazards of the emulated device, by column of the kill matrix; every other check looks at values.
HAZARDS = {"bounds": "bounds", "misaligned": "bounds", "race": "race", "uninit": "uninit"}
HAZARDS |= dict.fromkeys(("barrier", "hang"), "barrier, hang")


@dataclass(frozen=True)
class Seen:
    """``hazards`` are names of checks, on the first problem that shows any; ``value`` is that of the first
    check which shows it to somebody who sees values alone; ``stopped`` whether a launch could not go on;
    ``figures`` and ``counters`` say what changed."""

    hazards: tuple[str, ...] = ()
    value: str = ""
    stopped: bool = False
    figures: str = ""
    counters: str = ""

    @property
    def wrong(self) -> bool:
        return bool(self.hazards or self.value)


class _Held:
    """A device whose last outputs can be looked at again; without one, these outputs once more without the
    hazards: a launch that was stopped has no values."""

    name = "held"

    def __init__(self, device: EmulatedDevice | None, outputs: Sequence[Outputs] = ()) -> None:
        self._device = device
        self.outputs = [replace(output, violations=()) for output in outputs]

    def run_all(self, cases: Sequence[Case], inputs: Sequence[Inputs]) -> list[Outputs]:
        if self._device:
            self.outputs = self._device.run_all(cases, inputs)
        return self.outputs

    def run(self, case: Case, inputs: Inputs) -> Outputs:
        return self.run_all([case], [inputs])[0]

    def close(self) -> None:
        pass


def open_device() -> EmulatedDevice:
    """The emulated device, of the pinned compiler where that is there. Raises NoDevice."""
    open_emulated(ARCH)
    try:
        return EmulatedDevice(ARCH, pinned_nvcc(), by_source=False, cubins=True)
    except ToolchainError:
        return EmulatedDevice(ARCH, by_source=False)


def caught_by_check(mutant: Mutant, folder: Path, device: EmulatedDevice) -> bool:
    """Whether hazards or values show it on a problem that the check without a GPU itself runs."""
    first = cases(mutant, build(mutant, folder))[0]
    known = checked(first.kernel, first.config, first.dtype)
    if mutant.problems:  # what is most like them shows it soonest
        known.sort(key=lambda case: _distance(case.problem, mutant.problems[0]))
    try:
        if any(verify(device, case) for case in known):
            return True
        return any(verify(device, case) for case in paths(device, known).cases)
    except DeviceError as error:
        if error.code != "SIGNATURE":
            raise
        return True


def _distance(one: Problem, other: Problem) -> float:
    sizes = zip((one.m, one.n, one.k, one.batch), (other.m, other.n, other.k, other.batch), strict=True)
    return sum(abs(log((a + 1) / (b + 1))) for a, b in sizes)


def emulate(mutant: Mutant, folder: Path, device: EmulatedDevice) -> Seen:
    """Runs a mutant on its problems until hazards or values show it, and on until values alone do; one whose
    compiled parameters are others than those of a launch is not run.

    Raises DeviceError for one that does not compile or that the emulated device cannot run.
    """
    hazards: list[str] = []
    value, stopped = "", False
    for case in cases(mutant, build(mutant, folder)):
        held = _Held(device)
        try:
            found = [finding.check for finding in verify(held, case)]
        except DeviceError as error:
            if error.code != "SIGNATURE":
                raise
            return Seen(value=error.code, stopped=True)
        alone = [finding.check for finding in verify(_Held(None, held.outputs), case)]
        stopped = stopped or not all(output.complete for output in held.outputs)
        hazards = hazards or [check for check in found if check in HAZARDS]
        # That no thread wrote an element is seen by the device too, where it held the right value before.
        value = next((check for check in (*alone, *found) if check not in HAZARDS), "")
        if value:
            break
    return Seen(tuple(dict.fromkeys(hazards)), value, stopped)


def caught_by_figures(mutant: Mutant, folder: Path) -> str:
    """What of the compiler's figures changed, of a kernel whose figures are stored. Raises ToolchainError
    without the pinned compiler."""
    case = cases(mutant, build(mutant, folder))[0]
    stored = store.load(ARCH, *pins(), PROJECT.static).get(case.variant)
    if stored is None:
        return ""
    return "; ".join(compare(stored, figures(case.kernel, case.config, case.dtype, ARCH)))


def caught_by_counters(mutant: Mutant, folder: Path, device: EmulatedDevice) -> str:
    """What of the stored counts changed, in full of a mutant that nothing but figures and counts can show;
    nothing where the launch has to be stopped. Raises ToolchainError without the pinned compiler."""
    case = cases(mutant, build(mutant, folder))[0]
    entry = CounterEntry(case.variant, (case.kernel, case.config, case.dtype))
    check = CounterCheck(PROJECT.static)
    if entry.name not in check.stored:
        return ""
    if mutant.wrong:
        check.device = device  # it has the kernel ready
    try:
        made = {problem: counted(counts) for problem, counts in check.made(entry).items()}
    except DeviceError:
        return ""
    if made == check.stored[entry.name]:
        return ""
    if mutant.wrong:
        return "other counts"
    return check.finding(entry).split("\n")[0].removeprefix(f"{entry.name}: ")


def examine(mutant: Mutant, folder: Path, device: EmulatedDevice) -> Seen:
    """All of it. Raises as its parts do."""
    seen = emulate(mutant, folder, device)
    # One that hangs would do so for much longer on the larger problems that are counted.
    counters = "" if seen.stopped else caught_by_counters(mutant, folder, device)
    return replace(seen, figures=caught_by_figures(mutant, folder), counters=counters)
