"""The requirements of the suite's package: the interpreter of the same version, and the dependency groups of
pyproject.toml, which has the versions.

The groups pin what the suite itself is tested with; who installs the package beside other things gets ranges:
of ``numpy==2.4.6`` any 2.x from 2.4 on. The compiler stays pinned: stored figures are those of a version.
"""

import re
import tomllib
from pathlib import Path

from setuptools import setup

GROUPS = tomllib.loads(Path(__file__).with_name("pyproject.toml").read_text(encoding="utf-8"))[
    "dependency-groups"
]
SUITE = Path(__file__).parent / "harness" / "gemm_regression" / "__init__.py"


def pinned(group: str) -> list[str]:
    """What a group asks for itself, without the groups that it includes."""
    return [requirement for requirement in GROUPS[group] if isinstance(requirement, str)]


def ranges(group: str) -> list[str]:
    return [re.sub(r"==(\d+\.\d+)[\d.]*$", r"~=\1", requirement) for requirement in pinned(group)]


VERSION = re.search(r'^__version__ = "(.*)"$', SUITE.read_text(encoding="utf-8"), re.MULTILINE)[1]

setup(
    install_requires=[f"ptxsan=={VERSION}", *ranges("run")],
    extras_require={
        "bindings": ranges("launch"),
        "compiler": pinned("compiler"),
        "cute": ranges("cute"),
        "gpu": [*ranges("launch"), *ranges("pycuda")],
        "numba": ranges("numba"),
        "report": ranges("report"),
        "tilelang": ranges("tilelang"),
        "triton": ranges("triton"),
        "tune": ranges("tune"),
    },
)
