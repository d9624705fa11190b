"""The probes that measure a GPU's roofs do the work that is claimed, and cleanly."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gemm_regression.devices
import ptxsan
from gemm_regression.timing.bounds import THREADS, arithmetic, probe_work
from ptxsan.machine.counters import Tally
from ptxsan.nvcc import compile_file

SOURCE = Path(gemm_regression.devices.__file__).with_name("cuda") / "roofs.cu"
SINK = np.zeros(2, np.int64)


@lru_cache
def compiled(arch: str) -> str:
    return compile_file(SOURCE, arch)


def run(
    entry: str, *arguments: Any, block: int = THREADS, shared: int = 0, arch: str = "sm_90a"
) -> ptxsan.LaunchResult:
    code = compiled(arch)
    result = ptxsan.run(code, entry=entry, grid=1, block=block, arguments=arguments, shared=shared)
    assert result.clean, result.hazards
    return result


def total(result: ptxsan.LaunchResult, operation: str | tuple[str, ...]) -> Tally:
    assert result.counters is not None
    found = [tally for i, tally in result.counters.tallies() if i.op.startswith(operation)]
    return sum(found, Tally())


def test_fma() -> None:
    result = run("fma_f32", np.int32(2), np.float32(0.5), SINK)
    assert total(result, "fma.").flop == probe_work(2)["f32"]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", ["f16", "bf16", "tf32"])
def test_tensor_cores(name: str, arch: str) -> None:
    result = run(f"tensor_{name}", np.int32(1), SINK, shared=(128 + 256) * 128, arch=arch)
    assert total(result, ("mma.", "wgmma.")).flop == probe_work(1)[name]


def test_shared_memory() -> None:
    loads = total(run("shared_bytes", np.int32(3), SINK), "ld.volatile").shared_loads
    assert 128 * loads.wavefronts == loads.bytes == probe_work(3)["shared"]


@pytest.mark.parametrize("shared", [0, 1])
def test_global_memory(shared: int) -> None:
    vectors = 1024
    result = run(
        "global_bytes", np.zeros(4 * vectors, np.uint32), np.int64(vectors), np.int32(shared), SINK, block=512
    )
    assert 32 * total(result, "ld.global").loads.sectors == 16 * vectors


def test_a_chain_goes_through_all_its_places_and_around() -> None:
    places = np.random.default_rng(1).permutation(1000).astype(np.uint32)[:50]
    memory = run("chain", places, np.int32(50), np.zeros(1000, np.uint64)).arrays[2]
    base = int(memory[places[0]]) - 8 * int(places[1])
    assert [(int(memory[place]) - base) // 8 for place in places] == [*places[1:], places[0]]


def test_a_chain_of_dependent_steps() -> None:
    loads = total(run("chase_shared", np.int32(64), SINK, block=1), "ld.volatile").shared_loads
    assert loads.requests == 64
    assert total(run("chain_of_fma", np.int32(64), np.float32(0.5), SINK, block=1), "fma.").flop == 2 * 64


def test_an_h200_by_its_datasheet() -> None:
    """989 TFLOPS in FP16 and 494 in TF32 at 1830 MHz, 67 in FP32 at 1980 MHz."""
    found = arithmetic((9, 0), 132, 4.8e12, 1.83e9)
    assert found["f16"] / 1e12 == pytest.approx(989, rel=0.001)
    assert found["tf32"] / 1e12 == pytest.approx(494, rel=0.002)
    assert found["dram"] == 4.8e12
    assert arithmetic((9, 0), 132, 4.8e12, 1.98e9)["f32"] / 1e12 == pytest.approx(66.9, rel=0.001)
