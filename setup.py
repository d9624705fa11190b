"""The requirements of the suite's package: the interpreter of the same version, and the dependency groups of
pyproject.toml, which has the versions.

The groups pin what the suite itself is tested with; who installs the package beside other things gets ranges:
from the oldest version that was tried on, up to the next major one. The compiler stays pinned: stored figures
are those of a version.
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


# The oldest versions with which the tests pass, where they are older than those of the groups.
LOWEST = {
    "argcomplete": "3.0",
    "jinja2": "3.1",
    "ml_dtypes": "0.5",
    "numpy": "1.26",
    "nvidia-ml-py": "12.535.77",
    "pydantic": "2.11",
    "pytest": "9.0",
    "pytest-benchmark": "5.3.1",
    "pytest-xdist": "3.8",
    "rich": "13.0",
    "ruptures": "1.1.9",
    "scipy": "1.11.3",
}


def ranges(group: str) -> list[str]:
    return [widened(*requirement.partition("==")) for requirement in pinned(group)]


def widened(name: str, equals: str, version: str) -> str:
    if not equals or "," in version:
        return name + equals + version
    major = int(version.split(".")[0])
    lowest = LOWEST.get(name, ".".join(version.split(".")[:2]))
    return f"{name}>={lowest},<{major + 1}"


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
