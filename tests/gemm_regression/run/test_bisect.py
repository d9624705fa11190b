"""The first commit that made a case slower: in made-up histories, and in repositories on a simulated GPU."""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gemm_regression.cli import paired as command
from gemm_regression.compiler.nvcc import Binary, PtxasFigures
from gemm_regression.compiler.tools import CompileError
from gemm_regression.devices.work import StoredBinary
from gemm_regression.judge.vocabulary import Paired
from gemm_regression.model import Config, DType, Kernel
from gemm_regression.run import bisect as running
from gemm_regression.run import pairing
from gemm_regression.run.bisect import BisectState, FirstBad, Revision, first_bad, grouped, steps
from tests.gemm_regression import synthetic
from tests.gemm_regression.cli.repo import PROBLEM, Command, Repo, declarations, source
from tests.gemm_regression.rig import Printed
from tests.gemm_regression.simulated import SimulatedDevice

CASE = f"one-f32-size1-{PROBLEM.id}"


# The search


_ONE = SimulatedDevice().binary(synthetic.case())


def binary(text: str) -> StoredBinary:
    assert _ONE is not None
    return dataclasses.replace(_ONE, cubin=text.encode())


def history(texts: str) -> list[Revision]:
    """A revision for each letter, its binary; a dot has none."""
    return [
        Revision(str(i), None if letter == "." else binary(letter), "broken" * (letter == "."))
        for i, letter in enumerate(texts)
    ]


def searched(texts: str, bad: str, good: str = "G", skip: str = "") -> tuple[FirstBad, list[str]]:
    asked: list[str] = []

    def test(of: StoredBinary) -> tuple[BisectState, Paired | None]:
        letter = of.cubin.decode()
        asked.append(letter)
        state = BisectState.BAD if letter in bad else BisectState.GOOD
        return BisectState.SKIP if letter in skip else state, None

    return first_bad(grouped(history(texts)), binary(good), test), asked


def names(found: tuple[Revision, ...]) -> str:
    return " ".join(revision.name for revision in found)


def test_the_first_bad_one_is_found_wherever_it_is_and_in_few_steps() -> None:
    letters = [chr(i) for i in range(0x4E00, 0x4E00 + 50)]
    for count in (1, 2, 3, 17, 50):
        for first in range(count):
            found, asked = searched("".join(letters[:count]), "".join(letters[first:]))
            assert (names(found.first), found.skipped) == (str(first), ())
            assert 1 + len(asked) <= steps(count)


def test_equal_binaries_are_one_and_each_is_asked_about_once() -> None:
    found, asked = searched("aaabbbbcccc", "bc")
    assert (names(found.first), sorted(asked)) == ("3 4 5 6", ["a", "b"])
    found, asked = searched("abababc", "bc")  # a change that is reverted and made again
    assert len(asked) == len(set(asked))


def test_the_good_binary_is_never_timed() -> None:
    found, asked = searched("GGGaGGGb", "b")  # a change that was reverted
    assert (names(found.first), asked) == ("7", ["a"])


@pytest.mark.parametrize(
    ("texts", "skipped", "first"), [("ab.cd", "2", "3"), ("ab.Xcd", "2 3", "4"), ("....d", "0 1 2 3", "4")]
)
def test_what_cannot_be_judged_is_skipped(texts: str, skipped: str, first: str) -> None:
    found, _ = searched(texts, "cd", skip="X")
    assert (names(found.skipped), names(found.first)) == (skipped, first)


def test_skipped_ones_at_random_never_hide_the_first_bad_one() -> None:
    chance = random.Random(1)
    for _ in range(200):
        count = chance.randrange(1, 40)
        first = chance.randrange(count)
        letters = [chr(0x4E00 + i) for i in range(count)]
        shown = [letter if chance.random() < 0.7 else "." for letter in letters[:-1]] + letters[-1:]
        found, _ = searched("".join(shown), "".join(letters[first:]))
        skipped = names(found.skipped).split()
        among = [*skipped, found.first[0].name]
        assert str(first) in among
        assert all(shown[int(name)] == "." for name in skipped)
        if shown[first] != "." and (first == 0 or shown[first - 1] != "."):
            assert among == [str(first)]


# The command


