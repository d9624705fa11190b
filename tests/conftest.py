"""The test command takes tests in turns: one part of several with each commit, and all of what the commit
touched. ``GEMM_PART=2/3`` is the second of three; without it all run, as they do on GitHub. ``GEMM_CHANGED``
has the files that the commit changed, a line each.

Files go by turns, and one whose turn it is not is not imported; of a file marked ``turns`` its tests go by
turns, of the judges of the kernels the variants. Tests marked so are many: they stay in turns unless the
commit touched their file or its data, whatever else they test. The browser's tests run with each commit.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from zlib import crc32

import pytest

from gemm_regression.compiler.tools import Nvcc, ToolchainError, pinned_tools
from gemm_regression.devices import NoDevice, open_emulated
from gemm_regression.devices.emulated import EmulatedDevice
from gemm_regression.pytest_plugin.workers import variant_of

VARIABLE, CHANGED = "GEMM_PART", "GEMM_CHANGED"
JUDGES = ("test_kernels.py", "test_performance.py", "test_static.py")  # of the kernels
# What they judge by, of the suite all but what times, stores and reports.
_LAYERS = ["cli", "compiler", "counters", "devices", "files", "judge", "model", "oracle", "project"]
JUDGE_BY = [f"harness/gemm_regression/{name}" for name in [*_LAYERS, "pytest_plugin", "run"]]
JUDGE_BY += ["baselines/static/", "pyproject.toml", "conftest.py", "tests/conftest.py", "noxfile.py", ".ci/"]
ROOT = Path(__file__).parents[1]


def _name(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


FILES = sorted(map(_name, (ROOT / "tests").rglob("test_*.py")))


def part(given: str) -> tuple[int, int]:
    """Which part, from 0 on, of how many. Raises UsageError."""
    found = re.fullmatch(r"(\d+)/(\d+)", given)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise pytest.UsageError(f"{VARIABLE}={given}: must be one part of several, such as 2/3")
    return int(found[1]) - 1, int(found[2])


def its_turn(tests: list[tuple[str, str]], number: int, parts: int, files: list[str] = FILES) -> list[bool]:
    """Of each test whether it is in a part. ``tests``: its file, one of ``files``, and what it is about where
    the tests of that file go by turns, else nothing; those about the same, such as a variant, are in the same
    part, of whichever file: it is compiled once."""
    turns = (crc32(about.encode()) if about else files.index(file) for file, about in tests)
    return [turn % parts == number for turn in turns]


@cache
def not_imported(number: int, parts: int, changed: str) -> frozenset[str]:
    """The files of which a part has no test, where a commit changed these files, a line each."""
    by_file = (f for f in FILES if not _BY_TESTS.search((ROOT / f).read_text(encoding="utf-8")))
    return frozenset(
        file
        for file in by_file
        if not its_turn([(file, "")], number, parts)[0] and not touched(ROOT / file, changed.split("\n"))
    )


_BY_TESTS = re.compile(r"mark\.(turns|browser)|import judged")


def touched(file: Path, names: list[str], many: bool = False) -> bool:
    """Whether these files are a test file, its data or, unless its tests are ``many``, what it tests."""
    sources = _own(file) if many else (*_own(file), *_tested(file))
    return any(name.startswith(sources) for name in names if name)


def _own(file: Path) -> tuple[str, ...]:
    path = _name(file)
    return path, *(path.removesuffix(".py").replace("/test_", "/") + end for end in ("/", ".toml"))


def _tested(file: Path) -> Iterator[str]:
    folder = file.relative_to(ROOT / "tests").parent.as_posix()
    if folder == ".":
        yield from ("kernels/", "harness/ptxsan/", *(JUDGE_BY if file.name in JUDGES else ()))
    elif folder == "repository":
        yield from ("noxfile.py", "pyproject.toml", ".ci/", ".github/", "README.md", "docs/")
    else:
        yield f"harness/{folder}/"


def pytest_configure(config: pytest.Config) -> None:
    part(os.environ.get(VARIABLE, "1/1"))


def pytest_report_header() -> list[str]:
    given = os.environ.get(VARIABLE, "1/1")
    return [] if given == "1/1" else [f"part {given} of the tests, taken in turns ({VARIABLE})"]


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    given = part(os.environ.get(VARIABLE, "1/1"))
    others = not_imported(*given, os.environ.get(CHANGED, ""))
    return True if _name(collection_path) in others else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    number, parts = part(os.environ.get(VARIABLE, "1/1"))
    names = os.environ.get(CHANGED, "").split("\n")
    tests = [(_name(item.path), _about(item) if _by_tests(item) else "") for item in items]
    whole = {
        (path, many): touched(path, names, many)
        for path, many in {(item.path, _many(item)) for item in items}
    }
    taken = {
        item
        for item, here in zip(items, its_turn(tests, number, parts), strict=True)
        if here or whole[item.path, _many(item)] or item.get_closest_marker("browser")
    }
    if left_out := [item for item in items if item not in taken]:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item in taken]


def _many(item: pytest.Item) -> bool:
    return item.get_closest_marker("turns") is not None


def _by_tests(item: pytest.Item) -> bool:
    return item.path.name in JUDGES or _many(item)


def _about(item: pytest.Item) -> str:
    if item.path.name in JUDGES:
        return variant_of(item)
    group, parameters = item.get_closest_marker("xdist_group"), getattr(item, "callspec", None)
    return str(group.args[0] if group else parameters.id if parameters else item.name)


@pytest.fixture(autouse=True, scope="session")
def whole_runs() -> Iterator[None]:
    """What a test runs by itself is whole, whichever part of the tests this one is."""
    with pytest.MonkeyPatch.context() as patch:
        for name in (VARIABLE, CHANGED):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="module")
def emulated() -> Iterator[EmulatedDevice]:
    """The emulated device of the ladder's architecture; the tests are skipped without nvcc."""
    try:
        device = open_emulated("sm_90a")
    except NoDevice as error:
        pytest.skip(str(error))
    yield device
    device.close()


@pytest.fixture
def pinned_compiler() -> tuple[Nvcc, Nvcc]:
    """nvcc and nvdisasm of the pinned versions; the test is skipped without."""
    try:
        return pinned_tools()
    except ToolchainError as error:
        pytest.skip(str(error))
