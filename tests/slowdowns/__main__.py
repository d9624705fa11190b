"""``python -m tests.slowdowns measure``, ``gate``, ``check`` or ``page``; the first two need a GPU.

``measure``: what each planted slowdown costs, next to the kernel as it is, and what the gate's rule says.
``gate``: the first of each variant planted in a clone, and what `gpu` says of their cases and as many others.
Both append to measured.json, from which ``page`` writes docs/results/slowdowns.md. ``check``: whether the
kernels whose loops lie in headers still multiply correctly, on the emulated device.

Exit status: 0; 1 where a slowdown of LEAST and more was not found, another case failed, or the run's evidence
gives another verdict; 2 without a GPU, or if a kernel has changed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from gemm_regression.cli.progress import progress
from gemm_regression.devices import DeviceError, NoDevice, open_cuda, open_emulated
from gemm_regression.oracle import verify
from lab.study.command import commit_id
from tests.ladder import PROJECT
from tests.slowdowns import IN_LOOPS, PLANTED, Rotten, Slowdown, firsts, gate, measured, page, small
from tests.slowdowns.beside import Cost, measure

LEAST = 0.007  # a slowdown that the gate must find


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.slowdowns", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure", help="what each costs, and what the gate's rule says")
    judging = commands.add_parser("gate", help="what the gate makes of them; other options are those of gpu")
    checking = commands.add_parser("check", help="whether the results are still right, without a GPU")
    for command in (measuring, judging, checking):
        command.add_argument("--only", action="append", metavar="NAME", help="only this one; repeatable")
        command.add_argument("-k", default="", metavar="TEXT", help="only those whose name contains this")
    for command in (measuring, judging):
        command.add_argument(
            "--budget", type=float, default=float("inf"), metavar="S", help="end after S seconds"
        )
        command.add_argument("--into", type=Path, default=measured.FILE, metavar="FILE")
    judging.add_argument("--json", type=Path, metavar="FILE", help="keep what the run recorded")
    writing = commands.add_parser("page", help="write docs/results/slowdowns.md")
    writing.add_argument("--check", action="store_true", help="write nothing; exit status 1 if it is stale")
    given, options = parser.parse_known_args(arguments)
    try:
        if given.command == "page":
            return _page(PROJECT.root / "docs" / "results" / "slowdowns.md", given.check)
        chosen = [s for s in PLANTED if (not given.only or s.name in given.only) and given.k in s.name]
        if not chosen:
            raise ValueError("no planted slowdown has such a name; tests/slowdowns lists them")
        if given.command == "check":
            return _check([s for s in chosen if s in IN_LOOPS])
        if given.command == "measure":
            return _measure(chosen, given.into, given.budget)
        return _gate(firsts(chosen), given.into, given.json, options)
    except (DeviceError, NoDevice, Rotten, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _page(path: Path, check: bool) -> int:
    text = page.text(PLANTED, measured.read())
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return 0
    if check:
        print(f"error: {path.name} is not that of the recorded runs", file=sys.stderr)
        return 1
    path.write_text(text, encoding="utf-8")
    return 0


def _check(slowdowns: Sequence[Slowdown]) -> int:
    device = open_emulated("sm_90a", by_source=False)
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="gemm-slowdowns-") as folder:
        for slowdown in slowdowns:
            findings = verify(device, small(slowdown.alone(Path(folder))))
            wrong += bool(findings)
            print(f"{slowdown.name:24} {findings[0] if findings else 'correct'}", flush=True)
    return int(bool(wrong))


def _measure(slowdowns: Sequence[Slowdown], file: Path, budget: float) -> int:
    device, end = open_cuda(60.0), time.monotonic() + budget
    try:
        with tempfile.TemporaryDirectory(prefix="gemm-slowdowns-") as folder:
            edited = {s.name: s.alone(Path(folder)) for s in slowdowns}
            device.prepare([*(s.real for s in slowdowns), *edited.values()])
            with progress("measure", len(slowdowns)) as step:
                found = measure(device, slowdowns, edited, step, lambda: time.monotonic() > end)
    finally:
        device.close()
    missed = []
    for slowdown in slowdowns:
        cost = found[slowdown.name]
        if isinstance(cost, str):
            print(f"{slowdown.name:24} not measured: {cost}")
            missed.append(slowdown.name)
            continue
        judged = f"{cost.judged.verdict} {_change(cost.judged.change, cost.judged.interval)}"
        print(
            f"{slowdown.name:24} {_change(cost.change, cost.interval):28} {judged:40} {slowdown.about}; "
            f"{slowdown.real.id}"
        )
        if cost.change >= LEAST and cost.judged.verdict != gate.RED:
            missed.append(slowdown.name)
    kept = {
        name: {
            **gate.numbers(cost.change, cost.interval),
            "us": round(1e6 * cost.seconds, 1),
            "said": cost.judged.recorded,
        }
        for name, cost in found.items()
        if isinstance(cost, Cost)
    }
    measured.add(file, measured.MEASURE, device.info, commit_id(), kept)
    print(f"missed, of 0.7 % and more or not measured: {', '.join(missed) or 'none'}")
    return int(bool(missed))


def _change(change: float | None, interval: Sequence[float] | None) -> str:
    if change is None:
        return ""
    of = f" ({100 * interval[0]:+.2f} … {100 * interval[1]:+.2f})" if interval else ""
    return f"{100 * change:+.2f} %{of}"


def _gate(slowdowns: Sequence[Slowdown], file: Path, json_file: Path | None, options: Sequence[str]) -> int:
    device = open_cuda(60.0)
    info = device.info
    device.close()
    runs = measured.read(file)
    with tempfile.TemporaryDirectory(prefix="gemm-slowdowns-") as folder:
        recorded = (json_file or Path(folder, "run.json")).absolute()
        found, unlike = gate.run(slowdowns, Path(folder, "clone"), recorded, info.capability, options)
    missed, planted = [], {slowdown.real.id for slowdown in slowdowns}
    print(f"{'planted':24} {'cost, measured':28} {'in the pair':28} verdict")
    for slowdown in slowdowns:
        judged, cost = found[slowdown.real.id], measured.cost(runs, info.name, slowdown.name)
        known = _change(cost["change"], cost["interval"]) if cost else "not measured"
        said = f"{judged.verdict} {judged.reason}"
        print(f"{slowdown.name:24} {known:28} {_change(judged.change, judged.interval):28} {said}")
        if judged.verdict != gate.RED and (not cost or cost["change"] >= LEAST):
            missed.append(slowdown.name)
    others = [judged for case, judged in found.items() if case not in planted]
    wrong = [judged for judged in others if judged.red]
    regressed = sum(found[case].verdict == gate.RED for case in planted)
    print(f"{regressed} of {len(planted)} planted slowdowns {gate.RED}")
    print(f"missed, of 0.7 % and more or not measured: {', '.join(missed) or 'none'}")
    why = "".join(f"; {judged.case}: {judged.verdict} {judged.reason}" for judged in wrong)
    print(f"{len(wrong)} of {len(others)} other cases red{why}")
    print(f"{unlike} verdicts differ when judged again from the evidence")
    said_of = {slowdown.name: {"said": found[slowdown.real.id].recorded} for slowdown in slowdowns}
    more = {"others": len(others), "red": [judged.case for judged in wrong]}
    measured.add(file, measured.GATE, info, commit_id(), said_of, **more)
    return int(bool(missed or wrong or unlike))


if __name__ == "__main__":
    sys.exit(main())
