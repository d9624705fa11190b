"""Each planted fault is found, by the check that is there for it; a right kernel gives no finding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemm_regression import oracle
from gemm_regression.devices import Inputs
from gemm_regression.model import (
    Array,
    BlockShape,
    Case,
    Config,
    Constraints,
    Kernel,
    Operand,
    Operation,
    Problem,
)
from gemm_regression.model.dtypes import BF16, DTYPES, E4M3, F16, F32, S8, TF32, DType
from gemm_regression.model.operation import GEMM
from gemm_regression.oracle.reference import error_bound, exactly_computed, make_inputs, with_planted
from gemm_regression.project.suites import VERIFIED
from tests.gemm_regression.fakes import NumpyDevice, product

KERNEL = Kernel("fake", None, "", BlockShape((1, 1), (1, 1)), dtypes=tuple(DTYPES.values()))
ODD = Problem(37, 53, 141, lda=149, ldb=57, ldc=61)


def found(device: NumpyDevice, problem: Problem = ODD, dtype: DType = F32) -> list[str]:
    return [finding.check for finding in oracle.verify(device, Case(KERNEL, dtype, Config(), problem))]


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize("problem", VERIFIED, ids=lambda p: p.id)
def test_a_right_kernel_gives_no_finding(problem: Problem, dtype: DType) -> None:
    assert found(NumpyDevice(), problem, dtype) == []


def _float(a: Array) -> Array:
    return a.astype(np.float64)


def _swapped_n_and_k(a: Array, b: Array, p: Problem) -> Array:
    flat = np.resize(_float(b).reshape(-1), p.n * p.k)
    out: Array = _float(a) @ flat.reshape(p.n, p.k).T
    return out


def _tf32(a: Array, b: Array, p: Problem) -> Array:
    return product(TF32.rounded(a), TF32.rounded(b), p)


def _half_sums(a: Array, b: Array, p: Problem) -> Array:
    total = np.zeros((p.m, p.n), np.float16)
    with np.errstate(over="ignore"):
        for k in range(p.k):
            term = (_float(a)[:, k : k + 1] * _float(b)[k : k + 1]).astype(np.float16)
            total = (total + term).astype(np.float16)
    return total


def _bf16_inputs(a: Array, b: Array, p: Problem) -> Array:
    return product(BF16.rounded(a), BF16.rounded(b), p)


def _terms(a: slice, b: slice | None = None) -> Callable[..., Array]:
    """A product of these columns of A and the rows of B."""
    return lambda x, y, p: product(x[:, a], y[b or a], p)


def _slightly_off(a: Array, b: Array, p: Problem) -> Array:
    """By a relative error of a few hundred roundoffs, but for integers."""
    exact = product(a, b, p)
    off = exact + np.abs(_float(a)) @ np.abs(_float(b)) * 2.0**-16
    return np.where(exact == np.round(exact), exact, off)


def _flushed(a: Array, b: Array, p: Problem) -> Array:
    """Without subnormal numbers."""
    normal = 2.0**-14 if a.dtype == np.float16 else 2.0**-126
    kept = [np.where(np.abs(_float(x)) < normal, 0.0, _float(x)) for x in (a, b)]
    return product(kept[0], kept[1], p)


HALVES = [DTYPES[name] for name in ("f16", "bf16", "f16_f16", "bf16_f16")]


@pytest.mark.parametrize(
    ("multiply", "dtype", "check"),
    [
        pytest.param(_swapped_n_and_k, F32, "exact", id="N and K exchanged"),
        pytest.param(_terms(slice(ODD.k // 16 * 16)), F32, "exact", id="K tail lost"),
        pytest.param(_terms(slice(-1)), F32, "exact", id="K cut by one"),
        pytest.param(_terms(slice(128, None)), F32, "exact", id="sum reset at a later tile"),
        pytest.param(_terms(slice(None, None, -1), slice(None)), F32, "exact", id="index reversed"),
        pytest.param(_half_sums, F32, "exact", id="sums in half"),
        pytest.param(_tf32, F32, "precision", id="TF32 in an FP32 kernel"),
        pytest.param(_bf16_inputs, F16, "precision", id="BF16 in an FP16 kernel"),
        *(pytest.param(_flushed, of, "precision", id=f"no subnormals in {of.name}") for of in HALVES),
        pytest.param(_slightly_off, F32, "bound", id="hundreds of roundoffs"),
    ],
)
def test_a_wrong_product_is_found(multiply: Callable[..., Array], dtype: DType, check: str) -> None:
    assert found(NumpyDevice(multiply), dtype=dtype) == [check]


def _cut_to_tf32(a: Array) -> Array:
    return (a.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


@pytest.mark.parametrize("dtype", ["tf32", "tf32_f16", "tf32_bf16"])
def test_a_kernel_that_does_not_round_to_tf32_is_found(dtype: str) -> None:
    def cut(a: Array, b: Array, p: Problem) -> Array:
        return product(_cut_to_tf32(a), _cut_to_tf32(b), p)

    def one_cut(a: Array, b: Array, p: Problem) -> Array:
        return product(TF32.rounded(a), _cut_to_tf32(b), p)

    def faults(multiply: Callable[..., Array], takes: Constraints) -> list[str]:
        kernel = replace(KERNEL, source=Path("fake.cu"), constraints=takes)
        case = Case(kernel, DTYPES[dtype], Config(), Problem(9, 11, 21, beta=1))
        return [finding.check for finding in oracle.verify(NumpyDevice(multiply), case)]

    assert faults(_tf32, Constraints()) == []
    assert faults(cut, Constraints()) == faults(one_cut, Constraints()) == ["exact"]
    assert faults(cut, Constraints(on_grid=True)) == []


def _without_zeros(a: Array, b: Array, p: Problem) -> Array:
    """Nothing is multiplied by a zero of B."""
    terms = np.where(_float(b) == 0, 0.0, _float(a)[:, :, None] * _float(b))
    return np.asarray(terms.sum(axis=1))


def _lost(side: str, value: float) -> Callable[..., Array]:
    """Numbers in the place of what is not finite in A or B."""

    def multiply(a: Array, b: Array, p: Problem) -> Array:
        given = {"A": _float(a), "B": _float(b)}
        bad = np.isnan(given[side]) if value != value else np.isinf(given[side])
        given[side] = np.where(bad, 1.0, given[side])
        return product(given["A"], given["B"], p)

    return multiply


@pytest.mark.parametrize(
    ("multiply", "said"),
    [
        (_without_zeros, "expected nan"),
        (_lost("B", np.inf), "inf in b"),
        (_lost("A", np.inf), "inf in a"),
        (_lost("B", np.nan), "nan in b"),
        (_lost("A", np.nan), "nan in a"),
    ],
)
def test_nan_and_infinities_reach_what_ieee_says(multiply: Callable[..., Array], said: str) -> None:
    with np.errstate(invalid="ignore"):
        (finding,) = oracle.verify(NumpyDevice(multiply), Case(KERNEL, F32, Config(), ODD))
    assert finding.check == "nan_inf"
    assert said in finding.message.lower()


def _beta(c: Array, p: Problem) -> Any:
    return p.beta * c if p.beta else 0


SCALINGS: dict[str, Callable[[Array, Array, Problem], Array]] = {
    "beta ignored": lambda product, c, p: p.alpha * product,
    "alpha ignored": lambda product, c, p: product + _beta(c, p),
    "alpha scales C too": lambda product, c, p: p.alpha * (product + _beta(c, p)),
    "beta = 0 reads C": lambda product, c, p: p.alpha * product + p.beta * c,
    "alpha = 0 leaves C": lambda product, c, p: p.alpha * product + _beta(c, p) if p.alpha else c,
}


@pytest.mark.parametrize("fault", SCALINGS)
def test_wrong_scaling_is_found(fault: str) -> None:
    check = "unwritten" if fault == "beta = 0 reads C" else "exact"
    assert found(NumpyDevice(combine=SCALINGS[fault])) == [check]


def _last_row_missing(c: Array, inputs: Inputs, p: Problem) -> None:
    c[-1] = inputs["C"][-1]


def _last_column_missing(c: Array, inputs: Inputs, p: Problem) -> None:
    c[:, p.n - 1] = inputs["C"][:, p.n - 1]


def _one_column_too_far(c: Array, inputs: Inputs, p: Problem) -> None:
    c[:, p.n] = c[:, p.n - 1]


def _nan_spreads(c: Array, inputs: Inputs, p: Problem) -> None:
    if np.isnan(c[:, : p.n]).any():
        c[:, : p.n] = np.nan


def _nan_swallowed(c: Array, inputs: Inputs, p: Problem) -> None:
    np.nan_to_num(c, copy=False)


@pytest.mark.parametrize(
    ("finish", "check"),
    [
        pytest.param(_last_row_missing, "exact", id="last row not written"),
        pytest.param(_last_column_missing, "exact", id="last column not written"),
        pytest.param(_one_column_too_far, "padding", id="a column past the row"),
        pytest.param(_nan_spreads, "nan_inf", id="a NaN spreads to other rows"),
        pytest.param(_nan_swallowed, "nan_inf", id="a NaN is swallowed"),
    ],
)
def test_wrong_stores_are_found(finish: Callable[..., None], check: str) -> None:
    start = Problem(ODD.m, ODD.n, ODD.k, 2, 3, ODD.lda, ODD.ldb, ODD.ldc)
    assert found(NumpyDevice(finish=finish), start) == [check]


def test_padding_columns_of_the_inputs_must_not_be_read() -> None:
    def reads_past_the_row(c: Array, inputs: Inputs, p: Problem) -> None:
        c[:, : p.n] += 0 * inputs["A"][:, p.k :].astype(np.float32).sum(axis=1, keepdims=True)

    assert found(NumpyDevice(finish=reads_past_the_row)) == ["unwritten"]


@pytest.mark.parametrize("problem", [ODD, Problem(37, 53, 141, beta=1)], ids=lambda p: p.id)
def test_a_kernel_that_says_it_reads_c_where_beta_is_0_finds_numbers_there(problem: Problem) -> None:
    device = NumpyDevice(combine=lambda product, c, p: p.alpha * product + p.beta * c)
    reads_c = replace(KERNEL, constraints=Constraints(finite_c=True))
    assert oracle.verify(device, Case(reads_c, F32, Config(), problem)) == []
    (finding,) = oracle.verify(device, Case(KERNEL, F32, Config(), problem))
    assert "constraints=Constraints(finite_c=True)" in finding.message


def test_what_such_a_kernel_does_not_write_is_found_all_the_same() -> None:
    def forget(c: Array, inputs: Inputs, p: Problem) -> None:
        c[3, 5] = inputs["C"][3, 5]

    reads_c = replace(KERNEL, constraints=Constraints(finite_c=True))
    (finding,) = oracle.verify(NumpyDevice(finish=forget), Case(reads_c, F32, Config(), ODD))
    assert finding.check == "exact"


def test_stale_output_is_found() -> None:
    device = NumpyDevice()
    seen: list[Array] = []

    def stale(c: Array, inputs: Inputs, p: Problem) -> None:
        seen.append(c.copy())
        c[:] = seen[0]

    device.finish = stale
    assert found(device) == ["exact"]


def _over_nan_only(c: Array, inputs: Inputs, p: Problem) -> None:
    if p.beta == 0:
        c[:] = np.where(np.isnan(inputs["C"]), c, inputs["C"])


def test_output_that_is_written_only_over_nan_is_stale() -> None:
    (finding,) = oracle.verify(NumpyDevice(finish=_over_nan_only), Case(KERNEL, F32, Config(), ODD))
    first = np.float32(oracle.reference(GEMM, ODD, F32, "normal")[0, 0, 0])
    assert finding.check == "stale"
    assert f"C(0, 0) kept its old value 77, but was {first:.9g} when" in finding.message
    assert f"over NaN; {37 * 53} elements" in finding.message


def test_a_last_bit_that_changes_is_found() -> None:
    device = NumpyDevice()

    def flip(c: Array, inputs: Inputs, p: Problem) -> None:
        fractional = c[0, 0] != np.round(c[0, 0])
        if fractional and device.launches % 2:
            c[0, 0] = np.nextafter(c[0, 0], np.float32(np.inf))

    device.finish = flip
    assert found(device) == ["repeat"]


def test_violations_of_the_device_become_findings() -> None:
    assert "guard" in found(NumpyDevice(violations=("a guard band was written",)))


def test_a_mismatch_names_place_values_bound_and_count() -> None:
    def two_wrong(c: Array, inputs: Inputs, p: Problem) -> None:
        c[3, 5] += 1
        c[9, 2] += 1

    (finding,) = oracle.verify(NumpyDevice(finish=two_wrong), Case(KERNEL, F32, Config(), ODD))
    want = oracle.reference(GEMM, ODD, F32, "exact")[0]
    assert f"C(3, 5) is {want[3, 5] + 1:g}, expected {want[3, 5]:g} ± 0" in finding.message
    assert f"2 of {37 * 53} elements are wrong" in finding.message
    assert "alpha 1, beta 0" in finding.message


def test_inputs_of_the_exact_check_stay_exact_in_fp32() -> None:
    for problem in VERIFIED:
        for dtype in (dtype for dtype in DTYPES.values() if not dtype.integer):
            for kind in ("exact", "probe"):
                inputs = oracle.make_inputs(GEMM, problem, dtype, kind)
                a, b = (_float(x[:, :n]) for x, n in ((inputs["A"], problem.k), (inputs["B"], problem.n)))
                total = 3 * (np.abs(a) @ np.abs(b)) if kind == "exact" else np.abs(a) @ np.abs(b)
                assert total.size == 0 or total.max() + 3 * 15 < 2**24


def test_the_probe_cannot_be_held_by_a_lower_precision() -> None:
    values = oracle.make_inputs(GEMM, ODD, F32, "probe")["A"][:, : ODD.k]
    assert (TF32.rounded(values) != values).mean() > 0.5
    assert (values.astype(np.float16).astype(np.float32) != values).mean() > 0.5


@pytest.mark.parametrize(
    ("value", "rounded"),
    [
        (1.0 + 2.0**-11, 1.0 + 2.0**-10),  # a tie goes away from zero
        (-1.0 - 2.0**-11, -1.0 - 2.0**-10),
        (1.0 + 2.0**-11 - 2.0**-20, 1.0),
        (float("inf"), float("inf")),
    ],
)
def test_rounding_to_tf32(value: float, rounded: float) -> None:
    assert TF32.rounded(np.array([value], np.float32))[0] == np.float32(rounded)


def test_gamma_refuses_where_no_bound_holds() -> None:
    assert oracle.gamma(10, 2.0**-24) == pytest.approx(10 * 2.0**-24, rel=1e-5)
    with pytest.raises(ValueError, match="must be below 1"):
        oracle.gamma(2**24, 2.0**-24)


def test_products_of_fp8_have_the_roundoff_of_tensor_cores() -> None:
    """An H100's tensor cores gave -4.23974609 where -4.23999023 is exact."""
    operands = (
        Operand("A", "m", "k", "multiplied", like="A", dtype="float8_e4m3fn"),
        Operand("B", "k", "n", "multiplied", like="B", dtype="float8_e4m3fn"),
        Operand("C", "m", "n", "result", like="C"),
    )
    fp8 = Operation("fp8_gemm", operands, product=lambda v: v["A"] @ v["B"])
    assert fp8.added_as(F16).accumulate_roundoff == E4M3.accumulate_roundoff
    scale = Operand("scale", "", "n", "multiplied", dtype="int8")
    integers = replace(GEMM, operands=(*GEMM.operands, scale), library=None)
    assert [integers.exact_sums(dtype) for dtype in (S8, F16, F32)] == [2**24] * 3
    assert error_bound(fp8, Problem(1, 16, 16), F16, "normal").min() > 2.5e-4
    assert exactly_computed(fp8, Problem(16, 16, 32), F16, "exact")
    assert not exactly_computed(fp8, Problem(16, 16, 512), F16, "exact")  # sums past 2^13
    assert exactly_computed(replace(fp8, promotes=True), Problem(16, 16, 512), F16, "exact")


