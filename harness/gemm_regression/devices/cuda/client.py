"""CudaDevice: the parent's side of the worker process.

After an illegal address no CUDA context works in that process any more, and a kernel in an endless loop never
returns: either costs the worker and the case, but not the run.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from gemm_regression.compiler.nvcc import compile_ptx, entry_symbol
from gemm_regression.compiler.objects import mismatch
from gemm_regression.compiler.tools import CompileError, arch
from gemm_regression.devices import DeviceError, Inputs, Outputs
from gemm_regression.devices.cuda.environment import Gpu, GpuInfo
from gemm_regression.devices.cuda.protocol import Build, Reply, Request
from gemm_regression.devices.stored import StoredBinary
from gemm_regression.devices.work import Work, new_workspace
from gemm_regression.model import Case, Resources
from gemm_regression.timing.plan import Measurement, PairPlan, Plan
from gemm_regression.timing.samples import PairedSamples

_START_SECONDS = 120.0  # a first context on a machine with many GPUs takes its time


def _serve(connection: Any, visible_as: str | None = None, times: bool = True) -> None:
    """The worker's first step; keeps PyCUDA out of the parent process. It sees this GPU alone."""
    if visible_as is not None:
        os.environ.update(CUDA_VISIBLE_DEVICES=visible_as)
    from gemm_regression.devices.cuda.worker import main

    main(connection, times)


def _depth(case: Case) -> int:
    """How many products each result sums."""
    return int(getattr(case.problem, case.kernel.operation.depth))


