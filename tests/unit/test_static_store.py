"""Files of stored figures: what is written is what is read, and what cannot be trusted is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gemm_regression.compiler.static import store
from gemm_regression.compiler.static.store import StoreError
from tests.ladder import PROJECT
from tests.unit.test_static_diff import BEFORE

FIGURES = {"naive-f32-block32x32": BEFORE, "tiled-f32-tile32-pad0": replace(BEFORE, registers=40)}
VERSIONS = ("13.0.88", "13.5.37")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return store.write(FIGURES, "sm_90a", *VERSIONS, tmp_path)


def load(root: Path) -> object:
    return store.load("sm_90a", *VERSIONS, root)


def test_what_is_written_is_read(path: Path, tmp_path: Path) -> None:
    assert path == tmp_path / "nvcc-13.0.88" / "sm_90a.json"
    assert load(tmp_path) == FIGURES


def test_no_file_is_no_figures(tmp_path: Path) -> None:
    assert load(tmp_path) == {}


def test_the_order_of_the_variants_does_not_show(path: Path, tmp_path: Path) -> None:
    first = path.read_bytes()
    store.write(dict(reversed(FIGURES.items())), "sm_90a", *VERSIONS, tmp_path)
    assert path.read_bytes() == first


def test_one_changed_count_changes_two_lines_of_its_own_variant(path: Path, tmp_path: Path) -> None:
    """The figure and its checksum: what git shows, and all that two branches can clash in."""
    first = path.read_text().splitlines()
    mix = {**BEFORE.instruction_mix, "BAR": 3}
    store.write(
        FIGURES | {"naive-f32-block32x32": replace(BEFORE, instruction_mix=mix)},
        "sm_90a",
        *VERSIONS,
        tmp_path,
    )
    second = path.read_text().splitlines()
    changed = [new for old, new in zip(first, second, strict=True) if old != new]
    assert ['"BAR": 3' in changed[0], "checksum" in changed[1]] == [True, True]
    assert len(changed) == 2


def edited(old: str, new: str) -> Callable[[str], str]:
    def edit(text: str) -> str:
        assert old in text
        return text.replace(old, new, 1)

    return edit


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda text: text[: len(text) // 2], "not valid JSON: truncated or damaged"),
        (lambda text: "", "not valid JSON: truncated or damaged"),
        (lambda text: "<<<<<<< ours\n" + text, "not valid JSON: truncated or damaged"),
        (lambda text: "[]", "contains no stored metrics"),
        (lambda text: "{}", "contains no stored metrics"),
        (lambda text: "[" * 100000, "recursion"),
        (edited('"schema": 1', '"schema": 2'), "its schema is 2, not 1"),
        (edited("sm_90a", "sm_80"), "its arch is 'sm_80', not 'sm_90a'"),
        (edited("13.0.88", "12.9.41"), "its nvcc is '12.9.41', not '13.0.88'"),
        (edited("13.5.37", "13.2.51"), "its nvdisasm is '13.2.51', not '13.5.37'"),
        (edited('"registers": 96', '"registers": 95'), "naive-f32-block32x32: its metrics do"),
        (edited('"registers": 96', '"registers": "96"'), "naive-f32-block32x32: its metrics do"),
        (edited('"registers": 96, ', ""), "naive-f32-block32x32: its metrics do"),
        (edited('"registers": 96', '"more": 1, "registers": 96'), "naive-f32-block32x32: its metrics do"),
        (edited('"BAR": 2, ', ""), "naive-f32-block32x32: its metrics do"),
        (edited('"sass": {', '"sass": 5, "mine": {'), "naive-f32-block32x32: its metrics do"),
        (edited("naive-f32-block32x32", "naive-f32-block16x16"), "naive-f32-block16x16: its metrics do"),
        (edited("naive-f32-block32x32", "tiled-f32-tile32-pad0"), "contains tiled-f32-tile32-pad0 twice"),
        (edited('"variants": {', '"variants": {"x": null,'), "x: its metrics do"),
    ],
)  # fmt: skip
def test_what_cannot_be_trusted_is_refused_in_one_line(
    damage: Callable[[str], str], why: str, path: Path, tmp_path: Path
) -> None:
    path.write_text(damage(path.read_text()))
    with pytest.raises(StoreError, match="nox -s static -- --refresh") as caught:
        load(tmp_path)
    message = str(caught.value)
    assert why in message
    assert str(path) in message
    assert "\n" not in message


def test_bytes_that_are_no_text_are_refused(path: Path, tmp_path: Path) -> None:
    path.write_bytes(b"\xff\xfe" + path.read_bytes())
    with pytest.raises(StoreError, match="cannot be read"):
        load(tmp_path)


def test_a_full_disk_leaves_what_was_there(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match=r"No space left on device.*unchanged"):
        store.write({}, "sm_90a", *VERSIONS, tmp_path)
    monkeypatch.undo()
    assert load(tmp_path) == FIGURES
    assert list(path.parent.iterdir()) == [path]


def test_the_stored_figures_of_this_checkout_are_written_as_they_stand() -> None:
    """A file of another layout would show as changed in full at the next refresh."""
    found = sorted(PROJECT.static.glob("nvcc-*/*.json"))
    assert found
    for file in found:
        document = json.loads(file.read_text())
        head = (file.stem, document["nvcc"], document["nvdisasm"])
        stored = store.load(*head, PROJECT.static)
        records = {name: store.groups(figures) for name, figures in stored.items()}
        assert store.text_of(store.head(*head), records) == file.read_text()
