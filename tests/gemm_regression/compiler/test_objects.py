"""Which of the compiled functions is the entry that a declaration names, and whether it takes the parameters
that a launch hands over."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gemm_regression.compiler import objects
from gemm_regression.compiler.nvcc import compile_cubin, compile_ptx, entry_symbol
from gemm_regression.compiler.objects import mismatch, names_it, parameters, symbol_of
from gemm_regression.compiler.tools import CompileError
from gemm_regression.model import F32, Argument, BlockShape, Config, Kernel

# As nvcc and c++filt spell them.
SYMBOLS = {
    "plain": "plain",
    "sgemm(int, float*)": "_Z5sgemmiPf",
    "void ns::gemm<__half, 64>(__half const*)": "_ZN2ns4gemmI6__halfLi64EEEvPKT_",
    "void ns::gemm<float, 64>(float const*)": "_ZN2ns4gemmIfLi64EEEvPKT_",
    "void tk<3, true, 5u, float>(float*)": "_Z2tkILi3ELb1ELj5EfEvPT2_",
    "void ek<(E)1>(int*)": "_Z2ekIL1E1EEvPi",
    "(anonymous namespace)::hidden(int*)": "_ZN33_GLOBAL__N__227c9410_4_s_cu_plain6hiddenEPi",
    "void bk<true>()": "_Z2bkILb1EEvv",
    "void bk<false>()": "_Z2bkILb0EEvv",
    "over(int*)": "_Z4overPi",
    "over(float*)": "_Z4overPf",
}


@pytest.mark.parametrize(
    ("entry", "name"),
    [
        ("plain", "plain"),
        ("sgemm", "sgemm(int, float*)"),
        ("ns::gemm<half, 64>", "void ns::gemm<__half, 64>(__half const*)"),
        ("ns::gemm<float,64>", "void ns::gemm<float, 64>(float const*)"),
        ("tk<3, true, 5, float>", "void tk<3, true, 5u, float>(float*)"),
        ("tk<2 + 1, 1, 5, T>", "void tk<3, true, 5u, float>(float*)"),  # the one instance that there is
        ("bk<true>", "void bk<true>()"),
        ("ns::gemm<float, ...>", "void ns::gemm<float, 64>(float const*)"),
        ("ns::gemm<..., half, ...>", "void ns::gemm<__half, 64>(__half const*)"),
        ("bk<0>", "void bk<false>()"),
        ("over(float *)", "over(float*)"),
        ("ek<E::b>", "void ek<(E)1>(int*)"),
        ("::hidden", "(anonymous namespace)::hidden(int*)"),
    ],
)
def test_an_entry_is_found_by_its_name_in_c_plus_plus(entry: str, name: str) -> None:
    assert symbol_of(entry, list(SYMBOLS.values()), "x f32") == SYMBOLS[name]
    assert names_it(entry, name)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("gemm<float, 64>", "there is no __global__ function named gemm<float, 64>"),
        (
            "ns::gemm",
            "several __global__ functions are named ns::gemm; choose one: ns::gemm<__half, ...> or "
            "ns::gemm<float, ...>",
        ),
        (
            "ns::gemm<..., 64>",
            "several __global__ functions are named ns::gemm<..., 64>; choose one: ns::gemm<__half, ...> or "
            "ns::gemm<float, ...>",
        ),
        ("ns::gemm<..., 65>", "there is no __global__ function named ns::gemm<..., 65>"),
        ("ns::gemm<T, 64>", "there is no __global__ function named ns::gemm<T, 64>"),
        ("over", "several __global__ functions are named over; choose one: over(int*) or over(float*)"),
        ("sgem", "there is no __global__ function named sgem"),
    ],
)
def test_none_or_several_is_one_line_that_lists_what_is_there(entry: str, said: str) -> None:
    with pytest.raises(CompileError) as caught:
        symbol_of(entry, list(SYMBOLS.values()), "x f32")
    text = str(caught.value)
    assert text.startswith(f"x f32: {said}; compiled functions: ")
    assert "ns::gemm<__half, 64>, ns::gemm<float, 64>, over" in text
    assert "\n" not in text


def test_a_name_shown_by_a_tool() -> None:
    assert names_it("sgemm<128, 8>", "sgemm")
    assert names_it("sgemm<128, 8>", "void sgemm<(int)128, (int)8>(int, float *)")
    assert not names_it("ns::sgemm<128, 8>", "void sgemm<128, 8>(int, float *)")
    assert not names_it("sgemm", "sgemm2(int)")


SOURCE = """
namespace ns {
template <class T, int N> __global__ void gemm(const T* a, T* c) { c[threadIdx.x] = a[threadIdx.x * N]; }
__global__ void plain(float* c) { c[0] = 1.0f; }
}
template <int A, int B> __global__ void two(float* c) { c[A] = B; }
template <int A> __global__ void either(float* c) { c[A] = 1.0f; }
template <int A> __global__ void either(int* c, int n) { c[A] = n; }
static __device__ __noinline__ float hidden(float* c) { return atomicAdd(c, 1.0f); }
static __global__ void inside(float* c) { c[1] = hidden(c); }
using T = float;
"""


def planted(folder: Path, entry: str, source: str = SOURCE) -> Kernel:
    path = folder / "templates.cu"
    path.write_text(source)
    return Kernel("planted", path, entry, BlockShape((32, 1), (1, 32)))


@pytest.mark.compile
@pytest.mark.parametrize(
    ("entry", "symbol"),
    [
        ("ns::plain", "_ZN2ns5plainEPf"),
        ("ns::gemm<float, 64>", "_ZN2ns4gemmIfLi64EEEvPKT_PS1_"),
        ("ns::gemm<T, {TILE_M}>", "_ZN2ns4gemmIfLi16EEEvPKT_PS1_"),
        ("two<{TILE_M}, {TILE_M} + 1>", "_Z3twoILi16ELi17EEvPf"),
        ("inside", "_Z6insidePf"),
        ("two<int{3}, decltype({TILE_M}){}>", "_Z3twoILi3ELi0EEvPf"),
        ("either<2>(int*, int)", "_Z6eitherILi2EEvPii"),
        ("either<{TILE_M}>(float*)", "_Z6eitherILi16EEvPf"),
    ],
)
def test_an_entry_is_compiled_and_is_the_same_in_ptx_and_cubin(
    entry: str, symbol: str, tmp_path: Path
) -> None:
    kernel, config = planted(tmp_path, entry), Config(TILE_M=16)
    made = compile_cubin(kernel, config, F32, "sm_90a")
    assert (made.symbol, "warning" in made.log) == (symbol, False)
    assert made.resources.registers > 0
    assert symbol in objects.symbols(made.cubin)
    assert objects.code(made.cubin, made.symbol)
    ptx = compile_ptx(kernel, config, F32, "sm_90a")
    assert entry_symbol(kernel, config, F32, ptx) == symbol
    assert set(objects.ptx_symbols(ptx)) == set(objects.symbols(made.cubin))


@pytest.mark.compile
def test_making_an_instance_changes_no_code(tmp_path: Path) -> None:
    """Beside that of a line in the source itself."""
    ours = compile_cubin(planted(tmp_path, "two<1, 2>"), Config(), F32, "sm_90a")
    own = SOURCE + "template __global__ void two<1, 2>(float*);\n"
    theirs = compile_cubin(planted(tmp_path, "two", own), Config(), F32, "sm_90a")
    assert objects.code(ours.cubin, ours.symbol) == objects.code(theirs.cubin, theirs.symbol)
    assert objects.instantiation("two") == ""


@pytest.mark.compile
@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("two", "there is no __global__ function named two; compiled functions: inside, ns::plain"),
        ("two<1>", "the entry two<1>"),
        ("gemm<float, 64>", 'identifier "gemm" is undefined'),
        ("two<{TILE_N}, 1>", "the config has no 'TILE_N'"),
    ],
)
def test_an_entry_that_is_not_there_is_said_so(entry: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(CompileError) as caught:
        compile_cubin(planted(tmp_path, entry), Config(TILE_M=16), F32, "sm_90a")
    assert said in str(caught.value)
    assert "kernel.cu" not in str(caught.value)


@pytest.mark.compile
def test_each_of_several_entries_has_its_own_figures(tmp_path: Path) -> None:
    kernel = planted(tmp_path, "two<1, 2>")
    more = SOURCE + "__constant__ float table[16];\n__global__ void three(float4* c) { c[1] = c[0]; }\n"
    small = compile_cubin(kernel, Config(), F32, "sm_90a")
    both = compile_cubin(planted(tmp_path, "two<1, 2>", more), Config(), F32, "sm_90a")
    assert objects.code(small.cubin, small.symbol) == objects.code(both.cubin, both.symbol)
    # On sm_90a bank 0 holds 0x210 bytes of the launch's own, then the parameters; bank 3 the table.
    assert objects.constant_bytes(small.cubin, small.symbol) == 0x210 + 8
    other = compile_cubin(replace(kernel, entry="three"), Config(), F32, "sm_90a")
    assert objects.code(other.cubin, other.symbol) != objects.code(both.cubin, both.symbol)


# Its parameters

PTX = """.visible .entry gemm_one(
	.param .u32 gemm_one_param_0,
	.param .u64 .ptr .align 1 gemm_one_param_1,
	.param .align 64 .b8 gemm_one_param_2[128],
	.param .f32 gemm_one_param_3,
	.param .u64 gemm_one_param_4,
	.param .align 2 .b8 gemm_one_param_5[2]
)
{"""
TAKES = tuple(
    Argument(name, kind)
    for name, kind in (
        *(("M", "i32"), ("A", "p64"), ("map", "bytes[128]")),
        *(("alpha", "f32"), ("C", "p64"), ("scale", "f16")),
    )
)
NUMBER = (TAKES[0], Argument("n", "i64"), *TAKES[2:])


def exchanged(i: int, j: int) -> tuple[Argument, ...]:
    order = list(TAKES)
    order[i], order[j] = order[j], order[i]
    return tuple(order)


def test_parameters_are_read_from_ptx() -> None:
    assert parameters(PTX, "gemm_one") == ("u32", "ptr", "b8[128]", "f32", "u64", "b8[2]")
    assert parameters(PTX, "gemm") is None
    assert parameters(".entry gemm_one()", "gemm_one") == ()
    assert mismatch(PTX, "gemm_two", ()) == "there is no kernel gemm_two"


def test_what_is_taken_is_no_finding() -> None:
    assert mismatch(PTX, "gemm_one", TAKES) is None
    stride = (*TAKES[:4], Argument("stride", "i64"), TAKES[5])  # as PTX has it, it may be a number
    assert mismatch(PTX, "gemm_one", stride) is None


@pytest.mark.parametrize(
    ("handed", "said"),
    [
        (exchanged(0, 1), "parameter 1 is p64 A, but the kernel takes i32"),
        (exchanged(0, 3), "parameter 1 is f32 alpha, but the kernel takes i32"),
        (exchanged(3, 4), "parameter 4 is p64 C, but the kernel takes f32"),
        (exchanged(4, 5), "parameter 5 is f16 scale, but the kernel takes u64 (a pointer?)"),
        (exchanged(2, 5), "parameter 3 is f16 scale, but the kernel takes bytes[128]"),
        (NUMBER, "parameter 2 is i64 n, but the kernel takes a pointer"),
        (TAKES[:5], "the kernel takes 6 parameters, not 5 (M, A, map, alpha, C)"),
        ((*TAKES, TAKES[0]), "the kernel takes 6 parameters, not 7 (M, A, map, alpha, C, scale, M)"),
    ],
)
def test_the_first_that_differs_is_one_line(handed: tuple[Argument, ...], said: str) -> None:
    assert mismatch(PTX, "gemm_one", handed) == said


@pytest.mark.compile
@pytest.mark.parametrize(
    ("type_", "kind"),
    [
        *(("int", "i32"), ("unsigned", "i32"), ("long long", "i64"), ("size_t", "i64"), ("float", "f32")),
        *(("double", "f64"), ("__half", "f16"), ("__nv_bfloat16", "bf16"), ("const float*", "p64")),
        *(("char", "i8"), ("short", "i16"), ("struct S", "bytes[20]"), ("float4", "bytes[16]")),
    ],
)
def test_each_type_is_its_kind_and_no_other(type_: str, kind: str, tmp_path: Path) -> None:
    source = (
        "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\nstruct S { int a[5]; };\n"
        f'extern "C" __global__ void gemm_planted(float* c, {type_} x) {{ c[0] = 1.0f; }}\n'
    )
    ptx = compile_ptx(planted(tmp_path, "gemm_planted", source), Config(), F32, "sm_90a")
    kinds = ("i8", "i16", "i32", "i64", "f16", "bf16", "f32", "f64", "p64", "bytes[20]", "bytes[16]")
    alike = {"i64": {"p64"}, "p64": {"i64"}, "f16": {"bf16"}, "bf16": {"f16"}}.get(kind, set())
    taken = {k for k in kinds if not mismatch(ptx, "gemm_planted", (Argument("C", "p64"), Argument("x", k)))}
    assert taken == {kind} | alike
