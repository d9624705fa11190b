"""A kernel's own parameters: read as people write them, handed over in their order; what they cannot say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gemm_regression.devices import DeviceError
from gemm_regression.devices.emulated import EmulatedDevice
from gemm_regression.model import (
    F16,
    F32,
    S8,
    TF32,
    BlockShape,
    Case,
    Config,
    Constraints,
    DType,
    Kernel,
    Problem,
    TensorMap,
)
from gemm_regression.model.kernel import Workspace
from gemm_regression.model.operation import GEMM, GEMM_BATCHED, GEMM_BIAS_RELU, Operand, Operation, gemm
from gemm_regression.model.parameters import expression_refusals, parse_parameters
from gemm_regression.oracle import make_inputs
from tests.ladder import find_kernel

SHORT = Problem(20, 30, 40, alpha=2, beta=3)
PROBLEM = replace(SHORT, lda=44, ldb=33, ldc=35)


def kernel(parameters: str = "", operation: Operation = GEMM, takes: Constraints | None = None) -> Kernel:
    made = Kernel("k", None, "f", BlockShape((16, 16), (16, 16)), operation=operation, parameters=parameters)
    return replace(made, constraints=takes) if takes else made


def handed(
    parameters: str = "", problem: Problem = PROBLEM, operation: Operation = GEMM, dtype: DType = F32
) -> list[object]:
    """What is handed over: a number, or the name of a buffer."""
    case = Case(kernel(parameters, operation), dtype, Config(), problem)
    return [argument.buffer or argument.value for argument in case.arguments]


USUAL = [20, 30, 40, 2, "A", 44, "B", 33, 3, "C", 35]
OWN = "float *C, const float *__restrict__ A, float* B, int wA=K, unsigned int wB=N, int flags=7"


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("", USUAL),
        (OWN, ["C", "A", "B", 40, 30, 7]),
        ("M, N, K, alpha, A, B, beta, C", [20, 30, 40, 2, "A", "B", 3, "C"]),
        ("A, B, C, int g=(K+31)/32, l=4*lda, int r=-K%32", ["A", "B", "C", 2, 176, -8]),
        ("A, B, C, float h=0.5*alpha, float e=1e-5, double i=1.0/N", ["A", "B", "C", 1, 1e-5, 1 / 30]),
    ],
    ids=["usual", "its own order and names", "names alone", "expressions", "expressions of floats"],
)
def test_what_is_handed_over_is_what_is_declared(text: str, values: list[object]) -> None:
    assert handed(text) == values


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("int M, size_t N, long long K, A, B, C", ["i32", "i64", "i64", "p64", "p64", "p64"]),
        ("A, B, C, half alpha, double beta", ["p64", "p64", "p64", "f16", "f64"]),
        ("float A[], float B[], float C[], int m", ["p64", "p64", "p64", "i32"]),
    ],
)
def test_types_as_cpp_writes_them(text: str, kinds: list[str]) -> None:
    assert [parameter.kind for parameter in parse_parameters(text, GEMM)] == kinds


def test_scalars_without_a_type_are_those_of_the_dtype() -> None:
    for dtype, kind in ((F32, "f32"), (F16, "f32"), (S8, "i32")):
        case = Case(kernel(), dtype, Config(), PROBLEM)
        assert [a.kind for a in case.arguments if a.name in ("alpha", "beta")] == [kind, kind]


def test_scalars_that_would_lose_their_fraction_are_refused() -> None:
    halves, floats = replace(PROBLEM, alpha=1.5, beta=-0.5), "M, N, K, float alpha, A, B, float beta, C"
    found = [
        Case(replace(kernel(parameters), source=__file__), dtype, Config(), problem).refusals  # type: ignore[arg-type]
        for parameters, dtype, problem in (
            ("", S8, halves),
            ("", S8, PROBLEM),
            ("", F32, halves),
            (floats, S8, replace(halves, lda=0, ldb=0, ldc=0)),
        )
    ]
    said = (
        "alpha 1.5 is no integer, and s8 passes it as one",
        "beta -0.5 is no integer, and s8 passes it as one",
    )
    assert found == [said, (), (), ()]


def test_a_batch_comes_with_strides() -> None:
    problem = Problem(4, 5, 6, batch=7, gap=2, lda=8, ldb=9, ldc=10)
    assert handed("", problem, GEMM_BATCHED) == [
        *(4, 5, 6, 1, "A", 8, (4 + 2) * 8, "B", 9, (6 + 2) * 9, 0, "C", 10, (4 + 2) * 10, 7)
    ]


def test_what_is_added_and_the_workspace_are_handed_over() -> None:
    assert handed("", PROBLEM, GEMM_BIAS_RELU)[7:9] == [33, "bias"]
    one = replace(kernel(), workspace=Workspace(lambda config, dtype, problem: 64))
    assert Case(one, F32, Config(), PROBLEM).arguments[-1].buffer == "workspace"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("A, B, C, width", "state the meaning of width as width=ROLE, where ROLE is one of M, N, K, batch"),
        ("A, B", r"C of gemm is missing"),
        ("A, A, B, C", "A occurs twice"),
        ("float A, B, C", "A is passed as a pointer"),
        ("A, B, C, int* M", "a pointer cannot hold M"),
        ("A, B, C, quad M", "unknown type 'quad'; known: int"),
        ("A, B, C, ", "parameter '' cannot be parsed"),
        ("A, B, C, bias", "state the meaning of bias"),
        ("A, B, C, int g=K/groups", "'int g=K/groups': groups is no ROLE, where ROLE is one of M, N"),
        ("A, B, C, int g=K//32", "'int g=K//32': 'K//32' is no expression of numbers and names"),
        ("A, B, C, int g=f(K)", "no expression of numbers and names"),
        ("B, C, float *next=A+1", "A is passed by itself, not in an expression"),
        ("A, B, C, int e=0.5", "0.5 is no integer; write float or double"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_line(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        parse_parameters(text, GEMM)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "packed"),
    [
        ("uint8_t a=255, int8_t b=-128, bool c=1", b"\xff\x80\x01"),
        ("unsigned short a=65535, uint8_t b=7", b"\xff\xff\x07\x00"),
        ("uint32_t a=4294967295, int b=-1", b"\xff" * 8),
    ],
)
def test_integers_of_a_struct_are_signed_or_not(given: str, packed: bytes) -> None:
    case = Case(kernel(f"A, B, C, {{{given}}}"), F32, Config(), PROBLEM)
    assert case.arguments[-1].handed(len) == packed


def test_a_size_that_a_short_does_not_hold_is_refused() -> None:
    parameters = parse_parameters("A, B, C, short m=M, uint8_t n=2*N", GEMM)
    said = [
        list(expression_refusals(parameters, GEMM, Problem(*sizes), F32))
        for sizes in ((9, 9, 1), (40000, 64, 1))
    ]
    assert said == [
        [],
        [
            "parameter n=2*N is 128, more than 8 bits hold",
            "parameter m=M is 40000, more than 16 bits hold",
        ],
    ]


# What parameters cannot say


@pytest.mark.parametrize(
    ("parameters", "operation", "narrowed"),
    [
        ("", GEMM, PROBLEM),
        ("M, N, K, A, lda, B, ldb, C, ldc", GEMM, replace(PROBLEM, alpha=1, beta=0)),
        ("M, N, K, alpha, A, B, beta, C", GEMM, SHORT),
        # Column-major A: as much beyond its column.
        ("", gemm("TN"), replace(SHORT, lda=24, ldb=33, ldc=35, layout="TN")),
    ],
)
def test_a_problem_is_narrowed_to_what_can_be_said(
    parameters: str, operation: Operation, narrowed: Problem
) -> None:
    one = kernel(parameters, operation)
    one = replace(one, source=__file__)  # type: ignore[arg-type]
    assert one.narrowed(PROBLEM) == narrowed
    assert one.refusals(Config(), narrowed) == ()
    assert bool(one.refusals(Config(), PROBLEM)) is (narrowed != PROBLEM)


def test_constraints_name_sizes_as_the_operation_does() -> None:
    operands = (Operand("x", "inputs", "", "multiplied"), Operand("y", "outputs", "", "result"))
    gemv = Operation("gemv", operands, lambda v: v["x"], sizes=("outputs", "inputs"))
    takes = Constraints({"inputs": 32}, at_least={"outputs": 2}, at_most={"n": 64})
    one = replace(kernel("x, y", gemv, takes), source=__file__)  # type: ignore[arg-type]
    assert one.refusals(Config(), Problem(1, 96, 1)) == ("outputs 1 is below 2", "inputs 96 is above 64")
    assert one.refusals(Config(), Problem(2, 40, 1)) == ("inputs 40 is not a multiple of 32",)
    assert one.constraints.near(Problem(1, 33, 1), Config()) == Problem(2, 64, 1)
    assert replace(one, idea="again").constraints == one.constraints
    said = "k: constraints: 'input' is none of outputs, inputs, lda"
    with pytest.raises(ValueError, match=said):
        replace(one, constraints=Constraints({"input": 32}))
    with pytest.raises(ValueError, match="'K' is none of m, n, k, batch, lda"):
        kernel(takes=Constraints(at_most={"K": 8}))


STARTS = Problem(5, 5, 5, starts=(1, 2, 1))


def refused(takes: Constraints, problem: Problem, parameters: str = "", **config: int) -> str:
    one = replace(kernel(parameters, takes=takes), source=__file__)  # type: ignore[arg-type]
    return "; ".join(one.refusals(Config(**config), problem))


@pytest.mark.parametrize(
    ("takes", "problem", "reason"),
    [
        (Constraints({"m": "TILE_M"}), Problem(127, 1, 1), "m 127 is not a multiple of TILE_M = 64"),
        (Constraints(multiples={"k": 8}), Problem(1, 1, 12), "k 12 is not a multiple of 8"),
        (Constraints({"m": 8}), Problem(0, 1, 1), "m 0 is below 8, and a launch has at least one block"),
        (Constraints(multiples={"k": 8}), Problem(1, 1, 0), ""),
        (Constraints(multiples={"lda": 4}), Problem(1, 1, 6), "lda 6 is not a multiple of 4"),
        (Constraints({"B": 4}), STARTS, "B starts at element 2, not at a multiple of 4"),
        (Constraints({"A": 4, "C": 2}), replace(STARTS, starts=(4, 1, 6)), ""),
        (Constraints(at_most={"n": 64}), Problem(1, 65, 1), "n 65 is above 64"),
        (Constraints(at_least={"k": 1}), Problem(1, 1, 0), "k 0 is below 1"),
        (Constraints(square=True), Problem(2, 2, 3), "2x2x3 is not square"),
        (Constraints(unless=lambda problem, config: "not on Sundays"), Problem(1, 1, 1), "not on Sundays"),
        (Constraints(), Problem(1, 1, 1, batch=3), "gemm is not batched"),
        (Constraints(), Problem(1, 1, 1, layout="TN"), "gemm has layout NN, not TN"),
    ],
)
def test_a_problem_that_is_not_taken_is_refused_with_the_reason(
    takes: Constraints, problem: Problem, reason: str
) -> None:
    assert refused(takes, problem, TILE_M=64) == reason


def test_what_parameters_cannot_say_is_refused_with_the_reason() -> None:
    said = refused(Constraints(), PROBLEM, "M, N, K, A, B, C")
    assert said == (
        "it has no parameter alpha, so alpha is 1; it has no parameter beta, so beta is 0; "
        "it has no parameter for a leading dimension, so matrices are densely packed"
    )


@pytest.mark.parametrize(
    ("takes", "near"),
    [
        (Constraints(multiples={"m": 64, "n": 64, "k": 8}), Problem(128, 192, 144)),
        (Constraints(at_most={"m": 64, "n": 64, "k": 64}), Problem(64, 64, 64)),
        (Constraints(multiples={"m": 256, "k": 256}), Problem(256, 131, 256)),
        (Constraints(square=True, multiples={"m": 32, "n": 32, "k": 32}), Problem(160, 160, 160)),
        (Constraints(at_most={"k": 100}, multiples={"k": 64}), Problem(127, 131, 64)),
        (Constraints(at_least={"k": 160}, multiples={"k": 64}), Problem(127, 131, 192)),
    ],
)
def test_a_problem_near_what_is_taken_is_taken(takes: Constraints, near: Problem) -> None:
    assert takes.near(Problem(127, 131, 137), Config()) == near
    assert not list(takes.refusals(near, Config()))


def test_near_keeps_what_leading_dimensions_have_beyond_their_rows() -> None:
    near = Constraints(multiples={"k": 8, "lda": 4}).near(Problem(3, 5, 9, lda=12, ldb=6), Config())
    assert near == Problem(3, 5, 16, lda=20, ldb=6)


# As compiled


@pytest.mark.compile
@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ("", ""),
        ("M, N, K, A, lda, alpha, B, ldb, beta, C, ldc", "parameter 4 is p64 A, but the kernel takes f32"),
        ("M, N, K, alpha, A, lda, B, ldb, beta, C", r"the kernel takes 11 parameters, not 10 \(M, N"),
        (
            "size_t M, N, K, alpha, A, lda, B, ldb, beta, C, ldc",
            "parameter 1 is i64 M, but the kernel takes i32",
        ),
    ],
)
def test_what_is_declared_is_held_to_what_is_compiled(parameters: str, said: str) -> None:
    """Before any launch: a launch passes bytes, not types."""
    one = replace(find_kernel("naive"), parameters=parameters)
    case = Case(one, F32, one.configs[0], Problem(16, 16, 16))
    device = EmulatedDevice()
    inputs = make_inputs(one.operation, case.problem, F32, "exact")
    if not said:
        assert device.run(case, inputs).complete
        return
    with pytest.raises(DeviceError, match=said) as caught:
        device.run(case, inputs)
    assert caught.value.code == "SIGNATURE"


ROWS = """
#include "hopper.cuh"
// C = A, one block: A comes in rows of 128 bytes.
extern "C" __global__ void copy(const __grid_constant__ CUtensorMap mapA, float* C, int M, int K) {
#ifdef DTYPE_F16
    typedef __half Element;
#else
    typedef float Element;
#endif
    __shared__ __align__(1024) Element tile[16 * 128 / sizeof(Element)];
    __shared__ uint64_t full;
    if (threadIdx.x == 0) {
        hopper::mbarrier_init(&full, 1);
        hopper::fence_mbarrier_init();
        hopper::mbarrier_arrive_expect_tx(&full, sizeof tile);
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                     "[%0], [%1, {%3, %3}], [%2];" ::"r"(hopper::address(tile)), "l"(&mapA),
                     "r"(hopper::address(&full)), "r"(0) : "memory");
    }
    __syncthreads();
    hopper::mbarrier_wait_parity(&full, 0);
    for (int i = threadIdx.x; i < M * K; i += blockDim.x)
        C[i] = float(tile[i / K * (128 / sizeof(Element)) + i % K]);
}
"""
HOPPER = Path(__file__).parents[2] / "hopper"


@pytest.mark.compile
@pytest.mark.parametrize(("dtype", "tf32"), [(TF32, True), (TF32, False), (F16, False)])
def test_a_tensor_map_is_as_wide_as_its_elements_make_it_and_rounds_to_tf32(
    dtype: DType, tf32: bool, tmp_path: Path
) -> None:
    """What a kernel sees by it of an A with numbers off the grid of TF32."""
    (tmp_path / "copy.cu").write_text(ROWS)
    a = Operand("A", "m", "k", "multiplied", like="A")
    c = Operand("C", "m", "k", "result", like="A")
    kernel = Kernel(
        *("copy", tmp_path / "copy.cu", "copy", BlockShape((32, 1), (16, 32))),
        operation=Operation("copy", (a, c), lambda values: values["A"], library=None),
        parameters="const CUtensorMap mapA, float* C, int M, int K",
        include=(HOPPER,),
        maps=lambda config, dtype: {"A": TensorMap((16, 128 // dtype.storage.itemsize), tf32=tf32)},
        min_capability=(9, 0),
    )
    case = Case(kernel, dtype, kernel.configs[0], Problem(13, 1, 32))
    inputs = make_inputs(kernel.operation, case.problem, dtype, "off grid" if dtype.converts else "exact")
    found, given = EmulatedDevice().run(case, inputs), inputs["A"]
    assert (found.complete, found.violations) == (True, ())
    seen = found.result.reshape(given.shape)
    assert np.array_equal(seen, TF32.rounded(given) if tf32 else given.astype(np.float32))
    assert np.array_equal(seen, given) is not tf32


def test_a_tensor_map_does_not_round_what_is_not_fp32() -> None:
    of = replace(kernel("mapA, B, C"), maps=lambda config, dtype: {"A": TensorMap((16, 64), tf32=True)})
    with pytest.raises(ValueError, match=r"parameter mapA: .* rounds FP32 .*those of A are float16: write"):
        Case(of, F16, Config(), Problem(16, 16, 16)).arguments  # noqa: B018


def test_an_expression_says_a_leading_dimension_and_refuses_what_it_does_not_hold() -> None:
    text = "A, B, C, M, N, K, ldb, ldc, int lda4=4*lda, int parts=K/(N-30)"
    made = replace(kernel(text), source=Path("k.cu"))
    fits = made.narrowed(replace(PROBLEM, n=29))
    assert fits.lda == 44
    assert made.refusals(Config(), fits) == ()
    (reason,) = made.refusals(Config(), replace(fits, n=30))
    assert reason == "parameter parts: K/(N-30): division by zero"
    (reason,) = made.refusals(Config(), replace(fits, lda=2**30))
    assert reason.startswith("parameter lda4=4*ldA is 4.29497e+09, more than 32 bits hold")
