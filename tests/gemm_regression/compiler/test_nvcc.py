"""What nvcc makes of a kernel, its figures, and the cache of it; where it is found, and the version that is
pinned."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import threading
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gemm_regression.compiler import nvcc, objects, tools
from gemm_regression.compiler.nvcc import Binary, compile_all, compile_cubin, compile_ptx
from gemm_regression.compiler.tools import CompileError, ToolchainError
from gemm_regression.compiler.units import Unit, compile_options, source_of
from gemm_regression.model import BF16, F32, BlockShape, Config, Kernel
from ptxsan.native import alone, cache_dir

pytestmark = pytest.mark.usefixtures("cache")
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


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The runs of nvcc, each as its mode."""
    real, found = nvcc._run_nvcc, list[Any]()

    def counted(of: tools.Nvcc, unit: Unit, mode: tuple[str, ...]) -> tuple[bytes, str, bytes]:
        found.append(mode)
        return real(of, unit, mode)

    monkeypatch.setattr(nvcc, "_run_nvcc", counted)
    return found


def planted(folder: Path, source: str = SOURCE) -> Kernel:
    path = folder / "s99_planted.cu"
    path.write_text(source)
    return Kernel("planted", path, "gemm_planted", BlockShape((32, 1), (1, 32)))


def test_options_carry_the_flags_the_dtype_and_the_config(tmp_path: Path) -> None:
    kernel = replace(planted(tmp_path), flags=("-maxrregcount=64",))
    options = compile_options(kernel, Config(TILE_SIZE=16, PADDING=0), BF16)
    assert options[-3:] == ("-DDTYPE_BF16", "-DTILE_SIZE=16", "-DPADDING=0")
    assert {"-maxrregcount=64", "-std=c++17"} <= set(options)


@pytest.mark.compile
def test_figures_are_those_of_the_entry_and_what_it_calls(tmp_path: Path) -> None:
    figures = compile_cubin(planted(tmp_path, STACK), Config(), F32, "sm_80").resources
    assert figures.shared_bytes == 96 * 4
    assert figures.local_bytes >= 64 * 4
    assert figures.registers > 8


@pytest.mark.compile
def test_a_compile_error_carries_the_lines_of_the_compiler(tmp_path: Path) -> None:
    kernel = planted(tmp_path, 'extern "C" __global__ void gemm_planted(float* c) { c[0] = lost; }')
    with pytest.raises(CompileError) as caught:
        compile_cubin(kernel, Config(SCALE=1), F32, "sm_80")
    assert 's99_planted.cu(1): error: identifier "lost" is undefined' in str(caught.value)
    assert caught.value.message.startswith("planted f32 scale1 does not compile")


def test_what_cannot_be_compiled_is_named(tmp_path: Path) -> None:
    kernel, of = planted(tmp_path), (Config(SCALE=1), F32, "sm_80")
    with pytest.raises(CompileError, match=r"planted: cannot read .*gone\.cu"):
        compile_cubin(replace(kernel, source=tmp_path / "gone.cu"), *of)
    with pytest.raises(ValueError, match="library call"):
        compile_cubin(replace(kernel, source=None), *of)


