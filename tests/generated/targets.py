"""What is mutated: the kernels of the ladder in a small config of each dtype, and the tests' own kernels."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import ptxsan
from gemm_regression import oracle
from gemm_regression.compiler.nvcc import compile_ptx, entry_symbol
from gemm_regression.compiler.sources import closure
from gemm_regression.compiler.tools import pinned_nvcc
from gemm_regression.devices import DeviceError, Inputs, Outputs
from gemm_regression.devices.emulated import EmulatedDevice
from gemm_regression.model import Case, Config, DType, Kernel, Problem
from gemm_regression.project.suites import fitted
from ptxsan import Counters, LaunchError, PreparedKernel, PtxError, nvcc
from tests.hopper import cases as hopper
from tests.ladder import PROJECT, find_kernel
from tests.mutants.examine import ARCH
from tests.mutants.generated import problems, variants

SECONDS, STEPS = 10.0, 4_000  # for a launch before it counts as hanging
REFUSED, SAME = "refused", ""
MANY_STEPS = Problem(24, 40, 712)  # more than twice as many as any pipeline has stages
DEPTHS = (8, 16, 32, 64)  # of tiles along K
LOTS, LARGEST = 40, 1_200_000  # problems by lot; products of the largest of the others
FULL = PROJECT.suites["full"]
# The smallest config of each kernel, by its label.
CONFIGS = {
    "strided": "block16x16",
    "naive": "block16x16",
    "tiled": "tile8-pad1",
    "tiled_unrolled": "tile8-pad1",
    "rectangular": "tile64x64x8-thread8",
    "register": "tile64x64x16-thread4x4-pad4",
    "vectorized": "tile64x64x8-thread8x8-pad4",
    "prefetch": "tile32x64x32-thread4x4-pad4",
    "double_buffered": "tile64x64x16-thread4x4-pad4-stages2",
    "async_copy": "tile128x128x8-thread8x8-stages3",
    "warp_tiled": "tile64x64x16-warp32x32-thread8x4-stages3",
    "wmma": "tile64x64x32-warp32x32",
    "batched_small": "tile16-matrices4",
    "split_k": "tile16x64x16-thread4x4-split8",
    "lean_loop": "tile32x32x32-warp32x32-thread8x4-stages3-slices4",
    "stream_k": "tile32x64x32-warp32x32-thread8x4-stages3-slices4-blocks264",
    "batched_vectors": "tile16-matrices8-thread4x4",
    "mma_sync": "tile64x64x32-warp32x32-stages3",
    "tf32x3": "tile64x64x32-warp32x32-stages3-promote2",
    "mma_tma": "tile128x64-warp32x32-stages4",
    "wgmma": "tile128x64-groups1-stages3-blocks2",
    "wgmma_tf32": "tile64x64-stages3-blocks2",
    "pack": "tile64x64-groups1-stages3-blocks2",
    "wgmma_split_k": "tile64x64-split2-stages6",
}


@dataclass(frozen=True)
class Outcome:
    """``by``: the check that shows a mutant, "" for none; ``where``: the problem, ``beyond`` those of the
    check; ``notes``: checks of notes that the kernel itself has not."""

    by: str
    where: str = ""
    beyond: bool = False
    notes: tuple[str, ...] = ()


def by_lot(batched: bool) -> Iterator[Problem]:
    """Little problems: sizes, leading dimensions and starts that are multiples of 8, of 4 or of nothing, each
    of them by itself."""
    rng = random.Random(11)
    sizes = (1, 2, 3, 5, 8, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 66, 68, 72, 96, 127, 128, 129, 130, 160)
    for _ in range(LOTS):
        of, row, start = (rng.choice((1, 4, 8)) for _ in range(3))
        m, n, k = (-(-rng.choice(sizes) // of) * of for _ in range(3))
        lda, ldb, ldc = (-(-(size + rng.choice((0, 0, 1, 3, 8))) // row) * row for size in (k, n, n))
        starts = (start * rng.choice((0, 1, 2)), start * rng.choice((0, 1, 2)), start * rng.choice((0, 1, 2)))
        scales = rng.choice((1.0, 2.0, -1.0)), rng.choice((0.0, 1.0, -1.0, 2.0))
        batch = rng.choice((1, 2, 9)) if batched else 1
        more: dict[str, Any] = {"batch": batch, "gap": rng.choice((0, 2)) if batch > 1 else 0}
        yield Problem(m, n, k, *scales, lda, ldb, ldc, starts=starts, **more)


class _Done(NamedTuple):
    """The launches of a case, what they left, and which lines of PTX they reached."""

    cases: Sequence[Case]
    inputs: Sequence[Inputs]
    outputs: list[Outputs]
    lines: frozenset[int]


class _OnDemand:
    """What an iterator gives, as often as it is asked; each is made when somebody comes to it."""

    def __init__(self, rest: Iterator[_Done]) -> None:
        self._made, self._rest = list[_Done](), rest

    def __iter__(self) -> Iterator[_Done]:
        for number in count():
            if number == len(self._made):
                self._made.extend(islice(self._rest, 1))
            if number == len(self._made):
                return
            yield self._made[number]


class _Device(EmulatedDevice):
    """Runs a text of PTX in the place of what nvcc makes. If it is ``counting``, ``done`` is what it did."""

    def __init__(self, text: str, entry: str, counting: bool = False) -> None:
        super().__init__(ARCH, by_source=False, time_limit=SECONDS)
        self._counting = counting
        self._only = PreparedKernel(ptxsan.parse(text, entry, ""), "")
        self.done: list[_Done] = []

    def _machine(self, case: Case) -> PreparedKernel:
        return self._only

    def run_all(
        self, cases: Sequence[Case], inputs: Sequence[Inputs], counters: Counters | None = None
    ) -> list[Outputs]:
        counters = Counters()
        outputs = super().run_all(cases, inputs, counters if self._counting else None)
        if self._counting:
            lines = frozenset(instruction.line for instruction, _ in counters.tallies())
            self.done.append(_Done(cases, inputs, outputs, lines))
        return outputs


def with_infinities(case: Case, inputs: Inputs) -> Inputs:
    """With infinities where tiles before the last one along K have what is zero in that: they show what is
    not set to zero there, and is multiplied by zero. In A by rows, in B by columns, for tiles of each depth.
    """
    made = dict(inputs)
    for name, lines in (("A", 0), ("B", 1)):
        made[name] = inputs[name].copy()
        matrix = case.storages[name].matrices(made[name])[0]
        for line in range(min(4 * len(DEPTHS), matrix.shape[lines] // 2)):
            last = (case.problem.k - 1) // DEPTHS[line // 4] * DEPTHS[line // 4]
            if last:
                place = last - 1 - line % 4
                matrix[(line, place) if name == "A" else (place, line)] = np.inf
    return made


@dataclass(frozen=True)
class Ladder:
    """A variant of the ladder, on the problems of the check for it."""

    kernel: Kernel
    config: Config
    dtype: DType

    @property
    def name(self) -> str:
        return f"{self.kernel.name}-{self.dtype.name}"

    @property
    def sources(self) -> list[Path]:
        return list(closure(self.kernel))

    @cached_property
    def ptx(self) -> str:
        return compile_ptx(self.kernel, self.config, self.dtype, ARCH, nvcc=pinned_nvcc())

    @cached_property
    def entry(self) -> str:
        return entry_symbol(self.kernel, self.config, self.dtype, self.ptx)

    @cached_property
    def _check(self) -> list[Case]:
        """What the check runs of it."""
        found = problems(self.kernel, self.config, self.dtype)
        return [Case(self.kernel, self.dtype, self.config, problem) for problem in found]

    @cached_property
    def _cases(self) -> list[Case]:
        """The same, then all that the suite has, then others by lot."""
        small = [p for p in FULL.verified_of(self.kernel, self.dtype) if p.m * p.n * p.k * p.batch <= LARGEST]
        asked = (*small, MANY_STEPS, *by_lot(self.kernel.operation.batched))
        taken = (f.case for f in fitted(self.kernel, self.config, self.dtype, asked, near=True) if f.runs)
        return list({case.problem: case for case in (*self._check, *taken)}.values())

    @cached_property
    def _own(self) -> _OnDemand:
        """What the kernel itself does on each, which is right; most mutants show on one of the first."""
        device = _Device(self.ptx, self.entry, counting=True)

        def done(case: Case) -> _Done:
            found = oracle.examine(device, case).findings
            assert not found, found
            of = device.done[-1]
            if case.problem.m and case.problem.n and case.problem.k:
                more = with_infinities(case, of.inputs[-1])
                device.run_all(of.cases[-1:], [more])
                last = device.done[-1]
                outputs = [*of.outputs, *last.outputs]
                of = _Done([*of.cases, *last.cases], [*of.inputs, more], outputs, of.lines | last.lines)
            return of

        return _OnDemand(map(done, self._cases))

    @cached_property
    def reached(self) -> frozenset[int]:
        """The lines of PTX that some problem reaches."""
        return frozenset().union(*(done.lines for done in self._own))

    def examine(self, text: str, line: int) -> Outcome:
        notes: dict[str, None] = {}
        try:
            device = _Device(text, self.entry)
        except PtxError:
            return Outcome(REFUSED)
        for number, (cases, inputs, own, lines) in enumerate(self._own):
            if line not in lines:
                continue  # nothing changes there
            where = cases[0].problem.id, number >= len(self._check)
            try:
                outputs = device.run_all(cases, inputs)
                found = [violation.check for output in outputs for violation in output.violations]
                # What leaves the same bits is right, too; of other bits the oracle says whether they are.
                if not found and not all(map(_same, outputs, own)):
                    found = [
                        finding.check for finding in oracle.examine(device, self._cases[number]).findings
                    ]
            except DeviceError as error:
                found = [error.code]
            if found:
                return Outcome(found[0], *where)
            known = {note.check for output in own for note in output.notes}
            notes |= {n.check: None for output in outputs for n in output.notes if n.check not in known}
        return Outcome(SAME, notes=tuple(notes))


def _same(one: Outputs, other: Outputs) -> bool:
    return bool(np.array_equal(_bytes(one.result), _bytes(other.result)))


@dataclass(frozen=True)
class Launches:
    """A kernel of the tests' own; another result than its own PTX leaves is a wrong one."""

    name: str
    file: Path
    launch: hopper.Launch
    how: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sources(self) -> list[Path]:
        return sorted({self.file, *self.file.parent.glob("*.cuh")})

    @cached_property
    def ptx(self) -> str:
        return nvcc.compile_file(self.file, ARCH, self.launch.defines)

    @cached_property
    def entry(self) -> str:
        return nvcc.entry_name(self.ptx, self.launch.entry)

    @cached_property
    def _own(self) -> list[ptxsan.LaunchResult]:
        results = self._run(self.ptx)
        assert all(result.clean for result in results), (self.name, results)
        return results

    @cached_property
    def reached(self) -> frozenset[int]:
        return frozenset(instruction.line for instruction, _ in self._own[0].counters.tallies())

    def examine(self, text: str, line: int) -> Outcome:
        outcome = self._examine(text)
        if outcome.by == SAME and (late := self._examine(text, schedule=1)).by:
            return replace(late, where="schedule 1", beyond=True)
        return outcome

    def _examine(self, text: str, schedule: int | None = None) -> Outcome:
        try:
            results = self._run(text, schedule)
        except LaunchError:
            return Outcome("LAUNCH_FAILED")
        except PtxError:
            return Outcome(REFUSED)
        if found := [hazard.check for result in results for hazard in result.hazards]:
            return Outcome(found[0])
        pairs = [
            (result.arrays[at], own.arrays[at])
            for result, own in zip(results, self._own, strict=True)
            for at in own.arrays
        ]
        known = {note.check for own in self._own for note in own.notes}
        notes = tuple({n.check: None for result in results for n in result.notes if n.check not in known})
        same = all(np.array_equal(_bytes(one), _bytes(other)) for one, other in pairs)
        return Outcome(SAME, notes=notes) if same else Outcome("value")

    def _run(self, text: str, schedule: int | None = None) -> list[ptxsan.LaunchResult]:
        """Of a launch, and of a second one where the module has variables, which keep what it leaves."""
        to = self.launch
        module = ptxsan.load(text)
        launch = module.kernel(self.entry)[to.grid, to.block, to.shared]
        times = 2 if re.search(r"^\s*(?:\.visible\s+)?\.global", text, re.MULTILINE) else 1
        return [launch(*to.arguments, steps=STEPS, schedule=schedule, **self.how) for _ in range(times)]