def test_what_a_table_has_for_integers_is_not_exact() -> None:
    codes = Operand("B", "k", "n", "multiplied", dtype="int8", values=(0, 3))
    plain = Operation(
        "codes", (GEMM.operands[0], codes, Operand("C", "m", "n", "result")), lambda v: v["A"] @ v["B"]
    )
    table = np.array([-1.0, -0.6961928, 0.0, 0.7229568])
    decoded = replace(plain, product=lambda v: v["A"] @ table[v["B"].astype(int)])
    assert exactly_computed(plain, Problem(5, 6, 7), F32, "exact")
    assert not exactly_computed(decoded, Problem(5, 6, 7), F32, "exact")


def test_a_hidden_number_is_in_no_buffer_in_which_a_nan_could_be_planted() -> None:
    hidden = Operand("sums", "k", "", "multiplied", dtype="float16", hidden=True)
    words = Operand("B", "k", "n", "multiplied", dtype="float16", made=lambda v: v["sums"].repeat(6, 2))
    c = Operand("C", "m", "n", "result")
    operation = Operation("made", (GEMM.operands[0], hidden, words, c), lambda v: v["A"] @ v["B"])
    problem = Problem(5, 6, 7)
    planted = with_planted(operation, problem, F32, make_inputs(operation, problem, F32, "normal"))
    assert [name for name, buffer in planted.items() if not np.isfinite(buffer).all()] == ["A"]


def test_sums_that_blocks_hand_on_in_fp16_are_exact_as_far_as_it_holds() -> None:
    scale = Operand("scale", "", "n", "multiplied", dtype="int8")
    whole = replace(GEMM, operands=(*GEMM.operands, scale), library=None)
    halves, problem = replace(whole, partial="float16", roundings=2), Problem(16, 16, 512)
    assert [operation.exact_sums(F16) for operation in (whole, halves)] == [2**24, 2**11]
    assert exactly_computed(whole, problem, F16, "exact")
    assert not exactly_computed(halves, problem, F16, "exact")
    assert exactly_computed(halves, Problem(16, 16, 1), F16, "exact")
    terms = np.abs(error_bound(halves, problem, F16, "normal") - error_bound(whole, problem, F16, "normal"))
    absolute = oracle.reference(
        replace(whole, product=lambda v: abs(v["A"]) @ abs(v["B"])), problem, F16, "normal"
    )
    assert terms == pytest.approx(2 * 2.0**-11 * absolute)
    with pytest.raises(ValueError, match="partial 'float8': must be one of float32, float16, bfloat16"):
        replace(whole, partial="float8")
