"""Launches as JSON: read back, they are what was written, for every kind that the suite launches."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gemm_regression.devices.work import StoredBinary, Work, launch_document, launch_id, read_launch
from gemm_regression.model import Case
from gemm_regression.project.loader import Project, load
from gemm_regression.project.selection import Choice, select
from tests.gemm_regression.synthetic import case
from tests.ladder import PROJECT

OPERATIONS = load(Path(__file__).parents[2] / "operations")
BOTH = {"ladder": PROJECT, "operations": OPERATIONS}


def cases_of(project: Project) -> list[Case]:
    found = select(project, Choice("full"), (9, 0))
    return [one for one in (*found.timed, *found.verify) if not one.kernel.is_dispatcher]


@pytest.mark.parametrize("project", BOTH.values(), ids=BOTH)
def test_every_launch_of_the_suite_is_read_back_exactly(project: Project) -> None:
    cases = cases_of(project)
    assert len(cases) > 300
    seen = dict[str, Work]()
    for one in cases:
        work = Work.of(one)
        document = launch_document("gemm", work)
        line = json.dumps(document)
        found = read_launch(json.loads(line))
        assert found == ("gemm", work), one.id
        # Their order is that of their addresses.
        assert list(found[1].storages) == list(work.storages), one.id
        assert found[1].dtype.storage == work.dtype.storage
        assert len(line) < 2500, one.id  # the rows of 256 groups are its longest words
        assert seen.setdefault(launch_id(document), work) == work, one.id  # one id, one launch


def test_there_is_a_launch_of_every_kind() -> None:
    """What the other test is about."""
    works = [Work.of(one) for project in BOTH.values() for one in cases_of(project)]
    kinds: dict[str, Callable[[Work], Any]] = {
        "tensor map": lambda w: any(a.map for a in w.arguments),
        "workspace": lambda w: w.workspace != (0, 0),
        "layout": lambda w: w.problem.layout not in ("NN", "NT"),
        "batch": lambda w: w.problem.batch > 1,
        "gap": lambda w: w.problem.gap,
        "starts": lambda w: any(w.problem.starts),
        "bias": lambda w: "bias" in w.roles,
        "slope": lambda w: w.slope != 1,
        "dtype of its own": lambda w: w.dtype.name == "s16",
        "bfloat16": lambda w: w.dtype.output.name == "bfloat16",
        "library": lambda w: not w.arguments,
        "no library": lambda w: w.library is None,
    }
    lacking = [name for name, is_one in kinds.items() if not any(map(is_one, works))]
    assert not lacking


def test_an_id_is_that_of_the_content_whatever_the_order_of_its_keys() -> None:
    document = launch_document("gemm", Work.of(case()))
    turned = dict(reversed(document.items()))
    assert launch_id(turned) == launch_id(document) == launch_id({"id": "any", **document})
    assert len(launch_id(document)) == 16
    assert launch_id({**document, "symbol": "other"}) != launch_id(document)


def broken(document: dict[str, Any]) -> Iterable[dict[str, Any]]:
    for name in document:
        yield {key: value for key, value in document.items() if key != name}
    problem = {**document["problem"], "m": "4"}
    changes: list[dict[str, Any]] = [
        {"clusters": 2},  # of another version: not ignored
        *({"launch": "grid 1x1"}, {"dtype": "f31"}, {"problem": {"m": 1}}, {"problem": problem}),
        *({"arguments": [["M"]]}, {"arguments": 3}, {"operands": [{"name": "A"}]}, {"id": "0" * 16}),
    ]
    for change in changes:
        yield {**document, **change}


def test_what_is_no_launch_is_refused_in_one_line() -> None:
    document = launch_document("gemm", Work.of(case()))
    for wrong in broken(document):
        with pytest.raises(ValueError, match=r"^launch ") as refused:
            read_launch(wrong)
        assert "\n" not in str(refused.value)


def test_a_scalar_is_not_rounded() -> None:
    third = replace(case().problem, alpha=1 / 3, beta=-1e-30)
    work = Work.of(replace(case(), problem=third))
    _, found = read_launch(json.loads(json.dumps(launch_document("gemm", work))))
    assert (found.problem.alpha, found.problem.beta, found) == (1 / 3, -1e-30, work)


def test_a_stored_binary_has_the_hash_of_its_bytes() -> None:
    stored = StoredBinary("tiled", b"cubin", "gemm", Work.of(case()))
    assert stored.sha256 == hashlib.sha256(b"cubin").hexdigest()
    assert replace(stored, name="other").sha256 == stored.sha256
    assert replace(stored, cubin=b"Cubin").sha256 != stored.sha256
