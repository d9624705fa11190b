"""A kernel's own files: what is included, what an edit of it does, what is said of what is missing; and all
else that nvcc reads, but of the toolkit and the host compiler, is refused, by whatever way it was found."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gemm_regression.cli import init
from gemm_regression.compiler import nvcc, tools, units
from gemm_regression.compiler import sources as own_files
from gemm_regression.compiler.nvcc import Binary, compile_cubin, compile_ptx
from gemm_regression.compiler.sources import closure, sources
from gemm_regression.compiler.tools import CompileError
from gemm_regression.compiler.units import ModuleSource, source_of, unit_of
from gemm_regression.devices import DeviceError
from gemm_regression.model import F32, BlockShape, Config, Kernel
from tests.gemm_regression.cli.repo import harness as run
from tests.gemm_regression.devices.fake_gpu import made_up, pycuda_compile

pytestmark = [pytest.mark.compile, pytest.mark.usefixtures("cache")]
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


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return planted(tmp_path)


@pytest.fixture
def inner(kernel: Kernel, tmp_path: Path) -> Path:
    """The header in the include folder."""
    return tmp_path / "include" / "lib" / "inner.cuh"


def made(kernel: Kernel) -> Binary:
    return compile_cubin(kernel, Config(), F32, "sm_90a")


def said(kernel: Kernel, compiled: Callable[..., object] = compile_cubin) -> str:
    with pytest.raises(CompileError) as caught:
        compiled(kernel, Config(), F32, "sm_90a")
    return str(caught.value)


def test_the_closure_is_the_files_of_ones_own(kernel: Kernel, inner: Path, tmp_path: Path) -> None:
    assert closure(kernel) == (*(tmp_path / "kernels" / name for name in ("a.cu", "common.cuh")), inner)


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
def test_what_is_found(line: str, found: list[str], kernel: Kernel, tmp_path: Path) -> None:
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
    first = tmp_path / "kernels" / "first" / "lib" / "inner.cuh"
    first.parent.mkdir(parents=True)
    before = sources(kernel).key
    first.write_text("#define FACTOR 3.0f\n")
    assert sources(kernel).key != before


class TestCompiled:
    def test_an_edited_header_is_another_binary_but_for_a_comment(self, kernel: Kernel, inner: Path) -> None:
        """Though __FILE__, by assert, is in it."""
        first = made(kernel)
        inner.write_text(INNER.replace("2.0f", "3.0f"))
        assert made(kernel).cubin != first.cubin
        inner.write_text(INNER + "// more\n")
        assert made(kernel).cubin == first.cubin

    def test_a_broken_header_is_never_green_from_the_cache_nor_one_that_goes(
        self, kernel: Kernel, inner: Path, tmp_path: Path
    ) -> None:
        made(kernel)
        inner.write_text(INNER + "\nfloat x = lost;\n")
        assert 'lib/inner.cuh(4): error: identifier "lost" is undefined' in said(kernel)
        inner.unlink()
        first = said(kernel).splitlines()[0]
        assert first.startswith("planted f32: common.cuh:3 includes lib/inner.cuh, which was not found")
        (tmp_path / "kernels" / "common.cuh").write_text(COMMON + "#error no more\n")
        inner.write_text(INNER)
        assert "common.cuh:5" in said(kernel)

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

    def test_a_copy_that_was_changed_is_mended(self, kernel: Kernel, cache: Path) -> None:
        made(kernel)
        (copy,) = cache.glob("sources/*/common.cuh")
        copy.write_text("#error\n")
        assert compile_ptx(kernel, Config(), F32, "sm_90a", lines=True)
        assert copy.read_text() == COMMON

    def test_a_file_named_by_a_macro_is_not_there(self, kernel: Kernel, tmp_path: Path) -> None:
        (tmp_path / "kernels" / "a.cu").write_text('#define X "common.cuh"\n#include X\n' + MAIN[22:])
        assert "includes common.cuh, which was not found" in said(kernel)
        assert "only a plain #include is followed: no macro" in said(kernel)

    def test_a_header_that_comes_first_does_not_pass_for_the_cu_file(
        self, kernel: Kernel, inner: Path, tmp_path: Path
    ) -> None:
        inner.write_text(INNER + "__device__ __noinline__ float first(float x) { return x * x; }\n")
        (tmp_path / "kernels" / "a.cu").write_text(MAIN.replace("scaled(c[1])", "scaled(first(c[1]))"))
        ptx = compile_ptx(kernel, Config(), F32, "sm_90a", lines=True)
        assert re.search(r'\.file\s+1 "a\.cu"', ptx)
        assert str(tmp_path) not in ptx
        assert set(re.findall(r"^\s*\.loc\s+1 (\d+)", ptx, re.MULTILINE)) == {"3"}


def test_what_would_not_be_seen_is_refused(kernel: Kernel, tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=r"its include folder .*nowhere does not exist"):
        unit_of(replace(kernel, include=("nowhere",)), Config(), F32, "sm_90a")
    (tmp_path / "kernels" / "common.cuh").write_text('\n#include "/opt/lib/x.cuh"\n')
    with pytest.raises(CompileError, match=r"common\.cuh:2 includes /opt/lib/x\.cuh by an absolute"):
        closure(kernel)


# All else

INCLUDE = '#include "scale.cuh"\n'
KERNEL = 'extern "C" __global__ void gemm_planted(float* c) { c[threadIdx.x] = SCALE; }\n'
HEADER = "#define SCALE 1.0f\n"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder that no declaration names, with a header in it."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "scale.cuh").write_text(HEADER)
    (folder / "options").write_text("-DSCALE=1.0f\n")
    return folder


def single(folder: Path, text: str) -> Kernel:
    """Of one file, without include folders."""
    kernel = replace(planted(folder), include=())
    (folder / "kernels" / "a.cu").write_text(text)
    return kernel


def refused(kernel: Kernel, header: Path) -> str:
    """The first line of what is said of a kernel that reads this header, before an edit of it and after."""
    lines = []
    for text in (HEADER, HEADER.replace("1", "2")):
        header.write_text(text)
        lines += [said(kernel, compiled).splitlines()[0] for compiled in (compile_cubin, compile_ptx)]
    assert len({*lines}) == 1
    return lines[0]


@pytest.mark.parametrize(
    "line",
    [
        '#define NAME "{}"\n#include NAME',
        '%:include "{}"',
        '#/**/include "{}"',
        '#inc\\\nlude "{}"',
        '#import "{}"',
        '#define NAME "../../../../../../../../../../../..{}"\n#include NAME',
        '#if __CUDA_ARCH__ == 900\n%:include "{}"\n#else\n#define SCALE 0\n#endif',
    ],
)
def test_a_header_of_elsewhere_is_refused_however_it_is_included(
    line: str, tmp_path: Path, outside: Path
) -> None:
    header = outside / "scale.cuh"
    told = refused(single(tmp_path, f"{line.format(header)}\n{KERNEL}"), header)
    assert "planted f32: nvcc reads /" in told
    assert "outside/scale.cuh, which could be edited unnoticed" in told


@pytest.mark.parametrize(
    "name", ["CPATH", "CPLUS_INCLUDE_PATH", "C_INCLUDE_PATH", "INCLUDES", "SYSTEM_INCLUDES"]
)
def test_a_header_found_through_a_variable_is_not_there(
    name: str, tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, f"-I{outside}" if name.endswith("INCLUDES") else str(outside))
    told = refused(single(tmp_path, INCLUDE + KERNEL), outside / "scale.cuh")
    assert "a.cu:1 includes scale.cuh, which was not found" in told
    assert "no variable such as CPATH" in told


@pytest.mark.parametrize(
    "option",
    [
        *("-I{}", "-g -isystem={}", "--include-path {}", "-Xcompiler -I{}", "-Xcompiler=-O2,-idirafter,{}"),
        *("-include {}/scale.cuh", "-optf {}/options"),
    ],
)
@pytest.mark.parametrize("where", ["NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS", "flag"])
def test_an_option_that_searches_elsewhere_is_refused(
    option: str, where: str, tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, option = single(tmp_path, INCLUDE + KERNEL), option.format(outside)
    if where == "flag":
        kernel = replace(kernel, flags=tuple(option.split()))
    else:
        monkeypatch.setenv(where, option)
    told = refused(kernel, outside / "scale.cuh")
    assert f"planted: {where} -" in told
    assert "add the folder to `include`" in told


def test_what_nvcc_does_not_list_is_not_taken_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = single(tmp_path, HEADER + KERNEL)
    made(kernel)
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-Xcompiler -MF,/dev/null")
    assert "nvcc did not list the files that it read" in said(kernel)


def test_a_name_in_a_line_directive_is_not_a_file_that_was_read(tmp_path: Path) -> None:
    (tmp_path / "made_by.py").write_text("")
    text = f'#line 1 "{tmp_path}/made_by.py"\n{HEADER}#line 1 "template.cu"\n{KERNEL}'
    assert made(single(tmp_path, text)).cubin


def test_names_are_read_as_make_has_them() -> None:
    listed = "kernel.o: kernel.cu \\\n    /a\\ b/c\\#d$$.h \\\n    /e.h\n"
    assert [*own_files._files(listed)] == ["kernel.cu", "/a b/c#d$.h", "/e.h"]


def test_what_was_kept_without_a_list_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The options by which a binary is found again are those that list what is read."""
    kernel = single(tmp_path, HEADER + KERNEL)
    commands = list[list[str]]()
    real: Any = subprocess.run

    def seen(command: list[str], **more: Any) -> Any:
        commands.append(command)
        return real(command, **more)

    monkeypatch.setattr(subprocess, "run", seen)
    made(kernel)
    (command,) = [command for command in commands if "-cubin" in command]
    assert {*own_files.listed_in("read.d")} <= {*command}
    count = len(commands)
    made(kernel)
    assert len(commands) == count
    unit = unit_of(kernel, Config(), F32, "sm_90a")
    now = unit.identity(tools.find_nvcc())
    monkeypatch.setattr(units, "LISTED", ())
    assert unit.identity(tools.find_nvcc()) != now


