"""The buffers of several launches in a GPU's memory at once, on a made-up GPU; bytes that changed around
A, B and C are told as what they are."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gemm_regression.devices.work import ALIGN, GUARD, violations
from gemm_regression.model import Array, Finding
from tests.gemm_regression.devices.fake_gpu import FakeGpu, made_up_gpu

LAUNCHES: list[dict[str, Array]] = [
    {"A": np.full((3, 5), number, np.float32), "C": np.full((3, 7), 10 + number, np.float16)}
    for number in range(4)
]
OFFSETS = {"A": 4, "C": 2}


Gpu = tuple[FakeGpu, Any]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    with made_up_gpu(monkeypatch, "worker") as (gpu, modules):
        yield gpu, modules.worker


def test_launches_have_places_of_their_own_and_are_copied_together(gpu: Gpu) -> None:
    memory, buffers = gpu[0], gpu[1].GuardedArena()
    images = buffers.upload(LAUNCHES, OFFSETS)
    for launch, image in zip(LAUNCHES, images, strict=True):
        for name, array in launch.items():
            assert (image.at[name] - OFFSETS[name]) % ALIGN == 0
            held = memory.at(image.at[name], array.nbytes).view(array.dtype).reshape(array.shape)
            assert np.array_equal(held, array)
            for band in (image.at[name] - GUARD, image.at[name] + array.nbytes):
                assert (memory.at(band, GUARD - ALIGN) == 0xFF).all()
    for number, image in enumerate(images):  # each launch writes C
        memory.at(image.at["C"], 2)[:] = number
    afters = buffers.download(images, LAUNCHES)
    assert memory.copies == 2
    for number, (launch, image, after) in enumerate(zip(LAUNCHES, images, afters, strict=True)):
        c = image.read("C", launch["C"], after)
        assert c.view(np.uint8).reshape(-1)[:2].tolist() == [number, number]
        assert np.array_equal(c.reshape(-1)[1:], launch["C"].reshape(-1)[1:])
        assert violations(image.bytes, after, launch, image.starts, ("C",)) == ()


def test_a_byte_between_two_launches_belongs_to_one_of_them(gpu: Gpu) -> None:
    memory, buffers = gpu[0], gpu[1].GuardedArena()
    images = buffers.upload(LAUNCHES, OFFSETS)
    memory.at(images[1].at["C"] + LAUNCHES[1]["C"].nbytes, 1)[:] = 0
    afters = buffers.download(images, LAUNCHES)
    each = zip(LAUNCHES, images, afters, strict=True)
    found = [violations(image.bytes, after, launch, image.starts, ("C",)) for launch, image, after in each]
    assert [len(of) for of in found] == [0, 1, 0, 0]
    assert "0 bytes past the end of C" in found[1][0].message


def test_later_launches_find_nothing_of_earlier_ones(gpu: Gpu) -> None:
    buffers = gpu[1].GuardedArena()
    buffers.upload(LAUNCHES, OFFSETS)
    (image,) = buffers.upload(LAUNCHES[:1], OFFSETS)
    (after,) = buffers.download([image], LAUNCHES[:1])
    assert np.array_equal(after, image.bytes)


def test_under_a_sanitizer_one_launch_at_a_time_has_memory(gpu: Gpu) -> None:
    memory, buffers = gpu[0], gpu[1].ExactBuffers()
    assert buffers.most == 0
    (image,) = buffers.upload(LAUNCHES[2:3], OFFSETS)
    memory.at(image.at["C"], 2)[:] = 5
    (after,) = buffers.download([image], LAUNCHES[2:3])
    assert image.read("C", LAUNCHES[2]["C"], after).view(np.uint8).reshape(-1)[0] == 5
    with pytest.raises(ValueError, match="too many values"):
        buffers.upload(LAUNCHES[:2], OFFSETS)


def test_of_several_outputs_a_launch_gives_the_one_that_is_looked_at(gpu: Gpu) -> None:
    worker = object.__new__(gpu[1].CudaWorker)
    bound = SimpleNamespace(bind=lambda work, at: lambda stream: None)
    worker._arena, worker._kernels = gpu[1].GuardedArena(), SimpleNamespace(get=lambda binary: bound)
    work = SimpleNamespace(offsets=OFFSETS, outputs=["C", "A"])
    for name in ("A", "C"):
        found = worker.run(None, [work] * 4, LAUNCHES, None, name)
        for output, launch in zip(found, LAUNCHES, strict=True):
            assert output.violations == ()
            assert np.array_equal(output.result, launch[name])


# What changed

BUFFERS: dict[str, Array] = {
    "A": np.zeros((4, 8), np.float32),
    "B": np.zeros((8, 4), np.float16),
    "C": np.zeros((4, 5), np.float32),
}
A, B, C = GUARD, 3 * GUARD, 5 * GUARD


def found_in(changed: list[int]) -> tuple[Finding, ...]:
    before = np.full(6 * GUARD, 0xFF, np.uint8)
    after = before.copy()
    after[changed] = 0
    return violations(before, after, BUFFERS, {"A": A, "B": B, "C": C}, ("C",))


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ([A + 4 * 10], "input A was changed at (1, 2), 1 bytes in all"),
        ([B + 2 * 5, B + 2 * 5 + 1], "input B was changed at (1, 1), 2 bytes in all"),
        ([C + 80, C + 81], "guard band was written, first 0 bytes past the end of C, 2"),
        ([C - 4], "a guard band was written, first 4 bytes before the start of C, 1"),
        ([B + 64 + 8], "a guard band was written, first 8 bytes past the end of B, 1"),
        ([A - 1], "a guard band was written, first 1 bytes before the start of A, 1"),
    ],
    ids=["A", "B", "past C", "before C", "past B", "before A"],
)
def test_a_changed_byte_is_named_after_its_place(changed: list[int], line: str) -> None:
    (found,) = found_in(changed)
    assert found.check == "guard"
    assert line in found.message


def test_writing_all_of_c_is_no_violation_and_an_input_and_a_guard_band_are_two() -> None:
    assert found_in([*range(C, C + 80)]) == ()
    assert len(found_in([A, C + 80])) == 2
