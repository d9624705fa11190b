"""Runs of the real suite in a folder of their own, on a device that replays recorded samples."""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import shutil
import sys
import warnings
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gemm_regression.baselines import Baseline, BaselineEntry, append, current, gpu_slug, history
from gemm_regression.devices import NoDevice
from tests.gemm_regression.judge.replay import ReplayDevice, recorded
from tests.gemm_regression.samples import select

REPOSITORY = Path(__file__).resolve().parents[2]
SUITE_FILE = "tests/test_performance.py"
KERNELS_FILE = "tests/test_kernels.py"


def _recorded_cases() -> dict[str, list[str]]:
    """The case ids of the smoke suite by kernel, of kernels that the recording holds whole."""
    runs = recorded()["runs"]
    found: dict[str, list[str]] = {}
    for case in select("smoke").timed:
        found.setdefault(case.kernel.name, []).append(case.id)
    return {name: ids for name, ids in found.items() if all(case in run for run in runs for case in ids)}


RECORDED = _recorded_cases()
LIBRARY = "cublas"
SLOW, OTHER = [name for name in RECORDED if name != LIBRARY][:2]
OURS = ("--kernel", SLOW, "--kernel", OTHER)
CASES = [*RECORDED[SLOW], *RECORDED[OTHER]]
EVERY = [case for cases in RECORDED.values() for case in cases]
EVERY_KERNEL = [part for name in RECORDED for part in ("--kernel", name)]


class _Supplies:
    """Gives the plugin its device, or the reason why there is none."""

    def __init__(self, device: Any) -> None:
        self.device = device
        self.opened = 0

    def pytest_gemm_device(self, config: pytest.Config) -> Any:
        self.opened += 1
        if isinstance(self.device, str):
            raise NoDevice(self.device)
        return self.device


@dataclass
class Outcome:
    """One finished run. ``failures`` are the messages of JUnit XML by test name, ``text`` the terminal's."""

    status: int
    text: str
    root: Path
    opened: int

    @property
    def junit(self) -> dict[str, ElementTree.Element]:
        tree = ElementTree.parse(self.root / "junit.xml")
        return {str(test.get("name")): test for test in tree.iter("testcase")}

    @property
    def failures(self) -> dict[str, str]:
        found = {name: [*test.iter("failure"), *test.iter("error")] for name, test in self.junit.items()}
        return {name: "; ".join(str(f.get("message")) for f in all) for name, all in found.items() if all}

    @property
    def passed(self) -> set[str]:
        return {n for n, test in self.junit.items() if {part.tag for part in test} <= {"properties"}}

    @property
    def green(self) -> set[str]:
        """The tests that passed, of a run that is green."""
        assert (self.status, self.failures) == (0, {}), self.text
        return self.passed

    @property
    def red(self) -> set[str]:
        """The tests that failed, of a run that is red because of them."""
        assert self.status == 1, self.text
        return set(self.failures)

    @property
    def refusal(self) -> str:
        """The one line in which a run was refused, before it began."""
        assert self.status == 4, self.text
        (error,) = self.errors
        return error

    @property
    def skipped(self) -> dict[str, str]:
        found = {name: test.find("skipped") for name, test in self.junit.items()}
        return {name: str(one.get("message")) for name, one in found.items() if one is not None}

    @property
    def json(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.root / "out.json").read_text())
        return document

    @property
    def timed(self) -> dict[str, dict[str, Any]]:
        """What --benchmark-json holds, by case id."""
        return {bench["extra_info"]["case"]: bench for bench in self.json["benchmarks"]}

    @property
    def errors(self) -> list[str]:
        """pytest's own refusals, each of which must be one line; nothing else may have gone wrong."""
        assert "Traceback" not in self.text, self.text
        assert "INTERNALERROR" not in self.text, self.text
        lines = self.text.splitlines()
        found = [number for number, line in enumerate(lines) if line.startswith("ERROR: ")]
        assert [line for number in found for line in lines[number + 1 :] if line] == [], self.text
        return [lines[number].removeprefix("ERROR: ") for number in found]

    def row(self, case: str) -> list[str]:
        """The words of a case's row in the ladder table."""
        ladder = self.text.split(" ladder ")[1].splitlines()
        kernel, dtype, rest = case.split("-", 2)
        problem = rest.rpartition("-")[2]
        group = ladder[next(i for i, line in enumerate(ladder) if line.strip() == problem) :]
        return next(
            line.split() for line in group if line.lstrip("! ").startswith(f"{kernel} ") and dtype in line
        )


