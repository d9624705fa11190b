"""The rules of mbarriers, the async proxy and wgmma: our kernels run clean, planted mistakes are found."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

import ptxsan
from tests.hopper.cases import Launch, bulk, multicast, pipeline, registers, ring, sums, tokens


def ran(launch: Launch) -> tuple[ptxsan.LaunchResult, bool]:
    """What the emulated device says of a launch, and whether it is right."""
    result = launch.emulate()
    return result, launch.right(result.arrays)


def said(result: ptxsan.LaunchResult) -> str:
    return "\n".join(f"{h.check}: {h.message}" for h in result.hazards)


# Name of the mistake, and what is said of it; "" where the values alone are wrong.
PIPELINE = {
    "EXPECT_LESS": r"hang: .*waits for ever for the mbarrier .*tx-count -1024 bytes",
    "EXPECT_MORE": r"hang: .*waits for ever for the mbarrier .*tx-count 1024 bytes",
    "EXPECT_A_ONLY": r"barrier: .*ends with the mbarrier .*not as many bytes were copied as were expected",
    "EMPTY_COUNTS_ONE": r"hang: .*waits for ever for the mbarrier",  # two phases at each release
    "EMPTY_COUNTS_THREE": r"hang: .*waits for ever for the mbarrier",
    "NO_FENCE_INIT": r"note: race: .*initialisation the async proxy need not see",
    "NO_BARRIER_AFTER_INIT": r"race: .*uses the mbarrier .*initialised with no barrier between",
    "NO_WAIT_FOR_EMPTY": r"race: .*copies to .*is still writing",
    "EMPTY_WRONG_PARITY": r"hang: .*waits for ever for the mbarrier",
    "EMPTY_OF_ANOTHER_STAGE": r"hang: .*waits for ever for the mbarrier",
    "B_ON_ANOTHER_BARRIER": r"race: .*copies to .*is still writing",
    "FULL_WRONG_PARITY": r"uninit: .*reads shared memory",
    "FULL_OF_ANOTHER_STAGE": r"uninit: .*reads shared memory",
    "ONE_THREAD_WAITS": r"race: .*reads .*to which a cp.async.bulk.tensor\S* is still writing",
    "NO_WAIT_FOR_FULL": r"uninit: .*reads shared memory",
    "RELEASE_BEFORE_USE": r"race: .*copies to .*which a wgmma.mma_async\S* is still reading",
    "RELEASE_TWICE": r"hang: .*waits for ever for the mbarrier",
    "RELEASE_THREE_TIMES": r"barrier: .*waits by parity for phase 0 of the mbarrier .*is in phase 3 by now",
    "NO_RELEASE": r"hang: .*waits for ever for the mbarrier",
    "NO_WGMMA_FENCE": r"race: .*uses registers that were accessed since the last wgmma.fence",
    "SECOND_HALF_OF_A_MISALIGNED": r"note: misaligned: .*within the pattern of a 128-byte swizzle",
    "WRONG_SWIZZLE": "",
    "WRONG_STRIDE": "",
    "NO_COMMIT": r"race: .*touches .*which a wgmma in flight uses",
    "WAIT_TOO_LAX": r"race: .*touches .*which a wgmma in flight uses",
    "NO_WGMMA_WAIT": r"race: .*touches .*which a wgmma in flight uses",
    "TOUCH_IN_FLIGHT": r"race: .*touches .*which a wgmma in flight uses",
    "NO_PROXY_FENCE": r"race: .*reads .*wrote with no fence.proxy.async between",
    "NO_MEET": r"race: .*reads .*wrote with nothing between",
    "MEET_TOO_FEW": r"barrier: .*waits at a barrier",
    "REUSE_STORED": r"race: .*writes .*which a cp.async.bulk.tensor\S* is still reading",
    "TOO_MANY_REGISTERS": r"hang: .*waits for ever for registers",
}


@pytest.mark.turns
@pytest.mark.parametrize("mistake", PIPELINE)
def test_a_mistake_in_the_pipeline_is_found(mistake: str) -> None:
    result, right = ran(pipeline(mistake))
    check(result, right, PIPELINE[mistake])


def check(result: ptxsan.LaunchResult, right: bool, wanted: str) -> None:
    if not wanted:
        assert not right
        return
    found = result.notes if wanted.startswith("note: ") else result.hazards
    wanted = wanted.removeprefix("note: ")
    assert any(re.search(wanted, f"{h.check}: {h.message}") for h in found), said(result)


OTHERS: dict[Callable[..., Launch], dict[str, str]] = {
    multicast: {
        "OWN_RELEASES_ALONE": r"race: .*copies to .*read with nothing between",
        "BLOCK_BARRIER_AFTER_INIT": r"race: .*uses the mbarrier .*of block .* with no barrier between",
        "RELAXED_WITHOUT_FENCE": r"race: .*uses the mbarrier .*of block .* with no barrier between",
        "EXPECT_OWN_HALF": r"race: .*reads .*is still writing",
        "MASK_OF_ONE": r"hang: .*waits for ever for the mbarrier .*tx-count 2048 bytes",
        "MASK_OF_THREE": r"bounds: .*copies to blocks of mask 0x7 in a cluster of 2",
        "SAME_HALF": r"race: .*copies to .*is still writing",
        "NO_WARP_BARRIER": r"race: .*copies to .*which thread 1 read with nothing between",
        "NO_BARRIER_BEFORE_EXIT": r"race: .*uses the shared memory of block .*may have exited",
    },
    sums: {
        "BLOCK_BARRIER": r"race: .*reads .*of block .* wrote with no barrier between",
        "RELAXED_ARRIVAL": r"race: .*reads .*of block .* wrote with no barrier between",
        "NO_BARRIER": r"race: .*reads .*of block .* wrote with no barrier between",
        "WRITES_FIRST": r"race: .*uses the shared memory of block .*nothing that shows that it runs",
        "EXIT_EARLY": r"race: .*uses the shared memory of block .*may have exited",
    },
    bulk: {
        "SAME_BUFFER": r"race: .*copies to .*is still reading",
        "PARITY_STAYS": r"hang: .*waits for ever for the mbarrier",
        "NO_FENCE": r"race: .*reads .*with no fence.proxy.async between",
        "FENCE_OF_ONE": r"race: .*reads .*with no fence.proxy.async between",
        "NOT_OF_16": r"misaligned: .*copies 1016 bytes",
        "FROM_OFF_16": r"misaligned: .*is not aligned to 16 bytes",
        "WAITS_FOR_ALL_BUT_ONE": r"race: .*writes .*is still reading",
        "WAIT_OF_ANOTHER_THREAD": r"race: .*writes .*is still reading",
    },
    tokens: {
        "COUNTS_COPIES_APART": r"hang: .*waits for ever for the mbarrier .*256 of 256 arrivals",
        "ARRIVES_WITHOUT_COPIES": r"race: .*reads .*where an asynchronous copy of thread \d+ is in flight",
        "NO_STATE_WAIT": r"race: .*reads .*which thread \d+ wrote with no barrier between",
    },
    registers: {"RELEASES_EARLY": r"race: .*copies to .*which thread \d+ read with nothing between"},
    ring: {
        "NO_FENCE": r"race: .*reads .*with no fence.proxy.async between",
        "OWN_BARRIER": r"bounds: .*copies to one block and tells an mbarrier of another",
    },
}


@pytest.mark.parametrize("kernel", [pipeline, multicast, sums, bulk, registers, tokens, ring])
def test_a_kernel_is_right(kernel: Any) -> None:
    result, right = ran(kernel())
    assert right
    assert result.clean, said(result)
    assert not result.notes


LEGAL = [(bulk, "FENCE_AFTER_BARRIER"), (bulk, "WAITS_ENOUGH"), (multicast, "RELAXED_AFTER_FENCE")]


@pytest.mark.parametrize(("kernel", "legal"), LEGAL)
def test_what_is_legal_is_not_reported(kernel: Any, legal: str) -> None:
    result, right = ran(kernel(legal))
    assert right
    assert result.clean, said(result)


@pytest.mark.turns
@pytest.mark.parametrize(("kernel", "mistake"), [(kernel, m) for kernel in OTHERS for m in OTHERS[kernel]])
def test_a_mistake_in_the_others_is_found(kernel: Any, mistake: str) -> None:
    result, right = ran(kernel(mistake))
    check(result, right, OTHERS[kernel][mistake])


def test_stores_that_nobody_waits_for_are_noted() -> None:
    for mistake in ("NO_STORE_WAIT", "NO_STORE_COMMIT"):
        result, right = ran(pipeline(mistake))
        assert right
        assert any("exits while its bulk copy may still read" in note.message for note in result.notes)
