"""From a case and a device to a verdict on its correctness. Knows neither pytest nor CUDA."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from gemm_regression.devices import Device, DeviceError
from gemm_regression.judge.evidence import broken
from gemm_regression.judge.vocabulary import Outcome, VerdictKind
from gemm_regression.model import Case, Finding, Kernel, Waiver
from gemm_regression.oracle import examine


def unused(
    declared: Mapping[str, Sequence[Waiver]],
    used: Mapping[str, Collection[str]],
    planned: Mapping[str, Collection[str]],
    done: Collection[str],
) -> list[tuple[str, Waiver]]:
    """Kernel and waiver of those that matched no finding.

    By kernel: ``declared`` waivers; those ``used``, as text; the ids of all cases ``planned`` for it, which
    the whole suite has. A kernel of which not all cases are ``done`` is not judged: one of the others may be
    the case in point.
    """
    return [
        (kernel, waiver)
        for kernel, waivers in declared.items()
        if planned.get(kernel) and set(planned[kernel]) <= set(done)
        for waiver in waivers
        if str(waiver) not in used.get(kernel, ())
    ]


UNSUPPORTED = "UNSUPPORTED"  # the interpreter does not support an instruction
CORRECT = Outcome(VerdictKind.PASS, "CORRECT")
NOT_EMULATED = Outcome(VerdictKind.NOT_EMULATED, UNSUPPORTED)
REFUSED = Outcome(VerdictKind.REFUSED, "NOT_TAKEN")


@dataclass(frozen=True)
class Checked:
    """The result of checking a case, or a variant.

    Attributes:
        name: its id.
        kernel: its kernel.
        outcome: the verdict.
        findings: the oracle's.
        reasons: why the device could not run it, or the kernel does not accept it; one line each.
        notes: what the device remarks on, which is no error.
        waived: the waivers of the kernel's declaration that findings were accepted by.
    """

    name: str
    kernel: Kernel
    outcome: Outcome
    findings: tuple[Finding, ...] = ()
    reasons: tuple[str, ...] = ()
    notes: tuple[Finding, ...] = ()
    waived: tuple[Waiver, ...] = ()


def check(device: Device, case: Case) -> Checked:
    """Runs a case on the oracle's inputs. A failure of the device is an outcome, not an exception."""
    kernel = case.kernel
    if case.refusals:
        return Checked(case.id, kernel, REFUSED, reasons=case.refusals)
    try:
        examined = examine(device, case)
    except DeviceError as error:
        return failed(case.id, kernel, error)
    findings, outcome = examined.findings, CORRECT
    if findings:
        outcome = broken("WRONG").outcome
        if kernel.features and {finding.check.upper() for finding in findings} == {UNSUPPORTED}:
            outcome = NOT_EMULATED
    return Checked(case.id, kernel, outcome, findings, notes=examined.notes, waived=examined.waived)


def failed(name: str, kernel: Kernel, error: DeviceError) -> Checked:
    """The verdict if the device failed. An unsupported instruction is accepted for a kernel that declares
    features; without them it fails, so that the kernel does not count as checked."""
    lacking = error.code == UNSUPPORTED and kernel.features
    outcome = NOT_EMULATED if lacking else broken(error.code).outcome
    return Checked(name, kernel, outcome, reasons=(str(error),))
