"""Makes the small form of a run recorded on the GPU, with what judging it again takes and no more:

python -m tests.unit.recorded_run RUN.json ...   (what --benchmark-json=RUN.json wrote)
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

from gemm_regression.judge.evidence import MACHINES, UNUSABLE

FOLDER = Path(__file__).with_name("recorded")
_INFO = ("case", "variant", "verdict", "verdict_reason", "red", "evidence")


def small(run: dict[str, Any]) -> dict[str, Any]:
    """The same run, its samples to nine digits."""
    return {
        "machine_info": {"name": run["machine_info"]["name"]},
        "commit_info": {"id": run["commit_info"]["id"]},
        "benchmarks": [
            {
                "extra_info": _kept(record["extra_info"]),
                "stats": {"data": [float(f"{s:.9g}") for s in record["stats"]["data"]]},
            }
            for record in run["benchmarks"]
        ],
        UNUSABLE: run[UNUSABLE],
        MACHINES: run[MACHINES],
    }


def _kept(info: dict[str, Any]) -> dict[str, Any]:
    return {name: info[name] for name in _INFO if name in info}


def main(files: list[str]) -> None:
    for file in map(Path, files):
        text = json.dumps(small(json.loads(file.read_text(encoding="utf-8"))), separators=(",", ":"))
        # No time stamp: the same run makes the same file.
        (FOLDER / f"{file.name}.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    main(sys.argv[1:])