def _bytes(values: Any) -> Any:
    return np.ascontiguousarray(values).view(np.uint8)


Target = Ladder | Launches


def _ladder() -> Iterator[Ladder]:
    for name, label in CONFIGS.items():
        kernel = find_kernel(name)
        yield from (Ladder(kernel, c, d) for c, d in variants(kernel) if c.label == label)


def _hopper() -> Iterator[Launches]:
    forms = [f for f in hopper.FORMS if f in (("f16", "f32", 128, "TURN_A=1"), ("s8", "s32", 128))]
    made = [
        *((name, getattr(hopper, name)()) for name in ("multicast", "sums", "bulk", "registers")),
        ("pipeline", hopper.pipeline(n=64, k=640)),
        *((name, getattr(hopper, name)()) for name in ("tokens", "ring")),
        *(("-".join(("forms", *map(str, form))), hopper.form(*form)) for form in forms),
        *((f"boxes-{name}", hopper.box(name)) for name in ("2d-128", "3d")),
        ("boxes-add", hopper.box("2d-edge", np.int32, "ADD")),
    ]
    for name, launch in made:
        yield Launches(name, hopper.HERE / launch.file, launch)


def _kernels() -> Iterator[Launches]:
    folder = Path(__file__).parents[1] / "ptxsan" / "kernels"
    x = np.random.default_rng(3).integers(1, 8, 1024).astype(np.float32)
    n = x.astype(np.int32)
    empty, one = ptxsan.Empty, np.zeros(1, np.uint32)

    def of(file: str, entry: str, grid: int, block: int, *arguments: Any, **how: Any) -> Launches:
        launch = hopper.Launch(file, (grid,), block, arguments, {}, entry, defines=how.pop("defines", ()))
        return Launches(f"{file.partition('.')[0]}-{entry}", folder / file, launch, how)

    yield of("block_sum.cu", "block_sum", 4, 256, x, np.int32(1000), empty(4))
    yield of("block_scan.cu", "block_scan", 4, 256, n, np.int32(1000), empty(1000, np.int32))
    y = np.random.default_rng(4).standard_normal(800).astype(np.float32)
    yield of("softmax.cu", "softmax", 8, 32, y, np.int32(100), empty((8, 100)))
    yield of("sums.cu", "sums", 2, 64, n, empty(128, np.int32), empty(128, np.uint32), defines=("BOUNDS=",))
    yield of("last_block.cu", "last_block", 6, 128, x, np.int32(1024), empty(128 * 6), one, empty(1))
    yield of("threadfence.cu", "sum", 4, 64, x, np.uint32(1024), empty(4))
    yield of("release.cu", "handed", 4, 128, x, empty(512), one, empty(128))
    yield of("turns.cu", "turns", 4, 64, np.zeros(64, np.float32), np.zeros(1, np.int32))
    yield of("waits.cu", "serial", 6, 64, np.zeros(64, np.float32), np.zeros(1, np.int32), np.int32(0))
    yield of("waits.cu", "lookback", 8, 32, n, np.zeros(8, np.uint64), np.zeros(256, np.int32))
    yield of("waits.cu", "flags", 1, 64, empty(32, np.int32))
    yield of("waits.cu", "atomic_flags", 1, 64, empty(32, np.int32))
    yield of("waits.cu", "lock", 2, 32, np.zeros(1, np.int32), np.zeros(1, np.int32))
    yield of(
        "lookback.cu",
        "lookback",
        8,
        32,
        n.view(np.uint32),
        np.zeros(8, np.uint32),
        np.zeros(8, np.uint32),
        empty(8, np.uint32),
    )
    yield of(
        "cluster_groups.cu",
        "neighbours",
        4,
        64,
        n[:256],
        empty(256, np.int32),
        empty((4, 4), np.int32),
        cluster=2,
    )
    yield of("cluster_groups.cu", "one_more", 1, 128, n[:128], empty(128, np.int32))


def targets() -> list[Target]:
    return [*_ladder(), *_hopper(), *_kernels()]


def digest(target: Target) -> str:
    """Of the sources of a kernel: those mutants are of."""
    texts = "\0".join(path.read_text(encoding="utf-8") for path in target.sources)
    return hashlib.sha256(texts.encode()).hexdigest()[:12]
