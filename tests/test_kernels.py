"""Every kernel variant of the suite is right on every problem of the suite, on whichever device there is."""

from __future__ import annotations

import pytest

from harness.devices import Device, DeviceError
from harness.model import Case
from harness.oracle import verify


@pytest.mark.gpu
def test_kernel(verify_case: Case, device: Device) -> None:
    try:
        findings = verify(device, verify_case)
    except DeviceError as error:
        pytest.fail(f"CRASHED: {verify_case.id}: {error.code}: {error}", pytrace=False)
    if findings:
        pytest.fail("\n".join(["WRONG: " + verify_case.id, *map(str, findings)]), pytrace=False)
