"""``python -m tests.instructions`` runs every probe on the GPU at hand and records it in recorded.json.

A digest of the results where IEEE 754 or the PTX ISA fix the bits; where they do not, the largest error in
units of the documented bound, and a digest of what comes of zeros, infinities and NaNs.
"""

from __future__ import annotations

import argparse
import json

from gemm_regression.baselines import provenance
from tests.instructions.compare import FILE, finding
from tests.instructions.run import on_gpu
from tests.instructions.table import PROBES


def main() -> None:
    argparse.ArgumentParser(prog="python -m tests.instructions", description=__doc__).parse_args()
    import pycuda.driver as cuda

    cuda.init()
    context = cuda.Device(0).make_context()
    try:
        name, driver = context.get_device().name(), cuda.get_driver_version()
        found = {probe.id: finding(probe, out) for probe, out in zip(PROBES, on_gpu(PROBES), strict=True)}
    finally:
        context.pop()
    machine = {"gpu": name, "driver": driver, **provenance.software_versions()}
    FILE.write_text(json.dumps({**machine, "probes": found}, indent=1) + "\n", encoding="utf-8")
    print(f"{len(found)} probes of {name} in {FILE.name}")


if __name__ == "__main__":
    main()
