"""A launch in one call: arguments checked, arrays, hazards and counts out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ptxsan

KERNELS = Path(__file__).parent / "kernels"
HEAD = ".version 9.0\n.target sm_90a\n.address_size 64\n"
SCALE = (KERNELS / "scale.ptx").read_text(encoding="utf-8")
STRUCT = (KERNELS / "struct.ptx").read_text(encoding="utf-8")
OTHER = ".visible .entry other(.param .u32 o_n)\n{\n    brkpt;\n    frobnicate.f32 %what;\n}\n"
X = np.arange(64, dtype=np.float32).reshape(8, 8)


def scale(*arguments: Any, text: str = HEAD + SCALE, **how: Any) -> ptxsan.LaunchResult:
    return ptxsan.run(text, **{"grid": 2, "block": 32, "arguments": arguments, **how})


def test_arrays_come_back_and_the_callers_stay() -> None:
    y = np.full((8, 8), 7, np.float32)
    result = scale(np.int32(60), np.float32(2), X, y)
    assert result.clean
    assert (y == 7).all()
    assert sorted(result.arrays) == [2, 3]
    assert np.array_equal(result.arrays[2], X)
    assert np.array_equal(result.arrays[3].ravel(), np.r_[2 * X.ravel()[:60], [7] * 4])
    assert (result.entry, result.grid, result.block) == ("scale", (2, 1, 1), (32, 1, 1))


def test_counts_are_those_of_the_launch() -> None:
    counts = scale(60, 2.0, X, np.zeros(64, np.float32)).counts
    assert counts.flop == 60
    assert counts.loads == ptxsan.GlobalAccess(requests=2, sectors=8, ideal=8, bytes=240)
    assert (counts.barriers, counts.divergent) == (0, 1)


def test_what_the_kernel_does_wrong_is_a_result() -> None:
    result = scale(65, 2.0, X, np.zeros(32, np.float32))
    (hazard,) = result.hazards
    assert result.stopped
    assert hazard.check == "bounds"
    assert re.search(r"0 bytes past the end of arg3 \(128 bytes\) at PTX line \d+: st.global", hazard.message)
    unread = scale(64, 2.0, ptxsan.Empty((8, 8)), np.zeros(64, np.float32))
    assert [h.check for h in unread.hazards] == ["uninit"]
    assert (
        "stores an undefined value to arg3[0], which comes from arg2[0], which" in unread.hazards[0].message
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1, 2.0, X), r"scale takes 4 arguments \(arg0: .u32, arg1: .f32, arg2: .u64, arg3: .u64\), 3 given"),
        ((np.float32(1), 2.0, X, X), r"argument 0 of scale, arg0: float32 given, but the kernel takes .u32"),
        ((np.int64(1), 2.0, X, X), r"argument 0 of scale, arg0: int64 given, but the kernel takes .u32"),
        ((1.5, 2.0, X, X), r"argument 0 of scale, arg0: float given, but the kernel takes .u32"),
        ((1 << 32, 2.0, X, X), r"argument 0 of scale, arg0: 4294967296 does not fit into .u32"),
        ((1, np.int32(2), X, X), r"argument 1 of scale, arg1: int32 given, but the kernel takes .f32"),
        ((1, np.float64(2), X, X), r"argument 1 of scale, arg1: float64 given, but the kernel takes .f32"),
        ((1, "2", X, X), r"argument 1 of scale, arg1: str given, but the kernel takes .f32"),
        (
            (X, 2.0, X, X),
            r"argument 0 of scale, arg0: an array, where the kernel takes a number of type .u32",
        ),
        ((1, 2.0, X, np.array([None])), r"argument 3 of scale, arg3: an array of object is not supported"),
    ],
)
def test_arguments_are_checked(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ptxsan.PtxError, match=message):
        scale(*arguments)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"grid": 0}, r"grid 0: one to three extents"),
        ({"block": (32, 1, 1, 1)}, r"block \(32, 1, 1, 1\): one to three"),
        ({"block": 1025}, r"a GPU refuses to launch scale: block.x is 1025, from 1 to 1024 allowed"),
        ({"entry": "saxpy"}, r"there is no entry saxpy; the entries are: scale"),
        ({"text": HEAD + SCALE + OTHER}, r"say which entry to run; there are: scale, other"),
        ({"text": HEAD + "\n"}, r"there are: none"),
    ],
)
def test_launches_are_checked(how: dict[str, Any], message: str) -> None:
    with pytest.raises(ptxsan.PtxError, match=message):
        scale(1, 2.0, X, X, **how)


def test_an_unknown_instruction_of_another_entry_is_nothing_to_this_one() -> None:
    text = HEAD + OTHER + SCALE
    assert scale(64, 2.0, X, X, text=text, entry="scale").clean
    with pytest.raises(ptxsan.PtxError, match=r"unknown instruction brkpt: PTX line 6: brkpt"):
        ptxsan.run(text, entry="other", grid=1, block=32, arguments=[1])


def test_a_name_in_a_namespace_or_of_an_instance() -> None:
    for mangled in ("_Z5scaleifPfS_", "_ZN4math5scaleEifPfS_", "_Z5scaleIfEvifPT_S1_"):
        text = HEAD + SCALE.replace("entry scale", f"entry {mangled}")
        assert scale(64, 2.0, X, X, text=text, entry="scale").clean
    text += SCALE.replace("entry scale", "entry _Z5scaleIdEvifPT_S1_")
    with pytest.raises(
        ptxsan.PtxError, match="there are several instances of scale; the entries are: _Z5scaleIfE"
    ):
        scale(64, 2.0, X, X, text=text, entry="scale")


def test_a_struct_by_value() -> None:
    fields = np.dtype([("a", "i1"), ("b", "i1", 3), ("x", "f4"), ("n", "i8"), ("u", "u4"), ("v", "u4")])
    held = np.array((1, (-5, 0, 0), 2.5, -(2**40), 7, 9), fields)
    for argument in (held[()], held.tobytes()):
        result = ptxsan.run(HEAD + STRUCT, grid=1, block=32, arguments=[argument, np.zeros(6, np.uint32)])
        out = result.arrays[1]
        assert result.clean
        assert [note.check for note in result.notes] == ["race"] * 4  # each thread writes the same words
        assert out[:2].view(np.int64) == -(2**40)
        assert out[2:3].view(np.float32) == 2.5
        assert list(out[3:].view(np.int32)) == [-5, 7, 9]
    with pytest.raises(ptxsan.PtxError, match=r"argument 0 of k, arg0: 23 bytes, .* a struct of 24 bytes"):
        ptxsan.run(HEAD + STRUCT, grid=1, block=32, arguments=[bytes(23), np.zeros(6, np.uint32)])
    beyond = STRUCT.replace("[k_p+16]", "[k_p+20]")
    with pytest.raises(ptxsan.PtxError, match=r"no parameter k_p\+20"):
        ptxsan.run(HEAD + beyond, grid=1, block=32, arguments=[bytes(24), np.zeros(6, np.uint32)])


@pytest.mark.parametrize("kind", ["u64", "align 8 .b8"])
def test_a_struct_of_one_pointer(kind: str) -> None:
    """Given as the array, or as the 8 bytes that such a struct has."""
    text = SCALE.replace(".param .u64 s_y", f".param .{kind} s_y" + "[8]" * ("b8" in kind))
    result = scale(64, 2.0, X, np.zeros((8, 8), np.float32), text=HEAD + text)
    assert result.clean
    assert np.array_equal(result.arrays[3], 2 * X)
    if "b8" in kind:
        null = scale(64, 2.0, X, np.int64(0), text=HEAD + text)
        assert [h.check for h in null.hazards] == ["bounds"]


def test_a_struct_of_members() -> None:
    """Each is aligned to its size; an array is its address, and comes back by both numbers."""
    body = (
        "ld.param.u64 %rd1, [k_p+8]; ld.param.u32 %r1, [k_p+4]; mov.u32 %r2, %tid.x; add.u32 %r1, %r1, %r2;"
    )
    text = ".visible .entry k(.param .align 8 .b8 k_p[24])\n{\n.reg .b32 %r<5>;\n.reg .b64 %rd<5>;\n" + body
    text += "mul.wide.u32 %rd2, %r2, 4; add.u64 %rd1, %rd1, %rd2; st.global.u32 [%rd1], %r1;\nret;\n}\n"
    members = np.int8(1), np.int32(5), ptxsan.Empty(32, np.int32), np.int32(9)
    result = ptxsan.run(HEAD + text, grid=1, block=32, arguments=[members])
    assert result.clean
    assert list(result.arrays[0, 2]) == list(range(5, 37))
    short = ptxsan.run(
        HEAD + text, grid=1, block=32, arguments=[(*members[:2], np.zeros(31, "i4"), members[3])]
    )
    assert "past the end of arg0.2 (124 bytes)" in short.hazards[0].message
    for wrong, said in (
        (members[:3], "16 bytes, where"),
        ((7,), "member 0 is neither an array nor a NumPy sca"),
    ):
        with pytest.raises(ptxsan.PtxError, match=said):
            ptxsan.run(HEAD + text, grid=1, block=32, arguments=[wrong])


@pytest.mark.parametrize("space", ["const", "global"])
def test_a_format_in_memory_of_any_space(space: str) -> None:
    """nvcc has it in global memory, Numba in constant memory."""
    text = ".extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);\n"
    text += f".{space} .b8 form[3] = {{72, 10}};\n"
    text += ".visible .entry k()\n{\n.reg .b64 %rd<3>;\nmov.u64 %rd1, form; cvta.SPACE.u64 %rd2, %rd1;\n"
    text += ".param .b64 f; .param .b64 a; .param .b32 r; st.param.b64 [f], %rd2; st.param.b64 [a], 0;\n"
    text += "call.uni (r), vprintf, (f, a);\nret;\n}\n"
    result = ptxsan.run(HEAD + text.replace("SPACE", space), grid=1, block=2)
    assert (result.hazards, result.printed) == ((), ("H\n", "H\n"))


def test_launches_of_a_batch_with_structs_of_their_own() -> None:
    machine = ptxsan.PreparedKernel(ptxsan.parse(HEAD + STRUCT, "k"), "k.cu")
    out = ptxsan.Buffer("out", 0, [np.zeros((1, 6), np.uint32)] * 2, writable=True)
    given = [[bytes([v] * 24), np.int64(out.address(i))] for i, v in enumerate((1, 2))]
    machine.run((1, 1, 1), (32, 1, 1), 0, given, ptxsan.GlobalMemory([out]), 100)
    assert [int(out.values(i)[0, 5]) for i in (0, 1)] == [0x01010101, 0x02020202]


@pytest.mark.compile
def test_cuda_as_text_and_as_a_file() -> None:
    """Names of parameters and lines are those of the .cu file."""
    path = KERNELS / "saxpy.cu"
    for source in (path.read_text(encoding="utf-8"), path, str(path)):
        arguments = [np.int32(64), np.float32(2), X, np.ones(64, np.float32)]
        result = ptxsan.run(source, entry="saxpy", grid=2, block=32, arguments=arguments)
        assert result.clean
        assert result.names == ("count", "factor", "x", "y")
        assert np.array_equal(result.arrays[3], 2 * X.ravel() + 1)
    short = ptxsan.run(path, grid=2, block=32, arguments=[64, 2.0, X, np.ones(63, np.float32)])
    assert "past the end of y (252 bytes) at saxpy.cu:5 (PTX line" in short.hazards[0].message
    first = short.hazards[0]
    assert (first.file, first.line, first.place) == ("saxpy.cu", 5, "saxpy.cu:5")
    assert f"{first.thread} {first.problem} at {first.where}" == first.message


@pytest.mark.compile
def test_cuda_that_does_not_compile() -> None:
    with pytest.raises(ptxsan.PtxError, match=r"nvcc: .*kernel\.cu\(2\): error: .*nonsense"):
        ptxsan.run("__global__ void f() {\n    nonsense();\n}\n", grid=1, block=32)


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ptxsan.nvcc._candidates", lambda: iter(()))
    with pytest.raises(
        ptxsan.PtxError, match=r"no nvcc on PATH, in \$CUDA_HOME or in NVIDIA's wheels: `pip install"
    ):
        ptxsan.run("__global__ void f() {\n}\n", grid=1, block=32)


@pytest.mark.compile
def test_a_template_by_its_c_plus_plus_name_and_a_null_pointer(tmp_path: Path) -> None:
    """Instantiated, where the source does not; the spelling of the arguments does not matter."""
    source = "namespace a { template <int N, typename T> __global__ void add(const T* x, T* y) {\n"
    source += "    y[threadIdx.x] = x ? x[threadIdx.x] + N : -N;\n} }\n"
    file = tmp_path / "add.cu"
    file.write_text(source, encoding="utf-8")
    x = np.arange(32, dtype=np.uint8)
    for entry, given, wanted in (
        ("a::add<3, unsigned char>", x, x + 3),
        ("a::add<4,float>", None, -4),
        ("a::add<4u, float>", None, -4),
    ):
        y = np.zeros(32, np.float32 if given is None else np.uint8)
        for path in (file, source):
            result = ptxsan.run(path, entry=entry, grid=1, block=32, arguments=[given, y])
            assert result.names == ("x", "y")
            assert (result.arrays[1] == wanted).all()


def test_a_null_pointer_is_out_of_bounds() -> None:
    (hazard,) = scale(64, 2.0, None, np.zeros(64, np.float32)).hazards
    assert (hazard.check, "at 0x" in hazard.message) == ("bounds", True)
