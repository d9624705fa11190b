"""Which of the compiled functions is the entry that a declaration names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gemm_regression.compiler import objects
from gemm_regression.compiler.nvcc import compile_cubin, compile_ptx, entry_symbol
from gemm_regression.compiler.objects import instantiation, names_it, ptx_symbols, symbol_of
from gemm_regression.compiler.tools import CompileError
from gemm_regression.model import F32, BlockShape, Config, Kernel

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
        ("bk<0>", "void bk<false>()"),
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
        ("ns::gemm", "several __global__ functions are named ns::gemm"),
        ("ns::gemm<T, 64>", "there is no __global__ function named ns::gemm<T, 64>"),
        ("over", "several __global__ functions are named over"),
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


def test_nothing_compiled_is_said_so() -> None:
    with pytest.raises(CompileError, match="no __global__ function named f; compiled functions: none"):
        symbol_of("f", [], "x f32")


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
    assert set(ptx_symbols(ptx)) == set(objects.symbols(made.cubin))


@pytest.mark.compile
def test_making_an_instance_changes_no_code(tmp_path: Path) -> None:
    """Beside that of a line in the source itself."""
    ours = compile_cubin(planted(tmp_path, "two<1, 2>"), Config(), F32, "sm_90a")
    own = SOURCE + "template __global__ void two<1, 2>(float*);\n"
    theirs = compile_cubin(planted(tmp_path, "two", own), Config(), F32, "sm_90a")
    assert objects.code(ours.cubin, ours.symbol) == objects.code(theirs.cubin, theirs.symbol)
    assert instantiation("two") == ""


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
def test_symbols_do_not_depend_on_the_folder_of_a_compilation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nvcc names functions of internal linkage, also those called, after the path of what it compiles."""
    made = []
    for name in ("one", "two"):
        monkeypatch.setenv("GEMM_CACHE_DIR", str(tmp_path / name))
        made.append(compile_cubin(planted(tmp_path, "inside"), Config(), F32, "sm_90a"))
    assert b"hidden" in made[0].cubin
    assert made[0].cubin == made[1].cubin


@pytest.mark.compile
def test_each_of_several_entries_has_its_own_figures(tmp_path: Path) -> None:
    kernel = planted(tmp_path, "two<1, 2>")
    more = SOURCE + "__constant__ float table[16];\n__global__ void three(float4* c) { c[1] = c[0]; }\n"
    small = compile_cubin(kernel, Config(), F32, "sm_90a")
    both = compile_cubin(planted(tmp_path, "two<1, 2>", more), Config(), F32, "sm_90a")
    assert objects.code(small.cubin, small.symbol) == objects.code(both.cubin, both.symbol)
    assert objects.constant_bytes(small.cubin, small.symbol) == 0x210 + 8
    other = compile_cubin(replace(kernel, entry="three"), Config(), F32, "sm_90a")
    assert objects.code(other.cubin, other.symbol) != objects.code(both.cubin, both.symbol)