class CudaDevice:
    """Runs and times cases on a visible GPU: number ``index``, or the first. Raises NoDevice without one.

    ``time_limit``: seconds a request may take before its kernel counts as hung; starting a worker has a limit
    of its own. ``times``: whether anything is to be timed on it.
    """

    name = "cuda"

    def __init__(self, time_limit: float = 60.0, index: int | None = None, times: bool = True) -> None:
        self.gpu = Gpu() if index is None else Gpu(index)
        self.info: GpuInfo = self.gpu.info()
        self.time_limit = time_limit
        self.index = index
        self._times = times
        self._visible_as = None if index is None else self.gpu.visible_as
        self._abandoned = False
        self._asking = threading.RLock()  # its worker may be started ahead of the first question
        self._process: Any = None
        self._pipe: Any = None
        self._next: tuple[Any, Any] | None = None  # process and pipe of the worker after this one
        self._failed_builds: dict[str, str] = {}
        self._signatures: dict[Any, str | None] = {}
        self._builds: dict[Any, Build] = {}
        self._binaries: dict[Build, tuple[bytes, str]] = {}
        self._roofs: dict[str, Any] = {}

    # The worker

    @property
    def pids(self) -> frozenset[int]:
        return frozenset([self._process.pid] if self._process else [])

    def _start(self, name: str) -> None:
        """A worker that has reported ready. Raises DeviceError, which names ``name``, if none starts."""
        self._process, self._pipe = self._next or self._begun()
        self._next = None
        late = f"the worker process was not ready within {_START_SECONDS:g} s"
        try:
            self._exchange(Request("hello"), name, _START_SECONDS, "NO_START", late)
        except DeviceError:
            self._kill()
            raise

    def _begun(self) -> tuple[Any, Any]:
        """A worker's process and pipe. It imports what it needs, and waits; the first request makes its
        context."""
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        given: list[Any] = [theirs]
        if self._visible_as is not None or not self._times:
            given += [self._visible_as, self._times]
        process = context.Process(target=_serve, args=given, daemon=True)
        process.start()
        theirs.close()
        return process, ours

    def start(self) -> None:
        """The worker, ahead of the first request. Raises DeviceError if none starts."""
        self._ask(Request("hello"))

    def ahead(self) -> None:
        """Starts the process of the worker after this one, which takes a second: it imports, and waits."""
        self._next = self._next or self._begun()

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join(10)
            self._pipe.close()
        self._process = None

    def restart(self) -> None:
        """Starts a new worker: a new process, context and memory layout."""
        self._end()

    def abandon(self) -> None:
        """From another thread: kills the worker; what it does now and all that is asked later fails."""
        self._abandoned = True
        if (process := self._process) is not None:
            process.kill()

    def compiles_like(self, other: CudaDevice) -> None:
        """Shares what another GPU of the same compute capability knows of compiled kernels."""
        self._failed_builds, self._signatures = other._failed_builds, other._signatures
        self._binaries = other._binaries

    def close(self) -> None:
        self._end()
        if self._next is not None:
            process, pipe = self._next
            self._next = None
            pipe.close()
            process.kill()
            process.join(10)

    def _end(self) -> None:
        with self._asking:
            if self._process is not None:
                try:
                    self._pipe.send(Request("stop"))
                    self._process.join(20)
                except (OSError, ValueError):
                    pass
                self._kill()

    def _ask(self, request: Request, limit: float | None = None) -> Any:
        name = request.builds[-1].name if len(request.builds) == 1 or request.pair else request.what
        with self._asking:
            if self._abandoned:
                raise DeviceError("WORKER_DIED", f"{name}: the run has ended")
            if self._process is None:
                self._start(name)
            limit = limit or self.time_limit
            late = f"no answer within {limit:g} s: the kernel hangs; its worker was killed"
            return self._exchange(request, name, limit, "HANG", late)

    def _exchange(self, request: Request, name: str, limit: float, code: str, late: str) -> Any:
        """The worker's answer. Raises DeviceError, which begins with ``name``; if there is no answer in time,
        with ``code`` and ``late``."""
        try:
            self._pipe.send(request)
            if not self._pipe.poll(limit):
                self._kill()
                raise DeviceError(code, f"{name}: {late}")
            reply: Reply = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join(5)  # The pipe breaks before the exit code is known.
            exit_code = self._process.exitcode
            self._kill()
            raise DeviceError(
                "WORKER_DIED", f"{name}: the worker process died (exit code {exit_code})"
            ) from None
        if reply.fatal:
            self._kill()
        if reply.code:
            prefix = "" if reply.message.startswith(name) else f"{name}: "
            raise DeviceError(reply.code, prefix + reply.message)
        return reply.value

    # What a device does

    def _build(self, case: Case) -> Build:
        key = case.kernel, case.config, case.dtype
        if key not in self._builds:
            self._builds[key] = Build.of(case, self.info.capability)
        build = self._builds[key]
        if build.name in self._failed_builds:
            raise DeviceError("COMPILE_ERROR", self._failed_builds[build.name])
        if reason := self._signature(case):
            raise DeviceError("SIGNATURE", f"{build.name}: {reason}")
        return build

    def _signature(self, case: Case) -> str | None:
        """Why the compiled kernel does not take the parameters of a launch, or None; once per variant."""
        kernel, key = case.kernel, (case.kernel, case.config, case.dtype)
        if kernel.library:
            return None
        if key not in self._signatures:
            try:
                ptx = compile_ptx(kernel, case.config, case.dtype, arch(self.info.capability))
                symbol = entry_symbol(kernel, case.config, case.dtype, ptx)
            except CompileError as error:
                raise DeviceError("COMPILE_ERROR", str(error)) from None
            self._signatures[key] = mismatch(ptx, symbol, case.arguments)
        return self._signatures[key]

    def _looked_at(self, case: Case) -> None:
        with contextlib.suppress(DeviceError):  # reported when the case runs
            self._signature(case)

    def prepare(
        self, cases: Iterable[Case], step: Callable[[str], None] = lambda what: None
    ) -> dict[str, str]:
        """Compiles what the cases need, in parallel; returns the compiler's messages for those that
        failed. ``step`` is called with the name of a variant for its PTX, and for its cubin."""
        variants = {case.variant: case for case in cases}
        builds = {name: Build.of(case, self.info.capability) for name, case in variants.items()}
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for name, _ in zip(variants, pool.map(self._looked_at, variants.values()), strict=True):
                step(name)
        failed = self._compiled(list(builds.values()), step)
        self._failed_builds |= failed
        return failed

    def _compiled(self, builds: Sequence[Build], step: Callable[[str], None]) -> dict[str, str]:
        """The worker compiles them, in parallel, in pieces small enough to count; what failed, by name."""
        failed, at_once = dict[str, str](), 2 * (os.cpu_count() or 1)
        for some in (builds[i : i + at_once] for i in range(0, len(builds), at_once)):
            failed |= self._ask(Request("prepare", tuple(some)), limit=600.0)
            for build in some:
                step(build.name)
        return failed

    def run(self, case: Case, inputs: Inputs) -> Outputs:
        return self.run_series([case], [inputs])[0]

    def run_series(self, cases: Sequence[Case], inputs: Sequence[Inputs]) -> list[Outputs]:
        """Several launches of one variant, one after another. What they have in common travels once: pickle
        sends an array that several of them name only the first time."""
        first = cases[0]
        request = Request(
            "run",
            (self._build(first),),
            tuple(map(Work.of, cases)),
            inputs=tuple(map(dict, inputs)),
            workspace=new_workspace(first) if first.kernel.workspace else None,
        )
        outputs: list[Outputs] = self._ask(request)
        return outputs

    def prepare_inputs(self, cases: Iterable[Case]) -> None:
        """Makes the random numbers that these cases are timed on, ahead of the first: two seconds for all of
        a suite, in which the GPU does nothing."""
        of_kinds = {(c.dtype.name, c.kernel.operation, _depth(c)): c for c in cases}
        self._ask(Request("prepare_inputs", works=tuple(map(Work.of, of_kinds.values()))))

    def time(self, case: Case, plan: Plan) -> Measurement:
        """Checks the case at its problem on integers, times it, checks the output of a timed launch.

        With the duty cycle that its kernel declares. Raises DeviceError, with code WRONG where an output is.
        """
        plan = replace(plan, duty=case.kernel.duty)
        measurement: Measurement = self._ask(
            Request("time", (self._build(case),), (Work.of(case),), plan=plan)
        )
        return measurement

    def prepare_pairs(self, cases: Iterable[Case], step: Callable[[str], None] = lambda what: None) -> None:
        """Compiles what the cases of pairs need, in parallel; failures are reported again when they are
        timed. ``step`` is called with the name of each variant."""
        builds = dict.fromkeys(Build.of(case, self.info.capability) for case in cases if case.kernel.compiled)
        self._compiled(list(builds), step)

    def binary(self, case: Case) -> StoredBinary | None:
        """What is launched for a case, from the compiler's cache or the compiler; None for a library. Raises
        DeviceError COMPILE_ERROR or SIGNATURE."""
        if not case.kernel.compiled:
            return None
        build = self._build(case)
        if build not in self._binaries:
            (self._binaries[build],) = self._ask(Request("binary", (build,)), limit=600.0)
        cubin, symbol = self._binaries[build]
        return StoredBinary(case.variant, cubin, symbol, Work.of(case))

    def _side(self, of: Case | StoredBinary, base: bool) -> tuple[Build, Work]:
        if isinstance(of, StoredBinary):
            build, work = Build.given(of), of.work
        else:
            build, work = Build.of(of, self.info.capability) if base else self._build(of), Work.of(of)
        return (replace(build, name=f"{build.name} of the base") if base else build), work

    def pair(self, base: Case | StoredBinary, case: Case | StoredBinary, plan: PairPlan) -> PairedSamples:
        """Times two builds of a problem in turn in one worker, A being ``base``; checks both, but that a
        stored binary, which was judged when it was stored, is held against the library alone.

        At the duty cycle that the case's kernel declares, or the plan's. Raises DeviceError, whose code
        begins with BASE_ where it was the base that failed.
        """
        if isinstance(case, Case):
            plan = replace(plan, duty=case.kernel.duty)
        sides = self._side(base, True), self._side(case, False)
        builds, works = tuple(build for build, _ in sides), tuple(work for _, work in sides)
        samples: PairedSamples = self._ask(Request("pair", builds, works, pair=plan))
        return samples

    def resources(self, case: Case) -> Resources | None:
        resources: Resources | None = self._ask(Request("resources", (self._build(case),)))
        return resources

    def facts(self) -> dict[str, Any]:
        """Versions that only the worker knows: {"cublas": "13.0.2"}."""
        facts: dict[str, Any] = self._ask(Request("facts"))
        return facts

    def roofs(self) -> dict[str, Any]:
        """What this GPU can do at most, measured once (`bench.measure_roofs`)."""
        if not self._roofs:
            self._roofs = self._ask(Request("roofs"))
        return self._roofs

    def health(self) -> dict[str, Any]:
        """Whether it is as it should be: the rates of `roofs`, settings, and other processes."""
        rates = {name: roof for name, roof in self.roofs().items() if name != "cycles"}
        return {**rates, **self.gpu.settings(), "others": self.busy()}

    def busy(self) -> list[str]:
        """Other processes that compute on this GPU."""
        return self.gpu.others(self.pids)
