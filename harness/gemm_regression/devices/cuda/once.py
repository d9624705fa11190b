"""``python -m gemm_regression.devices.cuda.once PROJECT CASE_ID ...``: launches each case of the project in
that folder once, for a profiler to look at; says the SHA-256 of each one's cubin."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from gemm_regression.compiler.nvcc import compile_cubin
from gemm_regression.compiler.tools import CompileError, arch
from gemm_regression.devices import DeviceError, NoDevice, open_cuda, sources_of
from gemm_regression.devices.cuda.client import source_for
from gemm_regression.devices.work import CompiledBinary, StoredBinary, Work
from gemm_regression.project.loader import ProjectError, load
from gemm_regression.project.selection import find_case


def main(root: str, ids: list[str]) -> int:
    """Returns the exit status: 0, 1 for a case that failed, 2 for a bad name or no GPU."""
    try:
        project = load(Path(root))
        device = open_cuda(60.0)
        cases = [find_case(project, text, device.info.capability) for text in ids]
    except (NoDevice, ProjectError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    from gemm_regression.devices.cuda.source_module import compile_source
    from gemm_regression.devices.cuda.worker import CudaWorker

    worker = CudaWorker()
    worker.compile(sources_of(cases, device.info.capability))  # over all cores
    for case in cases:
        try:
            binary = StoredBinary(case.variant, b"", "", Work.of(case))
            if case.kernel.compiled and not case.kernel.by_nvcc:
                made = compile_cubin(case.kernel, case.config, case.dtype, arch(device.info.capability))
                binary = StoredBinary(case.variant, made.cubin, made.symbol, Work.of(case))
            elif case.kernel.compiled:
                source = source_for(case, device.info.capability)
                cubin, symbol = compile_source(source)
                binary = CompiledBinary(case.variant, cubin, symbol, Work.of(case), source)
            worker.resources(binary)
            worker.once(binary)
        except (CompileError, DeviceError) as error:
            print(error, file=sys.stderr)
            return 1
        print("launched", case.id, binary.sha256 if binary.cubin else "", flush=True)
    return 0


if __name__ == "__main__":
    status = main(sys.argv[1], sys.argv[2:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # PyCUDA aborts where a context is still current at exit
