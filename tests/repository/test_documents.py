"""Recordings and generated pages: what is stale is told in a sentence each, and red only where it may be."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
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


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commands that were run, all well."""
    found: list[str] = []

    def python_m(words: str, capture: bool = False) -> subprocess.CompletedProcess[str]:
        found.append(words)
        return subprocess.CompletedProcess([], 0, "", "")

    monkeypatch.setattr(documents, "python_m", python_m)
    monkeypatch.setattr(documents, "pinned_tools", lambda: None)
    return found


def test_what_is_stale_says_what_changed_whether_it_is_allowed_and_how_to_refresh(
    ran: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(documents, "DOCUMENTS", (PAGE, replace(PAGE, path="README.md", changed=None)))
    assert documents.main([]) == 1
    assert ran == ["tests.page --check"]
    assert capsys.readouterr().out.splitlines() == [
        "stale docs/page.md",
        "      changed: lacks tiled-f32-tile8-pad0",
        "      allowed: no: it is made of stored figures",
        "      refresh: `python -m tests.page`",
        "ok    README.md",
    ]
    assert documents.main(["--refresh", "page"]) == 0
    assert ran[1:] == ["tests.page"]


def test_what_only_a_gpu_can_refresh_is_not_red(
    ran: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(documents, "DOCUMENTS", (RECORDING,))
    assert documents.main(["--refresh"]) == 0
    assert ran == []
    assert "refresh: `python -m tests.page`, on a GPU" in capsys.readouterr().out


def test_a_check_that_fails_itself_is_neither_up_to_date_nor_stale(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = Document("docs/page.md", "ptxsan.isa --no-such-option", "no")
    monkeypatch.setattr(documents, "DOCUMENTS", (broken,))
    monkeypatch.setattr(documents, "pinned_tools", lambda: None)
    assert documents.main([]) == 2
    assert "error docs/page.md: not looked at: " in capsys.readouterr().out


def test_without_the_pinned_compiler_nothing_is_told_to_be_up_to_date(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing() -> None:
        raise ToolchainError("nvcc 13.0.88 is needed")

    monkeypatch.setattr(documents, "pinned_tools", missing)
    assert documents.main([]) == 2
    assert capsys.readouterr() == ("", "error: nvcc 13.0.88 is needed\n")
    assert documents.main(["nothing-like-it"]) == 2
    assert "no document has nothing-like-it in its path" in capsys.readouterr().err


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
