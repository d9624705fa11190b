"""Launches of one planted bug on the GPU, by the driver: ``python -m tests.tools.launch NAME CUBIN TIMES``.

A process of its own: a kernel that hangs or faults takes nothing else with it. Prints the SHA-256 of all
arrays after each launch, a line each. With TIMES above 1, memory that the kernel has to write first holds
bytes 0xA5; with 1 it is as the driver gave it, so that a sanitizer knows it as uninitialised. Exit status 3:
an error of the driver, whose name is printed.
"""

from __future__ import annotations

import ctypes
import hashlib
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tests.tools.bugs import BUGS, Array, Bug, array, shape_of

DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
UNWRITTEN = 0xA5


class Driver:
    """libcuda with its primary context; ``call`` raises OSError with the error's name."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *arguments: Any) -> None:
        status = getattr(self.library, name)(*arguments)
        if status:
            text = ctypes.c_char_p()
            self.library.cuGetErrorName(status, ctypes.byref(text))
            raise OSError((text.value or b"error %d" % status).decode())


def launch(driver: Driver, bug: Bug, cubin: bytes, times: int) -> None:
    """Launches it so often, each time on fresh arrays. Raises OSError."""
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    driver.call("cuModuleLoadData", ctypes.byref(module), cubin)
    driver.call("cuModuleGetFunction", ctypes.byref(function), module, bug.name.encode())
    if bug.shared:
        driver.call("cuFuncSetAttribute", function, DYNAMIC_SHARED, bug.shared)
    held: list[tuple[Any, Array | None, Array]] = []  # address, what it begins with, what it ends with
    given: list[Any] = []
    for argument in bug.arguments:
        if isinstance(argument, int):
            given.append(ctypes.c_int(argument))
            continue
        at, after = ctypes.c_uint64(), np.zeros(*shape_of(argument))
        driver.call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(after.nbytes))
        held.append((at, array(argument), after))
        given.append(at)
    pointers = (ctypes.c_void_p * len(given))(*(ctypes.addressof(each) for each in given))
    for _ in range(times):
        for at, before, after in held:
            if before is not None:
                data = before.ctypes.data_as(ctypes.c_void_p)
                driver.call("cuMemcpyHtoD_v2", at, data, ctypes.c_size_t(before.nbytes))
            elif times > 1:
                driver.call("cuMemsetD8_v2", at, ctypes.c_ubyte(UNWRITTEN), ctypes.c_size_t(after.nbytes))
        sizes = (bug.grid, 1, 1, bug.block, 1, 1, bug.shared)
        driver.call("cuLaunchKernel", function, *sizes, None, pointers, None)
        driver.call("cuCtxSynchronize")
        digest = hashlib.sha256()
        for at, _, after in held:
            to = after.ctypes.data_as(ctypes.c_void_p)
            driver.call("cuMemcpyDtoH_v2", to, at, ctypes.c_size_t(after.nbytes))
            digest.update(after.tobytes())
        print(digest.hexdigest(), flush=True)


def main(name: str, cubin: str, times: str) -> int:
    (bug,) = (bug for bug in BUGS if bug.name == name)
    try:
        launch(Driver(), bug, Path(cubin).read_bytes(), int(times))
    except OSError as error:
        print(error, flush=True)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
