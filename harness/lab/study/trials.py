"""Pairs of a binary beside itself, and planted slowdowns of known size, timed as the gate times its pairs.

A planted slowdown is a kernel that counts SM cycles (``spin`` in probe.cu), launched after the kernel within
the same timed interval. At size 0 it is launched too, with nothing to count, so that both sides differ by the
cycles only. Its true size is the cycles counted, divided by the SM clock and by the time without it. A file
of A/A pairs alone has none.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any

from gemm_regression.devices import DeviceError, Gpu
from gemm_regression.judge.vocabulary import DEFAULT_MARGIN
from gemm_regression.model import Case, CaseId
from gemm_regression.project.loader import Project, find, load
from gemm_regression.project.selection import Choice, find_case, select
from gemm_regression.timing.looks import SequentialTest, look_until
from gemm_regression.timing.plan import PairPlan, Plan
from gemm_regression.timing.samples import PairedSamples, schedule, total, trimmed_mean
from lab.study.raw import SCHEMA, StudyError, ticks

SIZES = (0.0, 0.0025, 0.005, 0.01, 0.02, 0.05)
RULE = SequentialTest()
Record = dict[str, Any]


def head(
    device: Gpu,
    ids: Sequence[str],
    sizes: Sequence[float],
    about: Mapping[str, Any],
    step: Callable[[str], None] = lambda what: None,
) -> Record:
    """The header of a file: the binary of each case, and where something is planted its median and clock;
    ``cases``: how many pairs a process times, which share the error probability."""
    baseline = {}
    for text in ids:
        case = case_of(text, device.info.capability)
        binary = device.binary(case)
        known: Record = {"cubin_sha256": binary.sha256 if binary else None}
        if case.kernel.margin is not None:
            known["margin"] = case.kernel.margin
        if any(sizes):
            m = device.time(case, Plan(reference=False, spin=0))
            known |= {"seconds": float(f"{m.median:.7g}"), "mhz": m.sm_clock_mhz}
        baseline[text] = known
        step(text)
    return {"study": SCHEMA, **about, "cases": len(ids) * len(sizes), "baseline": baseline}


def process(
    device: Gpu,
    head: Mapping[str, Any],
    number: int,
    cells: Sequence[tuple[str, float]],
    late: Callable[[], bool] = lambda: False,
) -> list[Record]:
    """One trial of each (case id, size), in randomised order, in a new process; none is begun once it is
    ``late``."""
    device.restart()
    lot = Random(f"order/{number}")
    records: list[Record] = []
    for text, size in lot.sample(cells, len(cells)):
        if late():
            break
        case = case_of(text, device.info.capability)
        records.append(_cell(device, case, head["baseline"][text], size, number, head["cases"]))
        device.ahead()
    return records


def _cell(device: Gpu, case: Case, stored: Mapping[str, Any], size: float, number: int, cases: int) -> Record:
    record: Record = {"trial": number, "case": case.id, "size": size}
    cycles = None
    if "seconds" in stored:
        cycles = record["cycles"] = round(size * stored["seconds"] * stored["mhz"] * 1e6)
    try:
        looks = _looks(device, case, stored, f"{case.id}/{size}", number, cycles, cases)
    except DeviceError as error:
        return record | {"error": f"{error.code}: {error}"}
    if cycles is not None:
        record["true"] = _true(looks[0], stored)
    return record | {"looks": _records(looks)}


def _looks(
    device: Gpu,
    case: Case,
    stored: Mapping[str, Any],
    salt: str,
    number: int,
    cycles: int | None,
    cases: int,
) -> list[PairedSamples]:
    """As the gate has it: until the case is clear at its share."""
    base = device.binary(case)
    if base is None or base.sha256 != stored["cubin_sha256"]:
        raise StudyError(
            f"{case.id} compiles to another binary than when the file was begun; begin a new one"
        )
    seen: list[PairedSamples] = []
    margin, spin = stored.get("margin", DEFAULT_MARGIN), None if cycles is None else (0, cycles)

    def more(look: int) -> tuple[Sequence[float], float]:
        orders = schedule(number, salt, *RULE.blocks_of(look)).orders
        seen.append(device.pair(base, case, PairPlan(orders, spin=spin)))
        return seen[-1].log_ratios, total(seen).resolution

    look_until(more, lambda estimate: estimate.p_value(margin) <= RULE.share(cases), RULE)
    return seen


def _records(looks: Sequence[PairedSamples]) -> list[Record]:
    """Of each block the trimmed means of both sides, which its log-ratio follows from."""
    return [
        {
            "blocks": [[ticks([trimmed_mean(side)]) for side in (b.a, b.b)] for b in look.blocks],
            "resolution": float(f"{seen.resolution:.4g}"),
            "discarded": look.discarded,
            "gpu_seconds": round(look.gpu_seconds, 4),
        }
        for look, seen in zip(looks, accumulate(looks), strict=True)
    ]


def _true(look: PairedSamples, stored: Mapping[str, Any]) -> float | None:
    """The planted relative slowdown: the cycles counted in excess of the other side, over the time of A."""
    if look.spun is None or not look.blocks:
        return None
    known = [f for block in look.blocks for f in block.b_mhz if f == f]
    mhz = statistics.median(known) if known else float(stored["mhz"])
    return float(f"{(look.spun[1] - look.spun[0]) / (mhz * 1e6) / look.median('a'):.5g}")


KINDS = ("wgmma", "wgmma_tf32", "mma_tma", "mma_sync", "tf32x3", "stream_k", "lean_loop")  # told one by one
LONG = 100e-6  # seconds
SHORT_CASES, LONG_CASES = (f"CUDA cores, {which} {1e6 * LONG:.0f} µs" for which in ("at most", "over"))
_OTHERS = ("prefetch", "double_buffered", "async_copy", "warp_tiled", "split_k")
_SHAPES = ("1000x1000x1000", "1024x1024x1024")
_SHAPES_OF_KINDS = ("512x512x512", *_SHAPES, "2048x2048x2048")


@functools.cache
def project() -> Project:
    """Raises ProjectError if there is none."""
    return load(find(Path.cwd()))


def case_of(text: str, capability: tuple[int, int]) -> Case:
    """The case with this id. Raises ValueError."""
    return find_case(project(), text, capability)


def studied(capability: tuple[int, int]) -> list[str]:
    """Ids of the timed cases of KINDS and of as many others on CUDA cores, all below 1 ms on an H200, and on
    random numbers of few depths, which a process makes once."""
    timed = select(project(), Choice(suite="full"), capability).timed
    shapes = dict.fromkeys(_OTHERS, _SHAPES) | dict.fromkeys(KINDS, _SHAPES_OF_KINDS)
    return [case.id for case in timed if case.problem.id in shapes.get(case.kernel.name, ())]


def class_of(case: str, seconds: float) -> str:
    """The class of a case of this id that takes so many seconds."""
    kernel = CaseId.parse(case).kernel
    if kernel in KINDS or kernel == "wmma":
        return kernel
    return LONG_CASES if seconds > LONG else SHORT_CASES


CLASSES = (*KINDS, "wmma", SHORT_CASES, LONG_CASES)
