"""A launch on the GPU, by the driver: ``python -m tests.hopper.gpu`` reads it from stdin and writes the
arrays.

A process of its own: a kernel that hangs or faults takes nothing else with it.
"""

from __future__ import annotations

import ctypes
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import ptxsan
from ptxsan.nvcc import find_nvcc
from tests.hopper.cases import HERE, Array, Launch

LIMIT = 60  # seconds


def run(launch: Launch) -> dict[int, Array]:
    """The array arguments as the GPU leaves them. Raises RuntimeError, or LookupError without a GPU of
    compute capability 9."""
    command = [sys.executable, "-m", "tests.hopper.gpu"]
    given = pickle.dumps((launch, _cubin(launch)))
    root = HERE.parents[1]
    done = subprocess.run(command, input=given, capture_output=True, timeout=LIMIT, check=False, cwd=root)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        raise (LookupError if done.returncode == 3 else RuntimeError)(said[-1])
    arrays: dict[int, Array] = pickle.loads(done.stdout)
    return arrays


def _cubin(launch: Launch) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "kernel.cubin")
        options = ["-cubin", "-arch=sm_90a", "-std=c++17", *(f"-D{d}" for d in launch.defines)]
        subprocess.run([str(find_nvcc()), *options, str(HERE / launch.file), "-o", str(out)], check=True)
        return out.read_bytes()


def _main() -> int:
    from cuda.bindings import driver

    launch, cubin = pickle.loads(sys.stdin.buffer.read())
    if driver.cuInit(0)[0] != driver.CUresult.CUDA_SUCCESS:
        print("no GPU", file=sys.stderr)
        return 3
    device = _ok(driver.cuDeviceGet(0))
    attribute = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
    if (major := _ok(driver.cuDeviceGetAttribute(attribute, device))) != 9:
        print(f"a GPU of compute capability {major}, and not 9", file=sys.stderr)
        return 3
    _ok(driver.cuCtxSetCurrent(_ok(driver.cuDevicePrimaryCtxRetain(device))))
    function = _ok(driver.cuModuleGetFunction(_ok(driver.cuModuleLoadData(cubin)), launch.entry.encode()))
    limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    if launch.shared:
        _ok(driver.cuFuncSetAttribute(function, limit, launch.shared))
    images = {i: _image(a) for i, a in enumerate(launch.arguments) if isinstance(a, _IMAGES)}
    held = [_held(argument) for argument in launch.arguments]
    at = [None if array is None else _ok(driver.cuMemAlloc(max(16, array.nbytes))) for array in held]
    for array, where in zip(held, at, strict=True):
        if array is not None:
            _ok(driver.cuMemcpyHtoD(where, array.ctypes.data, array.nbytes))
    objects = {i: int(image[2]).to_bytes(8, "little") for i, image in images.items()}
    each = enumerate(zip(launch.arguments, at, held, strict=True))
    given = [objects[i] if i in objects else _parameter(*one) for i, one in each]
    kept = [ctypes.create_string_buffer(each, len(each)) for each in given]
    pointers = (ctypes.c_void_p * len(kept))(*(ctypes.addressof(each) for each in kept))
    grid = (*launch.grid, 1, 1)[:3]
    where = ctypes.addressof(pointers)
    _ok(driver.cuLaunchKernel(function, *grid, launch.block, 1, 1, launch.shared, 0, where, 0))
    _ok(driver.cuCtxSynchronize())
    for array, place in zip(held, at, strict=True):
        if array is not None:
            _ok(driver.cuMemcpyDtoH(array.ctypes.data, place, array.nbytes))
    arrays = {i: array for i, array in enumerate(held) if array is not None}
    for i, (texels, array, _) in images.items():
        _copy(launch.arguments[i], texels, array, back=True)
        arrays[i] = array
    sys.stdout.buffer.write(pickle.dumps(arrays))
    return 0


_IMAGES = ptxsan.Texture | ptxsan.Surface
_FORMATS = {"f": "FLOAT", "i": "SIGNED_INT{}", "u": "UNSIGNED_INT{}"}  # by kind, of so many bits


