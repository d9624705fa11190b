"""The binaries of baselines: kept once by content, launched from what is kept, refused where damaged; and two
branches that refresh the baseline, with git itself: they merge, and nothing is lost."""

from __future__ import annotations

import dataclasses
import lzma
import subprocess
from pathlib import Path

import pytest

from gemm_regression import baselines
from gemm_regression.baselines import BaselineEntry, BaselineError, append, binary, current, history, prune
from gemm_regression.baselines.store import cubin_path, keep_binary, launches_path
from gemm_regression.devices.work import StoredBinary, Work
from gemm_regression.model import Case, Problem
from tests.gemm_regression.synthetic import MACHINE, SLUG, baseline, case, entry

ATTRIBUTES = Path(__file__).parents[3] / ".gitattributes"
TILED, NAIVE, CUBLAS, REGISTER = (case(name) for name in ("tiled", "naive", "cublas", "register"))


def built(of: Case, content: bytes = b"\x7fELF cubin") -> StoredBinary:
    return StoredBinary(of.variant, content, f"_Z{of.kernel.name}", Work.of(of))


def measured(of: Case, content: bytes = b"\x7fELF cubin", seconds: float = 0.01) -> BaselineEntry:
    return entry(of, seconds, cubin=built(of, content).sha256)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Tiled and naive with their binaries."""
    made = baseline(measured(TILED), measured(NAIVE, b"another"), entry(CUBLAS, cubin=None))
    append(tmp_path, made, {TILED.id: built(TILED), NAIVE.id: built(NAIVE, b"another")})
    return tmp_path


def stored(root: Path, of: Case) -> BaselineEntry:
    found = current(root, SLUG)
    assert found is not None
    return found.entries[of.id]


def test_a_binary_comes_back_with_all_that_launches_it(root: Path) -> None:
    for of, content in ((TILED, b"\x7fELF cubin"), (NAIVE, b"another")):
        assert binary(root, stored(root, of)) == built(of, content)


def test_what_is_the_same_is_kept_once(root: Path) -> None:
    files = sorted(path for path in root.rglob("*") if path.is_file())
    before = {path: path.read_bytes() for path in files}
    names = keep_binary(root, built(TILED))
    assert names == (built(TILED).sha256, stored(root, TILED).launch_id)
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    other = dataclasses.replace(TILED, problem=Problem(512, 512, 512))
    assert keep_binary(root, built(other))[0] == names[0]  # another launch of the same cubin
    assert len(list(root.rglob("*.xz"))) == 2
    assert len(launches_path(root).read_text().splitlines()) == 3


def test_a_binary_that_is_not_what_was_measured_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BaselineError, match=f"{TILED.id}: not written: its binary is .* was measured"):
        append(tmp_path, baseline(measured(TILED)), {TILED.id: built(TILED, b"changed since")})
    with pytest.raises(BaselineError, match=f"{CUBLAS.id}: not written"):
        append(tmp_path, baseline(entry(CUBLAS, cubin=None)), {CUBLAS.id: built(TILED)})
    assert list(tmp_path.iterdir()) == []


def test_what_was_not_kept_is_said(tmp_path: Path) -> None:
    append(tmp_path, baseline(measured(TILED), entry(CUBLAS, cubin=None)), {})
    lost = f"its binary {built(TILED).sha256[:12]} was not kept"
    for of, why in ((TILED, lost), (CUBLAS, "a library's")):
        with pytest.raises(BaselineError, match=f"{of.id}: {why}"):
            binary(tmp_path, stored(tmp_path, of))


def refused(root: Path, *said: str) -> None:
    with pytest.raises(BaselineError) as caught:
        binary(root, stored(root, TILED))
    message = str(caught.value)
    assert ("\n" not in message, all(part in message for part in said)) == (True, True)
    assert "restore it from git" in message or "keep the lines of both sides" in message


def test_a_missing_or_damaged_cubin_is_refused(root: Path) -> None:
    path = cubin_path(root, built(TILED).sha256)
    whole = path.read_bytes()
    for content in (whole[:-5], b"", b"no xz", lzma.compress(b"other content")):
        path.write_bytes(content)
        refused(root, f"{path}: does not contain what its name says", TILED.variant)
    keep_binary(root, built(TILED))  # kept again, it is whole
    assert path.read_bytes() == whole
    path.unlink()
    refused(root, f"{path}: does not exist")


def test_a_missing_or_damaged_launch_is_refused(root: Path) -> None:
    path = launches_path(root)
    lines = path.read_text().splitlines()
    for text, said in (
        ("\n".join(lines[1:]), "no launch"),
        ("\n".join([lines[0][:-9], *lines[1:]]), "truncated or damaged"),
        ("\n".join([lines[0].replace("_Ztiled", "_Ztales"), *lines[1:]]), "its id does not match"),
        ("\n".join(["<<<<<<< HEAD", *lines]), "a conflict of git"),
        ("\n".join(["[]", *lines]), "no JSON object"),
    ):
        path.write_text(f"{text}\n")
        refused(root, str(path), said)
    path.write_text("\n".join([*lines, *lines]))  # doubled by a merge
    assert binary(root, stored(root, TILED)) == built(TILED)
    path.unlink()
    refused(root, "no launch")


def test_binaries_that_no_figure_names_are_pruned(root: Path) -> None:
    assert baselines.prune_binaries(root) == (0, 0)
    best = (built(TILED).sha256, stored(root, TILED).launch_id)
    assert best[1] is not None
    newer = dataclasses.replace(measured(NAIVE, b"another"), datetime="2026-12-01T10:00:00+00:00")
    append(root, baseline(dataclasses.replace(newer, best=(best[0], best[1]))), {})
    assert prune(root, SLUG, {NAIVE.id, CUBLAS.id}) == 1
    assert baselines.prune_binaries(root) == (0, 0)  # tiled's is the best of another
    assert baselines.load_binary(root, TILED.variant, best[0], best[1]) == built(TILED)
    assert prune(root, SLUG, {CUBLAS.id}) == 2
    assert baselines.prune_binaries(root) == (2, 2)
    assert list(root.rglob("*.xz")) == []
    assert launches_path(root).read_text() == ""


# Two branches


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
def repository(tmp_path: Path) -> Path:
    """A repository whose one commit has a figure of each of two cases."""
    git(tmp_path, "init", "-q")
    (tmp_path / ".gitattributes").write_text(ATTRIBUTES.read_text())
    root = tmp_path / "baselines"
    for of in (TILED, NAIVE):
        refresh(root, "old", "2026-11-01T10:00:00+00:00", of, 0.01, of.id.encode())
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    return tmp_path


@pytest.mark.parametrize("days", [("05", "05"), ("05", "06"), ("06", "05")])
def test_two_branches_that_refresh_merge_and_lose_nothing(repository: Path, days: tuple[str, str]) -> None:
    """Both refresh tiled, also on the same day; each a case that the other one does not."""
    root = repository / "baselines"
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
    boards = {"old": NAIVE, "11111111": NAIVE, "22222222": REGISTER}
    assert sorted(every) == sorted((board, (TILED.id, other.id)) for board, other in boards.items())
    kept = {
        (m.board, case): (entry.median_s, binary(root, entry).sha256 == entry.cubin_sha256)
        for m in history(root, SLUG)
        for case, entry in m.entries.items()
    }
    assert kept.keys() >= {("11111111", NAIVE.id), ("22222222", REGISTER.id)}
    assert (kept["11111111", TILED.id], kept["22222222", TILED.id]) == ((0.008, True), (0.007, True))
    newest = current(root, SLUG)
    assert newest is not None
    assert set(newest.case_ids) == {TILED.id, NAIVE.id, REGISTER.id}
    if days[0] != days[1]:
        assert newest.entries[TILED.id].median_s == (0.008 if days[0] > days[1] else 0.007)
