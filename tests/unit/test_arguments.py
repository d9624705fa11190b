"""Arguments as PyCUDA packs them: each where the compiled kernel looks for it."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness.compiler.nvcc import compile_ptx
from harness.devices.cuda import arguments
from harness.devices.cuda.protocol import Work
from harness.model import F32, Case, Config, Problem
from harness.project.loader import load
from tests.unit import synthetic

OPERATIONS = load(Path(__file__).parents[1] / "operations").kernels
AT = {"A": 1 << 40, "B": 2 << 40, "C": 3 << 40}


def packed(case: Case) -> bytes:
    formats, values = arguments.pack(Work.of(case), AT)
    return struct.pack("".join(formats), *values)


def test_the_usual_arguments() -> None:
    case = synthetic.case(problem=Problem(5, 6, 7, alpha=2, beta=3, lda=8))
    assert packed(case) == struct.pack("iiifPiPifPi", 5, 6, 7, 2, AT["A"], 8, AT["B"], 6, 3, AT["C"], 6)


@pytest.mark.parametrize(("text", "dtype"), [("half alpha", np.float16), ("half beta", np.float16)])
def test_a_half_is_handed_over_by_its_bits(text: str, dtype: type) -> None:
    case = synthetic.case(problem=Problem(5, 6, 7, alpha=2.5, beta=2.5))
    case = replace(case, kernel=replace(case.kernel, parameters=f"{text}, A, B, C"))
    assert np.frombuffer(packed(case), dtype, 1)[0] == 2.5


@pytest.mark.compile
def test_a_tensor_map_lies_where_the_kernel_looks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA 13 aligns it to 128 bytes; at another place the hardware raises an illegal instruction."""
    kernel = next(kernel for kernel in OPERATIONS if kernel.maps)
    ptx = compile_ptx(kernel, kernel.configs[0], F32, "sm_90a")
    assert ptx.count(".param .align 128 .b8 gemm_tma_param_") == 2
    monkeypatch.setattr(arguments, "_tensor_map", lambda argument, *_: argument.buffer.encode() * 128)
    found = packed(Case(kernel, F32, Config(TILE=32), Problem(64, 64, 64, alpha=2)))
    assert found[128:256] == b"A" * 128
    assert found[256:384] == b"B" * 128
    assert found[384:392] == struct.pack("fxxxx", 0.0)
    assert found[392:400] == struct.pack("P", AT["C"])
