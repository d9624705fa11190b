"""Kernels that Triton compiles, for several architectures, against NumPy; planted mistakes are found at the
lines of the Python source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ptxsan
from tests.frontends.rig import agree, changed, tells

pytest.importorskip("triton")

from tests.frontends import triton_kernels as kernels
from tests.frontends.triton_rig import compiled, maps, run

FILE = "triton_kernels.py"
Array = np.ndarray[Any, np.dtype[Any]]
rng = np.random.default_rng(0)


def normal(*shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


@dataclass(frozen=True)
class Launch:
    """A launch of a kernel: types of its arguments as Triton writes them, its constants, the arguments; what
    it leaves, by the number of the argument, within a tolerance."""

    kernel: Any
    types: str
    constants: Mapping[str, Any]
    grid: int | tuple[int, ...]
    arguments: tuple[Any, ...]
    want: Mapping[int, Any]
    tolerance: float = 1e-5
    architectures: tuple[int, ...] = (80, 90, 100, 120)
    options: Mapping[str, Any] = field(default_factory=dict)

    def compiled(self, arch: int) -> Any:
        return compiled(self.kernel, self.types, arch, **self.options, **self.constants)


def softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


def product(dtype: Any, *, out: Any = np.float32, **more: Any) -> Launch:
    a, b = normal(100, 80).astype(dtype), normal(80, 112).astype(dtype)
    name = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "int8": "i8"}
    name |= {"float8_e4m3fn": "fp8e4nv", "float8_e5m2": "fp8e5"}
    of, to = name[np.dtype(dtype).name], name[np.dtype(out).name]
    sizes = tuple(map(np.int32, (100, 112, 80)))
    want = a.astype(np.float32) @ b.astype(np.float32)
    blocks = {"BM": 64, "BN": 64, "BK": 32}
    return Launch(
        kernels.matmul,
        f"*{of}:16 *{of}:16 *{to}:16 i32 i32:16 i32:16",
        blocks,
        (2, 2),
        (a, b, ptxsan.Empty((100, 112), out), *sizes),
        {2: want},
        5e-3,
        **more,
    )


def attention() -> Launch:
    q, k, v = (normal(2, 100, 64).astype(np.float16) for _ in range(3))
    scores = np.einsum("hid,hjd->hij", q.astype(np.float32), k.astype(np.float32)) / 8
    seen = np.where(np.tril(np.ones((100, 100), bool)), scores, -np.inf)
    arguments = (q, k, v, ptxsan.Empty(q.shape, np.float16), np.int32(100), np.float32(np.log2(np.e) / 8))
    types, constants = "*fp16:16 *fp16:16 *fp16:16 *fp16:16 i32 fp32", {"BM": 64, "BN": 32, "D": 64}
    want = softmax(seen) @ v.astype(np.float32)
    return Launch(kernels.attention, types, constants, (2, 2), arguments, {3: want}, 5e-3)


def recurrence() -> Launch:
    scale, value = rng.uniform(0, 1, 512).astype(np.float32), normal(512)
    state = value.copy()
    for i in range(512):
        state[i] += scale[i] * state[i - 1] if i % 256 else 0
    arguments = scale, value, ptxsan.Empty(512)
    return Launch(kernels.recurrence, "*fp32 *fp32 *fp32", {"BLOCK": 256}, 2, arguments, {2: state})


x, y, n = normal(1000), normal(1000), np.int32(1000)
rows, width = normal(8, 200), np.int32(200)
weight, bias, grad = normal(200), normal(200), normal(8, 200)
mean, scale = rows.mean(1), 1 / np.sqrt(rows.var(1) + 1e-5)
unit = (rows - mean[:, None]) * scale[:, None]
weighted = grad * weight
level = (unit * weighted).mean(1)[:, None] * unit + weighted.mean(1)[:, None]
whole = rng.integers(0, 16, 1000).astype(np.int32)
halves = normal(64, 64).astype(np.float16), normal(64, 64).astype(np.float16)
Empty, F = ptxsan.Empty, "*fp32 "

LAUNCHES: dict[str, Launch] = {
    "add": Launch(kernels.add, F * 3 + "i32", {"BLOCK": 256}, 4, (x, y, Empty(1000), n), {2: x + y}),
    "softmax": Launch(
        kernels.softmax, F * 2 + "i32", {"BLOCK": 256}, 8, (rows, Empty((8, 200)), width), {1: softmax(rows)}
    ),
    "norm": Launch(
        kernels.norm,
        F * 6 + "i32 fp32",
        {"BLOCK": 128},
        8,
        (rows, weight, bias, Empty((8, 200)), Empty(8), Empty(8), width, np.float32(1e-5)),
        {3: unit * weight + bias, 4: mean, 5: scale},
    ),
    "norm-backward": Launch(
        kernels.norm_backward,
        F * 8 + "i32",
        {"BLOCK": 256},
        8,
        (grad, rows, weight, mean, scale, Empty((8, 200)), *np.zeros((2, 200), np.float32), width),
        {5: (weighted - level) * scale[:, None], 6: (grad * unit).sum(0), 7: grad.sum(0)},
    ),
    "matmul-f16": product(np.float16),
    "matmul-f16-of-8-warps": product(np.float16, out=np.float16, options={"warps": 8, "stages": 4}),
    "matmul-bf16": product(ml_dtypes.bfloat16),
    "matmul-tf32": product(np.float32),
    "matmul-e4m3": product(ml_dtypes.float8_e4m3fn, architectures=(90, 120)),
    "matmul-e5m2": product(ml_dtypes.float8_e5m2),
    "split-matmul": Launch(
        kernels.split_matmul,
        "*fp16 *fp16 *fp32 i32 i32 i32",
        {"BM": 32, "BN": 32, "BK": 32},
        (2, 2, 2),
        (*halves, np.zeros((64, 64), np.float32), *[np.int32(64)] * 3),
        {2: halves[0].astype(np.float32) @ halves[1].astype(np.float32)},
        5e-3,
    ),
    "attention": attention(),
    "histogram": Launch(
        kernels.histogram,
        "*i32 *i32 i32",
        {"BLOCK": 256, "BINS": 16},
        4,
        (whole, np.zeros(16, np.int32), n),
        {1: np.bincount(whole, minlength=16)},
    ),
    "running-sum": Launch(
        kernels.running_sum,
        F * 2,
        {"BLOCK": 256},
        2,
        (x[:512], Empty(512)),
        {1: x[:512].reshape(2, 256).cumsum(1).ravel()},
    ),
    "recurrence": recurrence(),
    "sort": Launch(
        kernels.sort,
        F * 2,
        {"BLOCK": 256},
        2,
        (x[:512], Empty(512)),
        {1: np.sort(x[:512].reshape(2, 256))[:, ::-1].ravel()},
    ),
    "total": Launch(
        kernels.total,
        F * 2 + "i32",
        {"BLOCK": 256},
        4,
        (x, np.zeros(2, np.float32), n),
        {1: [x.sum(), x.max()]},
    ),
    "largest": Launch(
        kernels.largest,
        F * 2 + "*i32 i32",
        {"BLOCK": 256},
        8,
        (rows, Empty(8), Empty(8, np.int32), width),
        {1: rows.max(1), 2: rows.argmax(1)},
    ),
    "transpose": Launch(
        kernels.transpose,
        "*fp16 *fp16 i32 i32",
        {"BLOCK": 64},
        (2, 2),
        (halves[0][:50], Empty((64, 50), np.float16), np.int32(50), np.int32(64)),
        {1: halves[0][:50].T},
    ),
}


@pytest.mark.parametrize(
    ("name", "arch"), [(name, arch) for name, launch in LAUNCHES.items() for arch in launch.architectures]
)
def test_a_kernel(name: str, arch: int) -> None:
    launch = LAUNCHES[name]
    result = run(launch.compiled(arch), launch.grid, *launch.arguments)
    agree(result, launch.want, launch.tolerance)
    # Of all lanes that hold the sum, more than one stores it; Triton has no fence of tensor memory.
    known = ("with the same value", *(["with no tcgen05.fence::before_thread_sync"] if arch == 100 else []))
    for note in result.notes:
        assert any(each in note.problem for each in known)
        assert note.file == FILE
        assert note.line


def test_what_a_kernel_prints_and_asserts() -> None:
    made = compiled(kernels.checked, F + "i32", 80, debug=True, BLOCK=128)
    result = run(made, 1, np.arange(100, dtype=np.float32), np.int32(100))
    assert result.printed[1] == "pid (0, 0, 0) idx (  1) value: 1.000000\n"
    tells(result, "trap", FILE, "tl.device_assert")


def test_random_numbers() -> None:
    made = compiled(kernels.dropout, F * 2 + "i32 i32 fp32", 80, BLOCK=256)
    result = run(made, 4, np.ones(1000, np.float32), Empty(1000), n, np.int32(7), np.float32(0.5))
    agree(result, {}, 0)
    values, counts = np.unique(result.arrays[1], return_counts=True)
    assert values.tolist() == [0, 2]
    assert min(counts) > 400


def test_tensor_maps() -> None:
    """Descriptors that the host makes, copied by TMA: into wgmma, tcgen05 of sm_100, mma of sm_120."""
    a, b = normal(100, 72).astype(np.float16), normal(72, 104).astype(np.float16)
    types = "tensordesc<fp16[64,32]> tensordesc<fp16[32,64]> tensordesc<fp16[64,64]> i32 i32"
    for arch in (90, 100, 120):
        made = compiled(kernels.matmul_by_maps, types, arch, BM=64, BN=64, BK=32)
        arguments = maps(made, a, b, np.zeros((100, 104), np.float16))
        result = run(made, (2, 2), *arguments, np.int32(104), np.int32(72))
        want = a.astype(np.float32) @ b.astype(np.float32)
        assert np.abs(result.arrays[10].astype(np.float32) - want).max() < 0.05
        assert result.clean
        # Triton has no fence between mbarrier.init and the first copy, and none of tensor memory.
        known = ("initialisation the async proxy need not see", "no tcgen05.fence::before_thread_sync")
        assert all(any(each in note.message for each in known) for note in result.notes)


PLANTED = {
    "a barrier of softmax's sum": ("softmax", 80, r"bar\.sync", "", 0, "race", "tl.max(values, 0)"),
    "a barrier of the histogram": ("histogram", 90, r"bar\.sync", "", 1, "race", "tl.histogram"),
    "an offset of add's store": (
        "add", 80, r"add\.s64 \t%rd6, %rd5, 512", r"add.s64 %rd6, %rd5, 1048576", 0,
        "bounds", "tl.store(out + at, a + b",
    ),
    "a mask of add's load": ("add", 120, r"@%p2 ld\.global", "ld.global", 0, "bounds", "a = tl.load(x + at"),
    "a wait of matmul's copies": (
        "matmul-f16", 80, r"cp\.async\.wait_group", "", 0, "race", "left = tl.load(a + rows",
    ),
    "a wait of stores to tensor memory": (
        "matmul-f16", 100, r"tcgen05\.wait::st", "", 0, "race", "total = tl.dot(left",
    ),
    "an allocation": ("matmul-f16", 100, r"@%p1 tcgen05\.alloc", "", 0, "uninit", "total = tl.dot(left"),
    "a barrier after it": ("matmul-f16", 100, r"bar\.sync", "", 0, "race", "def matmul("),
    "a deallocation": ("matmul-f16", 100, r"@%p1 tcgen05\.dealloc", "", 0, "barrier", "def matmul("),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_mistake(name: str) -> None:
    of, arch, instruction, into, which, check, source = PLANTED[name]
    launch = LAUNCHES[of]
    made = launch.compiled(arch)
    text = changed(made.asm["ptx"], instruction, into, which)
    tells(run(made, launch.grid, *launch.arguments, text=text), check, FILE, source)
