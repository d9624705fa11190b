"""The wheel of the interpreter: with the C code compiled for this kind of machine, if there is a C compiler;
with PTXSAN_PURE=1 without, for all machines.

The library is no extension module: it calls few functions of Python's stable ABI, and looks at what it finds
before it relies on it. So one wheel is for every Python 3.
"""

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

SPEC = importlib.util.spec_from_file_location("source", Path(__file__).parent / "native" / "source.py")
source = sys.modules["source"] = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(source)


def compiler() -> str | None:
    """What compiles the library; None for a pure wheel."""
    known = sys.platform == "linux" and platform.machine() in source.WHEEL
    if os.environ.get("PTXSAN_PURE", "0") not in ("", "0") or not known:
        return None
    return next(filter(None, map(shutil.which, source.COMPILERS)), None)


class Build(build_py):
    """The package, and the library beside the C code."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return  # compiled when it is first used
        folder = Path(self.build_lib, "ptxsan", "native")
        for old in folder.glob("ptx-*.so"):
            old.unlink()
        if found := compiler():
            try:
                target = source.WHEEL[platform.machine()][0]
                source.compile_text(found, source.text(), target, folder / source.wheel_name())
            except subprocess.CalledProcessError as error:
                sys.exit(f"{error.stderr}\n{found} fails; PTXSAN_PURE=1 makes a wheel without compiled code")


class Wheel(bdist_wheel):
    """Named by the glibc that the library needs."""

    def get_tag(self) -> tuple[str, str, str]:
        libraries = list(Path(self.bdist_dir or "", "ptxsan", "native").glob("ptx-*.so"))
        if not libraries:
            return "py3", "none", "any"
        needed = re.findall(rb"GLIBC_2\.(\d+)", libraries[0].read_bytes())
        return "py3", "none", f"manylinux_2_{max(17, *map(int, needed))}_{platform.machine()}"


class Compiled(Distribution):
    """What is installed among the packages of one kind of machine."""

    def has_ext_modules(self) -> bool:
        return compiler() is not None


setup(distclass=Compiled, cmdclass={"build_py": Build, "bdist_wheel": Wheel})
