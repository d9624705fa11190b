"""Every kernel variant of the suite is right on every problem of the suite, on whichever device there is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness.devices import Device, DeviceError
from harness.model import Case
from harness.oracle import verify


def test_kernel(verify_case: Case, device: Device, record_property: Callable[[str, object], None]) -> None:
    record_property("variant", verify_case.variant)
    record_property("problem", verify_case.problem.id)
    try:
        findings = verify(device, verify_case)
    except DeviceError as error:
        pytest.fail(f"CRASHED: {verify_case.id}: {error.code}: {error}", pytrace=False)
    record_property("findings", " ".join(finding.check for finding in findings))
    if findings:
        pytest.fail("\n".join(["WRONG: " + verify_case.id, *map(str, findings)]), pytrace=False)
