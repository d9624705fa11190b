"""The failed tests of a run, from what pytest's ``--junitxml`` wrote: what is not timed is judged there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from gemm_regression.baselines import BaselineError
from gemm_regression.report.failures import Failed, Failure, Reason, grouped
from gemm_regression.report.page.said import Said

_REMEDY = "give what pytest's --junitxml wrote of this suite's tests"


@dataclass(frozen=True)
class Tested:
    """A run's tests: how many, and how many are ``red``. ``failed``: why, equal reasons of a kernel once;
    ``timed``: the failed tests of timed
    cases by case id, which a run's JSON describes better."""

    label: str
    tests: int
    red: int
    failed: tuple[Said, ...]
    timed: tuple[Said, ...]


def read(path: Path) -> Tested:
    """The tests in a file. Raises BaselineError for one that is not pytest's JUnit XML."""
    try:
        root = ElementTree.parse(path).getroot()
    except OSError as error:
        raise BaselineError(f"{path}: cannot be read ({error.strerror})") from None
    except ElementTree.ParseError as error:
        raise BaselineError(f"{path}: not valid XML: truncated or damaged ({error}); {_REMEDY}") from None
    tests = list(root.iter("testcase"))
    if not tests:
        raise BaselineError(f"{path}: contains no test; {_REMEDY}")
    failures = [(test, text) for test in tests if (text := _failure(test)) is not None]
    timed = [one for one in failures if "test_performance" in one[0].get("classname", "")]
    others = [_described(*one) for one in failures if one not in timed]
    groups = grouped(others, lambda failure: failure.reasons)
    return Tested(
        path.name,
        len(tests),
        len(failures),
        tuple(_said(path.name, group) for group in groups),
        tuple(_said_of_case(path.name, *one) for one in timed),
    )


def without(tested: Tested, known: Iterable[str]) -> Sequence[Said]:
    """What it says, but for the timed cases that are ``known``."""
    described = set(known)
    return [*tested.failed, *(one for one in tested.timed if one.case not in described)]


def _failure(test: ElementTree.Element) -> str | None:
    found = test.find("failure")
    found = test.find("error") if found is None else found
    return None if found is None else (found.text or found.get("message", ""))


def _node(test: ElementTree.Element) -> str:
    return f"{test.get('classname', '').replace('.', '/')}.py::{test.get('name')}"


def _properties(test: ElementTree.Element, name: str) -> list[str]:
    return [p.get("value", "") for p in test.iter("property") if p.get("name") == name]


def _described(test: ElementTree.Element, text: str) -> Failure:
    head, _, rest = text.partition("\n")
    reasons = [Reason.parse(value) for value in _properties(test, "reason")] or [Reason(head, rest)]
    return Failure(_node(test), (_properties(test, "variant") or [""])[0], tuple(reasons))


def _said(label: str, group: Failed) -> Said:
    first = group.tests[0]
    evidence = (
        ("tests", str(len(group.tests))),
        ("variants", ", ".join(sorted(filter(None, group.variants))) or "–"),
        ("first", first),
    )
    command = f'nox -s judge -- "{first}"'
    return Said(label, group.title, "FAILED", "", True, group.reason.details, evidence, command)


def _said_of_case(label: str, test: ElementTree.Element, text: str) -> Said:
    case = test.get("name", "").partition("[")[2].removesuffix("]")
    kind, _, message = text.partition(": ")
    return Said(label, case, kind, "", True, message, (), f'nox -s gpu -- "{_node(test)}"')
