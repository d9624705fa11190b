"""Which GPUs a run uses, and what each is compared with: ``--gpus``."""

from __future__ import annotations

import atexit
import os
import re
import tempfile
import threading
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pytest

from gemm_regression.baselines import Baseline, BaselineError, current, history, merge
from gemm_regression.cli.common import KERNELS
from gemm_regression.cli.session import Session
from gemm_regression.devices import Gpu, NoDevice, count_gpus, open_cuda
from gemm_regression.devices.work import EXACT
from gemm_regression.model import Case
from gemm_regression.project import selection as cases
from gemm_regression.run.boards import Board
from gemm_regression.run.checkers import Checker, Setup, close_all
from gemm_regression.tune.select import Selector

_FEW = 50  # cases that are checked before other processes have started
# Processes that check, on all GPUs of a host: oracle and copies take longer than the launches, but the driver
# makes one context after another, 0.2 s each on H200s, whichever GPU it is on, and ends them so, 0.08 s each.
_MOST = 12
_MEMORY = 6 << 10  # MiB of the GPU for each: a context, and what its worker allocates at once


def chosen(text: str, there: int) -> list[int]:
    """The GPUs that ``--gpus`` names, of ``there`` visible ones. Raises ValueError, one line."""
    said = f"--gpus {text}"
    if text == "all":
        numbers = list(range(there))
    elif re.fullmatch(r"\d+", text):
        # Nobody asks for no GPU at all: 0 is the first one.
        numbers = list(range(int(text))) or [0]
    elif re.fullmatch(r"\d+(,\d+)*,?", text):
        numbers = [int(part) for part in text.split(",") if part]
    else:
        raise ValueError(f"{said}: must be all, a number of GPUs such as 2, or their numbers, such as 0,2")
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"{said}: names a GPU twice")
    if missing := [number for number in numbers if number >= there]:
        few = "there is one GPU, number 0" if there == 1 else f"there are {there} GPUs, 0 to {there - 1}"
        raise ValueError(f"{said}: no GPU {missing[0]}; {few}")
    return numbers


def open_gpus(config: pytest.Config) -> list[Any]:
    """The devices of the GPUs that were asked for. Raises NoDevice, and UsageError for GPUs that are not
    there."""
    limit, text = config.option.time_limit, config.option.gpus
    if text is None:
        devices = [open_cuda(limit)]
    else:
        there = count_gpus()
        if not there:
            raise NoDevice("no GPU is visible")
        try:
            numbers = chosen(text, there)
        except ValueError as error:
            raise pytest.UsageError(str(error)) from None
        devices = [open_cuda(limit, number) for number in numbers]
    for place, device in enumerate(devices):
        config.add_cleanup(device.close)
        for other in devices[:place]:
            if other.info.capability == device.info.capability:
                device.compiles_like(other)
                break
    return devices


def select(session: Session, choice: cases.Choice) -> cases.Selection:
    """The selected cases of all GPUs: those of the first, and what only others can run. Each GPU is told its
    own.

    Raises ValueError and BaselineError, if no GPU has any.
    """
    found: list[cases.Selection] = []
    of_models: dict[str, cases.Selection | Exception] = {}
    for board in session.boards:
        if board.slug not in of_models:
            try:
                of_models[board.slug] = _selected(session, choice, board)
            except (ValueError, BaselineError) as error:
                of_models[board.slug] = error
        selection = of_models[board.slug]
        if isinstance(selection, cases.Selection):
            board.verified = {case.id: case for case in selection.verify}
            board.timed = {case.id: case for case in selection.timed}
            found.append(selection)
    if not found:
        raise next(error for error in of_models.values() if isinstance(error, Exception))
    first = found[0]
    return cases.Selection(
        _united(*(each.verify for each in found)), _united(*(each.timed for each in found)), first.refused
    )


def _selected(session: Session, choice: cases.Choice, board: Board) -> cases.Selection:
    """What one GPU can run, with a choice in the place of each case of a kernel that chooses."""
    capability = board.gpu.info.capability
    found = cases.select(session.project, choice, capability)
    if not any(case.kernel.is_dispatcher for case in (*found.verify, *found.timed)):
        return found
    selector = Selector.of(session.project, board.slug, capability)
    verify, timed = (tuple(map(selector.resolved, part)) for part in (found.verify, found.timed))
    return cases.Selection(verify, timed, found.refused)


def _united(*parts: Sequence[Case]) -> tuple[Case, ...]:
    """Each case once, as the first GPU that has it."""
    found: dict[str, Case] = {}
    for case in (case for part in parts for case in part):
        found.setdefault(case.id, case)
    return tuple(found.values())


