"""``python -m tests.cheats``: times each cheat on a GPU, beside the honest kernel and alone; fails if one
gains."""

from __future__ import annotations

import sys

from gemm_regression.devices import DeviceError, NoDevice, open_cuda
from gemm_regression.devices.cuda.client import CudaDevice
from gemm_regression.timing.plan import PairPlan, Plan
from tests.cheats import CHEATS, NO_GAIN, case

_SIZE = 512
_GAIN = 0.02  # of an honest kernel's time


def main() -> int:
    """Exit status: 0 if all are caught, 1 if not, 2 without a GPU."""
    try:
        device = open_cuda(60.0)
    except NoDevice as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    caught = 0
    try:
        device.prepare([case(number, _SIZE) for number in (0, *CHEATS)])
        if said := _said(device, 0):
            print(f"the honest kernel is not timed: {said}", file=sys.stderr)
            return 1
        for number, what in CHEATS.items():
            said = _said(device, number)
            caught += bool(said)
            print(
                f"{number:2} {'caught' if said else 'MISSED'}  {what}: {said or _gain(device, number)}",
                flush=True,
            )
            device.restart()
    finally:
        device.close()
    print(f"{caught} of {len(CHEATS)} caught")
    return int(caught != len(CHEATS))


def _gain(device: CudaDevice, number: int) -> str:
    """What a cheat that was not caught gains."""
    samples = device.pair(case(0, _SIZE), case(number, _SIZE), PairPlan(("ABBA", "BAAB") * 12))
    return f"its time is {samples.median('b') / samples.median('a'):.3f} of the honest kernel's"


def _said(device: CudaDevice, number: int) -> str:
    """How it was caught, in a pair and alone, or that it gains nothing; empty if it gains."""
    told = []
    honest, cheat = case(0, _SIZE), case(number, _SIZE)
    try:
        samples = device.pair(honest, cheat, PairPlan(("ABBA", "BAAB") * 12))
        if number:
            ratio = samples.median("b") / samples.median("a")
            if number not in NO_GAIN or ratio < 1 - _GAIN:
                return ""
            told.append(f"gains nothing ({100 * (ratio - 1):+.1f} %)")
    except DeviceError as error:
        told.append(f"{error.code}: {error}")
    try:
        device.time(cheat, Plan())
    except DeviceError as error:
        told.append(f"alone {error.code}")
    else:
        if number and number not in NO_GAIN:
            return ""
    return "; ".join(told)


if __name__ == "__main__":
    sys.exit(main())
