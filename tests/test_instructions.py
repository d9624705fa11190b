"""Instructions give what a GPU gave: to the bit where it is fixed, within the documented error elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from tests.instructions.compare import FILE, classes, differences, digest, error, finding, fixed, recorded
from tests.instructions.probe import Probe
from tests.instructions.run import assembled, emulated, on_gpu
from tests.instructions.table import PROBES

RECORDED = recorded()
GROUPS = [PROBES[i : i + 20] for i in range(0, len(PROBES), 20)]


def wrong(probe: Probe, recorded: dict[str, Any]) -> str:
    """How what the emulated device gives differs from what is recorded; "" where it does not."""
    found = finding(probe, emulated(probe))
    if probe.bound and found["error"] > 1:
        return f"{probe.code}: {found['error']} times the documented error"
    same = "classes" if probe.bound else "digest"
    return "" if found[same] == recorded[same] else f"{probe.code}: not as on a {RECORDED['gpu']}"


@pytest.mark.skipif(
    not RECORDED["probes"], reason="nothing of a GPU is recorded: python -m tests.instructions"
)
@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group[0].id)
def test_results_are_those_of_the_gpu(group: tuple[Probe, ...]) -> None:
    missing = [probe.code for probe in group if probe.id not in RECORDED["probes"]]
    assert not missing, f"not in {FILE.name}: python -m tests.instructions, on a {RECORDED['gpu']}"
    assert [said for probe in group if (said := wrong(probe, RECORDED["probes"][probe.id]))] == []


def test_errors_of_approximate_functions_are_within_their_bounds() -> None:
    assert {p.code: e for p in PROBES if p.bound and (e := error(p, emulated(p))) > 1} == {}


def test_each_probe_is_valid_and_its_name_its_own() -> None:
    """ptxas accepts all of them."""
    assert len({probe.id for probe in PROBES}) == len(PROBES)
    assert assembled(PROBES)


def test_a_result_that_is_another_is_told() -> None:
    (probe,) = [p for p in PROBES if p.code == "add.s32"]
    out = emulated(probe)
    other = out.copy()
    other[7, 0] ^= 1
    assert digest(probe, out) != digest(probe, other)
    assert differences(probe, other, out).startswith("add.s32: 1 of 1024 lanes differ\n  lane 7: of ")


@pytest.mark.gpu
def test_instructions_on_this_gpu() -> None:
    """All at once: what differs is listed with operands and both results, an instruction each."""
    import pycuda.driver as cuda

    cuda.init()
    context = cuda.Device(0).make_context()
    try:
        outs = list(on_gpu(PROBES))
    finally:
        context.pop()
    told = []
    for probe, gpu in zip(PROBES, outs, strict=True):
        here = emulated(probe)
        if probe.bound:
            same = (classes(probe, gpu) == classes(probe, here)).all() and error(probe, gpu) <= 1
        else:
            pairs = zip(fixed(probe, gpu), fixed(probe, here), strict=True)
            same = all((one == two).all() for (_, one), (_, two) in pairs)
        if not same:
            told.append(differences(probe, gpu, here))
    assert not told, f"{len(told)} of {len(PROBES)} instructions differ\n" + "\n".join(told)
