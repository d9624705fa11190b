"""What the adapters of other compilers share: values of a config, types by name, the file of a function."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from gemm_regression.model import Config, DType

Value = int | str  # a number, or a parameter of the config


def value_of(value: Value, config: Config) -> int:
    return config[value] if isinstance(value, str) else value


def number_of(arch: str) -> int:
    """90 of "sm_90a"."""
    return int(arch.strip("sm_af"))


def types_of(compiler: str, text: str, dtype: DType, names: Mapping[str, str]) -> list[str]:
    """The types in a text such as ``*{dtype} *{output} i32``, by a compiler's names. Raises ValueError."""

    def name(of: Any) -> str:
        if of.name not in names:
            raise ValueError(f"{compiler}: no type for {of.name}; known: {', '.join(names)}")
        return names[of.name]

    return text.format(dtype=name(dtype.storage), output=name(dtype.output)).split()


def typed(function: str, names: Sequence[str], types: Sequence[str]) -> dict[str, str]:
    """A type for each parameter. Raises ValueError for another number of them."""
    if len(types) != len(names):
        raise ValueError(f"{function} has {len(names)} parameters ({', '.join(names)}), not {len(types)}")
    return dict(zip(names, types, strict=True))


def function_of(source: Path, name: str) -> Any:
    """A function of a Python file, which is run once. Raises ValueError, also where there is none."""
    function = getattr(_module(source), name, None)
    if function is None:
        raise ValueError(f"{source.name} has no function {name}")
    return function


def refused(compiler: str, error: Exception) -> ValueError:
    """What a compiler said, in one line."""
    return ValueError(f"{compiler}: {' '.join(str(error).split())}")


@lru_cache(64)
def _module(source: Path) -> Any:
    """The Python file, run once under a name of its own. Raises ValueError."""
    name = f"_gemm_frontend_{source.stem}"
    spec = importlib.util.spec_from_file_location(name, source)
    if spec is None or spec.loader is None:
        raise ValueError(f"{source} is no Python file")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ValueError(f"{source.name}: {type(error).__name__}: {error}") from None
    return module
