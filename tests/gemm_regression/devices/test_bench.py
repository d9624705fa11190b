"""What is timed, on a made-up GPU: kernels that remember, skip or depend on what they should not see."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gemm_regression.devices import DeviceError
from gemm_regression.devices.work import StoredBinary, Work
from gemm_regression.model import Array, Problem, Storage
from gemm_regression.timing.plan import Measurement, PairPlan, Plan
from gemm_regression.timing.samples import Launched
from tests.gemm_regression.devices.fake_gpu import FakeGpu, made_up_gpu, matrix, product
from tests.gemm_regression.synthetic import case

PROBLEM = Problem(9, 8, 16)
WORK = Work.of(case(problem=PROBLEM))
PLAN = PairPlan(("ABBA", "BAAB") * 16)  # three batches: in the first a cheat may still be honest

# What a kernel does, given its own C, what belongs into it, and whatever it remembers.
Does = Callable[[Array, Array, dict[str, Any]], None]


def honest(c: Array, want: Array, memory: dict[str, Any]) -> None:
    c[:] = want


class Watch:
    """Runs what it is given, one microsecond each."""

    def __init__(self, gpu: FakeGpu) -> None:
        self.gpu, self.overhead, self.launches = gpu, 0.0, 0
        self.stream = SimpleNamespace(synchronize=lambda: None)

    def ready(self) -> None:
        pass

    def sequence(self, work: Sequence[Any], l2: str) -> Any:
        for turn in dict.fromkeys(work):
            turn.begin(work.count(turn))
        self.gpu.held = True
        for turn in work:
            turn.before(None)
            turn.enqueue(None)
            turn.after(None)
        self.gpu.held = False
        for turn in dict.fromkeys(work):
            turn.end()
        self.launches += len(work)
        return Launched([1e-6] * len(work), [1e3] * len(work), [], 1e-3 * len(work))

    def spinning(self, kernel: Any, cycles: int | None, spent: int) -> Any:
        assert cycles is None
        return kernel

    def measure(self, kernel: Any, reference: Any, plan: Any, parts: int) -> Any:
        for _ in range(3):
            run = self.sequence([kernel, reference] * 16 if reference else [kernel] * 16, plan.l2)
        return Measurement(tuple(run.seconds), (), None, 1e3, 0.0, 0.0, 0, 0, False)


class Kernels:
    """``base`` and ``new`` by slot, and a library that is right."""

    def __init__(self, gpu: FakeGpu, does: dict[str, Does]) -> None:
        self.gpu, self.does = gpu, does
        self.memory: dict[str, dict[str, Any]] = {slot: {} for slot in does}
        self.resources = None

    def get(self, binary: StoredBinary, slot: str) -> Any:
        return self._bound(self.does[slot or "B"], self.memory[slot or "B"])

    def library(self, dtype: Any) -> Any:
        return self._bound(honest, self.memory.setdefault("library", {}))

    def _bound(self, does: Does, memory: dict[str, Any]) -> Any:
        def bind(work: Work, at: dict[str, int]) -> Callable[[Any], None]:
            def enqueue(stream: Any) -> None:
                # CUDA loads a kernel at its first launch, which waits for what is queued.
                assert memory.get("launches") or not self.gpu.held
                memory["launches"] = memory.get("launches", 0) + 1
                memory["gpu"], memory["at"] = self.gpu, at
                does(matrix(self.gpu, work, at, "C"), product(self.gpu, work, at), memory)

            return enqueue

        return SimpleNamespace(bind=bind, resources=None, another=lambda: self._bound(does, memory))


class Bench:
    def __init__(self, gpu: FakeGpu, modules: SimpleNamespace) -> None:
        self.gpu, self.modules, self.watch = gpu, modules, Watch(gpu)
        self.arena = modules.timed_data.TimedDataArena(gpu)

    def of(self, new: Does, base: Does = honest) -> Any:
        kernels = Kernels(self.gpu, {"A": base, "B": new})
        self.kernels = kernels
        return self.modules.bench.Bench(self.watch, self.arena, kernels, self.gpu)

    def pair(self, new: Does, base: Does = honest, work: Work = WORK, judged: bool = True) -> Any:
        return self.of(new, base).pair(binary("base", work), binary("new", work), PLAN, judged)


def binary(name: str, work: Work = WORK) -> StoredBinary:
    return StoredBinary(name, name.encode(), "gemm", work)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    with made_up_gpu(monkeypatch) as (gpu, modules):
        modules.bench.Loaded = SimpleNamespace  # an honest kernel is no library
        yield Bench(gpu, modules)


@pytest.mark.parametrize("beta", [0.0, 2.0])
@pytest.mark.parametrize("judged", [False, True])
def test_two_right_kernels_are_timed(bench: Bench, beta: float, judged: bool) -> None:
    work = replace(WORK, problem=replace(PROBLEM, beta=beta))
    samples = bench.pair(honest, work=work, judged=judged)
    assert len(samples.blocks) == len(PLAN.orders)


def test_what_cannot_be_drawn_is_refused_when_it_is_timed(bench: Bench) -> None:
    with pytest.raises(DeviceError, match="gemm: made of B fails: KeyError"):
        bench.pair(honest, work=replace(WORK, draws={"B": "undrawn made of B fails: KeyError"}))


def test_every_launch_has_inputs_of_its_own(bench: Bench) -> None:
    seen: dict[bytes, int] = {}

    def kernel(c: Array, want: Array, memory: dict[str, Any]) -> None:
        c[:] = want
        inputs = b"".join(matrix(bench.gpu, WORK, memory["at"], name).tobytes() for name in "AB")
        seen[inputs] = seen.get(inputs, 0) + 1

    bench.pair(kernel)
    assert bench.watch.launches > 50
    assert len(seen) > bench.watch.launches // 2  # and one of each batch, repeated without a library
    assert max(seen.values()) == 1


def memoised(c: Array, want: Array, memory: dict[str, Any]) -> None:
    """The first result again and again."""
    c[:] = memory.setdefault("first", want)


def skipped(c: Array, want: Array, memory: dict[str, Any]) -> None:
    """Works while it is watched."""
    if memory["launches"] < 3:
        c[:] = want


def other_round(c: Array, want: Array, memory: dict[str, Any]) -> None:
    """The result of the launch before the last: right again where inputs go by turns of two."""
    kept = memory.setdefault("kept", [])
    c[:] = kept[-2] if len(kept) > 3 else want
    kept.append(np.array(want))


def sampled_rows(c: Array, want: Array, memory: dict[str, Any]) -> None:
    """Some rows are left as they are, once it was checked."""
    c[: 5 if memory["launches"] > 2 else None] = want[: 5 if memory["launches"] > 2 else None]


def less_precise(c: Array, want: Array, memory: dict[str, Any]) -> None:
    """FP16 after a while."""
    c[:] = want.astype(np.float16) if memory["launches"] > 2 else want


def of_the_reference(c: Array, want: Array, memory: dict[str, Any]) -> None:
    """What the library left beside it."""
    # How far that is from C is known to whoever read where the harness puts them.
    at = memory["at"]["C"] + memory["distance"]
    c[:] = memory["gpu"].view(at, np.float32, c.size).reshape(c.shape)


def in_the_padding(c: Array, want: Array, memory: dict[str, Any]) -> None:
    """Its result of before, kept between C and the band's end."""
    gpu, at = memory["gpu"], memory["at"]["C"] + c.nbytes
    kept = gpu.view(at, np.float32, c.size).reshape(c.shape)
    if np.isnan(kept).any():
        kept[:] = c[:] = want
    else:
        c[:] = kept


