"""python -m ptxsan: words to arguments, a report, an exit status; python -m ptxsan.isa: the instructions."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ptxsan import Empty, PtxError
from ptxsan.__main__ import main, read
from ptxsan.isa.__main__ import page
from ptxsan.machine.table import REFUSED, TABLES, known
from tests.ptxsan.test_api import HEAD, OTHER, SCALE

KERNELS = Path(__file__).parent / "kernels"


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("int:-5", np.int32(-5)),
        ("uint:0xFF", np.uint32(255)),
        ("long:99999999999", np.int64(99999999999)),
        ("float:2.5", np.float32(2.5)),
        ("double:1e-3", np.float64(1e-3)),
        ("bool:1", np.bool_(True)),
        ("char:-128", np.int8(-128)),
        ("bytes:01ff", b"\x01\xff"),
    ],
)
def test_numbers(word: str, value: Any) -> None:
    found = read(word, 0)
    assert found == value
    assert type(found) is type(value)


def test_arrays(tmp_path: Path) -> None:
    assert read("zeros:float32:3x2", 0).shape == (3, 2)
    assert list(read("arange:int64:4", 0)) == [0, 1, 2, 3]
    assert read("ones:bfloat16:4", 0).dtype == ml_dtypes.bfloat16
    assert np.isnan(read("nan:float16:4", 0)).all()
    one, again, other = (
        read("normal:float32:64", 1),
        read("normal:float32:64", 1),
        read("normal:float32:64", 2),
    )
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)
    assert 0.5 < one.std() < 1.5
    integers = read("integers:int8:1000", 0)
    assert (integers.min(), integers.max(), integers.dtype) == (-8, 7, np.int8)
    assert read("empty:float32:8", 0) == Empty((8,), np.dtype(np.float32))
    np.save(tmp_path / "x.npy", one)
    assert np.array_equal(read(str(tmp_path / "x.npy"), 0), one)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("int:3000000000", "argument 4, int:3000000000: does not fit into int"),
        ("int:x", "argument 4, int:x: invalid literal"),
        ("zeros:float33:4", "argument 4, zeros:float33:4: "),
        ("zeros:float32:", "argument 4, zeros:float32:: "),
        ("zeros:float32:0", "argument 4, zeros:float32:0: an extent must be at least 1"),
        ("nan:int32:4", "argument 4, nan:int32:4: int32 has no NaN"),
        ("nan:uint8:4", "argument 4, nan:uint8:4: uint8 has no NaN"),
        ("nan:int4:4", "argument 4, nan:int4:4: int4 has no NaN"),
        ("missing.npy", "argument 4, missing.npy: .*No such file"),
        ("bytes:0g", "argument 4, bytes:0g: "),
        ("1000", "argument 4, 1000: neither a number, a .npy file nor FILL:DTYPE:SHAPE"),
    ],
)
def test_words_that_mean_nothing(word: str, message: str) -> None:
    with pytest.raises(PtxError, match=message):
        read(word, 4)


def launched(tmp_path: Path, *words: str, text: str = HEAD + SCALE) -> int:
    path = tmp_path / "scale.ptx"
    path.write_text(text, encoding="utf-8")
    return main(["run", str(path), "--grid", "2", "--block", "32", *words])


def test_clean_is_0_and_saves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "y.npy"
    words = ["int:64", "float:2", "arange:float32:64", "zeros:float32:8x8", "--save", f"3={out}"]
    assert launched(tmp_path, *words) == 0
    assert np.array_equal(np.load(out), 2 * np.arange(64, dtype=np.float32).reshape(8, 8))
    said = capsys.readouterr().out
    assert "scale<<<(2, 1, 1), (32, 1, 1)>>>: 1,088 thread instructions" in said
    assert "2 arg2  float32[64]  0 1 2 3 4 5 ...  (unchanged)" in said
    assert re.search(r"3 arg3  float32\[8x8\]  0 2 4 6 8 10 \.\.\.$", said, re.MULTILINE)
    assert re.search(r"global loads +2 requests +8 sectors", said)
    assert "hazards: none" in said


@pytest.mark.parametrize("dtype", ["uint8", "float8_e5m2", "bool", "V4"])
def test_arrays_of_any_dtype_are_shown(
    dtype: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """NaN where the dtype has it, and no number where it is none."""
    size = 4 * 64 // np.dtype(getattr(ml_dtypes, dtype, dtype)).itemsize
    words = ["int:64", "float:2", "nan:float32:64", f"zeros:{dtype}:{size}"]
    assert launched(tmp_path, *words) == 0
    assert f"3 arg3  {dtype}[{size}]".replace("V4", "|V4") in capsys.readouterr().out


def test_a_null_pointer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert launched(tmp_path, "int:0", "float:2", "null", "zeros:float32:64", "--cooperative") == 0
    assert "2 arg2  null\n" in capsys.readouterr().out


@pytest.mark.compile
def test_options_of_nvcc(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "k.cu"
    path.write_text("__global__ void k(int* x) { x[threadIdx.x] = VALUE; }\n", encoding="utf-8")
    words = ["--grid", "1", "--block", "32", "zeros:int32:32", "--nvcc-flags=-use_fast_math -DVALUE=5"]
    assert main(["run", str(path), *words]) == 0
    assert "5 5 5" in capsys.readouterr().out


def test_a_kernel_of_too_many_steps_hangs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = HEAD + SCALE.replace("ret;", "AGAIN:\nbra AGAIN;\nret;")
    words = ["int:64", "float:2", "ones:float32:64", "zeros:float32:64", "--steps", "100"]
    assert launched(tmp_path, *words, text=text) == 1
    assert "hang: " in capsys.readouterr().out


def test_hazards_are_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert launched(tmp_path, "int:64", "float:2", "empty:float32:64", "zeros:float32:64") == 1
    said = capsys.readouterr().out
    assert "hazards: 1\n  uninit: thread (0, 0, 0) of block (0, 0, 0) stores an undefined value to" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["int:64"], "scale takes 4 arguments"),
        (["int:64", "float:2", "x", "y"], "argument 2, x: neither"),
        (
            ["int:1", "float:2", "ones:float32:2", "ones:float32:2", "--save", "4=y.npy"],
            "--save 4=y.npy: must be N=FILE",
        ),
        (
            ["int:1", "float:2", "ones:float32:2", "ones:float32:2", "--save", "0=y.npy"],
            "argument 0 is not an array",
        ),
        (["--entry", "other", "int:1"], "unknown instruction brkpt: PTX line"),
    ],
)
def test_what_cannot_be_run_is_2(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = HEAD + SCALE + OTHER if "--entry" in words else HEAD + SCALE
    assert launched(tmp_path, *words, text=text) == 2
    said = capsys.readouterr()
    assert not said.out
    assert re.match(rf"error: .*{re.escape(message)}", said.err)
    assert said.err.count("\n") == 1


def test_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "nowhere.cu", "--grid", "1", "--block", "32"]) == 2
    assert "error: cannot read nowhere.cu" in capsys.readouterr().err


@pytest.mark.compile
@pytest.mark.parametrize("defines", [[], ["-D", "NO_BARRIER"]])
def test_a_block_reduction_with_shuffles(defines: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Without the barrier the numbers are right all the same, here: only the race tells."""
    source = KERNELS / "block_sum.cu"
    words = ["--grid", "4", "--block", "256", "integers:float32:1000", "int:1000", "empty:float32:4"]
    assert main(["run", str(source), *defines, *words]) == int(bool(defines))
    said = capsys.readouterr().out
    sums = np.pad(read("integers:float32:1000", 0), (0, 24)).reshape(4, 256).sum(axis=1)
    assert f"2 sums  float32[4]  {' '.join(f'{s:g}' for s in sums)}\n" in said
    if defines:
        line = next(i for i, text in enumerate(source.read_text().splitlines(), 1) if "partial[lane]" in text)
        assert re.search(
            rf"race: thread \(1, 0, 0\) .*reads\s+shared memory partial\+4.*block_sum.cu:{line}", said, re.S
        )


