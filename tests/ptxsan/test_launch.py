"""What a GPU refuses to launch is refused here, and blocks need not be of whole warps."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ptxsan
from gemm_regression.devices import DeviceError
from gemm_regression.devices.emulated import EmulatedDevice
from gemm_regression.model import F32, BlockShape, Case, Config, Kernel, Problem
from gemm_regression.oracle import verify
from tests.ptxsan.rig import Array

TEXT = """
.version 9.0
.target {target}
.address_size 64
.visible .entry k(.param .u64 k_out)
{directives}
{{
.reg .b32 %r<2>;
.reg .b64 %rd<2>;
.shared .align 4 .b8 cells[{shared}];
ld.param.u64 %rd1, [k_out];
st.global.u32 [%rd1], 7;
ret;
}}
"""


def launched(
    block: Any = 32,
    grid: Any = 1,
    dynamic: int = 0,
    shared: int = 4,
    target: str = "sm_90a",
    directives: str = "",
) -> bool:
    text = TEXT.format(target=target, shared=shared, directives=directives)
    out = np.zeros(1, np.int32)
    result = ptxsan.run(text, grid=grid, block=block, arguments=[out], shared=dynamic)
    return bool(result.arrays[0][0] == 7)


LAUNCHES = tomllib.loads(Path(__file__).with_name("launch.toml").read_text(encoding="utf-8"))["launch"]


@pytest.mark.parametrize("how", LAUNCHES, ids=str)
def test_a_launch_that_a_gpu_refuses(how: dict[str, Any]) -> None:
    how = {name: tuple(value) if isinstance(value, list) else value for name, value in how.items()}
    if (reason := how.pop("refused", "")) == "":
        assert launched(**how)  # a block of several threads is a race on the one word, and runs all the same
        return
    with pytest.raises(ptxsan.LaunchError) as caught:
        launched(**how)
    said = str(caught.value)
    assert said.startswith("a GPU refuses to launch k: ")
    assert said.endswith(reason)


KERNELS = Path(__file__).parent / "kernels"
SUM = (KERNELS / "sums.cu").read_text(encoding="utf-8")


def ballots(x: Array) -> list[int]:
    """Of the warps of blocks of so many numbers."""
    found = []
    for block in x:
        for start in range(0, len(block), 32):
            warp = block[start : start + 32]
            found += [sum(int(v % 2) << i for i, v in enumerate(warp))] * len(warp)
    return found


@pytest.mark.compile
@pytest.mark.parametrize("block", [(1, 1), (5, 3), (33, 1), (7, 9), (64, 1)])
def test_a_block_of_any_number_of_threads(block: tuple[int, int]) -> None:
    """The lanes that fill the last warp never live: no barrier waits for them, and nothing counts them."""
    n, blocks = block[0] * block[1], 300
    x = np.arange(blocks * n, dtype=np.int32) % 7
    empty = [ptxsan.Empty(blocks * n, np.int32), ptxsan.Empty(blocks * n, np.uint32)]
    result = ptxsan.run(SUM.replace("BOUNDS", ""), grid=blocks, block=block, arguments=[x, *empty])
    assert (result.hazards, result.notes) == ((), ())
    rows = x.reshape(blocks, n)
    want = 100 * rows.sum(axis=1) + (rows % 2).sum(axis=1)
    assert np.array_equal(result.arrays[1].reshape(blocks, n), np.repeat(want[:, None], n, axis=1))
    assert result.arrays[2].tolist() == ballots(rows)


@pytest.mark.compile
def test_launch_bounds_of_a_kernel_hold() -> None:
    source = SUM.replace("BOUNDS", "__launch_bounds__(48)")
    arguments = [np.ones(64, np.int32), ptxsan.Empty(64, np.int32), ptxsan.Empty(64, np.uint32)]
    assert ptxsan.run(source, grid=1, block=48, arguments=arguments).clean
    with pytest.raises(ptxsan.LaunchError, match=r"64 threads, 48 at most by \.maxntid"):
        ptxsan.run(source, grid=1, block=64, arguments=arguments)


@pytest.mark.compile
def test_a_gemm_in_blocks_of_a_hundred_threads() -> None:
    """As declared it is right; with blocks larger than its bounds the device says what a GPU would."""
    shape = BlockShape(threads=(10, 10), tile=(10, 10))
    kernel = Kernel("hundred", KERNELS / "hundred.cu", "gemm_hundred", shape)
    case = Case(kernel, F32, Config(), Problem(23, 31, 5, alpha=2, beta=3))
    assert verify(EmulatedDevice(), case) == []
    larger = replace(kernel, shape=BlockShape(threads=(12, 10), tile=(10, 10)))
    with pytest.raises(DeviceError, match=r"120 threads, 100 at most by \.maxntid") as caught:
        verify(EmulatedDevice(), replace(case, kernel=larger))
    assert caught.value.code == "LAUNCH_FAILED"