CHEATS = (memoised, skipped, other_round, sampled_rows, less_precise, in_the_padding)


@pytest.mark.parametrize("cheat", CHEATS, ids=lambda cheat: cheat.__name__)
@pytest.mark.parametrize("library", [True, False], ids=["library", "alone"])
@pytest.mark.parametrize("way", ["pair", "timed alone", "base"])
def test_a_cheat_is_caught(bench: Bench, cheat: Does, library: bool, way: str) -> None:
    work = WORK if library else replace(WORK, library=None)
    ways: dict[str, Callable[[], object]] = {
        "pair": lambda: bench.pair(cheat, work=work),
        "timed alone": lambda: bench.of(cheat).time(binary("new", work), Plan()),
        "base": lambda: bench.pair(honest, cheat, work=work),
    }
    with pytest.raises(DeviceError) as found:
        ways[way]()
    assert found.value.code == ("BASE_WRONG" if way == "base" else "WRONG")
    assert f"{'base' if way == 'base' else 'new'} on 9x8x16: " in str(found.value)


@pytest.mark.parametrize("honestly", [True, False])
def test_each_output_of_a_timed_launch_is_checked(bench: Bench, honestly: bool) -> None:
    """The further one is of another type, and is left as it is once it was checked."""
    storages = {**WORK.storages, "D": Storage(np.dtype(np.float16), 1, 9, 8, 8)}
    work = replace(WORK, library=None, storages=storages, roles={**WORK.roles, "D": "output"})
    data: Any = bench.arena.get(work)
    of_arms = [at for each in data.kept for at in each.values()]
    assert len({*data.at.values(), data.reference, *of_arms}) == len(data.at) + 5

    def writes_both(launches: float) -> Does:
        def kernel(c: Array, want: Array, memory: dict[str, Any]) -> None:
            c[:] = want
            if memory["launches"] < launches:
                matrix(bench.gpu, work, memory["at"], "D")[:] = want / 64

        return kernel

    right = writes_both(math.inf)
    if honestly:
        assert bench.pair(right, right, work=work).blocks
        return
    with pytest.raises(DeviceError, match=r"new on 9x8x16: the output D of a timed launch is wrong"):
        bench.pair(writes_both(3), right, work=work)


