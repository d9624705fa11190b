"""Finding nvcc, its options, its figures, and the cache of what it made."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.compiler import toolchain
from harness.compiler.toolchain import CompileError, ToolchainError
from harness.model import BF16, F32, BlockShape, Config, Kernel

SOURCE = """
extern "C" __global__ void gemm_planted(float* c) { c[threadIdx.x] = SCALE; }
"""
# One device function keeps an indexed array on the stack; another entry comes before the one asked for.
STACK = """
__device__ __noinline__ float pick(const float* p, int n)
{
    float a[64];
    for (int i = 0; i < 64; i++) a[i] = p[i * n];
    float sum = 0.0f;
    for (int i = 0; i < 64; i++) sum += a[(i * n) & 63];
    return sum;
}
extern "C" __global__ void gemm_other(float* c) { c[0] = 1.0f; }
extern "C" __global__ void gemm_planted(float* c, int n)
{
    __shared__ float tile[96];
    tile[threadIdx.x] = c[threadIdx.x];
    __syncthreads();
    c[threadIdx.x] = pick(c, n) + tile[n];
}
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("GEMM_CACHE_DIR", str(folder))
    return folder


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with g++ and no nvcc: returns the one folder on PATH."""
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setattr(toolchain, "_in_wheels", lambda name: [])
    folder = tmp_path / "bin"
    monkeypatch.setenv("PATH", str(folder))
    program(folder / "g++", "exit 0")
    return folder


def program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def nvcc(path: Path, version: str = "13.0.88") -> Path:
    return program(path, f"echo 'Cuda compilation tools, release 13.0, V{version}'")


def planted(folder: Path, source: str = SOURCE) -> Kernel:
    path = folder / "s99_planted.cu"
    path.write_text(source)
    return Kernel(
        name="planted",
        idea="a kernel of this test",
        source=path,
        entry="gemm_planted",
        dtypes=(F32,),
        configs=(Config(SCALE=1), Config(SCALE=2)),
        shape=lambda config, dtype: BlockShape((32, 1), (1, 32)),
    )


def test_path_comes_before_cuda_home(bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = nvcc(tmp_path / "cuda" / "bin" / "nvcc", "12.9.41")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    assert toolchain.find_nvcc() == toolchain.Nvcc(home, "12.9.41")
    first = nvcc(bare / "nvcc", "13.0.88")
    assert toolchain.find_nvcc() == toolchain.Nvcc(first, "13.0.88")


def test_cuda_path_comes_before_the_wheels(
    bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = nvcc(tmp_path / "nvidia" / "cu13" / "bin" / "nvcc")
    monkeypatch.setattr(toolchain, "_in_wheels", lambda name: [wheel])
    assert toolchain.find_nvcc().path == wheel
    home = nvcc(tmp_path / "cuda" / "bin" / "nvcc")
    monkeypatch.setenv("CUDA_PATH", str(tmp_path / "cuda"))
    assert toolchain.find_nvcc().path == home


def test_wheels_are_found_in_this_environment(tmp_path: Path) -> None:
    path = nvcc(tmp_path / "nvidia" / "cu13" / "bin" / "nvcc")
    code = "from harness.compiler import toolchain; print(*toolchain._in_wheels('nvcc'))"
    environment = {"PYTHONPATH": f"{tmp_path}:{Path(toolchain.__file__).parents[2]}"}
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert str(path) in said.stdout.split(), said.stderr


class TestPins:
    """The compiler whose figures are stored: of its version only, wherever it is."""

    @pytest.fixture(autouse=True)
    def pins(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(toolchain, "pins", lambda: ("13.0.88", "13.5.37"))

    def test_the_wheel_is_taken_where_path_has_another_version(
        self, bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        nvcc(bare / "nvcc", "12.9.41")
        bin = tmp_path / "nvidia" / "cu13" / "bin"
        wheel, disassembler = nvcc(bin / "nvcc"), nvcc(bin / "nvdisasm", "13.5.37")
        monkeypatch.setattr(toolchain, "_in_wheels", lambda name: [bin / name])
        assert toolchain.pinned_tools() == (
            toolchain.Nvcc(wheel, "13.0.88"),
            toolchain.Disassembler(disassembler, "13.5.37"),
        )

    def test_another_version_only_is_one_line_with_the_remedy(self, bare: Path) -> None:
        path = nvcc(bare / "nvcc", "12.9.41")
        with pytest.raises(ToolchainError) as caught:
            toolchain.pinned_tools()
        message = str(caught.value)
        assert message.startswith(f"the stored figures are those of nvcc 13.0.88, and {path} is 12.9.41; ")
        assert "pip install --group compiler" in message
        assert "\n" not in message

    def test_a_missing_disassembler_is_named(self, bare: Path) -> None:
        nvcc(bare / "nvcc")
        with pytest.raises(ToolchainError, match=r"those of nvdisasm 13\.5\.37, and there is none in PATH"):
            toolchain.pinned_tools()

    def test_a_compiler_that_fails_is_passed_over_and_told(self, bare: Path) -> None:
        program(bare / "nvcc", "exit 1")
        with pytest.raises(ToolchainError, match=r"those of nvcc 13\.0\.88, and .*nvcc --version failed"):
            toolchain.pinned_tools()


def test_the_pins_are_those_of_pyproject() -> None:
    text = toolchain.PYPROJECT.read_text()
    nvcc, nvdisasm = toolchain.pins()
    assert f'"nvidia-cuda-nvcc=={nvcc}"' in text
    assert f'"nvidia-cuda-nvdisasm=={nvdisasm}"' in text


def test_no_compiler_says_where_it_looked_and_what_to_do(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_HOME", "/opt/no-cuda")
    with pytest.raises(ToolchainError) as caught:
        toolchain.find_nvcc()
    message = str(caught.value)
    assert "PATH" in message
    assert "CUDA_HOME=/opt/no-cuda" in message
    assert "pip install --group compiler" in message
    assert "\n" not in message


def test_a_compiler_that_fails_is_named(bare: Path) -> None:
    program(bare / "nvcc", "echo 'libstdc++ is too old' >&2; exit 1")
    with pytest.raises(ToolchainError, match="nvcc --version failed: libstdc"):
        toolchain.find_nvcc()


def test_a_compiler_of_another_machine_is_named(bare: Path) -> None:
    path = nvcc(bare / "nvcc")
    path.write_text("\x7fELF of another machine")
    with pytest.raises(ToolchainError, match=r"nvcc does not run: .*format error"):
        toolchain.find_nvcc()


def test_a_missing_host_compiler_is_named(bare: Path) -> None:
    nvcc(bare / "nvcc")
    (bare / "g++").unlink()
    with pytest.raises(ToolchainError, match=r"needs g\+\+, which is not on PATH"):
        toolchain.find_nvcc()


@pytest.mark.parametrize(
    ("capability", "name"), [((7, 5), "sm_75"), ((8, 0), "sm_80"), ((9, 0), "sm_90a"), ((12, 0), "sm_120a")]
)
def test_arch(capability: tuple[int, int], name: str) -> None:
    assert toolchain.arch(capability) == name


def test_options_carry_the_flags_the_dtype_and_the_config(tmp_path: Path) -> None:
    kernel = replace(planted(tmp_path), flags=("-maxrregcount=64",))
    options = toolchain.compile_options(kernel, Config(TILE_SIZE=16, PADDING=0), BF16)
    assert options[-3:] == ("-DDTYPE_BF16", "-DTILE_SIZE=16", "-DPADDING=0")
    assert {"-maxrregcount=64", "-std=c++17"} <= set(options)


@pytest.mark.compile
def test_figures_are_those_of_the_entry_and_what_it_calls(tmp_path: Path) -> None:
    figures = toolchain.compile_cubin(planted(tmp_path, STACK), Config(), F32, "sm_80").resources
    assert figures.shared_bytes == 96 * 4
    assert figures.local_bytes >= 64 * 4
    assert figures.registers > 8


@pytest.mark.compile
def test_a_binary_does_not_depend_on_where_the_source_lies(tmp_path: Path, cache: Path) -> None:
    made = []
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        made.append(toolchain.compile_cubin(planted(tmp_path / name), Config(SCALE=1), F32, "sm_80"))
        next(cache.iterdir()).unlink()
    assert made[0].cubin == made[1].cubin


@pytest.mark.compile
def test_a_compile_error_carries_the_lines_of_the_compiler(tmp_path: Path) -> None:
    kernel = planted(tmp_path, 'extern "C" __global__ void gemm_planted(float* c) { c[0] = lost; }')
    with pytest.raises(CompileError) as caught:
        toolchain.compile_cubin(kernel, Config(SCALE=1), F32, "sm_80")
    assert 's99_planted.cu(1): error: identifier "lost" is undefined' in str(caught.value)
    assert caught.value.message.startswith("planted f32 scale1 does not compile")


@pytest.mark.compile
def test_a_missing_entry_is_an_error(tmp_path: Path) -> None:
    kernel = replace(planted(tmp_path), entry="gemm_else")
    with pytest.raises(CompileError, match="no entry function gemm_else"):
        toolchain.compile_cubin(kernel, Config(SCALE=1), F32, "sm_80")


@pytest.mark.compile
def test_a_file_of_its_own_besides_the_source_is_refused(tmp_path: Path) -> None:
    """The cache would not see that file change."""
    (tmp_path / "beside.cuh").write_text("")
    with pytest.raises(CompileError, match=r"beside\.cuh"):
        toolchain.compile_cubin(
            planted(tmp_path, '#include "beside.cuh"\n' + SOURCE), Config(SCALE=1), F32, "sm_80"
        )


def test_a_missing_source_is_named(tmp_path: Path) -> None:
    kernel = replace(planted(tmp_path), source=tmp_path / "gone.cu")
    with pytest.raises(CompileError, match=r"planted: cannot read .*gone\.cu"):
        toolchain.compile_cubin(kernel, Config(SCALE=1), F32, "sm_80")


def test_a_library_kernel_has_nothing_to_compile(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="library call"):
        toolchain.compile_cubin(replace(planted(tmp_path), source=None), Config(), F32, "sm_80")


@pytest.mark.compile
def test_ptx_is_for_the_arch(tmp_path: Path) -> None:
    ptx = toolchain.compile_ptx(planted(tmp_path), Config(SCALE=1), F32, "sm_90a")
    assert ".target sm_90a" in ptx
    assert ".entry gemm_planted" in ptx


@pytest.mark.compile
class TestCache:
    def test_the_second_time_needs_no_compiler(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        kernel = planted(tmp_path)
        first = toolchain.compile_cubin(kernel, Config(SCALE=1), F32, "sm_80")
        monkeypatch.setattr(toolchain, "_run_nvcc", lambda *_: pytest.fail("compiled again"))
        assert toolchain.compile_cubin(kernel, Config(SCALE=1), F32, "sm_80") == first

    @pytest.mark.parametrize(
        "change", ["source", "config", "dtype", "flags", "arch", "compiler", "environment", "output"]
    )
    def test_each_thing_that_counts_compiles_again(
        self, change: str, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        kernel = planted(tmp_path)
        toolchain.compile_cubin(kernel, Config(SCALE=1), F32, "sm_80")
        config, dtype, arch = Config(SCALE=1), F32, "sm_80"
        match change:
            case "source":
                planted(tmp_path, SOURCE.replace("SCALE", "SCALE + 1"))
            case "config":
                config = Config(SCALE=2)
            case "dtype":
                dtype = BF16
            case "flags":
                kernel = replace(kernel, flags=("-maxrregcount=64",))
            case "arch":
                arch = "sm_90a"
            case "environment":
                monkeypatch.setenv("NVCC_APPEND_FLAGS", "-maxrregcount=64")
            case "compiler":
                other = replace(toolchain.find_nvcc(), version="13.0.89")
                monkeypatch.setattr(toolchain, "find_nvcc", lambda: other)
        if change == "output":
            toolchain.compile_ptx(kernel, config, dtype, arch)
        else:
            toolchain.compile_cubin(kernel, config, dtype, arch)
        assert len(list(cache.iterdir())) == 2

    @pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
    def test_a_damaged_entry_compiles_again(self, damage: str, tmp_path: Path, cache: Path) -> None:
        first = toolchain.compile_cubin(planted(tmp_path), Config(SCALE=1), F32, "sm_80")
        (entry,) = cache.iterdir()
        whole = entry.read_bytes()
        middle = len(whole) // 3
        flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
        entry.write_bytes({"cut": whole[:middle], "flipped": flipped, "empty": b""}[damage])
        assert toolchain.compile_cubin(planted(tmp_path), Config(SCALE=1), F32, "sm_80").cubin == first.cubin
        assert entry.stat().st_size >= middle * 2

    def test_two_who_want_one_binary_compile_it_once(
        self, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run_nvcc, runs = toolchain._run_nvcc, []

        def slowly(*args: Any) -> tuple[bytes, str]:
            runs.append(args)
            time.sleep(0.3)
            return run_nvcc(*args)

        monkeypatch.setattr(toolchain, "_run_nvcc", slowly)
        variant = (planted(tmp_path), Config(SCALE=1), F32)
        first, second = toolchain.compile_all([variant, variant], "sm_80", jobs=2)
        assert first == second
        assert len(runs) == len(list(cache.iterdir())) == 1

    def test_a_cache_that_cannot_be_written_costs_time_only(self, tmp_path: Path, cache: Path) -> None:
        cache.write_text("a file where the folder should be")
        with pytest.warns(UserWarning, match="set GEMM_CACHE_DIR"):
            assert toolchain.compile_cubin(planted(tmp_path), Config(SCALE=1), F32, "sm_80").cubin

    def test_a_full_disk_leaves_nothing_behind(
        self, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("zipfile.ZipFile.writestr", full)
        with pytest.warns(UserWarning, match="No space left on device"):
            toolchain.compile_cubin(planted(tmp_path), Config(SCALE=1), F32, "sm_80")
        assert list(cache.iterdir()) == []


@pytest.mark.compile
def test_compile_all_keeps_the_order_and_goes_on_after_an_error(tmp_path: Path) -> None:
    kernel = planted(tmp_path)
    good, other, bad = Config(SCALE=1), Config(SCALE=2), Config(OTHER=1)
    made = toolchain.compile_all([(kernel, c, F32) for c in (good, bad, other)], "sm_80", jobs=2)
    assert [type(result) for result in made] == [toolchain.Binary, CompileError, toolchain.Binary]
    assert made[2] == toolchain.compile_cubin(kernel, other, F32, "sm_80")


def test_compile_all_without_a_compiler_is_one_error(bare: Path, tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match="no nvcc"):
        toolchain.compile_all([(planted(tmp_path), Config(SCALE=1), F32)], "sm_80")


def test_the_cache_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GEMM_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert toolchain.cache_dir() == tmp_path / "gemm-regression"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert toolchain.cache_dir() == tmp_path / ".cache" / "gemm-regression"
