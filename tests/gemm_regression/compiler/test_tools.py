"""Finding nvcc and nvdisasm, and the versions that are pinned."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from gemm_regression.compiler import tools
from gemm_regression.compiler.tools import ToolchainError


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


def nvcc(path: Path, version: str = "13.0.88") -> Path:
    return program(path, f"echo 'Cuda compilation tools, release 13.0, V{version}'")


def test_path_comes_before_cuda_home_and_that_before_the_wheels(
    bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = nvcc(tmp_path / "nvidia" / "cu13" / "bin" / "nvcc")
    monkeypatch.setattr(tools, "_in_wheels", lambda name: [wheel])
    assert tools.find_nvcc().path == wheel
    home = nvcc(tmp_path / "cuda" / "bin" / "nvcc", "12.9.41")
    for name in ("CUDA_PATH", "CUDA_HOME"):
        monkeypatch.delenv("CUDA_PATH", raising=False)
        monkeypatch.setenv(name, str(tmp_path / "cuda"))
        assert tools.find_nvcc() == tools.Nvcc(home, "12.9.41")
    first = nvcc(bare / "nvcc", "13.0.88")
    assert tools.find_nvcc() == tools.Nvcc(first, "13.0.88")


def test_wheels_are_found_in_this_environment(tmp_path: Path) -> None:
    path = nvcc(tmp_path / "nvidia" / "cu13" / "bin" / "nvcc")
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
        nvcc(bare / "nvcc", "12.9.41")
        bin = tmp_path / "nvidia" / "cu13" / "bin"
        wheel, disassembler = nvcc(bin / "nvcc"), nvcc(bin / "nvdisasm", "13.5.37")
        monkeypatch.setattr(tools, "_in_wheels", lambda name: [bin / name])
        found = tools.pinned_tools()
        assert found == (tools.Nvcc(wheel, "13.0.88"), tools.Nvcc(disassembler, "13.5.37"))

    def test_another_version_only_is_one_line_with_the_remedy(self, bare: Path) -> None:
        path = nvcc(bare / "nvcc", "12.9.41")
        with pytest.raises(ToolchainError) as caught:
            tools.pinned_tools()
        message = str(caught.value)
        assert message.startswith(f"the stored metrics are from nvcc 13.0.88, but {path} is 12.9.41; ")
        assert "pip install --group compiler" in message
        assert "\n" not in message

    def test_what_is_missing_or_fails_is_told(self, bare: Path) -> None:
        nvcc(bare / "nvcc")
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


@pytest.mark.parametrize(
    ("capability", "name"), [((7, 5), "sm_75"), ((8, 0), "sm_80"), ((9, 0), "sm_90a"), ((12, 0), "sm_120a")]
)
def test_arch(capability: tuple[int, int], name: str) -> None:
    assert tools.arch(capability) == name