@pytest.fixture
def fast(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that is quick, but for tests of the real one: the cubin is the source without comments."""

    def compile_cubin(kernel: Kernel, config: Config, dtype: DType, sm: str) -> Binary:
        assert kernel.source is not None
        text = kernel.source.read_text()
        if "missing" in text:
            raise CompileError("one f32 size1 does not compile", 'error: identifier "missing" is undefined')
        code = re.sub(r"//.*", "", text).strip().encode()
        return Binary(code, "gemm_one", PtxasFigures(1, 0, 0, 0))

    if request.node.get_closest_marker("compile"):
        return
    monkeypatch.setattr(running, "compile_cubin", compile_cubin)
    monkeypatch.setattr(running, "unlike", lambda *of: "")
    monkeypatch.setattr(pairing, "core_of", lambda *of: "cuda")


def device(share: float = 0.01, **more: Any) -> SimulatedDevice:
    """On which a source with SLOW in it takes so much longer."""
    return SimulatedDevice(
        lambda of: 1e-4 * (1 + share * (b"SLOW" in of.cubin) + 0.1 * (b"AWFUL" in of.cubin)), **more
    )


class Bisect(Command):
    def __call__(self, *arguments: str, on: Any = None) -> tuple[int, str, str]:
        return super().__call__(*arguments, on=on or device())

    def first_bad(self, *words: str) -> str:
        """What is said up to "the first bad commit", of a search that finds one."""
        status, out, err = self(*words)
        said, found, _ = out.partition(" the first bad commit\n")
        assert (status, err, found) == (0, "", " the first bad commit\n")
        return said


@pytest.fixture
def bisect(tmp_path: Path, printed: Printed, fast: None) -> Bisect:
    return Bisect(ended, Repo(tmp_path / "repo"), printed, "-q", "--seed", "1")


def ended(*given: Any) -> int:
    """The status, also where argparse ends the process."""
    try:
        return command.bisect(*given)
    except SystemExit as status:
        return int(str(status.code))


def commits(repo: Repo, count: int, text: Callable[[int], str]) -> list[str]:
    return [repo.commit(text(i)) for i in range(count)]


def test_fifty_commits_with_a_planted_per_cent(bisect: Bisect) -> None:
    """Of which a third change comments alone, and some do not touch the kernel at all."""
    good = bisect.repo.git("rev-parse", "HEAD")

    def text(i: int) -> str:
        slow = "SLOW" * (i >= 31)
        return f"// {i}\n" + source(f"C[0] = {i - i % 3}; {slow}")

    made = commits(bisect.repo, 50, text)
    for i in range(3):
        (bisect.repo.root / "README").write_text(str(i))
        bisect.repo.commit(text(49))
    before = bisect.repo.git("status", "--porcelain")
    on = device(0.01)
    status, out, err = bisect(CASE, good, on=on)
    assert (status, err) == (0, "")
    assert f"50 commits from {good[:12]} to the working tree touch what {CASE} is compiled from" in out
    # 17 of three commits each, one of which the slowdown divides.
    assert ": 18 binaries, 0 commits without one\n" in out
    assert f"\n{made[31]} is the first bad commit\ncommit {made[31]}\nAuthor: A <a@b>\n" in out
    assert len({name for name, _ in on.asked if " at " in name and good[:12] not in name}) <= steps(19)
    assert bisect.repo.git("status", "--porcelain") == before


def test_the_working_tree_may_be_the_bad_one(bisect: Bisect) -> None:
    good = bisect.repo.git("rev-parse", "HEAD")
    commits(bisect.repo, 3, lambda i: source(f"C[0] = {i};"))
    bisect.repo.write(source("C[0] = SLOW;"))
    assert "the uncommitted changes of the working tree are" in bisect.first_bad(CASE, good)


def test_merges_are_followed_along_the_first_parent(bisect: Bisect) -> None:
    repo = bisect.repo
    good = repo.git("rev-parse", "HEAD")
    repo.git("checkout", "--quiet", "-b", "topic")
    commits(repo, 2, lambda i: source(f"C[0] = {i}; " + "SLOW" * i))
    repo.git("checkout", "--quiet", "main")
    repo.git("merge", "--quiet", "--no-ff", "-m", "topic", "topic")
    assert f"\n{repo.git('rev-parse', 'HEAD')} is" in bisect.first_bad(CASE, good)


def test_commits_that_do_not_compile_or_have_no_such_case_are_skipped(bisect: Bisect) -> None:
    repo = bisect.repo
    good = repo.git("rev-parse", "HEAD")
    commits(repo, 3, lambda i: source(f"C[0] = {i};"))
    broken = [
        repo.commit(source("C[0] = missing;")),
        repo.commit(source(), declarations("other")),
        repo.commit(source(), "raise ValueError('no')"),
    ]
    slow = [repo.commit(source(f"C[0] = {i}; SLOW")) for i in range(5)]
    status, out, _ = bisect(CASE, good)
    assert status == 2
    assert "There are only 'skip'ped commits left to test.\nThe first bad commit could be any of:\n" in out
    said = out.split("could be any of:\n")[1].splitlines()
    assert said == [*broken, slow[0], "We cannot bisect more!"]
    assert ": 9 binaries, 3 commits without one" not in out  # two of the sources are equal but for SLOW
    assert "3 commits without one" in out
    # With a good one between them and the slow ones they do not matter.
    repo.git("checkout", "--quiet", "--detach", broken[-1])
    fine = repo.commit(source("C[0] = 77;"))
    bad = repo.commit(source("C[0] = 77; SLOW"))
    said_of_it = bisect.first_bad(CASE, good, bad)
    assert (f"\n{bad} is" in said_of_it, fine in said_of_it) == (True, False)


def test_headers_elsewhere_are_of_the_commit(bisect: Bisect) -> None:
    """A commit that needs more than the folders of today is taken whole."""
    repo = bisect.repo
    good = repo.git("rev-parse", "HEAD")
    (repo.root / "elsewhere").mkdir()
    (repo.root / "elsewhere" / "sizes.py").write_text("SIZE = 1\n")
    reading = "import pathlib\n" + declarations(
        tail="exec((pathlib.Path(__file__).parents[1] / 'elsewhere' / 'sizes.py').read_text())"
    )
    first = repo.commit(source("C[0] = 1; SLOW"), reading)
    (repo.root / "elsewhere" / "sizes.py").unlink()
    repo.commit(source("C[0] = 2; SLOW"))
    assert f"\n{first} is" in bisect.first_bad(CASE, good)


SAME = "the working tree is not slower than {good}: "
UNFIT = "cannot be judged beside {good}: AMBIGUOUS CONTROL_FAILED: two identical builds of"


@pytest.mark.parametrize(
    ("on", "expected", "said"),
    [*((device(share), 1, SAME) for share in (0.0, -0.02, 0.002)), (device(bias=0.02), 3, UNFIT)],
)
def test_nobody_is_blamed_for_what_is_not_slower_or_cannot_be_judged(
    bisect: Bisect, on: SimulatedDevice, expected: int, said: str
) -> None:
    good = bisect.repo.git("rev-parse", "HEAD")
    bisect.repo.commit(source("C[0] = SLOW;"))
    status, out, _ = bisect(CASE, good, on=on)
    assert status == expected
    assert said.format(good=good[:12]) in out
    assert "first bad" not in out


def test_the_margin_decides_what_is_slower(bisect: Bisect) -> None:
    good = bisect.repo.git("rev-parse", "HEAD")
    bisect.repo.commit(source("C[0] = SLOW;"))
    assert bisect(CASE, good, "--margin", "2%")[0] == 1
    assert bisect(CASE, good, "--margin", "0.2%")[0] == 0
    bisect.repo.git("reset", "--quiet", "--hard", good)
    declared = declarations().replace("shape=shape,", "shape=shape, margin=0.02,")
    wide = bisect.repo.commit(source(), declared)
    bisect.repo.commit(source("C[0] = SLOW;"), declared)
    assert bisect(CASE, wide)[0] == 1  # as GOOD declares
    assert bisect(CASE, good)[0] == 0  # and not as BAD does


# The baseline as GOOD


def baseline_of(monkeypatch: pytest.MonkeyPatch, commit: str, cubin: bytes = b"") -> StoredBinary:
    kept = binary(cubin.decode())
    entry = SimpleNamespace(commit=commit, margin=None, cubin_sha256=kept.sha256)
    found = SimpleNamespace(entry=lambda case: entry if case == CASE else None)
    monkeypatch.setattr(command, "current", lambda root, slug, board: found)
    monkeypatch.setattr(command, "binary", lambda root, entry: kept)
    return kept


def test_good_is_the_baselines_commit(bisect: Bisect, monkeypatch: pytest.MonkeyPatch) -> None:
    baseline_of(monkeypatch, bisect.repo.git("rev-parse", "HEAD"))
    made = commits(bisect.repo, 4, lambda i: source(f"C[0] = {i}; " + "SLOW" * (i > 1)))
    assert f"\n{made[2]} is" in bisect.first_bad(CASE)
    bisect.repo.commit(source("C[0] = 9;"))
    status, out, _ = bisect(CASE)
    assert status == 1
    assert out.endswith("`compare --nvcc PATH` compares two compilers\n")


def test_its_binary_stands_in_where_its_commit_does_not_compile_here(
    bisect: Bisect, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = bisect.repo.commit(source("C[0] = missing;"))
    baseline_of(monkeypatch, old, b"as it was")
    slow = bisect.repo.commit(source("C[0] = SLOW;"))
    assert f"\n{slow} is" in bisect.first_bad(CASE)


def test_without_a_baseline_good_has_to_be_named(bisect: Bisect) -> None:
    status, out, err = bisect(CASE)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert f"the baseline of nvidia-h200 does not say when {CASE} was good: name a commit, GOOD" in err


# For `git bisect run`


@pytest.mark.parametrize(
    ("text", "declared", "status", "said"),
    [
        (source("C[0] = 5;"), None, 0, "good: "),
        ("// only a comment\n" + source(), None, 0, "good: the same binary as GOOD"),
        (source("C[0] = SLOW;"), None, 1, "bad: +1."),
        (source("C[0] = missing;"), None, 125, "skip: one f32 size1 does not compile"),
        (source(), declarations("other"), 125, "skip: unknown case"),
    ],
)
def test_run_judges_the_working_tree_alone(
    bisect: Bisect, text: str, declared: str | None, status: int, said: str
) -> None:
    good = bisect.repo.git("rev-parse", "HEAD")
    bisect.repo.write(text, declared)
    found, out, _ = bisect("--run", CASE, good)
    assert (found, out.count("\n")) == (status, 1)
    assert out.startswith(said)


def test_run_skips_what_cannot_be_loaded_and_ends_where_nothing_can_be_judged(bisect: Bisect) -> None:
    good = bisect.repo.git("rev-parse", "HEAD")
    assert bisect("--run", CASE, "no-such")[0] == 128
    assert bisect("--run", CASE, good, on="no driver here")[0] == 128
    assert bisect("--run", CASE, good, good)[0] == 128
    assert bisect("--run")[0] == 128
    bisect.repo.write(source(), "raise ValueError('no')")
    assert bisect("--run", CASE, good)[0] == 125


# Wrong names


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((CASE, "no-such"), "no commit no-such in this repository"),
        ((CASE, "HEAD", "no-such"), "no commit no-such in this repository"),
        (("on-f32-size1-64x64x64", "HEAD"), "GOOD, {head}, cannot be judged: unknown case 'on-f32-size1"),
        ((CASE, "HEAD", "--margin", "9%"), "--margin 9%: must be at most 2%"),
        ((CASE, "HEAD", "HEAD~1"), "is no ancestor of"),
    ],
)
def test_wrong_words_are_one_line(bisect: Bisect, words: tuple[str, ...], said: str) -> None:
    bisect.repo.commit(source("C[0] = 4;"))
    head = bisect.repo.git("rev-parse", "HEAD")
    status, out, err = bisect(*words)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert said.format(head=head[:12]) in err


def test_no_gpu_and_a_busy_one(bisect: Bisect) -> None:
    bisect.needs_a_free_gpu(CASE, "HEAD")


@pytest.mark.compile
def test_with_nvcc(bisect: Bisect) -> None:
    """Real binaries: comments and equal code are one, another signature than declared is skipped."""
    repo = bisect.repo
    good = repo.git("rev-parse", "HEAD")
    repo.commit("// a comment\n" + source())
    strange = repo.commit(source(parameters="int M"))
    slow = repo.commit(source("C[0] = alpha * 2;"))
    repo.commit("// slow still\n" + source("C[0] = 2 * alpha;"))
    fine: list[bytes] = []

    def seconds(of: StoredBinary) -> float:
        fine.append(of.cubin) if not fine else None  # the first one asked about is GOOD's
        return 1e-4 * (1.0 if of.cubin == fine[0] else 1.01)

    status, out, _ = bisect(CASE, good, on=SimulatedDevice(seconds))
    assert re.search(r"4 commits from (.|\n)*: 2 binaries, 1 commits without one", out)
    assert status == 2
    assert out.split("could be any of:\n")[1].splitlines()[:2] == [strange, slow]
