"""``python -m gemm_regression.devices.cuda.once PROJECT CASE_ID ...``: launches each case of the project in
that folder once, for a profiler to look at; says the SHA-256 of each one's cubin."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from gemm_regression.devices import DeviceError, NoDevice, open_cuda
from gemm_regression.devices.cuda.protocol import Build, Request
from gemm_regression.devices.work import Work
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
    from gemm_regression.devices.cuda.worker import Worker

    worker = Worker()
    worker.do(Request("prepare", tuple(Build.of(case, device.info.capability) for case in cases)))
    for case in cases:
        build = Build.of(case, device.info.capability)
        try:
            resources = worker.do(Request("resources", (build,)))
            worker.do(Request("once", (build,), (Work.of(case),)))
            print("launched", case.id, resources.cubin_sha256 if resources else "", flush=True)
        except DeviceError as error:
            print(error, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    status = main(sys.argv[1], sys.argv[2:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # PyCUDA aborts where a context is still current at exit
