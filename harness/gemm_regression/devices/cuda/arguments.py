"""The arguments of a launch as PyCUDA packs them, tensor maps included."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from gemm_regression.devices import DeviceError
from gemm_regression.devices.work import Work
from gemm_regression.model import Argument, Storage

# struct's letters for the kinds of arguments, and their bytes; a half is handed over by its bits.
_PACKED = {
    "i32": ("i", 4),
    "i64": ("q", 8),
    "f32": ("f", 4),
    "f64": ("d", 8),
    "f16": ("H", 2),
    "bf16": ("H", 2),
    "p64": ("P", 8),
    "bytes[128]": ("128s", 128),
}
_ELEMENTS = {
    "float32": "FLOAT32",
    "float64": "FLOAT64",
    "float16": "FLOAT16",
    "bfloat16": "BFLOAT16",
    "int8": "UINT8",
    "int16": "UINT16",
    "int32": "INT32",
}


def pack(
    work: Work, at: Mapping[str, int], offsets: Callable[[], Sequence[int]]
) -> tuple[list[str], list[Any]]:
    """The formats of the parameters, for PyCUDA's ``prepare``, and their values. ``offsets`` gives where each
    lies, in bytes; asked only where struct's own alignment does not tell, for tensor maps.

    Raises DeviceError for a matrix that no tensor map can describe.
    """
    values = [_value(argument, work, at) for argument in work.arguments]
    if not any(argument.map for argument in work.arguments):
        return [_PACKED[argument.kind][0] for argument in work.arguments], values
    formats, end = [], 0
    for argument, start in zip(work.arguments, offsets(), strict=True):
        letter, size = _PACKED[argument.kind]
        formats.append(f"{start - end}x{letter}" if start > end else letter)
        end = start + size
    return formats, values


def _value(argument: Argument, work: Work, at: Mapping[str, int]) -> Any:
    if argument.map:
        return _tensor_map(argument, work.storages[argument.buffer], at[argument.buffer])
    if argument.kind == "p64":
        return at[argument.buffer]
    if argument.kind == "f16":
        return int(np.float16(argument.value).view(np.uint16))
    if argument.kind == "bf16":
        return int(ml_dtypes.bfloat16(argument.value).view(np.uint16))
    return argument.value


def _tensor_map(argument: Argument, storage: Storage, address: int) -> bytes:
    """The 128 bytes of a CUtensorMap over the rows of storage (the driver's cuTensorMapEncodeTiled)."""
    from cuda.bindings import driver

    assert argument.map is not None
    remedy = "declare what it takes: constraints=Constraints(multiples=...)"
    try:
        extents, strides, box = argument.map.dimensions(storage)
    except ValueError as error:
        raise DeviceError("LAUNCH_FAILED", f"no tensor map of {argument.buffer}: {error}; {remedy}") from None
    swizzles = driver.CUtensorMapSwizzle
    swizzle = {
        0: swizzles.CU_TENSOR_MAP_SWIZZLE_NONE,
        32: swizzles.CU_TENSOR_MAP_SWIZZLE_32B,
        64: swizzles.CU_TENSOR_MAP_SWIZZLE_64B,
        128: swizzles.CU_TENSOR_MAP_SWIZZLE_128B,
    }
    if storage.dtype.name not in _ELEMENTS:
        text = f"no tensor map of {argument.buffer}: its elements are {storage.dtype.name}"
        raise DeviceError("LAUNCH_FAILED", f"{text}, and known are {', '.join(_ELEMENTS)}")
    element = "TFLOAT32" if argument.map.tf32 else _ELEMENTS[storage.dtype.name]
    status, made = driver.cuTensorMapEncodeTiled(
        getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{element}"),
        len(extents),
        address,
        [driver.cuuint64_t(n) for n in extents],
        [driver.cuuint64_t(n) for n in strides],
        [driver.cuuint32_t(n) for n in box],
        [driver.cuuint32_t(1)] * len(extents),
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        swizzle[argument.map.swizzle],
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_NONE,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if status != driver.CUresult.CUDA_SUCCESS:
        text = f"leading dimension {storage.ld} and boxes of {argument.map.box} ({status.name})"
        raise DeviceError("LAUNCH_FAILED", f"no tensor map of {argument.buffer} with {text}; {remedy}")
    return np.array([int(word) for word in made.opaque], np.uint64).tobytes()
