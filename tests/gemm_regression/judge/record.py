"""Makes h200_samples.json, what ReplayDevice replays, of runs recorded on the GPU:

python -m tests.gemm_regression.judge.record RUN.json ...   (of --baseline-run --benchmark-json=RUN.json)
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from gemm_regression.devices.cuda.environment import GpuInfo
from tests.gemm_regression.samples import select
from tests.gemm_regression.simulated import RECORDED

KERNELS = ("naive", "tiled", "double_buffered", "cublas")
_KEPT = (
    *("sm_clock_mhz", "power_w", "temperature_c", "clock_event_reasons"),
    *("discarded", "throttled", "l2", "duty"),
)
ROUNDS = 15  # enough for a median, few enough for a file one can look at


def _measurement(bench: dict[str, Any]) -> dict[str, Any]:
    info, data = bench["extra_info"], sorted(bench["stats"]["data"])
    middle = len(data) // 2
    step = max(1, len(data) // ROUNDS)
    seconds = sorted({middle, *range(middle % step, len(data), step)})
    resources = {
        name: info[name]
        for name in ("registers", "shared_bytes", "local_bytes", "cubin_sha256")
        if name in info
    }
    return {
        "seconds": [float(f"{data[i]:.6g}") for i in seconds],
        "reference_seconds": [float(f"{info['median_s'] * info['cublas_ratio']:.6g}")],
        "resources": resources or None,
        **{name: info[name] for name in _KEPT},
    }


def main(files: list[str]) -> None:
    runs = [json.loads(Path(file).read_text(encoding="utf-8")) for file in files]
    machine = runs[0]["machine_info"]
    smoke = {case.id for case in select("smoke").timed}
    recording = {
        "gpu": {name: machine.get(name) for name in GpuInfo.__dataclass_fields__},
        "commit": runs[0]["commit_info"]["id"],
        "runs": [
            {
                bench["extra_info"]["case"]: _measurement(bench)
                for bench in run["benchmarks"]
                if bench["extra_info"]["variant"].split("-")[0] in KERNELS
                and bench["extra_info"]["case"] in smoke
            }
            for run in runs
        ],
    }
    RECORDED.write_text(json.dumps(recording, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
