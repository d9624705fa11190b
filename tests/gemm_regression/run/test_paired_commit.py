"""Kernels of another commit: found, declared, matched and compiled, or refused in one clear line."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path

import pytest

from gemm_regression.devices.work import StoredBinary
from gemm_regression.judge.vocabulary import (
    BASE_UNUSABLE,
    COMPILE_ERROR,
    NOT_IN_BASE,
    REMOVED,
    SAME_BINARY,
    SIGNATURE,
    Outcome,
)
from gemm_regression.model import F32, Case, Config
from gemm_regression.project.commit import CommitError, checked_out, find, working_tree
from gemm_regression.project.loader import Project, load
from gemm_regression.project.selection import Choice
from gemm_regression.run.compare import Side, pairs_of, removed
from gemm_regression.run.pairing import ComparedCase, Pair
from tests.gemm_regression.cli.repo import PARAMETERS, PROBLEM, Repo, declarations, git, source

GPU = (9, 0)


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    return Repo(tmp_path / "repo")


def refusal(repo: Repo, name: str = "HEAD") -> str:
    """The line with which a commit is refused; nothing may be left behind."""
    with pytest.raises(CommitError) as caught, checked_out(name, repo.project):
        pass
    assert "\n" not in str(caught.value)
    assert repo.git("worktree", "list").count("\n") == 0
    return str(caught.value)


# Git


def test_sources_are_those_of_the_commit_and_vanish_afterwards(repo: Repo) -> None:
    old = repo.git("rev-parse", "HEAD")
    repo.commit(source("C[0] = beta;"))
    repo.write(source("C[0] = 3;"))
    modules = set(sys.modules)
    with checked_out(old[:8], repo.project) as commit:
        (kernel,) = commit.kernels
        assert kernel.source is not None
        assert kernel.source.read_text() == source()
        assert not kernel.source.is_relative_to(repo.root)
        assert (commit.sha, commit.label) == (old, old[:12])
    assert not kernel.source.exists()
    assert repo.git("worktree", "list").count("\n") == 0
    assert (repo.root / "kernels" / "one.cu").read_text() == source("C[0] = 3;")
    assert set(sys.modules) == modules


def test_working_tree_says_whether_it_is_dirty(repo: Repo, tmp_path: Path) -> None:
    head = repo.git("rev-parse", "HEAD")
    assert working_tree(repo.root).label == head[:12]
    repo.write(source("C[0] = 1;"))
    assert working_tree(repo.root).label == f"{head[:12]} with changes"
    repo.git("checkout", "--quiet", ".")
    (repo.root / "kernels" / "new.cu").write_text("")
    assert working_tree(repo.root).dirty
    with pytest.raises(CommitError, match="is not a git repository"):
        working_tree(tmp_path)
    git(tmp_path, "init", "--quiet")
    with pytest.raises(CommitError, match="contains no commit"):
        working_tree(tmp_path)


@pytest.mark.parametrize("name", ["no-such-branch", "0" * 40, "--help", "HEAD~5"])
def test_unknown_commit(repo: Repo, name: str) -> None:
    assert refusal(repo, name) == f"no commit {name} in this repository; try `git fetch`"


def test_shallow_clone_without_the_commit(repo: Repo, tmp_path: Path) -> None:
    old = repo.git("rev-parse", "HEAD")
    repo.commit(source("C[0] = 2;"))
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", "--depth=1", repo.root.as_uri(), str(clone))
    with pytest.raises(CommitError, match="shallow clone; try `git fetch --unshallow`"):
        find(old, clone)
    assert find("HEAD", clone)


# Folders


def test_a_folder_stands_for_a_commit_without_git(
    repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with checked_out(str(repo.root), Project(tmp_path, (), tmp_path)) as commit:
        (kernel,) = commit.kernels
        assert kernel.source == repo.root / "kernels" / "one.cu"
        assert commit.label == "the folder repo"
        assert isinstance(commit.counterpart(repo.case()), Case)
    assert kernel.source.is_file()


# Declarations


def test_commit_without_kernels(repo: Repo) -> None:
    repo.git("rm", "--quiet", "-r", "kernels")
    repo.git("commit", "--quiet", "-m", "none")
    assert refusal(repo) == "HEAD does not contain kernels/__init__.py; compare with a later commit"


@pytest.mark.parametrize(
    ("declared", "why"),
    [
        ("from gemm_regression.model import Krenel", "ImportError: cannot import name 'Krenel'"),
        (declarations().replace("idea", "purpose"), "TypeError: .* argument 'purpose'"),
        ("KERNELS = 3", "it must define KERNELS"),
        ("KERNELS = ()", "it must define KERNELS"),
        ("", "it must define KERNELS"),
        ("KERNELS = (", "SyntaxError: "),
        ("raise SystemExit('no')", "SystemExit: no"),
        (declarations().replace("one.cu", "two.cu"), "kernel 'one': the source file two.cu does not exist"),
    ],
)
def test_declarations_for_another_harness(repo: Repo, declared: str, why: str) -> None:
    repo.commit(declared=declared or "pass")
    modules = set(sys.modules)
    said = rf"are declared for another version of the harness \(\S+__init__.py(:\d+)?: {why}"
    assert re.search(said, refusal(repo))
    assert set(sys.modules) == modules


def test_a_project_below_the_repository_has_its_own_folder_and_what_it_includes(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "repo")
    home, header = repo.root / "gemm", repo.root / "lib" / "include" / "scale.h"
    header.parent.mkdir(parents=True)
    home.mkdir()
    for part in ("kernels", "pyproject.toml"):
        (repo.root / part).rename(home / part)
    header.write_text("#define SCALE 2\n")
    (home / "kernels" / "one.cu").write_text('#include "scale.h"\n' + source("C[0] = SCALE;"))
    included = declarations().replace("shape=shape,", 'shape=shape, include=("../../lib/include",),')
    (home / "kernels" / "__init__.py").write_text(included)
    repo.git("add", "--all")
    repo.git("commit", "--quiet", "-m", "below")
    header.write_text("#define SCALE 3\n")
    project = load(home)
    case = Case(project.kernels[0], F32, project.kernels[0].configs[0], PROBLEM)
    with checked_out("HEAD", project) as commit:
        (kernel,) = commit.kernels
        (folder,) = kernel.include
        assert (Path(folder) / "scale.h").read_text() == "#define SCALE 2\n"
        assert kernel.source is not None
        assert not kernel.source.is_relative_to(repo.root)
        (pair,) = pairs_of([case], Side(commit), GPU)
        assert isinstance(pair, Pair), "a header that changed is a change"
    assert repo.git("worktree", "list").count("\n") == 0


# Matching and compiling


def matched(repo: Repo, case: Case, margin: float | None = None) -> Pair | ComparedCase:
    with checked_out("HEAD", repo.project) as commit:
        (found,) = pairs_of([case], Side(commit), GPU, margin)
    return found


def the_pair(repo: Repo, case: Case, margin: float | None = None) -> Pair:
    """The pair of a case that is to be timed."""
    found = matched(repo, case, margin)
    assert isinstance(found, Pair)
    return found


def said(repo: Repo, case: Case) -> tuple[Outcome, str]:
    """What is said of a case without timing."""
    found = matched(repo, case)
    assert isinstance(found, ComparedCase)
    return found.outcome, found.paired.detail


@pytest.mark.parametrize("what", ["source", "launch"])
def test_change_of_code_or_launch_is_to_be_timed(repo: Repo, what: str) -> None:
    if what == "source":
        repo.write(source("C[0] = beta;"))
    case = repo.case(threads=32 if what == "source" else 64)
    pair = the_pair(repo, case)
    assert isinstance(pair.base, StoredBinary)
    assert pair.new is not None
    assert (pair.base.sha256 == pair.new.sha256) == (what == "launch")
    base = pair.base.work
    assert (base.problem, base.launch.block) == (case.problem, (32, 1, 1))
    assert pair.new.work.launch == case.launch
    assert pair.base.name.startswith("one-f32-size1 at HEAD (")
    assert (pair.core, pair.margin) == ("cuda", 0.005)


def test_the_margin_is_the_bases_unless_given(repo: Repo) -> None:
    """One that is raised in the commit under test does not judge it."""
    repo.write(source("C[0] = beta;"))
    case = repo.case()
    raised = Case(dataclasses.replace(case.kernel, margin=0.02), case.dtype, case.config, case.problem)
    assert the_pair(repo, raised).margin == 0.005
    repo.commit(source(), declarations().replace("shape=shape,", "shape=shape, margin=0.01,"))
    repo.write(source("C[0] = beta;"))
    assert the_pair(repo, raised).margin == 0.01
    assert the_pair(repo, raised, 0.003).margin == 0.003


TAKES = "from gemm_regression.model import Constraints\n" + declarations().replace(
    "shape=shape,", "shape=shape, constraints=Constraints({'m': 128}),"
)
FAILS = declarations().replace("shape=shape,", "shape=shape, grid=lambda shape, problem: 1 // 0,")
NARROW = source("C[0] = beta;", PARAMETERS.replace("float beta", "double beta"))
UNDEFINED = source("C[0] = missing;")
MORE = source(parameters=PARAMETERS + ", int batch")


@pytest.mark.parametrize(
    ("base", "here", "outcome", "why"),
    [
        ((source(), TAKES), source(), NOT_IN_BASE, "does not accept the problem: "),
        ((UNDEFINED,), source(), BASE_UNUSABLE, 'identifier "missing" is undefined'),
        ((UNDEFINED,), source(), BASE_UNUSABLE, "one f32 size1 does not compile"),
        ((source(),), UNDEFINED, COMPILE_ERROR, 'identifier "missing" is undefined'),
        ((MORE,), source(), BASE_UNUSABLE, "the kernel takes 12 parameters, not 11"),
        ((NARROW,), source(), BASE_UNUSABLE, "9 is f32 beta, but the kernel takes f64"),
        ((source(entry="gemm_other"),), source(), BASE_UNUSABLE, "no __global__ function named gemm_one"),
        ((source(),), MORE, SIGNATURE, "the kernel takes 12 parameters, not 11"),
        ((source(), declarations(threads=2048)), None, BASE_UNUSABLE, "2048 threads per block"),
        ((source(), FAILS), None, BASE_UNUSABLE, "its declaration fails (ZeroDivisionError"),
        ((source(),), "// only a comment\n" + source(), SAME_BINARY, "same cubin, same launch"),
    ],
)
def test_what_cannot_or_need_not_be_timed_is_said_in_a_line(
    repo: Repo, base: tuple[str, ...], here: str | None, outcome: Outcome, why: str
) -> None:
    repo.commit(*base)
    if here:
        repo.write(here)
    found, detail = said(repo, repo.case())
    assert (found, why in detail, "\n" in detail) == (outcome, True, False), detail


@pytest.mark.parametrize(
    ("config", "name", "why"),
    [(None, "two", "has no kernel two"), (Config(SIZE=2), "one", "has one, but not its config size2")],
)
def test_case_that_the_commit_does_not_have_is_new(
    repo: Repo, config: Config | None, name: str, why: str
) -> None:
    outcome, detail = said(repo, repo.case(config, name=name))
    assert (outcome, detail.endswith(why)) == (NOT_IN_BASE, True), detail


# Edited and removed


def with_configs(*configs: str) -> str:
    return declarations().replace("Config(SIZE=1),", "".join(f"Config({each})," for each in configs))


@pytest.mark.parametrize(
    ("base", "here", "nearest"),
    [
        (["SIZE=32"], ["SIZE=64"], "size32"),
        (["SIZE=8", "SIZE=32", "SIZE=256"], ["SIZE=64"], "size32"),  # the smallest change, as a ratio
        (["SIZE=8, PAD=1", "SIZE=64, PAD=4"], ["SIZE=32, PAD=1"], "size8-pad1"),  # fewest parameters first
        (["SIZE=8, PAD=1", "SIZE=64"], ["SIZE=64, PAD=0"], "size64"),  # one that came with a parameter
        (["SIZE=64", "SIZE=8"], ["SIZE=32", "SIZE=64"], "size8"),  # what is still there was not edited
    ],
)
def test_an_edited_config_is_beside_the_nearest_that_is_gone(
    repo: Repo, base: list[str], here: list[str], nearest: str
) -> None:
    repo.commit(source("C[0] = SIZE;"), with_configs(*base))
    repo.write(source("C[0] = SIZE;"), with_configs(*here))
    (kernel,) = load(repo.root).kernels
    with checked_out("HEAD", repo.project) as commit:
        (found,) = pairs_of([Case(kernel, F32, kernel.configs[0], PROBLEM)], Side(commit), GPU)
        beside = found.label if isinstance(found, Pair) else found.paired.base
        assert beside == f"one-f32-{nearest} of {commit.label}"
        assert isinstance(found, Pair) == (nearest != "size64")  # which is the same binary


def test_removed_cases_are_listed_but_not_those_of_edited_configs(repo: Repo) -> None:
    tail = 'from dataclasses import replace\nKERNELS = (*KERNELS, replace(KERNELS[0], name="two"))\n'
    both = with_configs("SIZE=1", "SIZE=32", "SIZE=512") + tail
    repo.commit(source("C[0] = SIZE;"), both)
    repo.write(source("C[0] = SIZE;"), with_configs("SIZE=1", "SIZE=64"))
    project = load(repo.root)

    cases = [Case(k, F32, c, PROBLEM) for k in project.kernels for c in k.configs]

    def gone(choice: Choice) -> list[str]:
        with checked_out("HEAD", project) as commit:
            side = Side(commit)
            rows = removed(project, side, choice, GPU, pairs_of(cases, side, GPU))
            assert all(row.outcome == REMOVED and row.paired.detail.startswith("HEAD (") for row in rows)
        return [row.case.id for row in rows]

    at = PROBLEM.id
    expected = [f"one-f32-size512-{at}", *(f"two-f32-size{n}-{at}" for n in (1, 32, 512))]
    assert gone(Choice(shapes=["64x64x64"])) == expected
    assert gone(Choice(shapes=["64x64x64"], kernels=["one"])) == expected[:1]
    assert gone(Choice(shapes=["64x64x64"], expression="two and not size32")) == expected[1::2]
    assert gone(Choice(shapes=["64x64x64"], configs=["size1"])) == [expected[1]]
