"""Arguments as PyCUDA packs them: each where the compiled kernel looks for it."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from gemm_regression.compiler.cubin import parameters
from gemm_regression.compiler.nvcc import compile_cubin
from gemm_regression.devices.work import Work
from gemm_regression.model import (
    F16,
    F32,
    GEMM,
    TF32,
    BlockShape,
    Case,
    Config,
    DType,
    Kernel,
    Problem,
    TensorMap,
)
from gemm_regression.project.loader import load
from tests.gemm_regression import synthetic
from tests.gemm_regression.devices.fake_gpu import made_up

OPERATIONS = load(Path(__file__).parents[2] / "operations").kernels
AT = {"A": 1 << 40, "B": 2 << 40, "C": 3 << 40}


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with made_up(monkeypatch, "timing", "source_module", "modules") as (*_, found):
        yield found


def packed(modules: Any, case: Case, offsets: tuple[int, ...] = ()) -> bytes:
    formats, values = modules.pack(Work.of(case), AT, lambda: offsets)
    return struct.pack("".join(formats), *values)


def test_the_usual_arguments(modules: Any) -> None:
    case = synthetic.case(problem=Problem(5, 6, 7, alpha=2, beta=3, lda=8))
    wanted = (5, 6, 7, 2, AT["A"], 8, AT["B"], 6, 3, AT["C"], 6)
    assert packed(modules, case) == struct.pack("iiifPiPifPi", *wanted)


@pytest.mark.parametrize("text", ["half alpha", "half beta"])
def test_a_half_is_handed_over_by_its_bits(modules: Any, text: str) -> None:
    case = synthetic.case(problem=Problem(5, 6, 7, alpha=2.5, beta=2.5))
    case = replace(case, kernel=replace(case.kernel, parameters=f"{text}, A, B, C"))
    assert np.frombuffer(packed(modules, case), np.float16, 1)[0] == 2.5


@pytest.mark.compile
def test_offsets_of_parameters_are_read_from_the_cubin() -> None:
    case = synthetic.case("naive")
    cubin = compile_cubin(case.kernel, case.config, case.dtype, "sm_90a").cubin
    assert tuple(place.offset for place in parameters(cubin, "gemm_naive")) == (
        0,
        4,
        8,
        12,
        16,
        24,
        32,
        40,
        44,
        48,
        56,
    )


@pytest.mark.compile
def test_a_tensor_map_lies_where_the_kernel_looks_for_it(
    modules: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At another place the hardware raises an illegal instruction."""
    kernel = next(kernel for kernel in OPERATIONS if kernel.maps)
    offsets = tuple(
        place.offset
        for place in parameters(compile_cubin(kernel, kernel.configs[0], F32, "sm_90a").cubin, "gemm_tma")
    )
    a, b, beta, c = offsets[4:8]
    assert a > 16
    assert b == a + 128
    monkeypatch.setattr(modules, "_tensor_map", lambda argument, *_: argument.buffer.encode() * 128)
    found = packed(modules, Case(kernel, F32, Config(TILE=32), Problem(64, 64, 64, alpha=2, ldc=65)), offsets)
    assert (found[a : a + 128], found[b : b + 128]) == (b"A" * 128, b"B" * 128)
    assert (struct.unpack_from("f", found, beta), struct.unpack_from("P", found, c)) == ((0.0,), (AT["C"],))
    assert (struct.unpack_from("i", found, offsets[8]), len(found)) == ((65,), offsets[8] + 4)


@pytest.mark.parametrize(
    ("dtype", "element", "columns"), [(F32, "FLOAT32", 32), (TF32, "TFLOAT32", 32), (F16, "FLOAT16", 64)]
)
def test_a_tensor_map_is_of_its_dtype(
    modules: Any, dtype: DType, element: str, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The elements, and a box of 128 bytes, that the driver is asked for."""
    driver, bindings = MagicMock(), ModuleType("cuda.bindings")
    driver.cuuint32_t = int
    driver.cuTensorMapEncodeTiled.return_value = (driver.CUresult.CUDA_SUCCESS, MagicMock(opaque=[7] * 16))
    bindings.driver = driver  # type: ignore[attr-defined]
    for name, module in (("cuda", ModuleType("cuda")), ("cuda.bindings", bindings)):
        monkeypatch.setitem(sys.modules, name, module)

    def maps(config: Config, dtype: DType) -> dict[str, TensorMap]:
        box = (config["ROWS"], 128 // dtype.storage.itemsize)
        return {"A": TensorMap(box, swizzle=128, tf32=dtype == TF32)}

    shape = BlockShape((32, 1), (16, 16))
    kernel = Kernel("mapped", None, "f", shape, operation=GEMM, parameters="mapA, B, C", maps=maps)
    work = Work.of(Case(replace(kernel, source=Path("f.cu")), dtype, Config(ROWS=16), Problem(64, 64, 64)))
    _, values = modules.pack(work, AT, lambda: (0, 128, 136))
    assert values[0] == struct.pack("Q", 7) * 16
    asked = driver.cuTensorMapEncodeTiled.call_args.args
    assert asked[0] is getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{element}")
    assert asked[5] == [columns, 16]
