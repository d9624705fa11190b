"""What the tests of all frontends share: changes of PTX, lines of source, comparison with NumPy."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import ptxsan
from gemm_regression.model import Config, DType

FOLDER = Path(__file__).parent


def changed(text: str, instruction: str, into: str = "", which: int = 0) -> str:
    """PTX whose instruction of this pattern, the one of this number, is another or none."""
    found = list(re.finditer(rf"(?m)^\s*{instruction}[^;\n]*;", text))
    assert found, f"no {instruction} in the PTX"
    start, end = found[which].span()
    new = re.sub(instruction, into, found[which][0]) if into else ""
    return text[:start] + new + text[end:]


@dataclass(frozen=True)
class Without:
    """A frontend of a declaration, of whose PTX the instruction of this pattern, and this number, is not
    there."""

    frontend: Any
    instruction: str
    which: int = 0

    def ptx(self, source: Path, config: Config, dtype: DType, arch: str) -> str:
        return changed(self.frontend.ptx(source, config, dtype, arch), self.instruction, "", self.which)

    def ptxas(self, arch: str) -> Path | None:
        found: Path | None = self.frontend.ptxas(arch)
        return found


def line_of(file: str, text: str) -> int:
    """The line of a file of this folder that has a text; the first of several."""
    lines = (FOLDER / file).read_text(encoding="utf-8").split("\n")
    return next(number for number, line in enumerate(lines, 1) if text in line)


def agree(result: ptxsan.LaunchResult, want: Mapping[Any, Any], tolerance: float) -> None:
    """Nothing is reported, and the arrays are these within a tolerance, relative to the largest value."""
    assert result.clean, [hazard.message for hazard in result.hazards]
    for place, values in want.items():
        wanted = np.asarray(values, np.float64)
        difference = np.abs(result.arrays[place].astype(np.float64) - wanted).max()
        assert difference <= tolerance * max(1.0, np.abs(wanted).max()), (place, difference)


def tells(result: ptxsan.LaunchResult, check: str, file: str, text: str) -> None:
    """Its first hazard is of this check, at the line of a file of this folder that has a text."""
    assert result.hazards
    first = result.hazards[0]
    assert (first.check, first.file, first.line) == (check, file, line_of(file, text)), first.message


def nvrtc_there() -> bool:
    """Whether NVRTC is installed: its Python module and its library."""
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError):
        return False
    return True
