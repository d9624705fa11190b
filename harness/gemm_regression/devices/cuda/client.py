"""CudaDevice: the parent's side of the worker process.

After an illegal address no CUDA context works in that process any more, and a kernel in an endless loop never
returns: either costs the worker and the case, but not the run.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from gemm_regression.compiler.nvcc import compile_cubin, refusal
from gemm_regression.compiler.tools import CompileError, ToolchainError, arch
from gemm_regression.compiler.units import ModuleSource, source_of
from gemm_regression.devices import DeviceError, Inputs, Outputs, Step
from gemm_regression.devices.cuda.environment import GpuInfo, NvmlGpu
from gemm_regression.devices.reply import Reply
from gemm_regression.devices.work import CompiledBinary, StoredBinary, Work, new_workspace
from gemm_regression.model import Case, Config, DType, Kernel, Resources
from gemm_regression.processes import Died, Process
from gemm_regression.timing.plan import Measurement, PairPlan, Plan
from gemm_regression.timing.samples import PairedSamples

# Cubin, symbol of the entry, and what SourceModule makes them of, unless another compiler made PTX or cubin.
_Made = tuple[bytes, str, ModuleSource | None]
_START_SECONDS = 120.0  # a first context on a machine with many GPUs takes its time
_STOP_SECONDS = 20.0
_COMPILE_SECONDS = 600.0


def _serve(
    connection: Any, visible_as: str | None = None, times: bool = True, works: Sequence[Work] = ()
) -> None:
    """The worker's first step; keeps PyCUDA out of the parent process. It sees this GPU alone."""
    if visible_as is not None:
        os.environ.update(CUDA_VISIBLE_DEVICES=visible_as)
    from gemm_regression.devices.cuda.worker import main

    main(connection, times, works)


def source_for(case: Case, capability: tuple[int, int]) -> ModuleSource:
    """What a worker compiles for a variant. Raises DeviceError COMPILE_ERROR."""
    try:
        return source_of(*_variant(case), arch(capability), case.variant)
    except (CompileError, ToolchainError) as error:
        raise DeviceError("COMPILE_ERROR", str(error)) from None


def refuse_other_parameters(case: Case, arch: str) -> None:
    """After it was compiled. Raises DeviceError SIGNATURE where the kernel does not take the parameters of a
    launch."""
    try:
        reason = refusal(_variant(case), arch, case.arguments)
    except (CompileError, ToolchainError) as error:
        raise DeviceError("COMPILE_ERROR", str(error)) from None
    if reason:
        raise DeviceError("SIGNATURE", f"{case.variant}: {reason}")


def _refused(case: Case, arch: str) -> DeviceError | None:
    try:
        refuse_other_parameters(case, arch)
    except DeviceError as error:
        return error
    return None


def _without_nvcc(case: Case, arch: str) -> _Made | DeviceError:
    """What ptxas makes of PTX, or the binary that is the source."""
    try:
        made = compile_cubin(*_variant(case), arch)
    except (CompileError, ToolchainError) as error:
        return DeviceError("COMPILE_ERROR", str(error))
    return _refused(case, arch) or (made.cubin, made.symbol, None)


def _variant(case: Case) -> tuple[Kernel, Config, DType]:
    return case.kernel, case.config, case.dtype


