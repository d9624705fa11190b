"""What pytest loads in every repository of an environment: the suite's plugin, if there is a project.

Elsewhere it does nothing: no options, no output, no imports beyond the standard library.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gemm_regression.project.table import ProjectError, find


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: Any, args: list[str]) -> None:
    """Runs before the options are finally parsed, so that the plugin can add its own."""
    named = [word.partition("=")[2] for word in args if word.startswith("--project=")]
    named += [after for word, after in pairwise(args) if word == "--project"]
    try:
        find(Path(named[-1]) if named else early_config.rootpath)
    except ProjectError:
        return
    early_config.pluginmanager.import_plugin("gemm_regression.pytest_plugin.plugin")
