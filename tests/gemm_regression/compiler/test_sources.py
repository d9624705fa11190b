"""A kernel's own files: what is included, what an edit of it does, what is said of what is missing."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from gemm_regression.compiler import nvcc
from gemm_regression.compiler.nvcc import Binary, compile_cubin, compile_ptx, unit_of
from gemm_regression.compiler.sources import closure, sources
from gemm_regression.compiler.tools import CompileError
from gemm_regression.model import F32, BlockShape, Config, Kernel

MAIN = """#include "common.cuh"
#include <cuda_fp16.h>
extern "C" __global__ void gemm_planted(float* c) { assert(c[0] > 0); c[threadIdx.x] = scaled(c[1]); }
"""
COMMON = """#pragma once
#include <cassert>
#include <lib/inner.cuh>
__device__ inline float scaled(float x) { return FACTOR * x; }
"""
INNER = """#pragma once
#define FACTOR 2.0f
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("GEMM_CACHE_DIR", str(folder))
    return folder


def planted(folder: Path) -> Kernel:
    """A project: a kernel, a header beside it, another in an include folder."""
    for name, text in {
        "kernels/a.cu": MAIN,
        "kernels/common.cuh": COMMON,
        "include/lib/inner.cuh": INNER,
        "include/lib/unused.cuh": "#error\n",
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    shape = BlockShape((32, 1), (1, 32))
    return Kernel("planted", folder / "kernels" / "a.cu", "gemm_planted", shape, include=("../include",))


def made(kernel: Kernel) -> Binary:
    return compile_cubin(kernel, Config(), F32, "sm_90a")


def said(kernel: Kernel) -> str:
    with pytest.raises(CompileError) as caught:
        made(kernel)
    return str(caught.value)


def test_the_closure_is_the_files_of_ones_own(tmp_path: Path) -> None:
    assert closure(planted(tmp_path)) == (
        tmp_path / "kernels" / "a.cu",
        tmp_path / "kernels" / "common.cuh",
        tmp_path / "include" / "lib" / "inner.cuh",
    )


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('#include "sub/x.cuh"', ["kernels/sub/x.cuh"]),
        ("#include <sub/x.cuh>", []),
        ('  #  include "sub/../sub/x.cuh"  // why', ["kernels/sub/x.cuh"]),
        ('#if 0\n#include "sub/x.cuh"\n#endif', ["kernels/sub/x.cuh"]),
        ('#include "../include/lib/unused.cuh"', ["include/lib/unused.cuh"]),
        ('#if __has_include("sub/x.cuh")\n#endif', ["kernels/sub/x.cuh"]),
        ("#include <lib/unused.cuh>", ["include/lib/unused.cuh"]),
        ("#include <cuda_runtime.h>", []),
        ('const char* s = "#include";', []),
    ],
)
def test_what_is_found(line: str, found: list[str], tmp_path: Path) -> None:
    kernel = planted(tmp_path)
    (tmp_path / "kernels" / "sub").mkdir()
    (tmp_path / "kernels" / "sub" / "x.cuh").write_text("")
    (tmp_path / "kernels" / "a.cu").write_text(line + "\n")
    assert [str(path.relative_to(tmp_path)) for path in closure(kernel)[1:]] == found


def test_the_digest_is_that_of_what_is_in_the_files(tmp_path: Path) -> None:
    kernel, other = planted(tmp_path / "one"), planted(tmp_path / "two")
    assert sources(kernel).key == sources(other).key
    assert kernel.source
    (tmp_path / "two" / "include" / "lib" / "unused.cuh").write_text("")
    assert sources(kernel).key == sources(other).key
    (tmp_path / "two" / "include" / "lib" / "inner.cuh").write_text(INNER + "\n")
    assert sources(kernel).key != sources(other).key


def test_a_file_that_comes_to_lie_before_another_is_another_digest(tmp_path: Path) -> None:
    kernel = replace(planted(tmp_path), include=("first", "../include"))
    first = tmp_path / "kernels" / "first" / "lib"
    first.mkdir(parents=True)
    before = sources(kernel).key
    (first / "inner.cuh").write_text("#define FACTOR 3.0f\n")
    assert sources(kernel).key != before


