"""gemm-regression paths: a mistake where several conditions meet, which no problem of the suite shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemm_regression.cli import init, paths
from tests.gemm_regression.rig import Printed

pytestmark = pytest.mark.compile
RIGHT = "*c = alpha * sum"


@pytest.mark.parametrize("wrong", [False, True])
def test_a_mistake_where_conditions_meet(wrong: bool, tmp_path: Path, printed: Printed) -> None:
    assert init.main(["--project", str(tmp_path)]) == 0
    source = tmp_path / "kernels" / "sgemm.cu"
    text = source.read_text(encoding="utf-8")
    assert text.count(RIGHT) == 1
    if wrong:
        text = text.replace(
            RIGHT, f"if (M % 8 == 0 && N % 8 == 0 && K % 8 == 3) sum += 1.0f;\n        {RIGHT}"
        )
        source.write_text(text, encoding="utf-8")
    assert paths.main(["--project", str(tmp_path)]) == int(wrong)
    said = printed.out
    assert ("0 problems on which a kernel is wrong" in said) != wrong
    assert ("  sgemm-f32-tile16-" in said) == wrong


def test_a_kernel_that_is_not_there(tmp_path: Path, printed: Printed) -> None:
    assert init.main(["--project", str(tmp_path)]) == 0
    assert paths.main(["--project", str(tmp_path), "--kernel", "dgemm"]) == 2
    assert "there is no kernel dgemm; there are: sgemm" in printed.err


def test_a_kernel_that_does_not_compile_is_one_line(tmp_path: Path, printed: Printed) -> None:
    assert init.main(["--project", str(tmp_path)]) == 0
    source = tmp_path / "kernels" / "sgemm.cu"
    source.write_text(source.read_text(encoding="utf-8").replace("float sum", "flaot sum"), encoding="utf-8")
    assert paths.main(["--project", str(tmp_path)]) == 1
    said = printed.out
    assert said.count("not examined") == 2
    assert "flaot" in said
    assert "Traceback" not in said + printed.err