def _image(argument: ptxsan.Texture | ptxsan.Surface) -> tuple[Any, Array, Any]:
    """A CUDA array, what is in it, and the object by which a kernel knows it."""
    from cuda.bindings import driver

    array = np.ascontiguousarray(argument.array).copy()
    made, of = argument.at(0, array), driver.CUDA_ARRAY3D_DESCRIPTOR()
    of.Width, of.Height, of.Depth = _extents(made)
    element = (
        "HALF" if made.dtype == np.float16 else _FORMATS[made.dtype.kind].format(8 * made.dtype.itemsize)
    )
    of.Format = getattr(driver.CUarray_format, f"CU_AD_FORMAT_{element}")
    of.NumChannels = made.channels
    gathered = len(made.extents) == 2 and not made.layers and not made.surface
    of.Flags = (1 if made.layers else 0) | (2 if made.surface else 0) | (8 if gathered else 0)
    texels = _ok(driver.cuArray3DCreate(of))
    _copy(argument, texels, array)
    resource, how = driver.CUDA_RESOURCE_DESC(), driver.CUDA_TEXTURE_DESC()
    resource.resType = driver.CUresourcetype.CU_RESOURCE_TYPE_ARRAY
    resource.res.array.hArray = texels
    if made.surface:
        return texels, array, _ok(driver.cuSurfObjectCreate(resource))
    mode = getattr(driver.CUaddress_mode, f"CU_TR_ADDRESS_MODE_{made.mode.upper()}")
    axes = len(made.extents)  # of others no border: it would be a part of what is fetched
    how.addressMode = [mode] * axes + [driver.CUaddress_mode.CU_TR_ADDRESS_MODE_CLAMP] * (3 - axes)
    how.filterMode = getattr(driver.CUfilter_mode, f"CU_TR_FILTER_MODE_{made.filter.upper()}")
    how.flags = (2 if made.normalized else 0) | (1 if made.dtype.kind in "iu" and not made.as_float else 0)
    return texels, array, _ok(driver.cuTexObjectCreate(resource, how, None))


def _extents(image: Any) -> tuple[int, int, int]:
    """Width, height and depth of a CUDA array: 0 for an axis that is not there, the layers as the depth."""
    width, height, depth = (*image.extents, 0, 0)[:3]
    return width, height, image.layers or depth


def _copy(argument: ptxsan.Texture | ptxsan.Surface, texels: Any, array: Array, back: bool = False) -> None:
    """To the CUDA array, or ``back``."""
    from cuda.bindings import driver

    image, copy = argument.at(0, array), driver.CUDA_MEMCPY3D()
    width, height, depth = (max(1, extent) for extent in _extents(image))
    here, there = ("dst", "src") if back else ("src", "dst")
    of = driver.CUmemorytype
    setattr(copy, f"{here}MemoryType", of.CU_MEMORYTYPE_HOST)
    setattr(copy, f"{here}Host", array.ctypes.data)
    setattr(copy, f"{here}Pitch", width * image.texel)
    setattr(copy, f"{here}Height", height)
    setattr(copy, f"{there}MemoryType", of.CU_MEMORYTYPE_ARRAY)
    setattr(copy, f"{there}Array", texels)
    copy.WidthInBytes, copy.Height, copy.Depth = width * image.texel, height, depth
    _ok(driver.cuMemcpy3D(copy))


def _held(argument: Any) -> Array | None:
    """The array of an argument; what is empty holds bytes that no result is made of."""
    if isinstance(argument, ptxsan.Tiled):
        argument = argument.array
    if isinstance(argument, ptxsan.Empty):
        fresh = np.zeros(argument.shape, argument.dtype)
        fresh.view(np.uint8)[...] = 0xA5
        return fresh
    return (
        np.ascontiguousarray(argument).copy() if isinstance(argument, np.ndarray) and argument.ndim else None
    )


def _parameter(argument: Any, address: Any, array: Array | None) -> bytes:
    if isinstance(argument, ptxsan.Tiled):
        assert array is not None
        return _tensor_map(argument, int(address), array)
    if array is not None:
        return int(address).to_bytes(8, "little")
    return argument if isinstance(argument, bytes) else bytes(argument.tobytes())


def _tensor_map(tiled: ptxsan.Tiled, address: int, array: Array) -> bytes:
    from cuda.bindings import driver

    made = tiled.at(address, array)
    swizzles, fills = driver.CUtensorMapSwizzle, driver.CUtensorMapFloatOOBfill
    swizzle = {0: "NONE", 32: "32B", 64: "64B", 128: "128B"}[made.swizzle]
    nan = fills.CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA
    encoded = _ok(
        driver.cuTensorMapEncodeTiled(
            getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{made.element.upper()}"),
            len(made.extents),
            address,
            [driver.cuuint64_t(n) for n in made.extents],
            [driver.cuuint64_t(n) for n in made.strides] or [driver.cuuint64_t(16)],  # of rank 1 none is read
            [driver.cuuint32_t(n) for n in made.box],
            [driver.cuuint32_t(n) for n in made.steps],
            driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            getattr(swizzles, f"CU_TENSOR_MAP_SWIZZLE_{swizzle}"),
            driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_NONE,
            nan if made.nan else fills.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    )
    return np.array([int(word) for word in encoded.opaque], np.uint64).tobytes()


def _ok(result: Any) -> Any:
    """What a call of the driver gave. Raises RuntimeError where it failed."""
    status, *values = result
    if int(status):
        raise RuntimeError(f"the driver says {status.name}")
    return values[0] if values else None


if __name__ == "__main__":
    sys.exit(_main())
