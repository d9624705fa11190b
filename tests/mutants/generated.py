"""``python -m tests.mutants.generated [--all] [--check]``: examines the mutants that the operators make,
without a GPU, and stores what catches each in generated.json.

Each runs on the problems of the check, the cheapest first, in each variant whose code it changes, until
values or hazards show it; one of the same code as the kernel itself, in every variant, is no mutant. Without
``--all`` only those are examined that the file lacks. Exit status: 0; 1 for one that nothing catches and
nobody argued to be right, or, with ``--check``, for a file of other mutants or problems; 2 without the pinned
compiler.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from gemm_regression.compiler.nvcc import compile_cubin, compile_ptx
from gemm_regression.compiler.tools import CompileError, ToolchainError, pinned_nvcc, pinned_tools, pins
from gemm_regression.devices import DeviceError
from gemm_regression.devices.emulated import EmulatedDevice
from gemm_regression.model import Case, Config, DType, Kernel, Problem
from gemm_regression.model.gpus import legal_variants
from gemm_regression.oracle import verify
from gemm_regression.project.suites import SPARSE, SPARSE_BATCHED, with_rows_as_taken
from tests.ladder import PROJECT
from tests.mutants.examine import ARCH, HAZARDS, open_device
from tests.mutants.mutant import LIMITS, Mutant, build, cases, checked, real
from tests.mutants.operators import EACH, SEED, everything

FILE = Path(__file__).with_name("generated.json")
RENEW = "python -m tests.mutants.generated"
_MISSED = tomllib.loads(Path(__file__).with_name("missed.toml").read_text(encoding="utf-8"))
# Mutants that nothing catches: those that are right, and why; and the others, and what it would take.
EQUIVALENT = {name: each["why"] for each in _MISSED["equivalent"] for name in each["mutants"]}
SURVIVORS = {name: each["why"] for each in _MISSED["survivor"] for name in each["mutants"]}
PROCESSES = 2
# What came of a mutant.
CAUGHT, SAME, BROKEN, MISSED = "caught", "same code", "does not compile", "missed"


@dataclass(frozen=True)
class Outcome:
    """``what`` came of a mutant; ``checks`` that caught it, on ``problem``; in which ``variant`` it was run,
    by the labels of config and dtype."""

    what: str
    checks: tuple[str, ...] = ()
    problem: str = ""
    variant: tuple[str, str] = ("", "")

    @property
    def by_value(self) -> bool:
        return any(check not in HAZARDS for check in self.checks)


def variants(kernel: Kernel) -> list[tuple[Config, DType]]:
    """Those that the suite verifies, the default one first."""
    return legal_variants(kernel, LIMITS)


def problems(kernel: Kernel, config: Config, dtype: DType) -> tuple[Problem, ...]:
    """The problems of the check for a variant, the cheapest first."""
    found = [case.problem for case in checked(kernel, config, dtype)]
    far = (with_rows_as_taken(kernel, config, p) for p in (SPARSE, SPARSE_BATCHED))
    found += [p for p in far if not kernel.refusals(config, p)]
    return tuple(sorted(found, key=lambda p: p.m * p.n * p.k * p.batch))


def examine(mutant: Mutant) -> Outcome:
    """What comes of a mutant."""
    with tempfile.TemporaryDirectory() as folder:
        kernel, original = build(mutant, Path(folder)), real(mutant)
        outcome = Outcome(SAME)
        try:
            for config, dtype in variants(original):
                if _code(kernel, config, dtype) == _code(original, config, dtype):
                    continue
                here = problems(original, config, dtype)
                found = run(
                    replace(mutant, config=config.label, dtype=dtype.name, problems=here),
                    open_device(),
                    kernel,
                )
                if found.what != MISSED:
                    return found
                # at random addresses nvcc does not always make the same PTX of one source
                if _cubin(kernel, config, dtype) != _cubin(original, config, dtype):
                    outcome = found
        except CompileError:
            return Outcome(BROKEN)
        return outcome


def run(mutant: Mutant, device: EmulatedDevice, kernel: Kernel) -> Outcome:
    """Runs it on its problems until something shows."""
    labels = mutant.config, mutant.dtype
    for case in cases(mutant, kernel):
        try:
            found = [finding.check for finding in verify(device, case)]
        except DeviceError as error:
            if error.code in ("COMPILE_ERROR", "UNSUPPORTED"):
                return Outcome(BROKEN, variant=labels)
            found = [error.code]
        if found:
            return Outcome(CAUGHT, tuple(dict.fromkeys(found)), case.problem.id, labels)
    return Outcome(MISSED, variant=labels)


def again(mutant: Mutant, outcome: Outcome, folder: Path, device: EmulatedDevice) -> list[str]:
    """The checks that fail for a mutant on the problem that caught it."""
    kernel, (label, dtype) = build(mutant, folder), outcome.variant
    config, kind = next(v for v in variants(real(mutant)) if (v[0].label, v[1].name) == (label, dtype))
    by_id = {p.id: p for p in problems(real(mutant), config, kind)}
    return [f.check for f in verify(device, Case(kernel, kind, config, by_id[outcome.problem]))]


def _code(kernel: Kernel, config: Config, dtype: DType) -> str:
    """Its PTX, without comments."""
    return re.sub(r"//.*", "", compile_ptx(kernel, config, dtype, ARCH, nvcc=pinned_nvcc()))


def _cubin(kernel: Kernel, config: Config, dtype: DType) -> bytes:
    return compile_cubin(kernel, config, dtype, ARCH, nvcc=pinned_nvcc()).cubin


def provenance() -> dict[str, Any]:
    """What the outcomes depend on besides the mutants themselves."""
    asked = [p.id for p in (*PROJECT.suites["full"].verified, SPARSE, SPARSE_BATCHED)]
    digest = hashlib.sha256(" ".join(asked).encode()).hexdigest()[:16]
    return {"seed": SEED, "each": EACH, "arch": ARCH, "compiler": list(pins()), "problems": digest}


def load() -> tuple[dict[str, Any], dict[str, Outcome]]:
    """The provenance and the outcomes that are stored, by the mutant's name and edit."""
    if not FILE.exists():
        return {}, {}
    stored = json.loads(FILE.read_text(encoding="utf-8"))
    return stored["provenance"], TypeAdapter(dict[str, Outcome]).validate_python(stored["outcomes"])