README = (Path(__file__).parents[2] / "harness" / "ptxsan" / "README.md").read_text(encoding="utf-8")


@pytest.mark.compile
@pytest.mark.parametrize("shown", re.findall(r"```console\n\$ ptxsan (.*?)```", README, re.DOTALL))
def test_the_package_s_page_shows_what_the_command_prints(
    shown: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(KERNELS)
    command, _, output = shown.partition("\n")
    hazards = main(command.split())
    beginning, cut, _ = output.partition("...\n" if output.endswith("...\n") else "\0")
    said = capsys.readouterr().out
    assert said.startswith(beginning)
    assert cut or said == output
    assert ("hazards: none" in output) == (hazards == 0)


def test_the_package_s_page_shows_kernels_that_are_here() -> None:
    shown = re.findall(r"```cuda\n(.*?)```", README, re.DOTALL)
    here = [
        (KERNELS / f"{name}.cu").read_text(encoding="utf-8")
        for name in ("block_sum", "block_scan", "softmax", "two_steps")
    ]
    assert shown == here


@pytest.mark.compile
def test_the_package_s_page_shows_python_that_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its assertions hold, and it prints what a comment says, with other numbers of streams."""
    monkeypatch.chdir(KERNELS)
    blocks = re.findall(r"```python\n(.*?)```", README.partition("## From pytest")[0], re.DOTALL)
    assert len(blocks) == 3
    exec("\n".join(blocks), {})
    said = re.sub(r"stream \d+", "stream N", capsys.readouterr().out)
    (shown,) = re.findall(r"^# (.*)$", blocks[2], re.MULTILINE)
    assert said.endswith(re.sub(r"stream \d+", "stream N", shown) + "\n")


@pytest.mark.compile
def test_a_block_scan_and_a_softmax_of_rows(tmp_path: Path) -> None:
    x, out = read("integers:int32:1000", 0), tmp_path / "out.npy"
    words = [str(KERNELS / "block_scan.cu"), "--grid", "4", "--block", "256"]
    assert (
        main(["run", *words, "integers:int32:1000", "int:1000", "empty:int32:1000", "--save", f"2={out}"])
        == 0
    )
    sums = np.concatenate([np.cumsum(block) for block in np.split(x, [256, 512, 768])])
    assert np.array_equal(np.load(out), sums)

    words = [str(KERNELS / "softmax.cu"), "--grid", "8", "--block", "32"]
    assert (
        main(["run", *words, "normal:float32:8x100", "int:100", "empty:float32:8x100", "--save", f"2={out}"])
        == 0
    )
    powers = np.exp(read("normal:float32:8x100", 0).astype(np.float64))
    np.testing.assert_allclose(np.load(out), powers / powers.sum(axis=1, keepdims=True), rtol=1e-6)


@pytest.mark.compile
def test_folders_of_headers_and_headers_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "twice.h").write_text("#define TWICE(x) (2 * (x))\n", encoding="utf-8")
    (tmp_path / "near.h").write_text("#include <twice.h>\n", encoding="utf-8")
    source = tmp_path / "k.cu"
    code = '#include "near.h"\n__global__ void k(int* y) { y[threadIdx.x] = TWICE(threadIdx.x); }\n'
    source.write_text(code, encoding="utf-8")
    words = [str(source), "--grid", "1", "--block", "32", "empty:int32:32"]
    assert main(["run", *words]) == 2
    assert main(["run", *words, "-I", str(tmp_path / "far")]) == 0


# The list of instructions

PAGE = Path(__file__).parents[2] / "docs" / "results" / "instructions.md"


def test_the_page_is_what_the_table_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m ptxsan.isa writes it"


def test_check_finds_a_page_that_is_out_of_date(tmp_path: Path) -> None:
    other = tmp_path / "page.md"
    other.write_text(page().replace("| `bfi` |", "| `bfj` |"), encoding="utf-8")
    command = [sys.executable, "-m", "ptxsan.isa", "--check", "--page"]
    done = subprocess.run([*command, str(other)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "is out of date" in done.stderr
    assert subprocess.run([*command, str(PAGE)], check=False).returncode == 0


def test_every_row_has_a_section() -> None:
    rows = {name: row for table in TABLES.values() for name, row in table.items()}
    assert [n for n, row in rows.items() if not re.fullmatch(r"9\.7(\.\d+){1,4}", row.section)] == []
    assert [name for name in REFUSED if known(name)] == []
