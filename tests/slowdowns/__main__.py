"""``python -m tests.slowdowns measure`` or ``gate``; both need a GPU.

``measure``: what each planted slowdown costs, next to the kernel as it is, into measured.json.
``gate``: all of them planted in a clone, and what `gpu` says of their cases and of as many others.

Exit status: 0; 1 where a slowdown of LEAST and more was not found, another case failed, or the run's evidence
gives another verdict; 2 without a GPU, or if a kernel has changed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.baselines.provenance import nvcc_version
from harness.commands.progress import progress
from harness.compiler.core import core_of
from harness.compiler.tools import arch
from harness.devices import NoDevice, open_cuda
from harness.devices.cuda.environment import GpuInfo
from harness.gate.compare import Row, compare
from harness.gate.pairing import Pair
from harness.gate.pairs import seconds_of
from harness.timing.looks import Rule
from harness.timing.plan import PairPlan
from harness.verdicts.vocabulary import DEFAULT_MARGIN
from tests.slowdowns import PLANTED, Rotten, Slowdown, gate

MEASURED = Path(__file__).with_name("measured.json")
LEAST = 0.007  # a slowdown that the gate must find


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.slowdowns", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure", help="what each costs, into measured.json")
    judging = commands.add_parser("gate", help="what the gate makes of them; other options are those of gpu")
    for command in (measuring, judging):
        command.add_argument("--only", action="append", metavar="NAME", help="only this one; repeatable")
    measuring.add_argument("--json", type=Path, default=MEASURED, metavar="FILE")
    judging.add_argument("--json", type=Path, metavar="FILE", help="keep what the run recorded")
    given, options = parser.parse_known_args(arguments)
    chosen = [s for s in PLANTED if not given.only or s.name in given.only]
    try:
        if given.command == "measure":
            return _measure(chosen, given.json)
        return _gate(chosen, given.json, options)
    except (NoDevice, Rotten, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


# What each costs


def _measure(slowdowns: Sequence[Slowdown], file: Path) -> int:
    device = open_cuda(60.0)
    try:
        with tempfile.TemporaryDirectory(prefix="gemm-slowdowns-") as folder:
            changed = [(s.alone(Path(folder)), s.real) for s in slowdowns]
            device.prepare_pairs([side for pair in changed for side in pair])
            sm = arch(device.info.capability)
            cores = [core_of(real.kernel, real.config, real.dtype, sm) for _, real in changed]
            pairs = [
                Pair(slower, real, DEFAULT_MARGIN, core, seconds_of(real, core))
                for (slower, real), core in zip(changed, cores, strict=True)
            ]
            with progress("measure", len(pairs)) as step:
                result = compare(device, pairs, Rule(), 0, PairPlan(()), step=step.now)
    finally:
        device.close()
    if result.unfit:
        print(f"nothing was measured: {result.rows[0].paired.detail}", file=sys.stderr)
        return 1
    rows = dict(zip((s.name for s in slowdowns), result.rows, strict=True))
    for slowdown in slowdowns:
        row = rows[slowdown.name]
        p = row.paired
        shown = _change(p.change, p.interval) or p.detail
        print(f"{slowdown.name:20} {shown:32} {slowdown.about}; {slowdown.real.id}")
    known = _known(file)
    name = _name(device.info)
    known[name] = {**known.get(name, {}), **{n: found for n, row in rows.items() if (found := _record(row))}}
    file.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    return 0


def _known(file: Path) -> dict[str, dict[str, Any]]:
    """By GPU and slowdown: relative change of the time, its interval, microseconds of the kernel as it is."""
    known: dict[str, dict[str, Any]] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return known


def _name(gpu: GpuInfo) -> str:
    return f"{gpu.name}, nvcc {nvcc_version()}"


def _record(row: Row) -> dict[str, Any] | None:
    p = row.paired
    if p.change is None or p.interval is None:
        return None
    interval = [round(end, 5) for end in p.interval]
    return {"change": round(p.change, 5), "interval": interval, "us": round(1e6 * row.samples.median("a"), 1)}


def _change(change: float | None, interval: Sequence[float] | None) -> str:
    if change is None:
        return ""
    of = f" ({100 * interval[0]:+.2f} … {100 * interval[1]:+.2f})" if interval else ""
    return f"{100 * change:+.2f} %{of}"


# What the gate makes of them


def _gate(slowdowns: Sequence[Slowdown], json_file: Path | None, options: Sequence[str]) -> int:
    device = open_cuda(60.0)
    info = device.info
    device.close()
    costs: Mapping[str, Any] = _known(MEASURED).get(_name(info), {})
    with tempfile.TemporaryDirectory(prefix="gemm-slowdowns-") as folder:
        file = (json_file or Path(folder, "run.json")).absolute()
        found, unlike = gate.run(slowdowns, Path(folder, "clone"), file, info.capability, options)
    missed, planted = [], {slowdown.real.id for slowdown in slowdowns}
    print(f"{'planted':20} {'cost, measured':32} {'paired by the gate':32} {'baseline':>9}  verdict")
    for slowdown in slowdowns:
        judged, cost = found[slowdown.real.id], costs.get(slowdown.name)
        of_pair = _change(judged.paired, judged.interval)
        measured = _change(cost["change"], cost["interval"]) if cost else "not measured here"
        said = f"{judged.verdict} {judged.reason}"
        print(f"{slowdown.name:20} {measured:32} {of_pair:32} {_change(judged.change, None):>9}  {said}")
        if judged.verdict != gate.RED and (not cost or cost["change"] >= LEAST):
            missed.append(slowdown.name)
    others = [judged for case, judged in found.items() if case not in planted]
    red = [judged for judged in others if judged.red]
    regressed = sum(found[case].verdict == gate.RED for case in planted)
    print(f"{regressed} of {len(planted)} planted slowdowns {gate.RED}")
    print(f"missed, of 0.7 % and more or not measured: {', '.join(missed) or 'none'}")
    why = "".join(f"; {judged.case}: {judged.verdict} {judged.reason}" for judged in red)
    print(f"{len(red)} of {len(others)} other cases red{why}")
    print(f"{unlike} verdicts differ when judged again from the evidence")
    return int(bool(missed or red or unlike))


if __name__ == "__main__":
    sys.exit(main())
