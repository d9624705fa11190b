"""``python -m tests.occupancy PROJECT``: the driver's occupancy of every variant of a
project, next to ours.

Prints JSON by variant name: resident blocks per SM according to the driver, as computed by us, and what
limits them. A separate process, since it holds a CUDA context."""

from __future__ import annotations

import json
import sys
from math import prod
from pathlib import Path
from typing import Any

from cuda.bindings import driver

from gemm_regression.compiler.nvcc import Binary, compile_all, read_ptxas
from gemm_regression.compiler.sources import closure
from gemm_regression.compiler.static import dynamic_shared, occupancy_of, variants_of
from gemm_regression.compiler.tools import arch
from gemm_regression.devices.cuda.environment import NvmlGpu
from gemm_regression.model.gpus import GpuLimits, suggested_block
from gemm_regression.project.loader import load


def checked(result: tuple[Any, ...]) -> Any:
    """The result of a driver call without its status. Raises RuntimeError if the status is not success."""
    status, *rest = result
    if status != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"the CUDA driver returned {status.name}")
    return rest[0] if rest else None


def active_blocks(cubin: bytes, entry: str, threads: int, dynamic: int) -> int:
    """cuOccupancyMaxActiveBlocksPerMultiprocessor of a kernel, in the current context."""
    function = checked(driver.cuModuleGetFunction(checked(driver.cuModuleLoadData(cubin)), entry.encode()))
    if dynamic:
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        checked(driver.cuFuncSetAttribute(function, attribute, dynamic))
    return int(checked(driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, threads, dynamic)))


def suggested(cubin: bytes, entry: str) -> int:
    """Threads per block that cuOccupancyMaxPotentialBlockSize suggests for a kernel without dynamic shared
    memory, in the current context."""
    function = checked(driver.cuModuleGetFunction(checked(driver.cuModuleLoadData(cubin)), entry.encode()))
    none = driver.CUoccupancyB2DSize(0)
    status, _, threads = driver.cuOccupancyMaxPotentialBlockSize(function, none, 0, 0)
    return int(checked((status, threads)))


def main(root: Path) -> None:
    capability = NvmlGpu().info().capability
    checked(driver.cuInit(0))
    device = checked(driver.cuDeviceGet(0))
    checked(driver.cuCtxSetCurrent(checked(driver.cuDevicePrimaryCtxRetain(device))))
    variants = variants_of(arch(capability), load(root).kernels)
    found = {}
    binaries = compile_all(list(variants.values()), arch(capability))
    for (name, variant), binary in zip(variants.items(), binaries, strict=True):
        if not isinstance(binary, Binary):
            raise SystemExit(str(binary))
        kernel, config, dtype = variant
        threads = prod(kernel.shape_of(config, dtype).threads)
        own = occupancy_of(variant, binary, GpuLimits.of(capability))
        driver_says = active_blocks(binary.cubin, binary.symbol, threads, dynamic_shared(variant))
        found[name] = {"driver": driver_says, "own": own.blocks, "limited_by": own.limiter}
        # Its block is free; others state theirs to the compiler.
        if not any(b"__launch_bounds__" in path.read_bytes() for path in closure(kernel)):
            made = read_ptxas(binary.symbol, binary.log)
            limits = GpuLimits.of(capability)
            found[name]["suggested"] = suggested(binary.cubin, binary.symbol)
            found[name]["own_suggestion"] = suggested_block(made.registers, made.shared_bytes, limits)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
