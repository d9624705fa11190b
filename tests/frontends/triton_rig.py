"""Triton kernels as PTX, without a GPU, and their launches in ptxsan."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import ptxsan


def compiled(
    kernel: Any, types: str, arch: int, warps: int = 4, stages: int = 3, debug: bool = False, **constants: Any
) -> Any:
    """A kernel for an architecture such as 90. ``types``: of its arguments that are no constants, such as
    "*fp16:16 i32"; :16 for a number, or an address, that 16 divides."""
    names = [name for name in kernel.arg_names if name not in constants]
    given = dict(zip(names, types.split(), strict=True))
    signature = {name: kind.removesuffix(":16") for name, kind in given.items()}
    signature |= dict.fromkeys(constants, "constexpr")
    divided = [name for name, kind in given.items() if kind.endswith(":16")]
    attrs = {(kernel.arg_names.index(name),): [["tt.divisibility", 16]] for name in divided}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attrs)
    options = {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": True, "debug": debug}
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)


def run(made: Any, grid: Any, *arguments: Any, text: str = "") -> ptxsan.LaunchResult:
    """A launch. ``text``: changed PTX in place of the kernel's own."""
    none = [np.uint64(0)] * 2  # scratch memory, which these kernels have no need of
    block = made.metadata.num_warps * 32
    return ptxsan.run(
        text or made.asm["ptx"],
        grid=grid,
        block=block,
        arguments=[*arguments, *none],
        shared=made.metadata.shared,
    )


def maps(made: Any, *arrays: Any) -> list[Any]:
    """Arrays as tensor maps, each with the shape and the strides that Triton passes, too."""
    found: list[Any] = []
    for array, meta in zip(arrays, made.metadata.tensordesc_meta, strict=True):
        swizzle = (0, 32, 64, 128)[meta["swizzle"]]
        found.append(ptxsan.Tiled(array, tuple(meta["block_size"]), swizzle))
        found += [*map(np.int32, array.shape), *map(np.int64, (array.shape[1], 1))]
    return found
