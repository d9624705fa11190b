"""What pytest loads in every repository of an environment: the suite's plugin, if there is a project.

Elsewhere it does nothing: no options, no output, no imports beyond the standard library.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gemm_regression.project.table import ProjectError, find, nearest


def project_of(config: pytest.Config) -> Path:
    """The project of the tests that a run was asked for. Pytest's root folder does not tell: it passes over a
    project whose pyproject.toml has no table of pytest's own, for one whose folders it lies in. Raises
    ProjectError if there is none, or more than one."""
    found = dict.fromkeys(filter(None, map(nearest, _started_at(config))))
    if len(found) > 1:
        folders = " and ".join(map(str, found))
        raise ProjectError(f"tests of more than one project, {folders}; run pytest once for each")
    return next(iter(found), None) or find(config.rootpath)


def _started_at(config: pytest.Config) -> list[Path]:
    """Where to look for the project from: --rootdir, or the paths that are tested, or the current folder."""
    known, here = config.known_args_namespace, config.invocation_params.dir
    paths = [here / str(word).partition("::")[0] for word in known.file_or_dir]
    return [config.rootpath] if known.rootdir else [path for path in paths if path.exists()] or [here]


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: Any, args: list[str]) -> None:
    """Runs before the options are finally parsed, so that the plugin can add its own."""
    named = [word.partition("=")[2] for word in args if word.startswith("--project=")]
    named += [after for word, after in pairwise(args) if word == "--project"]
    starts = [Path(named[-1])] if named else [*_started_at(early_config), early_config.rootpath]
    if not any(map(nearest, starts)):
        return
    early_config.pluginmanager.import_plugin("gemm_regression.pytest_plugin.plugin")
