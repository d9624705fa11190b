"""st.async and red.async between the blocks of a cluster (PTX ISA §9.7.9.12, §9.7.13.7)."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import ptxsan

FILE = Path(__file__).with_name("kernels") / "remote.cu"
X = np.arange(1, 257, dtype=np.uint32)


def ran(*defines: str, x: object = X) -> ptxsan.LaunchResult:
    grid = 1 if "BLOCKS=1" in defines else 2
    return ptxsan.run(FILE, grid=grid, block=32, arguments=[x, ptxsan.Empty(256, np.uint32)], defines=defines)


def test_stores() -> None:
    result = ran()
    assert (result.hazards, result.notes) == ((), ())
    assert np.array_equal(result.arrays[1], np.roll(X, 128))


def test_reductions_of_many_threads_at_once() -> None:
    result = ran("REDUCE")
    assert (result.hazards, result.notes) == ((), ())
    want = np.tile(np.array([0, 100, 200, 300], np.uint32), 64).reshape(2, 16, 8)
    want[:, :, 0] += np.roll(X, 128).reshape(2, 16, 2, 4)[..., :2].sum(axis=(2, 3), dtype=np.uint32)
    assert np.array_equal(result.arrays[1].reshape(2, 16, 8), want)


@pytest.mark.parametrize(
    ("defines", "said"),
    [
        (["NO_WAIT"], "uninit|race: .*reads .*to which a st.async\\S* is still writing"),
        (["REDUCE", "NO_WAIT"], "race: .*reads .*to which a red.async\\S* is still writing"),
        (["NO_CLUSTER_BARRIER"], "race: .*uses the (mbarrier|shared memory)"),
        (["EXPECT_LESS"], "race: .*reads .*is still writing"),
        (["OTHER_BARRIER"], "bounds: .*stores to one block and tells an mbarrier of another"),
        (["REDUCE", "TO_ITSELF"], "bounds: .*reduces in its own block"),
        (["BLOCKS=1"], "bounds: .*st.async.* in a cluster of one block"),
        (["REDUCE", "NOT_SET"], "uninit: .*stores an undefined value to out.*which no thread wrote"),
    ],
)
def test_a_mistake_is_found(defines: list[str], said: str) -> None:
    found = [f"{h.check}: {h.message}" for h in ran(*defines).hazards]
    assert found
    assert re.match(said, found[0]), found


def test_an_undefined_value_is_carried() -> None:
    """A word that nobody wrote is one word of the other block's, and no other."""
    x = ptxsan.device_array(256, np.uint32)
    x.initialised[:] = True
    x.initialised[5] = False
    (found,) = ran(x=x).hazards
    assert "stores an undefined value to out[133], which comes from in[5]" in found.message
