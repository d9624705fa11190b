"""The `.cu` files and their declarations say the same: neither drifts from the other unseen. The packages,
which are for any project's kernels, know no stage of this one's ladder by its name."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from gemm_regression.compiler.sources import closure
from gemm_regression.model import Config, Kernel
from gemm_regression.model.parameters import parse_parameters
from tests.ladder import KERNELS_DIR, LADDER, PROJECT

KERNELS = [kernel for kernel in LADDER if kernel.compiled]
# Both are multiplied, and of one type; or tensor maps, whose type the declaration has.
MULTIPLIED = re.compile(r"const (\w+)\* A, .*const \1\* B, |CUtensorMap mapA, .*CUtensorMap mapB, ")


def files_that_drifted(files: Sequence[Path], ladder: Sequence[Kernel]) -> list[str]:
    """Files nobody declares, declarations without a file, numbers out of ladder order."""
    declared = Counter(kernel.source for kernel in ladder if kernel.source)
    found = [f"{file.name} is not declared" for file in files if file not in declared]
    found += [f"{path.name} does not exist" for path in declared if path not in files]
    found += [f"{path.name} is declared {times} times" for path, times in declared.items() if times > 1]
    numbered = [kernel for kernel in ladder if kernel.source]
    for number, kernel in enumerate(numbered):
        expected = f"s{number:02}_{kernel.name}.cu"
        if kernel.source and kernel.source.name != expected:
            found.append(f"{kernel.name} is {kernel.source.name}, not {expected}")
    return found


def same_parameters(kernel: Kernel, written: str) -> bool:
    """Whether a signature, as the `.cu` file has it, is the declared one in meaning, kind and order."""
    try:
        found = parse_parameters(written.replace("Sum ", ""), kernel.operation)  # the dtype's scalar type
    except ValueError:
        return False
    told, declared = (
        [(parameter.means, parameter.kind or "f32") for parameter in each]
        for each in (found, kernel.signature)
    )
    same = told == declared
    return same and bool(MULTIPLIED.search(written))


def source_drifted(kernel: Kernel, source: str) -> list[str]:
    """Where a `.cu` file and its declaration differ: entry, signature, macros, dtypes, header."""
    found = []
    # Comments may name any macro; only code uses one.
    code = re.sub(r"//[^\n]*", "", source).replace("__restrict__ ", "").replace("__grid_constant__ ", "")
    code = " ".join(code.split())
    signature = re.search(rf'extern "C" __global__ void[^;{{]*\b{kernel.entry}\(([^)]*)\)', code)
    if kernel.entry != f"gemm_{kernel.name}" or not signature:
        found.append(f"no entry {kernel.entry}")
    elif not same_parameters(kernel, signature[1]):
        found.append(f"the signature differs: {signature[1]}")
    demanded = set(re.findall(r"!defined\((\w+)\)", code))
    if not demanded or "#error" not in code:
        found.append("demands no macro")
    optional = set(re.findall(r"#ifn?def (\w+)", code))  # an axis of advised configs
    tuned = dict(kernel.space.defaults) if kernel.space else {}
    found += [
        f"{name} is not {value} by default"
        for name, value in tuned.items()
        if f"#ifndef {name} #define {name} {value} #endif" not in code
    ]
    for config in kernel.declared:
        known = demanded | set(tuned) | (optional if config not in kernel.configs else set())
        found += [f"{config.label} lacks {name}" for name in demanded - set(config)]
        found += [f"{name} of {config.label} is not demanded" for name in set(config) - known]
    used = re.sub(r"#if(?:(?!#endif).)*?#error \"[^\"]*\"", "", code)
    found += [f"{name} is not used" for name in demanded if not re.search(rf"\b{name}\b", used)]
    macros = [dtype.macros[0] for dtype in kernel.dtypes] if len(kernel.dtypes) > 1 else []
    found += [f"{macro} is not used" for macro in macros if f"defined({macro})" not in code]
    header = source.split("\n\n")[0]
    told = all(word in header for word in (f"// {kernel.name}: ", "The idea", "The limit", "Next"))
    if not told:
        found.append("the header does not tell the idea, what limits it and what comes next")
    return found


def test_files_are_the_ladder() -> None:
    assert files_that_drifted(sorted(KERNELS_DIR.glob("*.cu")), LADDER) == []


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_a_file_is_what_is_declared(kernel: Kernel) -> None:
    files = [path.read_text(encoding="utf-8") for path in closure(kernel)]
    assert source_drifted(kernel, "\n".join(files)) == []


@pytest.mark.parametrize("kernel", [k for k in KERNELS if k.space], ids=lambda kernel: kernel.name)
def test_a_space_holds_the_configs_that_are_timed_at_every_shape(kernel: Kernel) -> None:
    assert kernel.space
    values = kernel.space.values(kernel.configs[0])
    assert values
    assert kernel.space.broken(dict(zip(kernel.space.axes, values, strict=True))) == ""


def test_the_library_has_nothing_to_compile() -> None:
    (cublas,) = [kernel for kernel in LADDER if kernel.library]
    assert (cublas.name, cublas.entry, cublas.configs) == ("cublas", "", (Config(),))
    assert [dtype.name for dtype in cublas.dtypes] == ["f32", "f16", "bf16", "tf32"]
    assert LADDER[-1] is cublas


HARNESS = PROJECT.root / "harness"
# Words of the field besides: instructions and features of PTX, what a cubin has, a shape.
WORDS_OF_THE_FIELD = {"pack", "prefetch", "register", "rectangular", "wgmma", "wmma"}
STAGES = {kernel.name for kernel in LADDER if kernel.compiled} - WORDS_OF_THE_FIELD
# The report calls what its speed-ups are relative to by its name.
MAY_NAME = {"gemm_regression/report/charts.py"}


@pytest.mark.parametrize("package", ["gemm_regression", "ptxsan"])
def test_no_module_names_a_stage_of_the_ladder(package: str) -> None:
    found = {
        f"{path.relative_to(HARNESS)}: {name}"
        for path in (HARNESS / package).rglob("*.py")
        if str(path.relative_to(HARNESS)) not in MAY_NAME
        for name in set(re.findall(r"\w+", path.read_text(encoding="utf-8"))) & STAGES
    }
    assert not found
