"""Operations as data: where their elements lie, what they come to, and a wrong one of each is found; cases by
their ids."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.special

from gemm_regression import oracle
from gemm_regression.devices import Inputs, Outputs
from gemm_regression.model import (
    F16,
    F32,
    S8,
    Activation,
    Array,
    Case,
    CaseId,
    Config,
    DType,
    Operand,
    Operation,
    Problem,
    find_dtype,
    find_problem,
    gemm,
    gemm_bias,
)
from gemm_regression.model.kernel import BlockShape, Kernel
from gemm_regression.model.operation import GELU, GEMM, GEMM_BATCHED, GEMM_BIAS_GELU, GEMM_BIAS_RELU, RELU
from tests.gemm_regression.fakes import NumpyDevice
from tests.gemm_regression.samples import find_case, select

ODD = Problem(37, 53, 41, alpha=2, beta=-1, lda=44, ldb=57, ldc=61)
OPERATIONS = [
    *(gemm(layout) for layout in ("NN", "NT", "TN", "TT", "NNT", "TTT")),
    *(GEMM_BIAS_RELU, GEMM_BIAS_GELU, gemm_bias(), gemm_bias("NT", GELU)),
]


def case_of(operation: Operation, problem: Problem = ODD, dtype: DType = F32) -> Case:
    kernel = Kernel("fake", None, "", BlockShape((1, 1), (1, 1)), operation=operation)
    return Case(kernel, dtype, Config(), problem.stored(operation.layout))


def found(operation: Operation, device: NumpyDevice, problem: Problem = ODD, dtype: DType = F32) -> list[str]:
    return [finding.check for finding in oracle.verify(device, case_of(operation, problem, dtype))]


# In memory


@pytest.mark.parametrize("layout", ["NN", "TN", "NT", "TT", "NNT"])
def test_an_element_lies_where_the_layout_says(layout: str) -> None:
    case = case_of(gemm(layout, batched=True), replace(ODD, batch=3, gap=2))
    inputs = oracle.make_inputs(case.kernel.operation, case.problem, F32, "normal")
    for number, name in enumerate("ABC"):
        storage, flat = case.storages[name], inputs[name].reshape(-1)
        matrix = storage.matrices(inputs[name])[2]
        turned = layout[number:][:1] == "T"
        row, column = 5, 7
        at = 2 * storage.stride + (column * storage.ld + row if turned else row * storage.ld + column)
        assert flat[at] == matrix[row, column]
        beside = np.ones(storage.shape, bool)
        storage.elements(beside)[:] = False
        rest = inputs[name][beside]
        assert rest.size
        assert ((rest == 77) if name == "C" else np.isnan(rest)).all()


@pytest.mark.parametrize(
    "text", ["37x53x41-tn", "4x5x6-nnt-batch3-gap2-alpha2-beta-1-ld9.9.9", "8x8x8-batch10", "1x2x3"]
)
def test_an_id_gives_the_problem_again(text: str) -> None:
    assert find_problem(text).id == text


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        ({"layout": "NX"}, "a letter N or T"),
        ({"gap": 2}, "between the matrices of a batch"),
        ({"lda": 3, "layout": "TN"}, "lda 3 is less than the row length 4"),
    ],
)
def test_a_problem_that_cannot_be_is_refused(problem: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Problem(4, 3, 2, **problem)  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [gemm, gemm_bias])
@pytest.mark.parametrize("layout", ["XX", "nt", "N", RELU])
def test_a_layout_that_is_none_is_refused(make: Any, layout: object) -> None:
    with pytest.raises(ValueError, match=r"gemm.*: layout .*: must be a letter N or T for A and for B, opt"):
        make(layout)


def test_an_unknown_dtype_is_an_error() -> None:
    with pytest.raises(ValueError, match="unknown dtype 'f8'; known: f32, f16"):
        find_dtype("f8")


def test_flop_and_compulsory_bytes() -> None:
    p = Problem(4, 5, 6, batch=7)
    assert GEMM_BATCHED.flop(p) == 2 * 4 * 5 * 6 * 7
    assert GEMM_BATCHED.compulsory_bytes(p, F32) == 4 * 7 * (4 * 6 + 6 * 5 + 4 * 5)
    one = Problem(4, 5, 6, beta=1)
    assert GEMM.compulsory_bytes(one, F16) == 2 * (4 * 6 + 6 * 5) + 2 * 4 * 4 * 5
    assert GEMM_BIAS_RELU.compulsory_bytes(Problem(4, 5, 6), F32) == 4 * (24 + 30 + 20 + 5)


# Right


@pytest.mark.parametrize("dtype", ["f32", "f16_f16", "bf16_bf16", "tf32", "f32_f16", "f16_bf16", "s8"])
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda o: o.name)
def test_a_right_kernel_gives_no_finding(operation: Operation, dtype: str) -> None:
    if dtype == "s8" and operation.activation and not operation.activation.exact:
        pytest.skip("an activation that rounds does not produce integers")
    assert found(operation, NumpyDevice(), ODD, find_dtype(dtype)) == []


def test_an_activation_that_rounds_cannot_make_integers() -> None:
    with pytest.raises(ValueError, match="k: gelu does not produce integers, but s8 has an integer output"):
        Kernel("k", None, "", BlockShape((1, 1), (1, 1)), operation=GEMM_BIAS_GELU, dtypes=(S8,))


@pytest.mark.parametrize("layout", ["NN", "TT"])
def test_a_right_batch_gives_no_finding_and_one_matrix_of_it_does(layout: str) -> None:
    def first(c: Array, inputs: Inputs, p: Problem) -> None:
        c[39:] = inputs["C"][39:]

    batch, of = replace(ODD, batch=3, gap=2), gemm(layout, batched=True)
    assert found(of, NumpyDevice(), batch) == []
    assert found(of, NumpyDevice(finish=first), batch) != []


def test_a_problem_that_is_not_taken_is_not_verified() -> None:
    case = case_of(GEMM, replace(ODD, batch=3))
    kernel = replace(case.kernel, source=__file__)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="gemm is not batched"):
        oracle.verify(NumpyDevice(), replace(case, kernel=kernel))


# Wrong


class Other(NumpyDevice):
    """Computes another case than it is asked for."""

    def __init__(self, other: Callable[[Case, Inputs], tuple[Case, Inputs]]) -> None:
        super().__init__()
        self._other = other

    def run(self, case: Case, inputs: Inputs) -> Outputs:
        return super().run(*self._other(case, inputs))


EXACT_GELU = replace(GELU, apply=lambda x: x * scipy.special.ndtr(x))  # not by tanh: up to 4.8e-4 away


def _activation(other: Activation | None) -> Callable[[Case, Inputs], tuple[Case, Inputs]]:
    def change(case: Case, inputs: Inputs) -> tuple[Case, Inputs]:
        operation = replace(case.kernel.operation, activation=other)
        return replace(case, kernel=replace(case.kernel, operation=operation)), inputs

    return change


def _bias(change: Callable[[Array], Array]) -> Callable[[Case, Inputs], tuple[Case, Inputs]]:
    return lambda case, inputs: (case, {**inputs, "bias": change(inputs["bias"])})


@pytest.mark.parametrize(
    ("operation", "change"),
    [
        (GEMM_BIAS_GELU, _activation(EXACT_GELU)),
        (GEMM_BIAS_RELU, _activation(None)),
        (GEMM_BIAS_RELU, _bias(np.zeros_like)),
        (gemm_bias(), _bias(lambda b: np.roll(b, 1, axis=1))),
    ],
    ids=["the other GELU", "no ReLU", "no bias", "bias off by one"],
)
def test_another_epilogue_is_found(
    operation: Operation, change: Callable[[Case, Inputs], tuple[Case, Inputs]]
) -> None:
    assert found(operation, Other(change)) in (["exact"], ["bound"])


def test_writing_between_the_matrices_of_a_batch_is_found() -> None:
    def between(c: Array, inputs: Inputs, p: Problem) -> None:
        c[p.m, 3] = 1

    device = NumpyDevice(finish=between)
    (finding,) = oracle.verify(device, case_of(GEMM_BATCHED, replace(ODD, batch=3, gap=2)))
    assert finding.check == "padding"
    assert "C[0](37, 3), past the end of its row, was written; 1 in total" in finding.message


@pytest.mark.parametrize("dtype", ["f16_f16", "bf16_bf16"])
def test_an_output_that_is_cut_in_place_of_rounded_is_found(dtype: str) -> None:
    def cut(c: Array, inputs: Inputs, p: Problem) -> None:
        elements = c[: p.m, : p.n]
        elements[:] = (elements.view(np.uint16) & 0xFFFE).view(c.dtype)

    assert found(GEMM, NumpyDevice(finish=cut), ODD, find_dtype(dtype)) == ["exact"]


def test_integers_added_up_in_fp32_are_found() -> None:
    def in_fp32(a: Array, b: Array, p: Problem) -> Array:
        total = np.zeros((p.m, p.n), np.float32)
        for k in range(p.k):
            total += a[:, k : k + 1].astype(np.float32) * b[k : k + 1].astype(np.float32)
        return total.astype(np.float64)

    problem = Problem(3, 5, 2113)
    assert found(GEMM, NumpyDevice(), problem, S8) == []
    assert found(GEMM, NumpyDevice(multiply=in_fp32), problem, S8) == ["precision"]


# Cases

ALL = select()


def test_every_case_is_found_by_its_id() -> None:
    for case in (*ALL.verify, *ALL.timed):
        assert find_case(case.id, (9, 0)) == case


def test_problem_need_not_be_one_of_the_suite() -> None:
    case = find_case(f"{ALL.timed[0].variant}-12x34x56-beta2", (9, 0))
    assert (case.variant, case.problem.id) == (ALL.timed[0].variant, "12x34x56-beta2")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *((text, "^unknown case '.*`pytest --list-cases` lists the variants") for text in ("", "tiled")),
        (ALL.timed[0].variant, "^unknown case .*: `pytest --list-cases` lists"),
        ("tyled-f32-tile32-pad0-1x2x3-beta2", r"did you mean 'tiled-f32-tile32-pad0-1x2x3-beta2'\?"),
        (f"{ALL.timed[0].variant}-12x34", "write it as MxNxK"),
    ],
)
def test_unknown_case_is_refused_in_one_line(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as refused:
        find_case(text, (9, 0))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("tiled-f32-tile32-pad0-64x64x64-nt-beta-1", ("tiled", "f32", "tile32-pad0", "64x64x64-nt-beta-1")),
        ("cublas-f16_f16-4x4x4", ("cublas", "f16_f16", "", "4x4x4")),
        ("tf32x3-f32-tile64x64x32-warp32x32", ("tf32x3", "f32", "tile64x64x32-warp32x32", "")),
        ("naive", ("naive", "", "", "")),
    ],
)
def test_an_id_is_read_as_it_is_written(text: str, parts: tuple[str, str, str, str]) -> None:
    assert (CaseId.parse(text), str(CaseId(*parts))) == (CaseId(*parts), text)


def _scaled(made: Callable[[Any], Any]) -> Operation:
    return Operation(
        name="scaled",
        sizes=("m", "n", "k"),
        operands=(
            Operand("A", "m", "k", "multiplied"),
            Operand("weights", "k", "n", "multiplied", dtype="int8", values=(-8, 7), hidden=True),
            Operand("scales", "k", "1", "multiplied", dtype="float16", values="scale", hidden=True),
            Operand("B", "k", "n", "multiplied", dtype="float16", made=made),
            Operand("C", "m", "n", "result"),
        ),
        product=lambda v: v["A"] @ (v["weights"] * v["scales"]),
    )


def test_words_of_a_timed_problem_are_made_of_hidden_integers_and_scales() -> None:
    drawn = _scaled(lambda v: v["weights"] * v["scales"]).draws(Problem(4, 8, 16), F16)
    words = np.frombuffer(base64.b64decode(drawn["B"].removeprefix("made ")), np.float16).reshape(16, 8)
    assert np.isfinite(words).all()
    assert len(np.unique(np.abs(words[words != 0]))) > 20  # scales differ, and so do weights


@pytest.mark.parametrize(
    ("made", "n", "why"),
    [
        (lambda v: v["weights"] @ v["A"], 8, "made of B fails: KeyError: 'A'; of hidden operands alone"),
        (lambda v: v["weights"], 1 << 14, "B is made, 524288 bytes of it: declare values= to time this"),
    ],
)
def test_why_words_cannot_be_made_for_timing_is_told_when_they_are_timed(
    made: Callable[[Any], Any], n: int, why: str
) -> None:
    assert _scaled(made).draws(Problem(4, n, 16), F16)["B"].startswith(f"undrawn {why}")
