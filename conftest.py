"""Loads the suite's pytest plugin for every run below this folder, and lets programs that tests start find
the packages of harness/, too."""

import os
from pathlib import Path

PACKAGES = Path(__file__).with_name("harness")
if PACKAGES.is_dir():
    known = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(PACKAGES), known)))

pytest_plugins = ["gemm_regression.pytest_plugin.plugin"]
