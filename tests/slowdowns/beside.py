"""Each planted slowdown beside the kernel as it is, in one process: what it costs, and what the gate says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gemm_regression.compiler.nvcc import core_of
from gemm_regression.compiler.tools import arch
from gemm_regression.devices import DeviceError, Gpu
from gemm_regression.judge.vocabulary import DEFAULT_MARGIN
from gemm_regression.model import Case
from gemm_regression.run.pairing import Pair, Pairing
from gemm_regression.timing.looks import Estimate, SequentialTest
from gemm_regression.timing.plan import PairPlan
from gemm_regression.timing.samples import schedule
from tests.slowdowns.gate import Judged
from tests.slowdowns.slowdown import Slowdown

BLOCKS = 24  # for what it costs, in addition to those that the gate's rule asks for
MISS = 0.01  # of the interval of what it costs


@dataclass(frozen=True)
class Cost:
    """Of a slowdown: relative ``change`` of the time, its ``interval``, ``seconds`` of the kernel as it is,
    and what the gate says of it."""

    change: float
    interval: tuple[float, float]
    seconds: float
    judged: Judged


def measure(
    device: Gpu,
    slowdowns: Sequence[Slowdown],
    edited: Mapping[str, Case],
    step: Callable[[str], None] = lambda what: None,
    late: Callable[[], bool] = lambda: False,
) -> dict[str, Cost | str]:
    """By name; in place of a cost why there is none, in one line. ``edited``: the cases with the edits. Once
    it is ``late``, no further one is begun."""
    costs: dict[str, tuple[Estimate, float]] = {}
    failed: dict[str, str] = {}

    def pairs() -> Iterator[Pair]:
        for slowdown in slowdowns:
            if late():
                failed[slowdown.name] = "no time was left"
                continue
            case, real = edited[slowdown.name], slowdown.real
            step(slowdown.name)
            try:
                base = device.binary(real)
                assert base is not None  # it is no library
                plan = PairPlan(schedule(0, f"cost/{slowdown.name}", 0, BLOCKS).orders)
                samples = device.pair(base, case, plan)
                estimate = Estimate.of(samples.log_ratios, samples.resolution)
            except (DeviceError, ValueError) as error:
                failed[slowdown.name] = str(error).splitlines()[0]
                continue
            costs[slowdown.name] = estimate, samples.median("a")
            core = core_of(real.kernel, real.config, real.dtype, arch(device.info.capability))
            margin = DEFAULT_MARGIN if real.kernel.margin is None else real.kernel.margin
            yield Pair(case, base, margin, core, samples.median("a"), "as it is")

    timed = Pairing(device, SequentialTest(), len(slowdowns)).all(pairs())
    said = {id(one.case): one.paired for one in timed}  # variants have several edits
    return failed | {
        name: Cost(e.change, e.interval(MISS), seconds, Judged.of_pair(edited[name].id, said[key]))
        for name, (e, seconds) in costs.items()
        if (key := id(edited[name])) in said
    }