class TestSourceModule:
    """PyCUDA keeps binaries itself, by the source and the options."""

    @pytest.fixture
    def modules(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
        with made_up(monkeypatch, "source_module") as (modules,):
            vars(sys.modules["pycuda.compiler"]).update(compile=pycuda_compile)
            vars(sys.modules["pycuda.driver"]).update(CompileError=RuntimeError, Error=RuntimeError)
            yield modules

    def build(self, kernel: Kernel) -> ModuleSource:
        return source_of(kernel, Config(), F32, "sm_90a")

    def test_a_header_of_elsewhere_is_refused(self, modules: Any, tmp_path: Path, outside: Path) -> None:
        header = outside / "scale.cuh"
        build = self.build(single(tmp_path, f'%:include "{header}"\n{KERNEL}'))
        for _ in range(2):  # compiled, then kept
            with pytest.raises(DeviceError, match=r"nvcc reads \S+/outside/scale\.cuh, which could be"):
                modules.compile_source(build)

    def test_a_binary_of_which_no_list_is_there_is_compiled_again(
        self, modules: Any, tmp_path: Path, cache: Path
    ) -> None:
        build = self.build(single(tmp_path, HEADER + KERNEL))
        made = modules.compile_source(build)
        (listed,) = (cache / "pycuda").glob("*.d")
        listed.unlink()
        assert modules.compile_source(build) == made
        assert listed.is_file()

    def test_one_run_of_nvcc_makes_the_ptx_too(
        self, modules: Any, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What a run on a GPU asks of the PTX, as the kind of core, runs nvcc no more: it once did, half a
        second before each pair."""
        kernel = single(tmp_path, HEADER + KERNEL)
        build, variant = self.build(kernel), (kernel, Config(), F32, "sm_90a")
        same = nvcc.compile_ptx(*variant)
        monkeypatch.setattr(nvcc, "compile_ptx", lambda *variant: "mma.sync by another run")
        assert nvcc.core_of.__wrapped__(*variant) == "tensor"
        for _ in range(2):  # compiled, then kept
            modules.compile_source(build)
            assert nvcc.ptx_at_hand(*variant) == same
            assert nvcc.core_of.__wrapped__(*variant) == "cuda"
        assert not list((cache / "pycuda").glob("*.way"))

    def test_the_options_in_variables_make_another_binary(
        self, modules: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        build = self.build(single(tmp_path, KERNEL))
        monkeypatch.setenv("NVCC_APPEND_FLAGS", "-DSCALE=1.0f")
        made = modules.compile_source(build)
        monkeypatch.setenv("NVCC_APPEND_FLAGS", "-DSCALE=2.0f")
        assert modules.compile_source(build) != made

    def test_nvcc_gets_the_variables_that_it_gets_elsewhere(
        self, tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CPATH", str(outside))
        assert "CPATH" not in tools.environment()
        with made_up(monkeypatch, "source_module"):
            assert "CPATH" not in os.environ


@pytest.mark.parametrize("way", ["macro", "CPATH"])
def test_a_check_sees_an_edit_of_a_header_of_elsewhere(
    way: str,
    keep_library: Callable[[Path], None],
    tmp_path: Path,
    outside: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keep_library(cache)
    if way == "CPATH":
        monkeypatch.setenv("CPATH", str(outside))
    root = tmp_path / "mine"
    root.mkdir()
    assert init.main(["--project", str(root)]) == 0
    source = root / "kernels" / "sgemm.cu"
    named = INCLUDE if way == "CPATH" else f'#define NAME "{outside}/scale.cuh"\n#include NAME\n'
    text = source.read_text()
    assert "alpha * sum" in text
    source.write_text(named + text.replace("alpha * sum", "SCALE * alpha * sum"))
    for number in (1, 2):
        (outside / "scale.cuh").write_text(HEADER.replace("1", str(number)))
        done = run(root, "check", "-n", "0", "--suite", "smoke")
        assert done.returncode == 1, done.stdout
        assert "PASS" not in done.stdout
        assert ("nvcc reads" if way == "macro" else "scale.cuh: No such file or directory") in done.stdout
