"""What nvcc reads is of the kernel's own files, of the toolkit or of the host compiler; all else is refused,
by whatever way it was found, so that no edit of it goes unnoticed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gemm_regression.compiler import nvcc, sources, tools
from gemm_regression.compiler.nvcc import Source, compile_cubin, compile_ptx, source_of
from gemm_regression.compiler.tools import CompileError
from gemm_regression.devices import DeviceError
from gemm_regression.model import F32, BlockShape, Config, Kernel
from tests.gemm_regression.cli.repo import harness as run
from tests.gemm_regression.devices.fake_gpu import made_up, pycuda_compile

INCLUDE = '#include "scale.cuh"\n'
KERNEL = 'extern "C" __global__ void gemm_planted(float* c) { c[threadIdx.x] = SCALE; }\n'
HEADER = "#define SCALE 1.0f\n"
pytestmark = pytest.mark.compile


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("GEMM_CACHE_DIR", str(folder))
    return folder


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder that no declaration names, with a header in it."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "scale.cuh").write_text(HEADER)
    (folder / "options").write_text("-DSCALE=1.0f\n")
    return folder


def planted(folder: Path, text: str, flags: tuple[str, ...] = ()) -> Kernel:
    (folder / "kernels").mkdir(exist_ok=True)
    path = folder / "kernels" / "a.cu"
    path.write_text(text)
    return Kernel("planted", path, "gemm_planted", BlockShape((32, 1), (1, 32)), flags=flags)


def refused(kernel: Kernel, header: Path) -> str:
    """The first line of what is said of a kernel that reads this header, before an edit of it and after."""
    lines = []
    for text in (HEADER, HEADER.replace("1", "2")):
        header.write_text(text)
        for compiled in (compile_cubin, compile_ptx):
            with pytest.raises(CompileError) as caught:
                compiled(kernel, Config(), F32, "sm_90a")
            lines.append(str(caught.value).splitlines()[0])
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
    said = refused(planted(tmp_path, f"{line.format(header)}\n{KERNEL}"), header)
    assert "planted f32: nvcc reads /" in said
    assert "outside/scale.cuh, which could be edited unnoticed" in said


VARIABLES = ("CPATH", "CPLUS_INCLUDE_PATH", "C_INCLUDE_PATH", "INCLUDES", "SYSTEM_INCLUDES")


@pytest.mark.parametrize("name", VARIABLES)
def test_a_header_found_through_a_variable_is_not_there(
    name: str, tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, f"-I{outside}" if name.endswith("INCLUDES") else str(outside))
    said = refused(planted(tmp_path, INCLUDE + KERNEL), outside / "scale.cuh")
    assert "a.cu:1 includes scale.cuh, which was not found" in said
    assert "no variable such as CPATH" in said


@pytest.mark.parametrize(
    "option",
    [
        "-I{}",
        "-g -isystem={}",
        "--include-path {}",
        "-Xcompiler -I{}",
        "-Xcompiler=-O2,-idirafter,{}",
        "-include {}/scale.cuh",
        "-optf {}/options",
    ],
)
@pytest.mark.parametrize("where", ["NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS", "flag"])
def test_an_option_that_searches_elsewhere_is_refused(
    option: str, where: str, tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, option = planted(tmp_path, INCLUDE + KERNEL), option.format(outside)
    if where == "flag":
        kernel = replace(kernel, flags=tuple(option.split()))
    else:
        monkeypatch.setenv(where, option)
    said = refused(kernel, outside / "scale.cuh")
    assert f"planted: {where} -" in said
    assert "add the folder to `include`" in said


def test_what_nvcc_does_not_list_is_not_taken_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = planted(tmp_path, HEADER + KERNEL)
    compile_cubin(kernel, Config(), F32, "sm_90a")
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-Xcompiler -MF,/dev/null")
    with pytest.raises(CompileError, match="nvcc did not list the files that it read"):
        compile_cubin(kernel, Config(), F32, "sm_90a")


def test_a_name_in_a_line_directive_is_not_a_file_that_was_read(tmp_path: Path) -> None:
    (tmp_path / "made_by.py").write_text("")
    text = f'#line 1 "{tmp_path}/made_by.py"\n{HEADER}#line 1 "template.cu"\n{KERNEL}'
    assert compile_cubin(planted(tmp_path, text), Config(), F32, "sm_90a").cubin


def test_names_are_read_as_make_has_them() -> None:
    listed = "kernel.o: kernel.cu \\\n    /a\\ b/c\\#d$$.h \\\n    /e.h\n"
    assert [*sources._files(listed)] == ["kernel.cu", "/a b/c#d$.h", "/e.h"]


def test_what_was_kept_without_a_list_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The options by which a binary is found again are those that list what is read."""
    kernel = planted(tmp_path, HEADER + KERNEL)
    commands = list[list[str]]()
    real: Any = subprocess.run

    def seen(command: list[str], **more: Any) -> Any:
        commands.append(command)
        return real(command, **more)

    monkeypatch.setattr(subprocess, "run", seen)
    compile_cubin(kernel, Config(), F32, "sm_90a")
    (command,) = [command for command in commands if "-cubin" in command]
    assert {*sources.listed_in("read.d")} <= {*command}
    count = len(commands)
    compile_cubin(kernel, Config(), F32, "sm_90a")
    assert len(commands) == count
    unit = nvcc.unit_of(kernel, Config(), F32)
    now = unit.identity(tools.find_nvcc())
    monkeypatch.setattr(nvcc, "LISTED", ())
    assert unit.identity(tools.find_nvcc()) != now


class TestSourceModule:
    """PyCUDA keeps binaries itself, by the source and the options."""

    @pytest.fixture
    def modules(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
        with made_up(monkeypatch, "source_module") as (modules,):
            vars(sys.modules["pycuda.compiler"]).update(compile=pycuda_compile)
            vars(sys.modules["pycuda.driver"]).update(CompileError=RuntimeError, Error=RuntimeError)
            yield modules

    def build(self, kernel: Kernel) -> Source:
        return source_of(kernel, Config(), F32, "sm_90a")

    def test_a_header_of_elsewhere_is_refused(self, modules: Any, tmp_path: Path, outside: Path) -> None:
        header = outside / "scale.cuh"
        build = self.build(planted(tmp_path, f'%:include "{header}"\n{KERNEL}'))
        for _ in range(2):  # compiled, then kept
            with pytest.raises(
                DeviceError, match=r"nvcc reads \S+/outside/scale\.cuh, which could be edited"
            ):
                modules.compile_source(build)

    def test_a_binary_of_which_no_list_is_there_is_compiled_again(
        self, modules: Any, tmp_path: Path, cache: Path
    ) -> None:
        build = self.build(planted(tmp_path, HEADER + KERNEL))
        made = modules.compile_source(build)
        (listed,) = (cache / "pycuda").glob("*.d")
        listed.unlink()
        assert modules.compile_source(build) == made
        assert listed.is_file()

    def test_the_options_in_variables_make_another_binary(
        self, modules: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        build = self.build(planted(tmp_path, KERNEL))
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
    way: str, tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMM_CACHE_DIR", str(tmp_path / "cache"))
    if way == "CPATH":
        monkeypatch.setenv("CPATH", str(outside))
    root = tmp_path / "mine"
    root.mkdir()
    assert run(root, "init").returncode == 0
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
        said = "nvcc reads" if way == "macro" else "scale.cuh: No such file or directory"
        assert said in done.stdout
