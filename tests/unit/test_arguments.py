"""Arguments as PyCUDA packs them: each where the compiled kernel looks for it."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness.compiler.elf import parameter_offsets
from harness.compiler.nvcc import compile_cubin
from harness.devices.cuda import arguments
from harness.devices.cuda.protocol import Work
from harness.model import F32, Case, Config, Problem
from harness.project.loader import load
from tests.unit import synthetic

OPERATIONS = load(Path(__file__).parents[1] / "operations").kernels
AT = {"A": 1 << 40, "B": 2 << 40, "C": 3 << 40}


def packed(case: Case, offsets: tuple[int, ...] = ()) -> bytes:
    formats, values = arguments.pack(Work.of(case), AT, lambda: offsets)
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
def test_offsets_of_parameters_are_read_from_the_cubin() -> None:
    case = synthetic.case("naive")
    cubin = compile_cubin(case.kernel, case.config, case.dtype, "sm_90a").cubin
    assert parameter_offsets(cubin, "gemm_naive") == (0, 4, 8, 12, 16, 24, 32, 40, 44, 48, 56)


@pytest.mark.compile
def test_a_tensor_map_lies_where_the_kernel_looks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """At another place the hardware raises an illegal instruction."""
    kernel = next(kernel for kernel in OPERATIONS if kernel.maps)
    offsets = parameter_offsets(compile_cubin(kernel, kernel.configs[0], F32, "sm_90a").cubin, "gemm_tma")
    a, b, beta, c = offsets[4:8]
    assert a > 16
    assert b == a + 128
    monkeypatch.setattr(arguments, "_tensor_map", lambda argument, *_: argument.buffer.encode() * 128)
    found = packed(Case(kernel, F32, Config(TILE=32), Problem(64, 64, 64, alpha=2, ldc=65)), offsets)
    assert found[a : a + 128] == b"A" * 128
    assert found[b : b + 128] == b"B" * 128
    assert struct.unpack_from("f", found, beta) == (0.0,)
    assert struct.unpack_from("P", found, c) == (AT["C"],)
    assert struct.unpack_from("i", found, offsets[8]) == (65,)
    assert len(found) == offsets[8] + 4