@pytest.mark.compile
class TestCompiled:
    def test_an_edited_header_is_another_binary_but_for_a_comment(self, tmp_path: Path) -> None:
        """Though __FILE__, by assert, is in it."""
        kernel = planted(tmp_path)
        first = made(kernel)
        inner = tmp_path / "include" / "lib" / "inner.cuh"
        inner.write_text(INNER.replace("2.0f", "3.0f"))
        assert made(kernel).cubin != first.cubin
        inner.write_text(INNER + "// more\n")
        assert made(kernel).cubin == first.cubin

    def test_a_broken_header_is_never_green_from_the_cache(self, tmp_path: Path) -> None:
        kernel = planted(tmp_path)
        made(kernel)
        (tmp_path / "include" / "lib" / "inner.cuh").write_text(INNER + "\nfloat x = lost;\n")
        assert 'lib/inner.cuh(4): error: identifier "lost" is undefined' in said(kernel)
        (tmp_path / "kernels" / "common.cuh").write_text(COMMON + "#error no more\n")
        assert "common.cuh:5" in said(kernel)

    def test_a_header_that_goes_is_said_in_one_line(self, tmp_path: Path) -> None:
        kernel = planted(tmp_path)
        made(kernel)
        (tmp_path / "include" / "lib" / "inner.cuh").unlink()
        first = said(kernel).splitlines()[0]
        assert first.startswith("planted f32: common.cuh:3 includes lib/inner.cuh, which was not found")

    def test_the_second_time_needs_no_compiler(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        first = made(planted(tmp_path / "one"))
        monkeypatch.setattr(nvcc, "_run_nvcc", lambda *_: pytest.fail("compiled again"))
        assert made(planted(tmp_path / "two")) == first

    @pytest.mark.parametrize("flags", [(), ("-lineinfo",)])
    def test_a_binary_depends_neither_on_the_checkout_nor_on_the_time(
        self, flags: tuple[str, ...], tmp_path: Path, cache: Path
    ) -> None:
        cubins = []
        for name in ("here", "there"):
            cubins.append(made(replace(planted(tmp_path / name), flags=flags)).cubin)
            shutil.rmtree(cache)
        assert cubins[0] == cubins[1]
        assert b"a.cu" in cubins[0]
        assert str(tmp_path / "here").encode() not in cubins[0]

    def test_a_copy_that_was_changed_is_mended(self, tmp_path: Path, cache: Path) -> None:
        kernel = planted(tmp_path)
        made(kernel)
        (copy,) = cache.glob("sources/*/common.cuh")
        copy.write_text("#error\n")
        assert compile_ptx(kernel, Config(), F32, "sm_90a", lines=True)
        assert copy.read_text() == COMMON

    def test_a_file_named_by_a_macro_is_not_there(self, tmp_path: Path) -> None:
        kernel = planted(tmp_path)
        (tmp_path / "kernels" / "a.cu").write_text('#define X "common.cuh"\n#include X\n' + MAIN[22:])
        assert "includes common.cuh, which was not found" in said(kernel)
        assert "only a plain #include is followed: no macro" in said(kernel)

    def test_a_header_that_comes_first_does_not_pass_for_the_cu_file(self, tmp_path: Path) -> None:
        kernel = planted(tmp_path)
        inner = tmp_path / "include" / "lib" / "inner.cuh"
        inner.write_text(INNER + "__device__ __noinline__ float first(float x) { return x * x; }\n")
        (tmp_path / "kernels" / "a.cu").write_text(MAIN.replace("scaled(c[1])", "scaled(first(c[1]))"))
        ptx = compile_ptx(kernel, Config(), F32, "sm_90a", lines=True)
        assert re.search(r'\.file\s+1 "a\.cu"', ptx)
        assert str(tmp_path) not in ptx
        assert set(re.findall(r"^\s*\.loc\s+1 (\d+)", ptx, re.MULTILINE)) == {"3"}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"include": ("nowhere",)}, "its include folder .*nowhere does not exist"),
        ({"flags": ("-I/opt/lib",)}, "flag -I/opt/lib: add the folder to `include`"),
        ({"flags": ("-include", "x.h")}, "flag -include: add the folder"),
    ],
)
def test_what_would_not_be_seen_is_refused(
    change: dict[str, tuple[str, ...]], why: str, tmp_path: Path
) -> None:
    with pytest.raises(CompileError, match=why):
        unit_of(replace(planted(tmp_path), **change), Config(), F32)  # type: ignore[arg-type]


def test_an_absolute_include_is_refused(tmp_path: Path) -> None:
    kernel = planted(tmp_path)
    (tmp_path / "kernels" / "common.cuh").write_text('\n#include "/opt/lib/x.cuh"\n')
    with pytest.raises(CompileError, match=r"common\.cuh:2 includes /opt/lib/x\.cuh by an absolute"):
        closure(kernel)