def variants(session: Session, names: Collection[str]) -> dict[Gpu, list[Case]]:
    """A case of each variant that these cases need, by the GPU that compiles it: the first of its model."""
    found: dict[Gpu, dict[str, Case]] = {}
    of_models: dict[str, Gpu] = {}
    for board in session.boards:
        gpu = of_models.setdefault(board.slug, board.gpu)
        every = (*board.verified.values(), *board.timed.values())
        found.setdefault(gpu, {}).update((case.variant, case) for case in every if case.id in names)
    return {gpu: list(each.values()) for gpu, each in found.items()}


def start(session: Session) -> None:
    """Starts the processes that time, while cases are selected and tests collected."""
    for board in session.boards:
        session.warming.append(threading.Thread(target=lambda b: b.works, args=(board,), daemon=True))
        session.warming[-1].start()


def ahead(config: pytest.Config, session: Session) -> None:
    """Starts the processes that check before it is known what there is to check, where nobody chose: they
    take as long as selecting and collecting. Not where something else uses a GPU: their own would hide it."""
    o, project = config.option, session.project
    chosen = o.kernel or o.config or o.shape or o.keyword or o.verify_timed or o.collectonly
    everything = any(Path(given).name in (KERNELS, project.tests.name) for given in config.args)
    variants = sum(len(kernel.dtypes) * len(kernel.declared) for kernel in project.kernels)
    chosen = chosen or getattr(o, "lf", False)  # without pytest's cache there is no such option
    if everything and not chosen and variants > _FEW and not any(b.gpu.busy() for b in session.boards):
        warm_up(session, variants)
        session.free = bool(session.checkers)


def warm_up(session: Session, to_verify: int) -> None:
    """Starts the processes that check, unless there are few cases or they were started. Under a sanitizer,
    whose report is one process's, this process checks."""
    if session.checkers:
        if to_verify <= _FEW:
            _end(session.checkers)
            session.checkers = []
        return
    numbered = all(hasattr(board.gpu, "index") for board in session.boards)
    if to_verify > _FEW and numbered and not os.environ.get(EXACT):
        root, infos = session.project.root, [board.gpu.info for board in session.boards]
        count = _processes([info.memory_mib for info in infos])
        each = [(b, Setup(root, (b.gpu.time_limit, b.gpu.index))) for b in session.boards]  # type: ignore[attr-defined]
        session.checkers = [Checker(board, setup) for _ in range(count) for board, setup in each]
        atexit.register(_end, session.checkers)  # Python waits for them at its end.
        for checker in session.checkers:
            checker.start()
        session.warming.append(
            threading.Thread(target=_go_on, args=(session.warming[:], session.checkers), daemon=True)
        )
        session.warming[-1].start()


def _go_on(warming: Sequence[threading.Thread], checkers: Sequence[Checker]) -> None:
    """What is to be timed is allocated first, so that it lies where it always does."""
    for thread in warming:
        thread.join()
    for checker in checkers:
        checker.go_on()


def _end(checkers: Sequence[Checker]) -> None:
    """At once, also those that have not begun yet."""
    for checker in checkers:
        checker.abandon()
    close_all(checkers)


def _processes(mib: Sequence[int]) -> int:
    """How many check on each of the GPUs with so much memory. One waits for its worker, so the two keep about
    one core busy; the other half of the cores is for the tests and the driver."""
    of_host = min(_MOST, len(os.sched_getaffinity(0)) // 2)
    return max(2, min(of_host // len(mib), min(mib) // _MEMORY))


def choose_baselines(config: pytest.Config, session: Session) -> None:
    """Resolves --benchmark-compare to the baseline of each GPU, or raises a usage error."""
    wanted = config.option.benchmark_compare
    if not session.boards and wanted:
        raise pytest.UsageError(
            f"--benchmark-compare: nothing can be compared without a GPU ({session.no_gpu})"
        )
    root = session.project.baselines
    for board in session.boards:
        info = board.gpu.info
        try:
            if isinstance(wanted, str):
                board.baseline = merge.named(root, board.slug, info.board, wanted)
            else:
                board.baseline = current(root, board.slug, info.board)
            if board.baseline:
                board.baseline.require_mig(info.mig)
            board.measured = history(root, board.slug)
        except BaselineError as error:  # nothing could be stored beside it, either
            raise pytest.UsageError(str(error)) from None
        if wanted and board.baseline is None:
            folder = os.path.relpath(root / board.slug)
            raise pytest.UsageError(
                f"--benchmark-compare: no baseline for {info.name} in {folder}; measure one with "
                "`nox -s baseline`"
            )
    if wanted and session.boards:
        config.option.benchmark_compare = str(_for_the_table(config, session.boards[0].baseline, wanted))


def _for_the_table(config: pytest.Config, baseline: Baseline | None, wanted: Any) -> Path:
    """The file that pytest-benchmark's own table compares with."""
    if isinstance(wanted, str) and Path(wanted).is_file():
        return Path(wanted)
    assert baseline is not None
    folder = tempfile.TemporaryDirectory(prefix="gemm-baseline-")
    config.add_cleanup(folder.cleanup)
    return merge.write_export(baseline, Path(folder.name) / f"{baseline.label}.json")
