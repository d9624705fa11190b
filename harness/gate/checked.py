"""From a case and a device to whether it is right, in the gate's own words. Knows neither pytest nor CUDA."""

from __future__ import annotations

from dataclasses import dataclass

from harness.devices import Device, DeviceError
from harness.model import Case, Kernel
from harness.oracle import Finding, verify
from harness.verdicts.judge import broken
from harness.verdicts.vocabulary import Outcome, VerdictKind

UNSUPPORTED = "UNSUPPORTED"  # an interpreter lacks an instruction
RIGHT = Outcome(VerdictKind.PASS, "RIGHT")
NOT_EMULATED = Outcome(VerdictKind.NOT_EMULATED, UNSUPPORTED)
REFUSED = Outcome(VerdictKind.REFUSED, "NOT_TAKEN")


@dataclass(frozen=True)
class Checked:
    """What checking a case, or a variant, came to.

    Attributes:
        name: its id.
        kernel: its kernel.
        outcome: the verdict.
        findings: the oracle's.
        reasons: of a device that could not run it, or a kernel that does not take it; a line each.
    """

    name: str
    kernel: Kernel
    outcome: Outcome
    findings: tuple[Finding, ...] = ()
    reasons: tuple[str, ...] = ()


def check(device: Device, case: Case) -> Checked:
    """Runs a case on the oracle's inputs; what the device cannot do is an outcome, never an exception."""
    kernel = case.kernel
    if case.refusals:
        return Checked(case.id, kernel, REFUSED, reasons=case.refusals)
    try:
        findings = tuple(verify(device, case))
    except DeviceError as error:
        return failed(case.id, kernel, error)
    if not findings:
        return Checked(case.id, kernel, RIGHT)
    if kernel.features and {finding.check.upper() for finding in findings} == {UNSUPPORTED}:
        return Checked(case.id, kernel, NOT_EMULATED, findings)
    return Checked(case.id, kernel, broken("WRONG").outcome, findings)


def failed(name: str, kernel: Kernel, error: DeviceError) -> Checked:
    """The verdict where a device failed. An instruction that the interpreter lacks is no fault of a kernel
    that declares features; without them it is red, lest the kernel be taken for checked."""
    lacking = error.code == UNSUPPORTED and kernel.features
    outcome = NOT_EMULATED if lacking else broken(error.code).outcome
    return Checked(name, kernel, outcome, reasons=(str(error),))
