"""What has to be touched to add something: how many files of a copy of the packages, or of a project.
And any stage can be renamed: tests use declarations of their own, or those that there are."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import VARIABLE
from tests.gemm_regression.cli.repo import harness
from tests.ladder import LADDER, PROJECT, importing

INSTRUCTION = """

@instruction("9.7.1", "twice:99", "left")
def _twice(b: Builder, i: Instruction, site: Site) -> Run:
    return simple(b, i, parts(i)[1], lambda x: x + x)
"""
SOURCES = Path(__file__).parent / "sources"
DECLARATION = """
import numpy as np
from gemm_regression.model import BlockShape, DType, Kernel, Operand, Operation, gemm

A, B, C = gemm().operands  # C = alpha A B + beta C + D
SUM = Operation("gemm_sum", (A, B, Operand("D", "m", "n", "added", like="C"), C), gemm().product)
S16 = DType("s16", np.dtype(np.int16), np.dtype(np.int32), 0.0, 0.0, 15, 0.0, np.dtype(np.int32))
KERNELS += (
    Kernel("f", "f.cu", entry="f", shape=BlockShape((16, 16), (16, 16)), operation=SUM, dtypes=(S16,)),
)
"""


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    folder = tmp_path / "harness"
    shutil.copytree(PROJECT.root / "harness", folder, ignore=shutil.ignore_patterns("__pycache__", "build"))
    return folder


def run(folder: Path, program: str) -> str:
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=importing(folder), cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_gpu_model_is_a_row_of_one_file(packages: Path) -> None:
    file = packages / "gemm_regression" / "model" / "gpus.py"
    text, last = file.read_text(), '        GpuModel("NVIDIA A100-SXM4-40GB"'
    assert text.count(last) == 1
    row = '        GpuModel("NVIDIA X", (9, 0), 78, {"f32": 5e4}, 2500.0),\n'
    file.write_text(text.replace(last, row + last))
    asked = "from gemm_regression.timing.bounds import roofs_of, sms_of; m = {'name': 'NVIDIA X'}; "
    assert run(packages, f"{asked} print(roofs_of(m).bandwidths['dram'], sms_of(m))") == "2500.0 78"


def test_an_instruction_is_a_row_of_one_file(packages: Path) -> None:
    text = (SOURCES / "twice.ptx").read_text(encoding="utf-8")
    asked = "import numpy as np, ptxsan\n"
    asked += f"result = ptxsan.run({text!r}, grid=1, block=1, arguments=[np.array([21], np.uint32)])\n"
    asked += "print(result.arrays[0][0], result.clean)"
    with pytest.raises(AssertionError, match="twice"):
        run(packages, asked)
    file = packages / "ptxsan" / "isa" / "integer.py"
    file.write_text(file.read_text() + INSTRUCTION)
    assert run(packages, asked) == "42 True"


@pytest.mark.compile
def test_a_kernel_an_operation_and_a_dtype_are_a_source_and_a_declaration(tmp_path: Path) -> None:
    assert harness(tmp_path, "init").returncode == 0
    shutil.copy(SOURCES / "sum.cu", tmp_path / "kernels" / "f.cu")
    with (tmp_path / "kernels" / "__init__.py").open("a") as declarations:
        declarations.write(DECLARATION)
    done = harness(tmp_path, "check", "-n", "0", "-k", "f-s16")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 variant checked without a GPU: 1 PASS" in done.stdout


def test_with_every_stage_renamed_the_tests_are_collected(tmp_path: Path) -> None:
    ignored = {".git", ".nox", ".venv", "tests", "kernels"}
    for path in PROJECT.root.iterdir():
        if path.name not in ignored:
            (tmp_path / path.name).symlink_to(path)
    for name in ("kernels", "tests"):
        subprocess.run(["cp", "-r", str(PROJECT.root / name), str(tmp_path / name)], check=True)
    for file in (tmp_path / "kernels").glob("*.py"):
        text = file.read_text(encoding="utf-8")
        for kernel in LADDER:
            text = re.sub(rf'"{kernel.name}"', f'"renamed_{kernel.name}"', text)
        file.write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    command += ["tests", "--ignore=tests/browser", "--assert=plain"]  # none runs
    env = {name: value for name, value in os.environ.items() if name != VARIABLE}  # not those of a part
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert "[renamed_" in done.stdout
    assert len({line.partition("::")[0] for line in done.stdout.splitlines() if "::" in line}) > 100