def test_what_the_reference_left_is_of_other_inputs(bench: Bench) -> None:
    data: Any = bench.arena.get(WORK)
    made = bench.of(of_the_reference)
    bench.kernels.memory["B"]["distance"] = data.reference - data.at["C"]
    with pytest.raises(DeviceError) as found:
        made.pair(binary("base"), binary("new"), PLAN, True)
    assert found.value.code == "WRONG"


def test_an_honest_one_is_timed_alone(bench: Bench) -> None:
    found = bench.of(honest).time(binary("new"), Plan())
    assert found.median == 1e-6


def test_a_later_look_checks_neither_side_again(bench: Bench) -> None:
    made = bench.of(honest)
    builds = binary("base"), binary("new")
    first = made.pair(*builds, PLAN, True)
    before = bench.kernels.memory["B"]["launches"]
    again = made.pair(*builds, PLAN, True)
    assert len(first.blocks) == len(again.blocks)
    assert bench.kernels.memory["B"]["launches"] == 2 * before - 1  # without that of the exact check


def test_addresses_depend_on_the_problem_alone(bench: Bench) -> None:
    other = replace(WORK, problem=replace(PROBLEM, m=100), storages=Work.of(case()).storages)
    first = bench.arena.get(WORK)
    at = dict(first.at), first.reference, first.kept, first.guard
    bench.arena.get(Work.of(case(problem=Problem(100, 30, 20))))
    again = bench.arena.get(WORK)
    assert again is not first
    assert (dict(again.at), again.reference, again.kept, again.guard) == at
    assert other.storages


def test_each_side_finds_its_workspace_as_it_was_promised(bench: Bench) -> None:
    """Zeros where it asked for them, and nothing of the other's or its own launch before."""
    seen: list[tuple[int, ...]] = []

    def of_words(words: int, then: int) -> Does:
        def kernel(c: Array, want: Array, memory: dict[str, Any]) -> None:
            c[:] = want
            held = bench.gpu.view(memory["at"]["workspace"], np.uint32, words)
            seen.append((words, *np.unique(held)))
            held[:] = then

        return kernel

    works = replace(WORK, workspace=(16, 16)), replace(WORK, workspace=(64, 0))
    made = bench.of(of_words(16, 7), of_words(4, 9))
    made.pair(binary("base", works[0]), binary("new", works[1]), PLAN, True)
    assert set(seen) == {(4, 0), (16, 0xFFFFFFFF)}
