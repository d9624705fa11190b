"""What failed at a line of a source, in SARIF 2.1.0 (OASIS), for GitHub's code scanning and for editors."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gemm_regression import __version__
from gemm_regression.report.failures import Failure, Reason, located

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
# What a header does is found at the line that calls it: `at t.cu:93 in vectors.cuh:40`.
_HEADER = re.compile(r" at \S+:\d+ in (\S+):(\d+)")


def sarif(failures: Sequence[Failure], sources: Mapping[str, Path]) -> dict[str, Any]:
    """The same findings as `failures.github_annotations`, one result for each kernel, reason and line; a run
    that found nothing has no results, which closes the alerts of earlier ones."""
    found = list(located(failures, sources))
    rules = list(dict.fromkeys(_rule(one.failed.reason) for one in found))
    results = [
        {
            "ruleId": _rule(one.failed.reason),
            "ruleIndex": rules.index(_rule(one.failed.reason)),
            "level": "error",
            "message": {"text": one.text},
            "locations": [_location(one.file, one.line)],
            "relatedLocations": [
                _location(one.file.parent / name, int(line)) | {"message": {"text": "in a header"}}
                for name, line in _HEADER.findall(one.failed.reason.details)[:1]
            ],
            "properties": {"kernel": one.failed.kernel, "variants": sorted(one.failed.variants)},
        }
        for one in found
    ]
    driver = {
        "name": "gemm-regression",
        "version": __version__,
        "rules": [{"id": rule, "shortDescription": {"text": rule.replace("-", " ")}} for rule in rules],
    }
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results, "columnKind": "utf16CodeUnits"}],
    }


def _location(file: Path, line: int) -> dict[str, Any]:
    place = {"uri": Path(os.path.normpath(file)).as_posix(), "uriBaseId": "%SRCROOT%"}
    return {"physicalLocation": {"artifactLocation": place, "region": {"startLine": line}}}


def _rule(reason: Reason) -> str:
    """The check that failed, without its line: ``race``, ``does-not-compile``."""
    what = re.split(r" at \S+:\d+$|: ", reason.what)[0]
    return re.sub(r"\W+", "-", what).strip("-").lower()
