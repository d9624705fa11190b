"""Quantised operands and operations that are no product: right kernels pass, planted faults are found."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemm_regression import oracle
from gemm_regression.counters.counts import count
from gemm_regression.devices import Inputs, Outputs
from gemm_regression.devices.emulated import EmulatedDevice
from gemm_regression.judge.vocabulary import Verdict, VerdictKind
from gemm_regression.model import F16_ACC16, Array, Case, Kernel, Operand, Operation, Problem, gemm, packed
from gemm_regression.model.elements import find_element, magnitude
from gemm_regression.oracle.reference import exactly_computed, matrices
from gemm_regression.project.loader import load
from gemm_regression.project.suites import FULL
from gemm_regression.report.figures import dram_share, speed_text
from gemm_regression.report.runs import RunRow
from gemm_regression.run.checked import CORRECT, check
from gemm_regression.run.timed import TimedCase
from gemm_regression.timing.bounds import Roofs
from gemm_regression.timing.plan import Plan

FOLDER = Path(__file__).with_name("beyond_gemm")
KERNELS = load(FOLDER).kernels
BY_NAME = {kernel.name: kernel for kernel in KERNELS}
GEMMS = (Problem(19, 37, 45, layout="NT", lda=48, ldb=47), Problem(16, 32, 48, layout="NT"))


BLOCKS = (Problem(3, 5, 128, layout="NT"), Problem(7, 150, 384, layout="NT", lda=392, ldb=400))


def cases(kernel: Kernel) -> list[Case]:
    blocks = kernel.name == "fp8_blocks"
    problems = kernel.operation.verified or (BLOCKS if blocks else GEMMS)
    found = [kernel.narrowed(problem) for problem in problems]
    return [Case(kernel, kernel.dtypes[0], kernel.configs[0], problem) for problem in found]


@pytest.mark.parametrize("name", BY_NAME)
def test_a_kernel_is_right(name: str, emulated: EmulatedDevice) -> None:
    for case in cases(BY_NAME[name]):
        assert check(emulated, case).outcome == CORRECT, check(emulated, case)


@pytest.mark.gpu
@pytest.mark.parametrize("name", BY_NAME)
def test_a_kernel_is_right_on_a_gpu_and_timed(name: str, device: Any) -> None:
    for case in cases(BY_NAME[name]):
        assert oracle.verify(device, case) == []
    assert device.time(cases(BY_NAME[name])[-1], Plan(target_seconds=0.01)).median > 0


class Tampered:
    """The emulated device, whose results somebody changes."""

    name = "tampered"

    def __init__(self, device: EmulatedDevice, change: Callable[[Array], Array]) -> None:
        self._device, self._change = device, change

    def run(self, case: Case, inputs: Inputs) -> Outputs:
        return self.run_all([case], [inputs])[0]

    def run_all(self, cases: Sequence[Case], inputs: Sequence[Inputs]) -> list[Outputs]:
        outputs = self._device.run_all(cases, inputs)
        storage = cases[0].storages[cases[0].kernel.operation.result.name]
        for output in outputs:
            storage.matrices(output.result)[:] = self._change(storage.matrices(output.result).copy())
        return outputs

    def close(self) -> None:
        pass


CHANGES: dict[str, Callable[[Array], Array]] = {
    "zeros": np.zeros_like,
    "constant": lambda c: np.full_like(c, c.astype(float).mean()),
    "shifted rows": lambda c: np.roll(c, 1, axis=1),
    "reversed": lambda c: c[:, ::-1, ::-1],
    "half of it": lambda c: c * 0.5,
    "one element": lambda c: np.where(np.arange(c.size).reshape(c.shape) == c.size // 2, c + c / 64, c),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", BY_NAME)
def test_another_output_is_found(name: str, change: str, emulated: EmulatedDevice) -> None:
    case = cases(BY_NAME[name])[1]
    findings = oracle.verify(Tampered(emulated, CHANGES[change]), case)
    assert {finding.check for finding in findings} <= {"exact", "bound", "nan_inf"}
    assert findings


FAULTS = (
    ("w4a16", "row * groups + i / GROUP", "row * groups + (i / GROUP + 1) % groups"),
    ("w4a16", "row * groups + i / GROUP", "row * groups + i / (2 * GROUP)"),
    ("w4a16", "row * groups + i / GROUP", "i / GROUP * outputs + row"),
    ("w4a16", "row * groups + i / GROUP", "(row + 1) % outputs * groups + i / GROUP"),
    ("w4a16", "scales[group]", "scales[row * groups]"),
    ("w4a16", "zero = zeros[group]", "zero = zeros[row * groups]"),
    ("w4a16", "zero = zeros[group]", "zero = 8"),
    ("w4a16", "(pair & 15)", "(pair >> 4)"),
    ("w4a16", "sum += __half2float(x[i + 1])", "sum -= __half2float(x[i + 1])"),
    ("blocks", "const Block& block = blocks[", "const Block& block = blocks[row ? 0 : "),
    ("blocks", "(block.scale)", "(blocks[(size_t)row * of_row + (number + 1) % of_row].scale)"),
    ("blocks", "lane < 16 ?", "lane % 2 ?"),
    ("int8_scaled", "row_scales[row]", "row_scales[row / 2]"),
    ("int8_scaled", "column_scales[column]", "column_scales[column ? column - 1 : 1]"),
    ("int8_scaled", "A[(size_t)row * lda + k] *", "(A[(size_t)row * lda + k] & 127) *"),
    ("requantised", "__float2int_rn", "__float2int_rz"),
    ("requantised", "scales[column]", "scales[column ? column - 1 : 1]"),
    ("requantised", "max(-128, min(127, whole))", "whole"),
    ("requantised", "max(-128, min(127, whole))", "max(-127, min(127, whole))"),
    ("fp8_blocks", "row * blocks + block", "row * blocks + (block + 1) % blocks"),
    ("fp8_blocks", "a_scales[row * blocks + block]", "a_scales[block * M + row]"),
    ("fp8_blocks", "column / 128 * blocks", "column / 64 % 2 * blocks"),
    ("fp8_blocks", "column / 128 * blocks", "0"),
    ("fp8_blocks", "sum += part", "sum = part"),
    ("softmax", "largest = -INFINITY, sum = 0.0f", "largest = 0.0f, sum = 1e-4f"),
    ("softmax", "expf(from[i] - largest) / sum", "1.0f / columns"),
    ("gate", "largest + logf(sum)", "largest - logf(sum)"),
    ("gate", "largest + logf(sum)", "logf(sum)"),
    ("gate", "lse[blockIdx.x] = largest", "if (blockIdx.x) lse[blockIdx.x] = largest"),
    ("gate", "place < at", "place > at"),
    ("gate", "chosen[blockIdx.x] = at", "chosen[blockIdx.x] = at + (at == columns - 1)"),
    ("gate", "chosen[blockIdx.x] = at", "chosen[0] = at"),
    ("quantised", "largest / 127.0f);", "largest / 128.0f);"),
    ("quantised", "scales[blockIdx.x] =", "scales[0] ="),
    ("quantised", "rintf(", "truncf("),
    ("quantised", "lanes = 16; lanes", "lanes = 8; lanes"),
    ("gate", "if (threadIdx.x == 0) {", "if (threadIdx.x == 0 && columns != 33) {"),
    ("rmsnorm", "* __half2float(weight[i])", ""),
    ("rmsnorm", "sum / columns", "sum / (columns + 1)"),
    ("attention", "score * scale", "score"),
    ("attention", "v[(size_t)key * dim + i]", "V[(size_t)key * dim + i]"),
    ("attention", "out / sum", "out / keys"),
    ("grouped", "(size_t)expert * inputs", "(size_t)(expert ? expert - 1 : 1) * inputs"),
    ("grouped", "row = offsets[expert] + tile", "row = offsets[0] + tile"),
    ("grouped", "tile -= tiles;", "tile -= tiles + (tiles == 0);"),
    ("grouped", "- offsets[expert] + TILE - 1) / TILE", "- offsets[expert]) / TILE"),
    ("grouped", "if (row < end && column", "if (row < offsets[experts] && column"),
    ("gather", "index[blockIdx.x]", "(index[blockIdx.x] ^ 1)"),
    ("gather", "weight[blockIdx.x]", "weight[0]"),
)


@pytest.mark.parametrize(("name", "old", "new"), FAULTS, ids=[f"{n}-{i}" for i, (n, *_) in enumerate(FAULTS)])
def test_a_planted_fault_is_found(
    name: str, old: str, new: str, emulated: EmulatedDevice, tmp_path: Path
) -> None:
    kernel = BY_NAME[name]
    assert kernel.source
    source = Path(shutil.copy(kernel.source, tmp_path))
    text = source.read_text(encoding="utf-8")
    assert text.count(old) == 1
    source.write_text(text.replace(old, new), encoding="utf-8")
    case = replace(cases(kernel)[1], kernel=replace(kernel, source=source))
    findings = oracle.verify(emulated, case)
    assert {finding.check for finding in findings} <= {"exact", "bound", "race", "unwritten"}
    assert findings


def test_sums_of_quantised_operands_are_exact_where_they_can_be() -> None:
    kernel = BY_NAME["w4a16"]
    given = kernel.operation, cases(kernel)[1].problem, kernel.dtypes[0]
    assert exactly_computed(*given, "exact")
    assert not exactly_computed(*given, "normal")
    assert not exactly_computed(*given[:2], F16_ACC16, "exact")


def test_a_bound_that_zeros_meet_is_a_finding(emulated: EmulatedDevice) -> None:
    kernel = BY_NAME["softmax"]
    operation = replace(kernel.operation, error=lambda values, y: 2 * y)
    case = replace(cases(kernel)[1], kernel=replace(kernel, operation=operation))
    (finding,) = oracle.verify(emulated, case)
    assert (finding.check, finding.message.split(":")[0]) == ("vacuous", "zeros would pass")
    assert finding.message.endswith("[rows 5, columns 33]")


@pytest.mark.parametrize(
    ("number", "found"), [(0, set()), (1, {"bound", "vacuous"}), (2, {"bound", "vacuous"})]
)
def test_places_that_are_all_the_first_are_a_finding_where_they_can_be_others(
    number: int, found: set[str], emulated: EmulatedDevice
) -> None:
    kernel = BY_NAME["gate"]
    *others, chosen = kernel.operation.operands
    first = replace(chosen, product=lambda values: 0 * values["x"][:, :, :1])
    operation = replace(kernel.operation, operands=(*others, first))
    case = replace(cases(kernel)[number], kernel=replace(kernel, operation=operation))
    assert {finding.check for finding in oracle.verify(emulated, case)} == found


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"product": lambda v: v["x"][:, :4] @ v["x"]}, "product fails on rows 5, columns 33: ValueError: "),
        ({"product": lambda v: v["x"][0]}, "product returns the shape (5, 33) on rows 5, columns 33, not"),
        ({"error": lambda v, y: y / 0}, "error is not finite on rows 5, columns 33"),
        ({"error": lambda v, y: np.ones(7)}, "error fails on rows 5, columns 33: ValueError: "),
    ],
)  # fmt: skip
def test_a_function_that_fails_is_a_finding(
    changes: dict[str, Any], said: str, emulated: EmulatedDevice
) -> None:
    kernel = BY_NAME["softmax"]
    case = replace(cases(kernel)[1], kernel=replace(kernel, operation=replace(kernel.operation, **changes)))
    (finding,) = oracle.verify(emulated, case)
    assert finding.check == "operation"
    assert finding.message.startswith(f"softmax: {said}")
    assert "\n" not in finding.message


def test_scales_differ_from_their_neighbours_and_their_transpose() -> None:
    kernel = BY_NAME["w4a16"]
    for kind in ("exact", "normal"):
        problem = kernel.operation.problem(37, 256)
        (scales,) = matrices(kernel.operation, problem, kernel.dtypes[0], kind)["scales"]
        assert (scales[1:] != scales[:-1]).all()
        assert (scales[:, 1:] != scales[:, :-1]).all()
        assert (scales[:8] != scales[:8].T)[~np.eye(8, dtype=bool)].mean() > 0.7


def test_packed_numbers_lie_as_they_are_declared() -> None:
    numbers = np.arange(16).reshape(1, 2, 8)
    assert find_element("uint4").pack(numbers).tolist() == [
        [[0x10, 0x32, 0x54, 0x76], [0x98, 0xBA, 0xDC, 0xFE]]
    ]
    assert find_element("int4").pack(numbers[:, :1, :2] - 8).tolist() == [[[0x98]]]
    awq = packed(4, "int32", order=(0, 4, 1, 5, 2, 6, 3, 7))
    assert hex(int(awq.pack(numbers)[0, 0, 0])) == "0x75316420"
    gptq = packed(4, "uint32", along="rows")
    assert gptq.words(8, 2) == (1, 2)
    assert hex(int(gptq.pack(numbers.reshape(1, 8, 2))[0, 0, 0])) == "0xeca86420"
    assert find_element("uint4").words(3, 5) == (3, 3)
    assert packed(1).pack(np.ones((1, 1, 8))).tolist() == [[[255]]]


def test_absolute_values_add_up_where_a_function_subtracts() -> None:
    four, three = magnitude(np.array([[-4.0]])), magnitude(np.array([[3.0]]))
    for found in (four - three, three - four, four + -three, np.repeat(four, 1, axis=1) - three):
        assert found.tolist() == [[7.0]]
    assert (np.einsum("ij,jk->ik", four, three) - three).tolist() == [[15.0]]
    assert ((four - three) @ three).tolist() == [[21.0]]


def _read(**more: Any) -> Operand:
    return Operand("q", "n", "k", "multiplied", **more)


def _written(**more: Any) -> Operand:
    return Operand("z", "n", "", "output", **{"product": lambda values: values["x"], **more})


def _of(**more: Any) -> Operation:
    return Operation("f", (X, Y), lambda values: values["x"], **{"sizes": ("rows", "columns"), **more})


X, Y = Operand("x", "rows", "columns", "multiplied"), Operand("y", "rows", "", "result")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: _read(dtype="int3"), "unknown element type 'int3'; known: float16"),
        (lambda: _read(dtype="int32"), "operand q: elements of int32 need a range"),
        (lambda: _read(values="ones"), "values 'ones': must be normal, scale or"),
        (lambda: _read(dtype="int8", values="scale"), "values scale are floats, and int8 holds integers"),
        (lambda: Operand("y", "n", "", "result", dtype="int8"), "the result has the output type of"),
        (lambda: Operand("z", "n", "", "output"), "an output, and nothing else, has a product of its own"),
        (lambda: _read(product=np.negative), "an output, and nothing else, has a product of its own"),
        (lambda: _written(values="scale"), "an output is written: leave values, made and hidden out"),
        (lambda: replace(gemm(), operands=(*gemm().operands, _written())), "or several outputs: declare"),
        (lambda: _read(like="B", dtype="int4"), "packed numbers have no leading dimension"),
        (lambda: _read(made=lambda values: values["x"]), "made and hidden operands need an element type"),
        (lambda: packed(3), "takes 1, 2 or 4 bits"),
        (lambda: packed(4, "int32", order=(0, 1)), "each place from 0 to 7 once"),
        (lambda: _of(unit="GB"), "f: unit 'GB': must be GFLOPS or GB/s"),
        (lambda: _of(sizes=()), "f: 'rows': rows is no size; known: m, n, k, batch"),
        (lambda: _of(sizes=("rows", "x")), "x is the name of a size and of an operand"),
        (lambda: _of(problems=((3,),)), r"f: problem \(3,\): takes 2 sizes: rows, columns"),
        (lambda: _of(flops="rows**2"), r"f: 'rows\*\*2' is no expression of numbers and names"),
    ],
)
def test_what_cannot_be_declared_is_said_in_one_line(make: Callable[[], object], said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_a_suite_takes_the_problems_of_an_operation() -> None:
    kernel = BY_NAME["softmax"]
    (variant,) = [(kernel.configs[0], kernel.dtypes[0])]
    assert FULL.verified_of(kernel, variant[1]) == kernel.operation.verified
    assert FULL.timed_of(kernel, *variant) == (Problem(4096, 4096, 1),)
    assert kernel.refusals(variant[0], Problem(3, 5, 2)) == (
        "softmax has no sizes but rows, columns; the others are 1",
    )
    assert kernel.refusals(variant[0], Problem(0, 5, 1)) == ("rows is 0, and softmax takes 1 or more",)
    assert Case(kernel, variant[1], variant[0], Problem(3, 7, 1)).flop == 5 * 3 * 7


def test_a_speed_is_told_in_the_unit_of_its_operation() -> None:
    softmax, w4a16 = (cases(BY_NAME[name])[1] for name in ("softmax", "w4a16"))
    assert (softmax.flop, softmax.work) == (5 * 5 * 33, 2 * 4 * 5 * 33)
    assert w4a16.work == w4a16.flop == 2 * 7 * 96
    assert softmax.gflops(1e-6) == pytest.approx(2 * 4 * 5 * 33 / 1e3)
    roofs = Roofs({"f32": 60e3}, {"dram": 4000.0}, "", None)
    assert dram_share(roofs, softmax, 2000.0) == pytest.approx(0.5)
    verdict = Verdict(VerdictKind.PASS, "SAME_BINARY", gflops=2000.0)
    row = RunRow(TimedCase(softmax, verdict))
    assert "2,000 GB/s" in row.cells
    assert speed_text(2000.0, w4a16.kernel.operation.unit) == "2,000"


def test_bytes_are_counted_by_operand(emulated: EmulatedDevice) -> None:
    case = cases(BY_NAME["w4a16"])[1]
    counts = count(case, device=emulated)
    assert counts.buffers["weights"].read == case.storages["weights"].bytes == 7 * 96 // 2
    assert counts.buffers["y"].written == 14
