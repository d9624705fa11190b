"""``init --from`` of a file with a kernel in Triton."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemm_regression.cli import init
from gemm_regression.model import F16, Problem
from gemm_regression.project.loader import load
from tests.gemm_regression.cli.repo import harness

pytest.importorskip("triton")
KERNELS = Path(__file__).with_name("triton_kernels.py")


def test_a_kernel_in_triton_is_declared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--project", str(tmp_path), "--from", str(KERNELS), "--entry", "matmul", "-D", "BM=32"]
    assert init.main(given) == 0
    (kernel,) = load(tmp_path).kernels
    (config,) = kernel.configs
    assert dict(config) == {"BM": 32, "BN": 64, "BK": 32}
    assert [one.means for one in kernel.signature] == ["A", "B", "C", "M", "N", "K", "0", "0"]
    assert kernel.dtypes == (F16,)
    assert kernel.launch(config, F16, Problem(96, 64, 32)).grid == (3, 1, 1)
    said = capsys.readouterr().out
    assert "guessed: constant BN is 64\n" in said
    assert "BM is" not in said
    assert (tmp_path / "kernels" / KERNELS.name).read_bytes() == KERNELS.read_bytes()


STRIDES = """
import triton
import triton.language as tl


@triton.jit
def twice(x):
    return x + x


@triton.jit
def product(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, TWICE: tl.constexpr = 0,
):
    tiles = tl.cdiv(N, BLOCK_N)
    row, column = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    rows, columns = row * BLOCK_M + tl.arange(0, BLOCK_M), column * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, K, BLOCK_K):
        depth = start + tl.arange(0, BLOCK_K)
        a = a_ptr + rows[:, None] * stride_am + depth[None, :] * stride_ak
        b = b_ptr + depth[:, None] * stride_bk + columns[None, :] * stride_bn
        left = tl.load(a, (rows[:, None] < M) & (depth[None, :] < K), 0.0)
        total = tl.dot(left, tl.load(b, (depth[:, None] < K) & (columns[None, :] < N), 0.0), total)
    if TWICE:
        total = twice(total)
    c = c_ptr + rows[:, None] * stride_cm + columns[None, :] * stride_cn
    tl.store(c, total.to(tl.float16), (rows[:, None] < M) & (columns[None, :] < N))
"""


def test_strides_a_line_of_tiles_and_a_rounded_result(tmp_path: Path) -> None:
    source = tmp_path / "product.py"
    source.write_text(STRIDES, encoding="utf-8")
    assert init.main(["--project", str(tmp_path), "--from", str(source)]) == 0
    (kernel,) = load(tmp_path).kernels
    assert (kernel.name, kernel.entry, kernel.source) == (
        "product",
        "product",
        tmp_path / "kernels/../product.py",
    )
    means = [one.means for one in kernel.signature]
    assert means == [*"ABCMNK", "ldA", "1", "ldB", "1", "ldC", "1", "0", "0"]
    assert [dtype.name for dtype in kernel.dtypes] == ["f16_f16"]
    assert kernel.launch(kernel.configs[0], kernel.dtypes[0], Problem(128, 192, 32)).grid == (6, 1, 1)


def test_a_constant_that_nobody_knows_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "odd.py"
    source.write_text(STRIDES.replace("TWICE: tl.constexpr = 0", "TWICE: tl.constexpr"), encoding="utf-8")
    assert init.main(["--project", str(tmp_path), "--from", str(source)]) == 1
    assert "odd.py: constant TWICE: state it, -D TWICE=NUMBER" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir() if path.suffix] == ["odd.py"]


LINEAR = """
import triton
import triton.language as tl


@triton.jit
def linear(x, w, bias, y, M, N, K, TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr):
    rows = tl.program_id(1) * TILE_M + tl.arange(0, TILE_M)
    columns = tl.program_id(0) * TILE_N + tl.arange(0, TILE_N)
    sums = tl.zeros((TILE_M, TILE_N), tl.float32)
    for k0 in range(0, K, TILE_K):
        k = k0 + tl.arange(0, TILE_K)
        a = tl.load(x + rows[:, None] * K + k, (rows[:, None] < M) & (k < K), other=0.0)
        b = tl.load(w + WEIGHTS, (k[:, None] < K) & (columns < N), other=0.0)
        sums = tl.dot(a, b, sums)
    sums += tl.load(bias + columns, columns < N, other=0.0)
    tl.store(y + rows[:, None] * N + columns, LAST, (rows[:, None] < M) & (columns < N))
"""


@pytest.mark.parametrize(
    ("weights", "last", "name"),
    [
        ("k[:, None] * N + columns", "tl.maximum(sums, 0.0)", "gemm_bias_relu"),
        ("columns * K + k[:, None]", "tl.maximum(sums, 0.0)", "gemm_bias_relu_nt"),
        ("columns * K + k[:, None]", "sums", "gemm_bias_nt"),
    ],
)
def test_pointers_without_usual_names_a_bias_and_rows_of_weights(
    weights: str, last: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "linear.py"
    source.write_text(LINEAR.replace("WEIGHTS", weights).replace("LAST", last), encoding="utf-8")
    assert init.main(["--project", str(tmp_path), "--from", str(source)]) == 0
    (kernel,) = load(tmp_path).kernels
    assert kernel.operation.name == name
    assert [one.means for one in kernel.signature] == ["A", "B", "bias", "C", *"MNK", "0", "0"]
    said = capsys.readouterr().out
    assert "guessed: parameter w is B\n" in said
    assert "to do" not in said


def test_a_check_ends_without_what_triton_says_of_its_own_memory(tmp_path: Path) -> None:
    source = tmp_path / "linear.py"
    text = LINEAR.replace("WEIGHTS", "k[:, None] * N + columns").replace("LAST", "sums")
    source.write_text(text, encoding="utf-8")
    assert init.main(["--project", str(tmp_path), "--from", str(source)]) == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))  # so that it is compiled
        done = harness(tmp_path, "check", "--no-cache", "-k", "1x1x1")
    assert done.returncode == 0, done.stdout
    assert "nanobind" not in done.stderr
