"""The fixture ptxsan, in sessions of their own; what is written for GitHub and code scanning."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ptxsan.__main__ import main
from ptxsan.report import CHECKS
from tests.ptxsan.test_api import HEAD, SCALE

KERNELS = Path(__file__).parent / "kernels"
HARNESS = Path(__file__).parents[2] / "harness"
SUM = (KERNELS / "block_sum.cu").read_text(encoding="utf-8")
LINE = next(i for i, text in enumerate(SUM.splitlines(), 1) if "partial[lane] :" in text)
TEST = """
import numpy as np
import pytest

def launch(ptxsan, *defines):
    kernel = ptxsan.load("kernels/block_sum.cu", defines=defines).kernel("block_sum")
    return kernel[4, 256](np.ones(1000, np.float32), 1000, ptxsan.Empty(4))

@pytest.mark.parametrize("threads", [1000])
def test_right(ptxsan, threads):
    assert launch(ptxsan).arrays[2].sum() == threads

def test_wrong(ptxsan):
    launch(ptxsan, "NO_BARRIER")

@pytest.mark.ptxsan(allow=["race"])
def test_allowed(ptxsan):
    launch(ptxsan, "NO_BARRIER")
    assert [h.check for h in ptxsan.results[0].hazards] == ["race"]
"""


def session(folder: Path, test: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    (folder / "kernels").mkdir()
    (folder / "kernels" / "block_sum.cu").write_text(SUM, encoding="utf-8")
    (folder / "test_it.py").write_text(test, encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "ptxsan.pytest_plugin", "-p", "no:cacheprovider", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(HARNESS), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.compile
def test_a_finding_fails_the_test_at_its_line(tmp_path: Path) -> None:
    done = session(tmp_path, TEST, GITHUB_ACTIONS="true")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 2 passed" in done.stdout
    assert "1 finding of block_sum<<<4, 256>>>" in done.stdout
    place = f"kernels/block_sum.cu:{LINE}: race: thread (1, 0, 0) of block (0, 0, 0) reads shared memory"
    assert place in done.stdout
    assert "    s = lane < warps ? partial[lane] : 0.0f;" in done.stdout
    assert "`ptxsan explain race` says more" in done.stdout
    assert done.stdout.count(f"::error file=kernels/block_sum.cu,line={LINE}::race: ") == 1
    assert "Traceback" not in done.stdout


@pytest.mark.compile
def test_a_note_fails_it_where_that_is_asked_for(tmp_path: Path) -> None:
    test = """
CODE = "extern \\"C\\" __global__ void same(int* y) { y[0] = 7; }\\n"

def test_notes(ptxsan):
    ptxsan.load(CODE).kernel()[1, 32](ptxsan.Empty(1, "i4"))
"""
    done = session(tmp_path, test, "--ptxsan-strict")
    assert "1 failed" in done.stdout, done.stdout
    (tmp_path / "kernels" / "block_sum.cu").unlink()
    (tmp_path / "kernels").rmdir()
    assert "1 passed" in session(tmp_path, test).stdout


def test_a_mark_with_a_word_that_is_none(tmp_path: Path) -> None:
    test = "import pytest\n\n@pytest.mark.ptxsan(allow=['races'])\ndef test_it(ptxsan): pass\n"
    done = session(tmp_path, test)
    assert done.returncode == 1
    assert "mark ptxsan: races is unknown" in done.stdout


def launched(folder: Path, *words: str, n: int = 65) -> int:
    (folder / "k.ptx").write_text(HEAD + SCALE, encoding="utf-8")
    arguments = [f"int:{n}", "float:2", "ones:float32:64", "empty:float32:64"]
    return main(["run", str(folder / "k.ptx"), "--grid", "3", "--block", "32", *arguments, *words])


def test_a_result_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert launched(tmp_path, "--json", "-", n=64) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["entry"], found["grid"], found["clean"]) == ("scale", [3, 1, 1], True)
    assert found["counts"]["loads"]["requests"] == 2
    assert found["arrays"]["3"] == {"shape": [64], "dtype": "float32"}
    assert launched(tmp_path, "--json", str(tmp_path / "out.json")) == 1
    (finding,) = json.loads((tmp_path / "out.json").read_text())["findings"]
    assert finding["check"] == "bounds"


@pytest.mark.compile
def test_findings_as_sarif_and_as_annotations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    (tmp_path / "block_sum.cu").write_text(SUM, encoding="utf-8")
    words = [
        "run",
        "block_sum.cu",
        "--grid",
        "4",
        "--block",
        "256",
        "ones:float32:1000",
        "int:1000",
        "empty:float32:4",
    ]
    assert main([*words, "-D", "NO_BARRIER", "--sarif", "out.sarif"]) == 1
    assert f"::error file=block_sum.cu,line={LINE}::race: thread (1, 0, 0)" in capsys.readouterr().out
    (run,) = json.loads((tmp_path / "out.sarif").read_text())["runs"]
    assert run["tool"]["driver"]["name"] == "ptxsan"
    (result,) = run["results"]
    assert (result["ruleId"], result["level"]) == ("race", "error")
    place = result["locations"][0]["physicalLocation"]
    assert (place["artifactLocation"]["uri"], place["region"]["startLine"]) == ("block_sum.cu", LINE)
    assert main([*words, "--sarif", "out.sarif"]) == 0
    assert json.loads((tmp_path / "out.sarif").read_text())["runs"][0]["results"] == []


def test_what_cannot_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert launched(tmp_path, "--sarif", str(tmp_path / "nowhere" / "out.sarif")) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1


def test_every_check_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    """Those that a finding may have: the names in the interpreter's code."""
    assert main(["explain", "RACE", "bounds"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("race\n")
    assert "__syncthreads()" in said
    assert set(CHECKS) == {
        *("bounds", "misaligned", "uninit", "race", "barrier", "hang", "trap", "unsupported")
    }
    assert main(["explain", "races"]) == 2
    assert "there is no check races; there are: bounds" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["k.cu"], ["launch", "k.cu"]])
def test_a_command_is_named(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert "neither run nor explain" in capsys.readouterr().err