def store(outcomes: Mapping[str, Outcome]) -> None:
    """Writes the file, in the order of the mutants."""
    ordered = {key(m): asdict(outcomes[key(m)]) for m in everything() if key(m) in outcomes}
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(outcome)}" for name, outcome in ordered.items())
    text = f'{{\n "provenance": {json.dumps(provenance())},\n "outcomes": {{\n{lines}\n }}\n}}\n'
    FILE.write_text(text, encoding="utf-8")


def key(mutant: Mutant) -> str:
    """A mutant's name, and a digest of its edit: another edit is another mutant."""
    return f"{mutant.name} {hashlib.sha256(json.dumps(mutant.edits).encode()).hexdigest()[:8]}"


def missed(outcomes: Mapping[str, Outcome]) -> Iterator[str]:
    """Those that nothing catches and nobody argued to be right; arguments for others than those."""
    passed = {mutant.name for mutant in everything() if outcomes[key(mutant)].what == MISSED}
    argued = {*EQUIVALENT, *SURVIVORS}
    yield from (f"{name}: nothing catches it" for name in sorted(passed - argued))
    yield from (f"{name}: said to be missed, and is not" for name in sorted(argued - passed))


def stale() -> Iterator[str]:
    """Why the file is not that of today's mutants and problems."""
    made, outcomes = load()
    if made != provenance():
        yield f"made with {made}, not {provenance()}"
    wanted = {key(mutant) for mutant in everything()}
    if lacking := sorted(wanted - set(outcomes)):
        yield f"lacks {', '.join(lacking)}"
    if extra := sorted(set(outcomes) - wanted):
        yield f"has {', '.join(extra)}, which nobody makes"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog=RENEW, description=__doc__)
    parser.add_argument("--all", action="store_true", help="examine again what the file has")
    parser.add_argument("--check", action="store_true", help="examine nothing; is the file up to date?")
    given = parser.parse_args(arguments)
    try:
        pinned_tools()
    except ToolchainError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if not given.check:
        made, outcomes = load()
        if given.all or made.get("compiler") != provenance()["compiler"]:
            outcomes = {}
        todo = [mutant for mutant in everything() if key(mutant) not in outcomes]
        with ProcessPoolExecutor(PROCESSES) as pool:
            running = {pool.submit(examine, mutant): mutant for mutant in todo}
            for done in as_completed(running):
                mutant, outcome = running[done], done.result()
                outcomes[key(mutant)] = outcome
                print(f"{mutant.name}: {outcome.what} {', '.join(outcome.checks)}", flush=True)
                store(outcomes)  # what is there stays there if the rest is stopped
    faults = list(stale()) or list(missed(load()[1]))
    for fault in faults:
        print(f"error: {FILE.name}: {fault}", file=sys.stderr)
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
