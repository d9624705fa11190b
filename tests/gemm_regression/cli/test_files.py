"""Files written whole or not at all, and what is wrong with one in a line."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from unittest.mock import Mock

import pytest
from pydantic import BaseModel, ValidationError

from gemm_regression.files import fault, write_whole


def test_text_and_bytes_replace_what_was_there(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    for content in ("γ\n", b"\x00\xff"):
        write_whole(file, content)
        assert file.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failure_leaves_what_was_there_and_nothing_else(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.txt"
    file.write_text("before")
    monkeypatch.setattr(os, call, Mock(side_effect=OSError("full")))
    with pytest.raises(OSError, match="full"):
        write_whole(file, "after")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a.txt", "before")]


def test_mode_is_that_of_the_file_or_what_the_process_gives(tmp_path: Path) -> None:
    old, new, plain = tmp_path / "old", tmp_path / "new", tmp_path / "plain"
    old.write_text("")
    old.chmod(0o640)
    plain.write_text("")
    for file in (old, new):
        write_whole(file, "x")
    modes = [stat.S_IMODE(file.stat().st_mode) for file in (old, new)]
    assert modes == [0o640, stat.S_IMODE(plain.stat().st_mode)]


def test_links_stay_and_devices_are_written_to(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "target")
    write_whole(link, "x")
    assert link.is_symlink()
    assert (tmp_path / "target").read_text() == "x"
    write_whole(Path(os.devnull), "x")
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


class _Inner(BaseModel):
    rounds: int


class _Outer(BaseModel):
    stats: list[_Inner]


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({}, "stats is missing"),
        ({"stats": [{}]}, "stats.0.rounds is missing"),
        (
            {"stats": [{"rounds": "x" * 99}]},
            "stats.0.rounds is 'xxxxxxxxxxxx...xxxxxxxxxxxxx': input should be",
        ),
        ({"stats": [3]}, "stats.0 is 3: it should be an object with fields"),
        ([], "it is []: it should be an object with fields"),
    ],
)
def test_fault_is_one_line_that_names_the_field(document: object, said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        _Outer.model_validate(document)
    assert fault(caught.value).startswith(said)
    assert "\n" not in fault(caught.value)
