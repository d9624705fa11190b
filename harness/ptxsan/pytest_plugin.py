"""The fixture ``ptxsan``: kernels launched by a test, whose findings fail it at their line in the source.

    def test_scan(ptxsan):
        y = ptxsan.load("scan.cu").kernel("scan")[4, 256](x, 1000, ptxsan.Empty(1000, "i4")).arrays[2]

Paths are relative to the test's file. ``@pytest.mark.ptxsan(allow=("race",), strict=True, arch="sm_80")``:
checks whose findings do not fail the test, whether notes do, and nvcc's -arch, for this test.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ptxsan.testing import Launcher

_ANNOTATIONS = pytest.StashKey[list[str]]()  # of the session


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ptxsan", "CUDA kernels without a GPU")
    group.addoption("--ptxsan-arch", default="sm_90a", metavar="ARCH", help="nvcc's -arch (default sm_90a)")
    group.addoption("--ptxsan-strict", action="store_true", help="notes fail a test, too")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_ANNOTATIONS] = []
    config.addinivalue_line("markers", "ptxsan(allow, strict, arch): how the fixture ptxsan judges launches")


@pytest.fixture(name="ptxsan")
def launcher(request: pytest.FixtureRequest) -> Launcher:
    """Launches kernels without a GPU; their findings fail the test."""
    from ptxsan.testing import Launcher  # late: it imports NumPy, and most sessions have no use for it

    mark = request.node.get_closest_marker("ptxsan")
    options = dict(mark.kwargs) if mark else {}
    return Launcher(request.config, request.path.parent, options, request.config.stash[_ANNOTATIONS])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if os.environ.get("GITHUB_ACTIONS") == "true":
        lines = config.stash[_ANNOTATIONS]
        for line in dict.fromkeys(lines):
            terminalreporter.write_line(line)
