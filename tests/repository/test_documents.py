"""Recordings and generated pages: what is stale is told in a sentence each, and red only where it may be."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gemm_regression.compiler.tools import ToolchainError
from tests import documents, outputs
from tests.documents import DOCUMENTS, GPU, Document


def changed() -> Iterator[str]:
    yield "lacks tiled-f32-tile8-pad0"


PAGE = Document("docs/page.md", "tests.page", "no: it is made of stored figures", "", changed)
RECORDING = replace(PAGE, path="tests/bits.json", needs=GPU, allowed="yes: other sums may be right")


Main = Callable[..., tuple[int, str, str]]


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Main:
    """Runs the command with these words on these documents, else on all; its status, output and errors."""
    monkeypatch.setattr(documents, "pinned_tools", lambda: None)

    def run(*words: str, of: tuple[Document, ...] = DOCUMENTS) -> tuple[int, str, str]:
        monkeypatch.setattr(documents, "DOCUMENTS", of)
        return (documents.main([*words]), *capsys.readouterr())

    return run


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commands that were run, all well."""
    found: list[str] = []

    def python_m(words: str, capture: bool = False) -> subprocess.CompletedProcess[str]:
        found.append(words)
        return subprocess.CompletedProcess([], 0, "", "")

    monkeypatch.setattr(documents, "python_m", python_m)
    return found


def test_what_is_stale_says_what_changed_whether_it_is_allowed_and_how_to_refresh(
    main: Main, ran: list[str]
) -> None:
    both = (PAGE, replace(PAGE, path="README.md", changed=None))
    status, said, _ = main(of=both)
    assert (status, ran) == (1, ["tests.page --check"])
    assert said.splitlines() == [
        "stale docs/page.md",
        "      changed: lacks tiled-f32-tile8-pad0",
        "      allowed: no: it is made of stored figures",
        "      refresh: `python -m tests.page`",
        "ok    README.md",
    ]
    assert (main("--refresh", "page", of=both)[0], ran[1:]) == (0, ["tests.page"])


def test_what_only_a_gpu_can_refresh_is_not_red(main: Main, ran: list[str]) -> None:
    status, said, _ = main("--refresh", of=(RECORDING,))
    assert (status, ran) == (0, [])
    assert "refresh: `python -m tests.page`, on a GPU" in said


def test_a_check_that_fails_itself_is_neither_up_to_date_nor_stale(main: Main) -> None:
    broken = Document("docs/page.md", "ptxsan.isa --no-such-option", "no")
    status, said, _ = main(of=(broken,))
    assert status == 2
    assert "error docs/page.md: not looked at: " in said


def test_without_the_pinned_compiler_nothing_is_told_to_be_up_to_date(
    main: Main, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise ToolchainError("nvcc 13.0.88 is needed")

    monkeypatch.setattr(documents, "pinned_tools", missing)
    assert main() == (2, "", "error: nvcc 13.0.88 is needed\n")
    status, _, error = main("nothing-like-it")
    assert status == 2
    assert "no document has nothing-like-it in its path" in error


@pytest.mark.compile
def test_another_binary_than_that_of_the_recorded_bits_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [next(outputs.compared())]
    binaries = {cases[0].variant: outputs.binary(cases[0]), "gone-f32": ""}
    monkeypatch.setattr(outputs, "compared", lambda: iter(cases))
    monkeypatch.setattr(outputs, "recorded", lambda: {"binaries": binaries, "outputs": {}})
    (recording,) = [d for d in DOCUMENTS if d.path == "tests/outputs.json"]
    assert recording.stale() == ["has gone-f32, which nobody declares"]
    binaries[cases[0].variant] = "another"
    assert recording.stale()[1:] == [f"has the bits of another binary of {cases[0].variant}"]


def test_every_document_is_there_and_told_of() -> None:
    told = (documents.ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for document in DOCUMENTS:
        assert Path(documents.ROOT, document.path).is_file()
        assert document.path in told or document.path.replace("nvidia-h200", "<gpu>") in told
