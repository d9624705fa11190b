"""A launch as it is timed: on inputs that no launch before it has seen; of each batch one result is checked,
which one is left to chance."""

from __future__ import annotations

import math
import random
import time
from typing import Any

import pycuda.driver as cuda

from gemm_regression.devices.cuda.checks import Checks, Enqueue
from gemm_regression.devices.cuda.timed_data import TimedData
from gemm_regression.devices.cuda.timing import Turn
from gemm_regression.devices.work import Work

_REPEATED = 2  # batches of which a launch is repeated that nothing else can be asked for


class Fresh(Turn):
    """The launches of one kernel; each draws a number, which no other launch has, and which gives its inputs.

    ``timed`` is queued between the events: ``plain``, the launch itself, and what a study puts behind it.
    ``reference`` computes the same beside it; without one the launch is repeated, of the first batches.
    ``slot``: which of the places of kept results is its own. ``seconds``: what its checks took.
    """

    def __init__(
        self,
        name: str,
        work: Work,
        data: TimedData,
        checks: Checks,
        timed: Enqueue,
        plain: Enqueue,
        reference: Enqueue | None,
        slot: int = 0,
    ) -> None:
        super().__init__(timed)
        self.name, self.seconds = name, 0.0
        self.work, self._data, self._checks = work, data, checks
        self.plain, self.reference = plain, reference
        self._kept_at = data.kept[slot]
        self._left = math.inf if reference else _REPEATED
        self._to_go = self._chosen = self._number = 0

    def begin(self, launches: int) -> None:
        self._to_go = random.randrange(launches)
        self._data.rows(self.work)  # no allocation and no copy while the gate holds the queue

    def before(self, stream: Any) -> None:
        self._number = self._data.new_number()
        self._data.fill(stream, self.work, self._number)

    def after(self, stream: Any) -> None:
        if self._to_go == 0:
            self._chosen, result = self._number, self._data.at[self.work.result]
            cuda.memcpy_dtod_async(self._kept_at, result, self._data.result_bytes, stream)
        self._to_go -= 1

    def end(self) -> None:
        """Raises DeviceError WRONG."""
        if not self._left:
            return
        self._left -= 1
        began, stream, data = time.monotonic(), cuda.Stream(), self._data
        data.fill(stream, self.work, self._chosen, beside=self.reference is not None)
        (self.reference or self.plain)(stream)
        stream.synchronize()
        want = data.reference if self.reference else data.at[self.work.result]
        self._checks.timed(self.name, self.work, self._kept_at, want)
        self.seconds += time.monotonic() - began

    def alone(self) -> None:
        """One launch, checked. Raises DeviceError WRONG."""
        stream = cuda.Stream()
        self.begin(1)
        self.before(stream)
        self.plain(stream)
        self.after(stream)
        stream.synchronize()
        self.end()
        self._checks.guard(self.name, self._data)
