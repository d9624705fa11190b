"""Two branches that refresh the baseline, with git itself: they merge, and nothing is lost."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path

import pytest

from gemm_regression.baselines import BaselineEntry, append, binary, current, history
from gemm_regression.model import Case
from tests.gemm_regression.baselines.test_baseline_binaries import built, measured
from tests.gemm_regression.synthetic import MACHINE, SLUG, baseline, case

ATTRIBUTES = Path(__file__).parents[3] / ".gitattributes"
TILED, NAIVE, REGISTER = case("tiled"), case("naive"), case("register")


def refresh(root: Path, board: str, when: str, of: Case, seconds: float, content: bytes) -> None:
    made: BaselineEntry = dataclasses.replace(
        measured(of, content, seconds), machine={**MACHINE, "board": board}, datetime=when
    )
    append(root, baseline(made), {of.id: built(of, content)})


def git(folder: Path, *words: str) -> str:
    config = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")
    done = subprocess.run(["git", *config, *words], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository whose one commit has a figure of each of two cases."""
    git(tmp_path, "init", "-q")
    (tmp_path / ".gitattributes").write_text(ATTRIBUTES.read_text())
    root = tmp_path / "baselines"
    for of in (TILED, NAIVE):
        refresh(root, "old", "2026-11-01T10:00:00+00:00", of, 0.01, of.id.encode())
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    return root


@pytest.mark.parametrize("days", [("05", "05"), ("05", "06"), ("06", "05")])
def test_two_branches_that_refresh_merge_and_lose_nothing(root: Path, days: tuple[str, str]) -> None:
    """Both refresh tiled, also on the same day; each a case that the other one does not."""
    repository = root.parent
    for branch, day, board, other, seconds in (
        ("one", days[0], "11111111", NAIVE, 0.008),
        ("two", days[1], "22222222", REGISTER, 0.007),
    ):
        git(repository, "checkout", "-q", "-b", branch, "main")
        when = f"2026-11-{day}T10:00:00+00:00"
        refresh(root, board, when, TILED, seconds, f"tiled of {branch}".encode())
        refresh(root, board, when, other, seconds, b"the same")
        git(repository, "add", ".")
        git(repository, "commit", "-qm", f"refresh {branch}")
    git(repository, "checkout", "-q", "main")
    git(repository, "merge", "-q", "--no-edit", "one")
    git(repository, "merge", "-q", "--no-edit", "two")
    assert git(repository, "status", "--porcelain") == ""

    every = [(m.board, m.case_ids) for m in history(root, SLUG)]
    assert sorted(every) == sorted(
        [
            ("old", (TILED.id, NAIVE.id)),
            ("11111111", (TILED.id, NAIVE.id)),
            ("22222222", (TILED.id, REGISTER.id)),
        ]
    )
    kept = {
        (m.board, case): (entry.median_s, binary(root, entry).sha256 == entry.cubin_sha256)
        for m in history(root, SLUG)
        for case, entry in m.entries.items()
    }
    assert kept.keys() >= {("11111111", NAIVE.id), ("22222222", REGISTER.id)}
    assert kept["11111111", TILED.id] == (0.008, True)
    assert kept["22222222", TILED.id] == (0.007, True)
    newest = current(root, SLUG)
    assert newest is not None
    assert set(newest.case_ids) == {TILED.id, NAIVE.id, REGISTER.id}
    if days[0] != days[1]:
        assert newest.entries[TILED.id].median_s == (0.008 if days[0] > days[1] else 0.007)