class CudaDevice:
    """Runs and times cases on a visible GPU: number ``index``, or the first. Raises NoDevice without one.

    ``time_limit``: seconds a request may take before its kernel counts as hung; starting a worker has a limit
    of its own. ``times``: whether anything is to be timed on it.
    """

    name = "cuda"

    def __init__(self, time_limit: float = 60.0, index: int | None = None, times: bool = True) -> None:
        self.gpu = NvmlGpu() if index is None else NvmlGpu(index)
        self.info: GpuInfo = self.gpu.info()
        self.time_limit = time_limit
        self.index = index
        self._worker_is = (None if index is None else self.gpu.visible_as, times)
        self._abandoned = False
        self._asking = threading.RLock()  # its worker may be started ahead of the first question
        self._process: Process | None = None
        self._next: Process | None = None  # of the worker after this one
        self._compiled: dict[Any, _Made | DeviceError] = {}  # by variant
        self._binaries: dict[Any, StoredBinary] = {}  # by variant and problem: what they hold is hashed once
        self._roofs: dict[str, Any] = {}
        self._facts: dict[str, Any] = {}
        self._works: list[Work] = []  # whose numbers were drawn

    # The worker

    @property
    def pids(self) -> frozenset[int]:
        return frozenset([self._process.pid] if self._process else [])

    def start(self) -> None:
        """The worker, ahead of the first request. Raises DeviceError if none starts."""
        self._ask("hello")

    def _end(self, seconds: float = 0.0) -> None:
        """Gives it so many seconds to end by itself."""
        if self._process is not None:
            self._process.close(seconds)
        self._process = None

    def ahead(self) -> None:
        """Starts the process of the worker after this one, which takes a while: it imports, draws the numbers
        that this one has drawn, and waits."""
        self._next = self._next or Process(_serve, *self._worker_is, self._works)

    def close(self) -> None:
        self.restart()
        with self._asking:  # a thread of the run may close it, too
            following, self._next = self._next, None
        if following is not None:
            following.close()

    def restart(self) -> None:
        """The next request has a new worker: a new process, context and memory layout."""
        with self._asking:
            if self._process is not None:
                self._process.tell(("stop",))
            self._end(_STOP_SECONDS)

    def abandon(self) -> None:
        """From another thread: kills the worker; what it does now and all that is asked later fails."""
        self._abandoned = True
        if (process := self._process) is not None:
            process.kill()

    def compiles_like(self, other: CudaDevice) -> None:
        """Shares what another GPU of the same compute capability knows of compiled kernels."""
        self._compiled, self._binaries = other._compiled, other._binaries

    def _ask(self, what: str, *given: Any, name: str = "", limit: float | None = None) -> Any:
        """What that method of the `worker.Worker` returns. Raises DeviceError, which begins with ``name``, by
        default that of the binary that is given."""
        name = name or next((one.name for one in given[:1] if isinstance(one, StoredBinary)), what)
        with self._asking:
            if self._abandoned:
                raise DeviceError("WORKER_DIED", f"{name}: the run has ended")
            if self._process is None:
                self._process, self._next = self._next or Process(_serve, *self._worker_is), None
                late = f"the worker process was not ready within {_START_SECONDS:g} s"
                try:
                    self._exchange(("hello",), name, _START_SECONDS, "NO_START", late)
                except DeviceError:
                    self._end()
                    raise
            limit = limit or self.time_limit
            late = f"no answer within {limit:g} s: the kernel hangs; its worker was killed"
            return self._exchange((what, *given), name, limit, "HANG", late)

    def _exchange(self, request: tuple[Any, ...], name: str, limit: float, code: str, late: str) -> Any:
        """The worker's answer. Raises DeviceError; if there is no answer in time, with ``code`` and
        ``late``."""
        assert self._process is not None
        try:
            reply: Reply = self._process.ask(request, limit)
        except TimeoutError:
            self._end()
            raise DeviceError(code, f"{name}: {late}") from None
        except Died as died:
            self._end()
            raise DeviceError("WORKER_DIED", f"{name}: the worker process died ({died})") from None
        if reply.fatal:
            self._end()
        if reply.code:
            prefix = "" if reply.message.startswith(name) else f"{name}: "
            raise DeviceError(reply.code, prefix + reply.message)
        return reply.value

    # What a device does

    def _compile(self, cases: Sequence[Case], step: Step, name: str = "") -> None:
        """Fills `_compiled` with these cases' variants, by the worker, in pieces small enough to count;
        ``name``: of the one case that needs it."""
        left = list[tuple[Case, ModuleSource]]()
        for case in cases:
            if not case.kernel.by_nvcc:
                self._compiled[_variant(case)] = _without_nvcc(case, arch(self.info.capability))
                step(case.variant)
                continue
            try:
                left.append((case, source_for(case, self.info.capability)))
            except DeviceError as error:
                self._compiled[_variant(case)] = error
        at_once = 8 * len(os.sched_getaffinity(0))
        for some in (left[i : i + at_once] for i in range(0, len(left), at_once)):
            sources, kept = [source for _, source in some], [one for one in some if one[1].ptx.is_file()]
            with ThreadPoolExecutor(1) as pool:
                # What was compiled before is looked at while the worker starts, or compiles the others.
                looked_at = pool.submit(lambda of: {c.variant: _refused(c, s.arch) for c, s in of}, kept)
                if not name:
                    self.start()  # a process that is gone is no kernel's fault
                made = self._ask("compile", sources, name=name, limit=_COMPILE_SECONDS)
            refused = looked_at.result()
            for (case, source), one in zip(some, made, strict=True):
                if isinstance(one, str):
                    self._compiled[_variant(case)] = DeviceError("COMPILE_ERROR", one)
                else:
                    if case.variant not in refused:
                        refused[case.variant] = _refused(case, source.arch)
                    self._compiled[_variant(case)] = refused[case.variant] or (*one, source)
                step(source.name)

    def _binary(self, case: Case) -> StoredBinary:
        """What is launched for a case, compiled once for all problems; of a library without a cubin. Raises
        as `source_for`, and ValueError for a row for which nothing was chosen."""
        if case.kernel.is_dispatcher:
            raise ValueError(f"{case.id}: nothing was chosen for it")
        key = _variant(case), case.problem
        if key not in self._binaries:
            self._binaries[key] = self._made(case)
        return self._binaries[key]

    def _made(self, case: Case) -> StoredBinary:
        """As `_binary`."""
        if not case.kernel.compiled:
            return StoredBinary(case.variant, b"", "", Work.of(case))
        if _variant(case) not in self._compiled:
            self._compile([case], lambda what: None, case.variant)
        known = self._compiled[_variant(case)]
        if isinstance(known, DeviceError):
            raise DeviceError(known.code, str(known))
        cubin, symbol, source = known
        if source is None:
            return StoredBinary(case.variant, cubin, symbol, Work.of(case))
        return CompiledBinary(case.variant, cubin, symbol, Work.of(case), source)

    def prepare(self, cases: Iterable[Case], step: Step = lambda what: None) -> dict[str, str]:
        """Compiles what the cases need, in parallel; returns the compiler's messages for those that
        failed, which are reported again when they run. ``step`` is called with the name of each variant."""
        variants = {case.variant: case for case in cases if case.kernel.compiled}
        self._compile([case for case in variants.values() if _variant(case) not in self._compiled], step)
        self.start()
        found = {name: self._compiled[_variant(case)] for name, case in variants.items()}
        errors = {name: known for name, known in found.items() if isinstance(known, DeviceError)}
        return {name: str(error) for name, error in errors.items() if error.code == "COMPILE_ERROR"}

    def prepare_inputs(self, cases: Iterable[Case]) -> None:
        """Makes the random numbers that these cases are timed on, ahead of the first: two seconds for all of
        a suite, in which the GPU does nothing."""
        works = map(Work.of, cases)
        drawn = {(w.dtype.name, w.operation, w.depth, *w.draws.values()): w for w in works}
        self._works = list(drawn.values())
        self._ask("prepare_inputs", self._works)

    def run(self, case: Case, inputs: Inputs) -> Outputs:
        return self.run_series([case], [inputs])[0]

    def run_series(self, cases: Sequence[Case], inputs: Sequence[Inputs]) -> list[Outputs]:
        """Several launches of one variant, one after another. What they have in common travels once: pickle
        sends an array that several of them name only the first time."""
        binary, works = self._binary(cases[0]), [*map(Work.of, cases)]
        workspace = new_workspace(cases[0]) if cases[0].kernel.workspace else None
        looked_at = cases[0].kernel.operation.result.name  # of several outputs one
        outputs: list[Outputs] = self._ask("run", binary, works, [*map(dict, inputs)], workspace, looked_at)
        return outputs

    def time(self, case: Case, plan: Plan) -> Measurement:
        """Checks the case at its problem on integers, times it, checks the output of a timed launch.

        With the duty cycle that its kernel declares. Raises DeviceError, with code WRONG where an output is.
        """
        plan = replace(plan, duty=case.kernel.duty)
        measurement: Measurement = self._ask("time", self._binary(case), plan)
        return measurement

    def binary(self, case: Case) -> StoredBinary | None:
        """What is launched for a case, without the GPU; None for a library. Raises DeviceError COMPILE_ERROR
        or SIGNATURE."""
        return self._binary(case) if case.kernel.compiled else None

    def pair(self, base: Case | StoredBinary, case: Case | StoredBinary, plan: PairPlan) -> PairedSamples:
        """Times two builds of a problem in turn in one worker, A being ``base``; checks both, but that a
        stored binary, which was judged when it was stored, is held against the library alone.

        At the duty cycle that the case's kernel declares, or the plan's. Raises DeviceError, whose code
        begins with BASE_ where it was the base that failed.
        """
        if isinstance(case, Case):
            plan = replace(plan, duty=case.kernel.duty)
        judged = isinstance(base, StoredBinary)
        second = case if isinstance(case, StoredBinary) else self._binary(case)
        try:
            first = base if isinstance(base, StoredBinary) else self._binary(base)
        except DeviceError as error:
            raise DeviceError(f"BASE_{error.code}", str(error)) from None
        first = replace(first, name=f"{first.name} of the base")
        samples: PairedSamples = self._ask("pair", first, second, plan, judged, name=second.name)
        return samples

    def resources(self, case: Case) -> Resources | None:
        resources: Resources | None = self._ask("resources", self._binary(case))
        return resources

    def facts(self) -> dict[str, Any]:
        """Versions that only the worker knows: {"cublas": "13.0.2"}."""
        self._facts = self._facts or self._ask("facts")
        return self._facts

    def roofs(self) -> dict[str, Any]:
        """What this GPU can do at most, measured once (`bench.measure_roofs`)."""
        self._roofs = self._roofs or self._ask("roofs")
        return self._roofs

    def health(self) -> dict[str, Any]:
        """Whether it is as it should be: the rates of `roofs`, settings, and other processes."""
        rates = {name: roof for name, roof in self.roofs().items() if name != "cycles"}
        return {**rates, **self.gpu.settings(), "others": self.busy()}

    def busy(self) -> list[str]:
        """Other processes that compute on this GPU."""
        return self.gpu.others(self.pids)
