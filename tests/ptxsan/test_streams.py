"""Launches on streams: unordered ones that touch the same bytes are a race."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

import ptxsan

CODE = """
__device__ int launches;

extern "C" __global__ void fill(int* x, int from) { x[from + threadIdx.x] = threadIdx.x; }
extern "C" __global__ void copy(const int* x, int from, int* y) { y[threadIdx.x] = x[from + threadIdx.x]; }
extern "C" __global__ void add(int* x) { atomicAdd(x + threadIdx.x, 1); }
extern "C" __global__ void bytes(unsigned char* x, int from) { x[4 * threadIdx.x + from] = 1; }
extern "C" __global__ void count() { if (threadIdx.x == 0) launches += 1; }
extern "C" __global__ void bulk(const int* x, int* y)
{
    __shared__ alignas(16) int held[64];
    __shared__ unsigned long long full;
    unsigned bar = __cvta_generic_to_shared(&full), to = __cvta_generic_to_shared(held);
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(bar) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 256;" :: "r"(bar) : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                     "[%0], [%1], 256, [%2];" :: "r"(to), "l"(x), "r"(bar) : "memory");
        asm volatile("{.reg .pred p; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0;\\n"
                     "@!p bra AGAIN; }" :: "r"(bar) : "memory");
        for (int i = 0; i < 64; ++i) y[i] = held[i];
    }
}
"""
pytestmark = pytest.mark.compile


@cache
def module() -> ptxsan.Module:
    return ptxsan.load(CODE)


class Two:
    """Two streams and an array of 128 numbers. ``launch`` gives the hazards of a launch with 64 threads."""

    def __init__(self) -> None:
        self.one, self.two = ptxsan.Stream(), ptxsan.Stream()
        self.x = ptxsan.to_device(np.zeros(128, np.int32))
        self.event = ptxsan.Event()

    def launch(self, name: str, stream: ptxsan.Stream | None, *more: object) -> list[str]:
        kernel = module().kernel(name)
        given = [] if name == "count" else [self.x, *more]
        result = kernel[1, 64](*given, stream=stream)
        assert all(hazard.check == "race" for hazard in result.hazards)
        return [hazard.message for hazard in result.hazards]

    def fill(self, stream: ptxsan.Stream | None, first: int = 0) -> list[str]:
        return self.launch("fill", stream, first)

    def copy(self, stream: ptxsan.Stream | None, first: int = 0) -> list[str]:
        return self.launch("copy", stream, first, ptxsan.Empty(64, np.int32))


@pytest.fixture
def on() -> Two:
    return Two()


def test_both_kernels_are_named_at_the_line_of_the_later_one(on: Two) -> None:
    assert on.fill(on.one) == []
    (said,) = on.copy(on.two)
    assert re.match(
        rf"thread \(0, 0, 0\) of block \(0, 0, 0\) reads x\[0\], which fill on stream {on.one.number} wrote, "
        rf"with no event or synchronisation before copy on stream {on.two.number} at kernel\.cu:5 ",
        said,
    )


def _event(on: Two) -> None:
    on.event.record(on.one)
    on.two.wait(on.event)


def _event_by_a_third(on: Two) -> None:
    third, more = ptxsan.Stream(), ptxsan.Event()
    on.event.record(on.one)
    third.wait(on.event)
    more.record(third)
    on.two.wait(more)


def _event_of_the_host(on: Two) -> None:
    on.event.record(on.one)
    on.event.synchronize()


ORDERS: dict[str, Callable[[Two], object]] = {
    "an event": _event,
    "events through a third stream": _event_by_a_third,
    "the host waits for the stream": lambda on: on.one.synchronize(),
    "the host waits for all": lambda on: ptxsan.synchronize(),
    "the host waits for the event": _event_of_the_host,
    "a launch without a stream": lambda on: on.launch("count", None),
}


def _event_too_early(on: Two) -> None:
    """Recorded before the launch that is to be waited for."""
    _event(on)
    on.fill(on.one)


def _event_without_the_last_launch(on: Two) -> None:
    on.event.record(on.one)
    on.fill(on.one)
    on.two.wait(on.event)


def _event_of_the_waiter(on: Two) -> None:
    on.event.record(on.two)
    on.two.wait(on.event)


def _event_for_another(on: Two) -> None:
    on.event.record(on.one)
    ptxsan.Stream().wait(on.event)


NO_ORDERS: dict[str, Callable[[Two], object]] = {
    "nothing": lambda on: None,
    "an event that has recorded nothing": lambda on: on.two.wait(on.event),
    "an event before the launch": _event_too_early,
    "an event that leaves out the last launch": _event_without_the_last_launch,
    "an event of the stream itself": _event_of_the_waiter,
    "an event that another stream waits for": _event_for_another,
    "the host waits for the other stream": lambda on: on.two.synchronize(),
    "an array of its own": lambda on: Two().fill(on.two),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("twice", [False, True])
def test_what_orders_two_streams(on: Two, order: str, twice: bool) -> None:
    on.fill(on.one)
    ORDERS[order](on)
    assert on.copy(on.two) == []
    if twice:  # and back
        on.one, on.two = on.two, on.one
        ORDERS[order](on)
        assert on.fill(on.two) == []


@pytest.mark.parametrize("order", NO_ORDERS)
def test_what_does_not(on: Two, order: str) -> None:
    on.fill(on.one)
    NO_ORDERS[order](on)
    assert len(on.copy(on.two)) == 1


def test_launches_on_one_stream_are_ordered(on: Two) -> None:
    assert on.fill(on.one) + on.copy(on.one) + on.fill(on.one) == []


def test_a_write_after_a_read_is_one_too(on: Two) -> None:
    assert on.copy(on.one) == []
    (said,) = on.fill(on.two)
    assert f"writes x[0], which copy on stream {on.one.number} read, " in said


def test_other_bytes_and_two_reads_are_none(on: Two) -> None:
    assert on.fill(on.one) + on.fill(on.two, 64) + on.copy(on.one) + on.copy(on.two, 64) == []
    assert on.copy(ptxsan.Stream(), 32) != []


@pytest.mark.parametrize(("first", "second", "races"), [(0, 1, False), (1, 1, True)])
def test_bytes_of_one_word(first: int, second: int, races: bool) -> None:
    kernel, one, two = module().kernel("bytes"), ptxsan.Stream(), ptxsan.Stream()
    x = ptxsan.to_device(np.zeros(256, np.uint8))
    assert kernel[1, 64](x, first, stream=one).clean
    assert kernel[1, 64](x, second, stream=two).clean is not races


def test_atomics_of_both_are_none_and_one_beside_a_plain_access_is(on: Two) -> None:
    assert on.launch("add", on.one) + on.launch("add", on.two) == []
    assert len(on.copy(ptxsan.Stream())) == 1
    other = Two()
    assert other.copy(other.one) == []
    assert len(other.launch("add", other.two)) == 1


def test_a_bulk_copy_reads(on: Two) -> None:
    on.fill(on.one)
    (said,) = on.launch("bulk", on.two, ptxsan.Empty(64, np.int32))
    assert "reads x[0], which fill on stream" in said


def test_a_variable_of_the_module(on: Two) -> None:
    on.launch("count", on.one)
    assert "reads launches[0], which count on stream" in on.launch("count", on.two)[0]
    ptxsan.synchronize()
    assert on.launch("count", on.one) == []


def test_arrays_of_the_host_are_copies() -> None:
    x = np.zeros(64, np.int32)
    for stream in (ptxsan.Stream(), ptxsan.Stream()):
        assert module().kernel("fill")[1, 64](x, 0, stream=stream).clean


def test_what_the_host_has_waited_for_is_forgotten(on: Two) -> None:
    for first in (0, 32, 64):
        on.fill(on.one, first)
        ptxsan.synchronize()
    assert len(on.x.uses) == 1


def test_a_use_that_a_later_one_covers_is_forgotten_and_no_other(on: Two) -> None:
    for first in (0, 32, 0, 0):
        on.fill(on.one, first)
    assert len(on.x.uses) == 2
    assert len(on.copy(on.two, 48)) == 1
