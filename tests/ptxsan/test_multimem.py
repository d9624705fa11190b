"""multimem: one address for the memory of several GPUs, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ptxsan

RANKS, SIZE = 4, 64

ALL_REDUCE = """
extern "C" __global__ void reduce(float* all, float* mine)
{
    float sum;
    all += threadIdx.x;
    asm volatile("multimem.ld_reduce.relaxed.sys.global.add.f32 %0, [%1];" : "=f"(sum) : "l"(all) : "memory");
    mine[threadIdx.x] = sum;
    asm volatile("multimem.st.relaxed.sys.global.f32 [%0], %1;" :: "l"(all), "f"(2 * sum) : "memory");
}
"""
PAIRS = """
#include <cuda_fp16.h>
extern "C" __global__ void pairs(const __half2* all, __half2* out)
{
    unsigned x, y;
    asm volatile("multimem.ld_reduce.relaxed.sys.global.add.acc::f32.v2.f16x2 {%0, %1}, [%2];"
                 : "=r"(x), "=r"(y) : "l"(all + 2 * threadIdx.x) : "memory");
    reinterpret_cast<uint2*>(out)[threadIdx.x] = make_uint2(x, y);
}
"""
RED = """
extern "C" __global__ void red(int* all)
{
    const unsigned x = threadIdx.x;
    all += x % 8;
    asm volatile("multimem.red.relaxed.sys.global.add.s32 [%0], %1;" :: "l"(all), "r"(x) : "memory");
}
"""


def test_a_reduction_reads_all_replicas_and_a_store_writes_them() -> None:
    replicas = [np.arange(SIZE, dtype=np.float32) * 10**rank for rank in range(RANKS)]
    out = ptxsan.Empty(SIZE)
    result = ptxsan.run(ALL_REDUCE, grid=1, block=SIZE, arguments=(ptxsan.Multicast((*replicas,)), out))
    assert (result.hazards, result.notes) == ((), ())
    assert np.array_equal(result.arrays[1], np.arange(SIZE, dtype=np.float32) * 1111)
    for rank in range(RANKS):
        assert np.array_equal(result.arrays[0, rank], 2 * result.arrays[1])


def test_pairs_of_halves_are_added_in_fp32() -> None:
    replicas = [np.full(4 * SIZE, v, np.float16) for v in (2048, 1, 1, 2.0**-14)]
    result = ptxsan.run(
        PAIRS,
        grid=1,
        block=SIZE,
        arguments=(ptxsan.Multicast((*replicas,)), ptxsan.Empty(4 * SIZE, np.float16)),
    )
    assert result.clean
    assert set(result.arrays[1].tolist()) == {2050.0}  # rounded once: FP16 holds no 2049


def test_a_replica_may_be_an_argument_of_its_own() -> None:
    mine = np.zeros(8, np.int32)
    source = RED.replace("(int* all)", "(int* all, int* mine)")
    arguments = ptxsan.Multicast((1, np.full(8, 100, np.int32))), mine
    result = ptxsan.run(source, grid=1, block=32, arguments=arguments)
    assert result.clean
    sums = np.arange(32).reshape(4, 8).sum(axis=0)
    assert np.array_equal(result.arrays[1], sums)
    assert np.array_equal(result.arrays[0, 1], 100 + sums)


ODD = RED.replace("% 8", "% 4").replace("red.relaxed.sys.global.add.s32 [%0]", "st.weak.global.s32 [%0 + 2]")
PLAIN = RED.replace("multimem.red.relaxed.sys.global.add.s32", "st.global.s32")
SMALL, WHOLE = (ptxsan.Multicast((np.zeros(n, np.int32),)) for n in (4, 8))


@pytest.mark.parametrize(
    ("source", "argument", "said"),
    [
        (RED, np.zeros(8, np.int32), "is in no multicast object"),
        (RED, SMALL, "past the end of all.0 (16 bytes)"),
        (ODD, WHOLE, "not aligned to 4 bytes"),
        (PLAIN, WHOLE, "accesses a multicast object, which only multimem does"),
    ],
)
def test_mistakes(source: str, argument: Any, said: str) -> None:
    found = ptxsan.run(source, grid=1, block=32, arguments=(argument,)).hazards
    assert any(said in hazard.message for hazard in found), found


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ((), "no replica"),
        ((3,), "argument 3 is no array"),
        ((np.zeros(4, np.int32), np.zeros(5, np.int32)), "replicas of 16, 20 bytes"),
    ],
)
def test_what_is_no_multicast_object(arrays: Any, said: str) -> None:
    with pytest.raises(ptxsan.PtxError, match=said):
        ptxsan.run(RED, grid=1, block=32, arguments=(ptxsan.Multicast(arrays),))


def test_undefined_values_pass_through() -> None:
    result = ptxsan.run(
        ALL_REDUCE,
        grid=1,
        block=SIZE,
        arguments=(ptxsan.Multicast((np.zeros(SIZE, np.float32), ptxsan.Empty(SIZE))), ptxsan.Empty(SIZE)),
    )
    assert {hazard.check for hazard in result.hazards} == {"uninit"}
