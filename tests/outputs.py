"""Outputs of a GPU on real data, as hashes: what the emulated device must give to the last bit.

``python -m tests.outputs`` records them on the GPU at hand, into tests/outputs.json.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from pytest_benchmark.utils import get_commit_info

from gemm_regression.baselines import provenance
from gemm_regression.compiler.nvcc import compile_cubin
from gemm_regression.devices import Device, Inputs, open_cuda
from gemm_regression.model import F32, Case
from gemm_regression.oracle import make_inputs
from gemm_regression.project.selection import Choice, select
from lab.classes import splits_fp32
from tests.ladder import PROJECT

FILE = Path(__file__).with_name("outputs.json")
ARCH, CAPABILITY = "sm_90a", (9, 0)
PROBLEMS = ("127x131x137-alpha-1-beta3", "130x262x128", "66x258x145-alpha3-beta-1", "5x397x83-alpha2")


def compared() -> Iterator[Case]:
    """Every FP32 variant on every problem. The sums of tensor cores, also those of tf32x3, are defined by no
    standard."""
    selection = select(PROJECT, Choice(shapes=PROBLEMS), CAPABILITY, emulated=True)
    return (c for c in selection.verify if c.dtype is F32 and not splits_fp32(c.kernel))


def inputs_of(case: Case) -> Inputs:
    inputs = make_inputs(case.kernel.operation, case.problem, case.dtype, "normal")
    return inputs if case.problem.beta else {**inputs, "C": np.full_like(inputs["C"], np.nan)}


def digest(*arrays: Any) -> str:
    hashed = hashlib.sha256()
    for array in arrays:
        hashed.update(np.ascontiguousarray(array).tobytes())
    return hashed.hexdigest()[:16]


def output(device: Device, case: Case) -> dict[str, str]:
    """Digests of what goes in, so that other random numbers are told from another result, and comes out."""
    inputs = inputs_of(case)
    outputs = device.run(case, inputs)
    return {"inputs": digest(*inputs.values()), "output": digest(outputs.result)}


def binary(case: Case) -> str:
    """A digest of the binary of a variant: of another one, another order of the sums may be right, too."""
    return compile_cubin(case.kernel, case.config, case.dtype, ARCH).resources.cubin_sha256[:16]


def recorded() -> dict[str, Any]:
    """What was recorded: provenance, digests of the binaries by variant, and of what they gave by case id;
    empty before the first recording."""
    return dict(json.loads(FILE.read_text())) if FILE.exists() else {"binaries": {}, "outputs": {}}


def main() -> None:
    argparse.ArgumentParser(prog="python -m tests.outputs", description=__doc__).parse_args()
    device = open_cuda(60.0)
    try:
        cases = list(compared())
        device.prepare(cases)
        variants = {case.variant: case for case in cases}
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            made = dict(zip(variants, pool.map(binary, variants.values()), strict=True))
        found = {case.id: output(device, case) for case in cases}
        info = device.info
        machine = {"gpu": info.name, "driver": info.driver, **provenance.software_versions()}
        info_of_commit = get_commit_info()  # type: ignore[no-untyped-call]
        commit = {name: info_of_commit[name] for name in ("id", "dirty")}
    finally:
        device.close()
    text = json.dumps({**machine, "commit": commit, "binaries": made, "outputs": found}, indent=1) + "\n"
    FILE.write_text(text, encoding="utf-8")
    print(f"{len(found)} outputs of {info.name} in {FILE.name}")


if __name__ == "__main__":
    main()
