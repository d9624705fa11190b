"""What a GPU can do at most, measured (roofs.cu): arithmetic, bandwidths, latencies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pycuda.driver as cuda

from gemm_regression.devices.cuda.timing import Stopwatch, Turn
from gemm_regression.timing.roofs import THREADS, arithmetic, work

_LAUNCHES = 12
_ROUNDS = 400
_READERS = 512  # threads of a block that reads global memory
_TILES = (128 + 256) * 128  # bytes of shared memory of a block that uses wgmma
_FAR, _NEAR = 1 << 30, 16 << 20  # bytes: more than any L2, and less
_CHAIN = 2048


def measure(watch: Stopwatch, module: Any) -> dict[str, Any]:
    """The roofs by name: the fastest of some launches in GFLOPS or GB/s, the SM clock in MHz meanwhile, and
    the datasheet's arithmetic at that clock. "cycles": latencies, in cycles of the SM."""
    watch.ready()
    return _Probes(watch, module).all()


class _Probes:
    def __init__(self, watch: Stopwatch, module: Any) -> None:
        self._watch, self._module = watch, module
        device, named = cuda.Context.get_device(), cuda.device_attribute
        self.capability = device.compute_capability()
        self._sms = device.get_attribute(named.MULTIPROCESSOR_COUNT)
        clock = 1e3 * device.get_attribute(named.MEMORY_CLOCK_RATE)
        self._bus = 2 * clock * device.get_attribute(named.GLOBAL_MEMORY_BUS_WIDTH) / 8  # double data rate
        self._far, self._sink = cuda.mem_alloc(_FAR), cuda.mem_alloc(16)
        cuda.memset_d8(self._far, 0, _FAR)
        self._near = min(_NEAR, watch.l2_bytes // 4)

    def all(self) -> dict[str, Any]:
        tensor = ("f16", "bf16", "tf32") if self.capability >= (8, 0) else ()
        return {**self.of(("f32", *tensor, "shared", "l2", "dram")), "cycles": self._latencies()}

    def of(self, names: Sequence[str]) -> dict[str, Any]:
        """These roofs, with the datasheet's arithmetic at the clock of each."""
        roofs = {name: self._roof(name) for name in names}
        for name, roof in roofs.items():
            could = arithmetic(self.capability, self._sms, self._bus, 1e6 * roof.get("mhz", 0))
            if could.get(name):
                roof["arithmetic"] = round(could[name] / 1e9, 1)
        return roofs

    def _roof(self, name: str) -> dict[str, float]:
        amount, sms, sink = work(_ROUNDS), self._sms, int(self._sink)
        if name == "f32":
            return self._rate("fma_f32", 8 * sms, amount["f32"], "ifP", _ROUNDS, 0.5, sink)
        if name == "shared":
            return self._rate("shared_bytes", 8 * sms, amount["shared"], "iP", _ROUNDS, sink)
        if name in ("l2", "dram"):
            near = name == "l2"
            size, each = (self._near, self._near) if near else (_FAR, _FAR // (4 * sms))
            given = (int(self._far), size // 16, int(near), sink)
            return self._rate("global_bytes", 4 * sms, each, "PqiP", *given)
        return self._rate(f"tensor_{name}", 2 * sms, amount[name], "iP", _ROUNDS, sink)

    def _rate(self, name: str, blocks: int, amount: int, format: str, *given: Any) -> dict[str, float]:
        """Of launches in which each block does this amount of work."""
        function = self._module.get_function(name)
        shared = _TILES if name.startswith("tensor") and self.capability == (9, 0) else 0
        if shared:
            function.set_attribute(cuda.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES, shared)
        function.prepare(format)
        threads = (_READERS if name == "global_bytes" else THREADS, 1, 1)

        def enqueue(stream: Any) -> None:
            function.prepared_async_call((blocks, 1), threads, stream, *given, shared_size=shared)

        run = self._watch.sequence([Turn(enqueue)] * _LAUNCHES, "warm")
        best = int(np.argmin(run.seconds))
        rate, mhz = blocks * amount / run.seconds[best], run.mhz[best]
        found = {"gbps" if name.endswith("bytes") else "gflops": round(rate / 1e9, 1)}
        return found | ({"mhz": round(mhz, 1)} if mhz == mhz else {})

    def _latencies(self) -> dict[str, float]:
        """Cycles from one dependent step to the next: an FMA, or a load from where its operand lies."""
        random, found = np.random.default_rng(0), {}
        found["fma"] = self._cycles("chain_of_fma", "ifP", _CHAIN, 0.5)
        found["shared"] = self._cycles("chase_shared", "iP", _CHAIN)
        for name, size, step, entry in (
            ("l1", 8 * _CHAIN, 8, "chase_l1"),  # bytes; an element or a line of the cache each
            ("l2", self._near, 128, "chase_past_l1"),
            ("dram", _FAR, 128, "chase_past_l1"),
        ):
            places = random.choice(size // step, _CHAIN, replace=False).astype(np.uint32) * (step // 8)
            at = cuda.to_device(places)
            chain = self._module.get_function("chain").prepare("PiP")
            chain.prepared_call((1, 1), (256, 1, 1), int(at), _CHAIN, int(self._far))
            self._watch.flush()
            self._watch.stream.synchronize()
            first = int(self._far) + 8 * int(places[0])
            found[name] = self._cycles(entry, "QiiP", first, _CHAIN, int(name != "dram"))
        return found

    def _cycles(self, entry: str, format: str, *given: Any) -> float:
        function = self._module.get_function(entry).prepare(format)
        function.prepared_call((1, 1), (1, 1, 1), *given, int(self._sink))
        return round(float(cuda.from_device(int(self._sink), 1, np.int64)[0]) / _CHAIN, 1)
