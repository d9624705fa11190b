"""All planted slowdowns in a clone of the repository, judged there by `gpu` next to cases without one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemm_regression.judge.evidence import UNUSABLE
from gemm_regression.judge.vocabulary import Paired, red
from gemm_regression.model import Case
from gemm_regression.project import selection
from gemm_regression.run.replay import replay
from tests.ladder import PROJECT, importing
from tests.slowdowns.slowdown import Slowdown, together

RED = "REGRESSED"


@dataclass(frozen=True)
class Judged:
    """What the gate says of a case: its ``verdict`` and ``reason``, whether it is ``red``, and the ``change``
    of its time in the pair, with its interval."""

    case: str
    verdict: str
    reason: str
    red: bool
    change: float | None = None
    interval: tuple[float, float] | None = None

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> Judged:
        """From the record of a case in a run's JSON."""
        paired = info["evidence"]["paired"] or {}
        interval = paired.get("interval")
        return cls(
            info["case"],
            info["verdict"],
            info["verdict_reason"],
            info["red"],
            paired.get("change"),
            tuple(interval) if interval else None,
        )

    @classmethod
    def of_pair(cls, case: str, paired: Paired) -> Judged:
        return cls(case, str(paired.kind), paired.reason, red(paired.outcome), paired.change, paired.interval)

    @property
    def recorded(self) -> dict[str, Any]:
        """As stored in measured.json."""
        return {"verdict": self.verdict, "reason": self.reason} | numbers(self.change, self.interval)


def numbers(change: float | None, interval: Sequence[float] | None) -> dict[str, Any]:
    """A change and its interval, if there are any, in hundred-thousandths."""
    if change is None or interval is None:
        return {}
    return {"change": round(change, 5), "interval": [round(end, 5) for end in interval]}


def beside(slowdowns: Sequence[Slowdown], timed: Sequence[Case]) -> list[Case]:
    """As many timed cases of other variants, evenly spread."""
    planted = {slowdown.real.variant for slowdown in slowdowns}
    others = [case for case in timed if case.kernel.compiled and case.variant not in planted]
    step = max(1, len(others) // len(slowdowns))
    return others[::step][: len(slowdowns)]


def clone(root: Path, folder: Path) -> None:
    """A clone with all commits, and what is changed and not committed."""
    subprocess.run(["git", "clone", "--quiet", str(root), str(folder)], check=True)
    changes = subprocess.run(["git", "diff", "--binary", "HEAD"], cwd=root, check=True, capture_output=True)
    if changes.stdout:
        subprocess.run(["git", "apply"], cwd=folder, check=True, input=changes.stdout)


def plant(slowdowns: Sequence[Slowdown], folder: Path) -> None:
    """Writes the kernels' files of a clone, each slowdown in its variant alone. Raises Rotten."""
    for source, text in together(slowdowns).items():
        (folder / source.relative_to(PROJECT.root)).write_text(text, encoding="utf-8")


def run(
    slowdowns: Sequence[Slowdown],
    folder: Path,
    json_file: Path,
    capability: tuple[int, int],
    options: Sequence[str],
) -> tuple[dict[str, Judged], int]:
    """What `gpu` says in a clone, by case id, and how many recorded verdicts are judged otherwise again.
    Raises Rotten, and ValueError if a case was not judged."""
    clone(PROJECT.root, folder)
    plant(slowdowns, folder)
    timed = selection.select(PROJECT, selection.Choice(suite="nightly"), capability).timed
    cases = [*(slowdown.real for slowdown in slowdowns), *beside(slowdowns, timed)]
    chosen = " or ".join(f"[{case.id}]" for case in cases)
    command = [sys.executable, "-m", "gemm_regression", "gpu", "--suite", "nightly", "-k", chosen]
    subprocess.run(
        [*command, f"--benchmark-json={json_file}", *options],
        cwd=folder,
        env=importing(folder / "harness"),
        check=False,
    )
    if not json_file.is_file():
        raise ValueError("`gpu` recorded nothing")
    document = json.loads(json_file.read_text(encoding="utf-8"))
    infos = [record["extra_info"] for record in document["benchmarks"]] + document[UNUSABLE]
    found = {info["case"]: Judged.of(info) for info in infos}
    if missing := [case.id for case in cases if case.id not in found]:
        raise ValueError(f"not judged: {', '.join(missing)}")
    return found, sum(case.now != case.said for case in replay(json_file))
