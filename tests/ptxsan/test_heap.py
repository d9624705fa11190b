"""malloc and free of device code: what is given, what is freed, and mistakes with it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ptxsan

FILE = Path(__file__).with_name("kernels") / "heap.cu"
LENGTHS = np.arange(64, dtype=np.int32) % 7


def lists(*defines: str) -> ptxsan.LaunchResult:
    kernel = ptxsan.load(FILE, defines=defines).kernel("lists")
    return kernel[1, 64](LENGTHS, ptxsan.Empty(64, np.int32))


def mistakes(n: int, *defines: str) -> ptxsan.LaunchResult:
    return ptxsan.load(FILE, defines=defines).kernel("mistakes")[2, 32](ptxsan.Empty(64, np.int32), n)


@pytest.mark.parametrize("numpy", [False, True])
def test_lists(numpy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if numpy:
        monkeypatch.setattr("ptxsan.machine.memory.shared_memory.library", lambda: None)
    result = lists()
    assert (result.hazards, result.notes) == ((), ())
    assert list(result.arrays[1]) == list(LENGTHS * (LENGTHS - 1) // 2)


def test_what_is_not_freed_is_noted() -> None:
    result = lists("LEAK")
    assert result.hazards == ()
    (note,) = result.notes
    assert note.check == "bounds"
    assert (
        "ends with 48 bytes that malloc gave and nobody has freed, the first of them to thread (3,"
        in note.message
    )


@pytest.mark.parametrize(
    ("defines", "check", "said"),
    [
        (
            ["AFTER"],
            "bounds",
            "in the 16 bytes that malloc gave thread (1, 0, 0) of block (0, 0, 0), which th",
        ),
        (["UNSET"], "uninit", "branches on an undefined predicate, which comes from byte 8 of the 16 bytes"),
    ],
)
def test_a_mistake_with_lists(defines: list[str], check: str, said: str) -> None:
    found = lists(*defines).hazards
    assert found[0].check == check
    assert said in found[0].message


def test_blocks() -> None:
    result = mistakes(5)
    assert (result.hazards, result.notes) == ((), ())
    assert list(result.arrays[0]) == [1] * 64


@pytest.mark.parametrize(
    ("define", "check", "said"),
    [
        (
            "PAST",
            "bounds",
            "writes 4 bytes at …, 0 bytes past the end of the 20 bytes that malloc gave thread (0",
        ),
        (
            "TWICE",
            "bounds",
            "frees the 20 bytes that malloc gave …, 0, 0) of block (0, 0, 0) a second time",
        ),
        ("MIDDLE", "bounds", "which malloc has not given"),
        (
            "UNWRITTEN",
            "uninit",
            "stores an undefined value to out[0], … byte 16 of the 20 bytes",
        ),
    ],
)
def test_a_mistake_with_blocks(define: str, check: str, said: str) -> None:
    found = mistakes(5, define).hazards
    assert found[0].check == check
    for part in said.split("…"):
        assert part in found[0].message


def test_no_more_than_eight_megabytes() -> None:
    """As many threads as get memory are told so, the others get none: 2 of 64 blocks each of 3 MiB."""
    result = mistakes(3 << 18)
    assert result.arrays[0].sum() == 2
    assert result.hazards == ()


def test_blocks_from_launch_to_launch() -> None:
    module = ptxsan.load(FILE)
    first = module.kernel("fill")[1, 32](100)
    assert first.hazards == ()
    assert [note.check for note in first.notes] == ["bounds"]
    second = module.kernel("drain")[1, 32](100, ptxsan.Empty(100, np.int32))
    assert (second.hazards, second.notes) == ((), ())
    assert list(second.arrays[1]) == [i * i for i in range(100)]
    third = module.kernel("drain")[1, 32](100, ptxsan.Empty(100, np.int32))
    assert "which thread (0, 0, 0) of block (0, 0, 0) has freed" in third.hazards[0].message


def test_free_of_what_others_still_write() -> None:
    module = ptxsan.load(FILE, defines=["EARLY"])
    found = module.kernel("fill")[1, 64](100).hazards
    assert any(h.check == "race" and "frees byte 4 of the 400 bytes" in h.message for h in found), found