@pytest.mark.compile
class TestCache:
    @pytest.mark.parametrize(
        "change", ["source", "config", "dtype", "flags", "arch", "compiler", "environment", "output"]
    )
    def test_each_thing_that_counts_compiles_again(
        self, change: str, tmp_path: Path, runs: list[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        kernel = planted(tmp_path)
        compile_cubin(kernel, Config(SCALE=1), F32, "sm_80")
        other = {"config": Config(SCALE=2), "dtype": BF16, "arch": "sm_90a"}
        if change == "source":
            planted(tmp_path, SOURCE.replace("SCALE", "SCALE + 1"))
        elif change == "flags":
            kernel = replace(kernel, flags=("-maxrregcount=64",))
        elif change == "environment":
            monkeypatch.setenv("NVCC_APPEND_FLAGS", "-maxrregcount=64")
        elif change == "compiler":
            found = replace(tools.find_nvcc(), version="13.0.89")
            monkeypatch.setattr(tools, "find_nvcc", lambda: found)
        given: dict[str, Any] = {"config": Config(SCALE=1), "dtype": F32, "arch": "sm_80"}
        given |= {name: other[name] for name in [change] if name in other}
        if change == "output":
            compile_ptx(kernel, **given, lines=True)
        else:
            compile_cubin(kernel, **given)
        assert len(runs) == 2

    @pytest.mark.parametrize("first", ["cubin", "ptx"])
    def test_one_run_makes_the_cubin_and_its_ptx(
        self, first: str, tmp_path: Path, runs: list[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        variant = (planted(tmp_path), Config(SCALE=1), F32, "sm_90a")
        if first == "cubin":
            cubin, ptx = compile_cubin(*variant), compile_ptx(*variant)
        else:
            ptx, cubin = compile_ptx(*variant, cubin_too=True), compile_cubin(*variant)
        assert len(runs) == 1
        monkeypatch.setenv("GEMM_CACHE_DIR", str(tmp_path / "another"))
        assert compile_ptx(*variant) == ptx
        assert compile_cubin(*variant).cubin == cubin.cubin
        assert len(runs) == 3

    def test_what_ptxas_refuses_has_ptx(self, tmp_path: Path, runs: list[Any]) -> None:
        much = (
            "__shared__ float s[200000]; s[threadIdx.x] = c[0]; __syncthreads(); c[0] = s[7 * threadIdx.x];"
        )
        kernel = planted(tmp_path, f'extern "C" __global__ void gemm_planted(float* c) {{ {much} }}')
        variant = (kernel, Config(SCALE=1), F32, "sm_90a")
        assert "800000" in compile_ptx(*variant, cubin_too=True)
        assert len(runs) == 2
        with pytest.raises(CompileError, match="too much shared data"):
            compile_cubin(*variant)

    @pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
    def test_a_damaged_entry_compiles_again(self, damage: str, tmp_path: Path, cache: Path) -> None:
        first = compile_cubin(planted(tmp_path), Config(SCALE=1), F32, "sm_80")
        entry = max(cache.glob("*.zip"), key=lambda path: path.stat().st_size)  # the other is of the PTX
        whole = entry.read_bytes()
        middle = len(whole) // 3
        flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
        entry.write_bytes({"cut": whole[:middle], "flipped": flipped, "empty": b""}[damage])
        assert compile_cubin(planted(tmp_path), Config(SCALE=1), F32, "sm_80").cubin == first.cubin
        assert entry.stat().st_size >= middle * 2

    def test_two_who_want_one_binary_compile_it_once(
        self, tmp_path: Path, runs: list[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run_nvcc = nvcc._run_nvcc

        def slowly(*args: Any) -> tuple[bytes, str, bytes]:
            time.sleep(0.3)
            return run_nvcc(*args)

        monkeypatch.setattr(nvcc, "_run_nvcc", slowly)
        variant = (planted(tmp_path), Config(SCALE=1), F32)
        first, second = compile_all([variant, variant], "sm_80", jobs=2)
        assert (first, len(runs)) == (second, 1)

    def test_a_cache_that_cannot_be_written_costs_time_only(self, tmp_path: Path, cache: Path) -> None:
        cache.write_text("a file where the folder should be")
        with pytest.warns(UserWarning, match="set GEMM_CACHE_DIR"):
            assert compile_cubin(planted(tmp_path), Config(SCALE=1), F32, "sm_80").cubin


@pytest.mark.compile
def test_compile_all_keeps_the_order_and_goes_on_after_an_error(tmp_path: Path) -> None:
    kernel = planted(tmp_path)
    good, other, bad = Config(SCALE=1), Config(SCALE=2), Config(OTHER=1)
    made = compile_all([(kernel, c, F32) for c in (good, bad, other)], "sm_80", jobs=2)
    assert [type(result) for result in made] == [Binary, CompileError, Binary]
    assert made[2] == compile_cubin(kernel, other, F32, "sm_80")


def test_the_cache_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GEMM_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "gemm-regression"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_dir() == tmp_path / ".cache" / "gemm-regression"


@pytest.mark.compile
@pytest.mark.parametrize("entry", ["gemm_planted", "two<{SCALE}>"])
def test_what_source_module_compiles_is_the_same_code(entry: str, tmp_path: Path) -> None:
    """As PyCUDA runs nvcc on a Source; ptxas notes in a cubin that it was to be verbose, and nothing else."""
    more = "template <int N> __global__ void two(float* c) { c[N] = __FILE__[threadIdx.x]; }\n"
    kernel, config = replace(planted(tmp_path, SOURCE + more), entry=entry), Config(SCALE=1)
    source, folder = source_of(kernel, config, F32, "sm_90a"), tmp_path / "pycuda"
    assert "#include" not in source.text  # PyCUDA would run the preprocessor at each look-up
    folder.mkdir()
    (folder / "kernel.cu").write_text(source.text)
    command = [str(tools.find_nvcc().path), "--cubin", *source.options, "-arch", source.arch]
    include = [f"-I{path}" for path in (*source.include, tmp_path)]
    subprocess.run([*command, *include, "kernel.cu"], cwd=folder, check=True)
    theirs, ours = (folder / "kernel.cubin").read_bytes(), compile_cubin(kernel, config, F32, "sm_90a")
    assert objects.symbol_of(source.entry, objects.symbols(theirs), "x") == ours.symbol
    both = zip(objects.sections(theirs), objects.sections(ours.cubin), strict=True)
    assert {a.name for a, b in both if a != b} <= {".note.nv.tkinfo"}


def test_compilers_find_their_memory_at_the_same_addresses_in_every_run() -> None:
    """By random ones nvcc orders its tables: one run of four loaded a vector of lean_loop in two pieces."""
    if subprocess.run(["setarch", "-R", "true"], capture_output=True).returncode:
        pytest.skip("not allowed here")

    def flags() -> int:
        tools.fixed_addresses()
        said = subprocess.run(["cat", "/proc/self/personality"], capture_output=True, text=True, check=True)
        return int(said.stdout, 16)

    with ThreadPoolExecutor(1) as pool:  # of a thread, and of what it starts
        assert pool.submit(flags).result() & 0x0040000


# Where it is


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with g++ and no nvcc: returns the one folder on PATH."""
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setattr(tools, "_in_wheels", lambda name: [])
    folder = tmp_path / "bin"
    monkeypatch.setenv("PATH", str(folder))
    program(folder / "g++", "exit 0")
    return folder


def program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def compiler(path: Path, version: str = "13.0.88") -> Path:
    return program(path, f"echo 'Cuda compilation tools, release 13.0, V{version}'")


def test_path_comes_before_cuda_home_and_that_before_the_wheels(
    bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = compiler(tmp_path / "nvidia" / "cu13" / "bin" / "nvcc")
    monkeypatch.setattr(tools, "_in_wheels", lambda name: [wheel])
    assert tools.find_nvcc().path == wheel
    home = compiler(tmp_path / "cuda" / "bin" / "nvcc", "12.9.41")
    for name in ("CUDA_PATH", "CUDA_HOME"):
        monkeypatch.delenv("CUDA_PATH", raising=False)
        monkeypatch.setenv(name, str(tmp_path / "cuda"))
        assert tools.find_nvcc() == tools.Nvcc(home, "12.9.41")
    first = compiler(bare / "nvcc", "13.0.88")
    assert tools.find_nvcc() == tools.Nvcc(first, "13.0.88")


def test_wheels_are_found_in_this_environment(tmp_path: Path) -> None:
    path = compiler(tmp_path / "nvidia" / "cu13" / "bin" / "nvcc")
    code = "from gemm_regression.compiler import tools; print(*tools._in_wheels('nvcc'))"
    environment = {"PYTHONPATH": f"{tmp_path}:{Path(tools.__file__).parents[2]}"}
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert str(path) in said.stdout.split(), said.stderr


class TestPins:
    """The compiler whose figures are stored: of its version only, wherever it is."""

    @pytest.fixture(autouse=True)
    def pins(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tools, "pins", lambda: ("13.0.88", "13.5.37"))

    def test_the_wheel_is_taken_where_path_has_another_version(
        self, bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        compiler(bare / "nvcc", "12.9.41")
        bin = tmp_path / "nvidia" / "cu13" / "bin"
        wheel, disassembler = compiler(bin / "nvcc"), compiler(bin / "nvdisasm", "13.5.37")
        monkeypatch.setattr(tools, "_in_wheels", lambda name: [bin / name])
        found = tools.pinned_tools()
        assert found == (tools.Nvcc(wheel, "13.0.88"), tools.Nvcc(disassembler, "13.5.37"))

    def test_another_version_only_is_one_line_with_the_remedy(self, bare: Path) -> None:
        path = compiler(bare / "nvcc", "12.9.41")
        said = f"^the stored metrics are from nvcc 13.0.88, but {path} is 12.9.41; .*pip install --group comp"
        with pytest.raises(ToolchainError, match=said) as caught:
            tools.pinned_tools()
        assert "\n" not in str(caught.value)

    def test_what_is_missing_or_fails_is_told(self, bare: Path) -> None:
        compiler(bare / "nvcc")
        missing = r"from nvdisasm 13\.5\.37, but none was found \(searched PATH"
        with pytest.raises(ToolchainError, match=missing):
            tools.pinned_tools()
        program(bare / "nvcc", "exit 1")
        tools._version.cache_clear()
        with pytest.raises(ToolchainError, match=r"from nvcc 13\.0\.88, but .*nvcc --version failed"):
            tools.pinned_tools()


def test_the_pins_are_those_of_pyproject() -> None:
    """Dependabot edits that file; the package is read without it."""
    text = (Path(__file__).resolve().parents[3] / "pyproject.toml").read_text()
    nvcc, nvdisasm = tools.pins()
    group = tomllib.loads(text)["dependency-groups"]["compiler"]
    assert {f"nvidia-cuda-nvcc=={nvcc}", f"nvidia-cuda-nvdisasm=={nvdisasm}"} <= set(group)


def test_no_compiler_says_where_it_looked_and_what_to_do(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_HOME", "/opt/no-cuda")
    with pytest.raises(ToolchainError) as caught:
        tools.find_nvcc()
    message = str(caught.value)
    assert "PATH" in message
    assert "CUDA_HOME=/opt/no-cuda" in message
    assert "pip install --group compiler" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo 'libstdc++ is too old' >&2; exit 1", "nvcc --version failed: libstdc"),
        ("echo 'release 13.0, V13.0.88'", r"needs g\+\+, which is not on PATH"),
        ("", r"nvcc cannot be run: .*format error"),
    ],
)
def test_a_compiler_that_cannot_be_used_is_named(bare: Path, script: str, why: str) -> None:
    path = program(bare / "nvcc", script)
    if not script:
        path.write_text("\x7fELF of another machine")
    (bare / "g++").unlink()
    with pytest.raises(ToolchainError, match=why):
        tools.find_nvcc()


def test_who_waited_for_an_entry_has_it_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who made it removes the lock, which the next one waited for: another has to be taken, or a third
    process would be let in beside it."""
    real, waits, waited = fcntl.flock, threading.Event(), threading.Event()

    def told(file: Any, how: int) -> None:
        if threading.current_thread() is second:
            waits.set()
        real(file, how)

    def wait() -> None:
        with alone(tmp_path / "entry"):
            with (tmp_path / "entry.lock").open("w") as third, pytest.raises(BlockingIOError):
                real(third, fcntl.LOCK_EX | fcntl.LOCK_NB)
            waited.set()

    second = threading.Thread(target=wait)
    monkeypatch.setattr(fcntl, "flock", told)
    with alone(tmp_path / "entry"):
        second.start()
        assert waits.wait(10)
        time.sleep(0.05)  # until it stands in the queue
    second.join(10)
    assert waited.is_set()
    assert not (tmp_path / "entry.lock").exists()