class Printed:
    """What was written since it was last asked for."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.both = capsys.readouterr

    @property
    def out(self) -> str:
        return self.both().out

    @property
    def err(self) -> str:
        return self.both().err

    @property
    def error(self) -> str:
        """The one line in which a command failed; nothing else was written."""
        out, err = self.both()
        assert (out, err.count("\n")) == ("", 1), out + err
        return err


def named(*case_ids: str) -> set[str]:
    """The tests of these cases."""
    return {f"test_performance[{case}]" for case in case_ids}


class Rig:
    """A checkout of the suite's own: the real test file, ini and plugin, and baselines of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "tests").mkdir(parents=True)
        for file in (SUITE_FILE, KERNELS_FILE):
            shutil.copy(REPOSITORY / file, root / file)
        shutil.copy(REPOSITORY / "pyproject.toml", root)
        shutil.copy(REPOSITORY / "conftest.py", root)
        (root / "kernels").symlink_to(Path(__file__).with_name("sample") / "kernels")

    @property
    def baselines(self) -> Path:
        return self.root / "baselines" / "nvidia-h200"

    @property
    def stored(self) -> Baseline:
        found = current(self.baselines.parent, "nvidia-h200")
        assert found is not None
        return found

    def store(self, entries: Iterable[BaselineEntry], **machine: Any) -> Path:
        """Appends figures that are a day newer than all others, of a ``machine`` that is otherwise alike."""
        newest = history(self.baselines.parent, "nvidia-h200")[-1].datetime
        when = (datetime.fromisoformat(newest) + timedelta(days=1)).isoformat()
        newer = [replace(e, datetime=when, machine={**e.machine, **machine}) for e in entries]
        made = replace(self.stored, entries={e.case_id: e for e in newer}, machine_info=newer[0].machine)
        return append(self.baselines.parent, replace(made, slug=gpu_slug(made.name)), {})

    def run(self, *args: str, device: Any = None, suite: str = "smoke", outputs: bool = True) -> Outcome:
        """One pytest run in this process. ``device`` a string: there is none, and this is why."""
        supplies = _Supplies(ReplayDevice() if device is None else device)
        for name in ("junit.xml", "out.json"):
            (self.root / name).unlink(missing_ok=True)
        files = ("--junitxml=junit.xml", "--benchmark-json=out.json") if outputs else ()
        with _apart(self.root) as text:
            status = pytest.main([SUITE_FILE, f"--suite={suite}", *files, *args], plugins=[supplies])
        return Outcome(int(status), text.getvalue(), self.root, supplies.opened)


@contextlib.contextmanager
def _apart(root: Path) -> Iterator[io.StringIO]:
    """In that folder, with output caught and what was imported forgotten again."""
    text = io.StringIO()
    modules, environment, folder = dict(sys.modules), dict(os.environ), Path.cwd()
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_ADDOPTS", "PYTEST_CURRENT_TEST", "FORCE_COLOR"):
        os.environ.pop(name, None)
    os.environ["COLUMNS"] = "160"
    for name in ("tests.test_performance", "tests.test_kernels"):
        sys.modules.pop(name, None)
    os.chdir(root)
    gc.freeze()  # at its end pytest looks for garbage: not in all that this process holds
    try:
        with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # The run's own summary has them.
            yield text
    finally:
        gc.unfreeze()
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        for name in set(sys.modules) - set(modules):
            if name.startswith(("tests", "conftest")):
                del sys.modules[name]
        sys.modules.update(modules)
