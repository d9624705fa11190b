"""What the adapters of other compilers share: a function of a Python file, its constants and its types."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from gemm_regression.compiler.objects import ptx_symbols
from gemm_regression.files import without_bytecode
from gemm_regression.model import BlockShape, Config, DType

Value = int | str  # a number, or a parameter of the config


class Given(NamedTuple):
    """What a compiler is given of a function: itself, its constants by name, and the types of its other
    parameters in their order, by the compiler's names."""

    function: Any
    constants: dict[str, int]
    types: dict[str, str]


_WORD = re.compile(r"(?:(\w+):)?([*\w{}]+)(?:\(([\w,]+)\))?(?::\(([\w,%]+)\))?")
_NUMBERS = {"float32": "float", "float64": "double", "int32": "int", "int64": "long long"}


class Word(NamedTuple):
    """A word of ``types``, such as ``A:{dtype}(M,K):(lda,1)``: name and element type of an array, its shape,
    and its strides in elements; what is a number is known when it is compiled. A scalar has neither."""

    name: str
    element: str
    shape: tuple[str, ...]
    strides: tuple[str, ...]

    @property
    def number(self) -> str:
        """A number as a declaration writes it."""
        return f"{_NUMBERS.get(self.element.lower(), self.element)} {self.name}"


def word_of(text: str) -> Word:
    """Raises ValueError."""
    found = _WORD.fullmatch(text)
    if not found:
        raise ValueError(f"{text!r} is no type such as {{dtype}}, or A:{{dtype}}(M,K):(lda,1)")
    shape, strides = (tuple(filter(None, (part or "").split(","))) for part in (found[3], found[4]))
    return Word(found[1] or "", found[2], shape, strides)


@dataclass(frozen=True)
class PythonKernel:
    """One function of a Python file, of which a ``compiler`` makes PTX.

    Attributes:
        function: its name.
        types: of its parameters that are no constants, a word each, by the compiler's names. ``{dtype}`` and
            ``{output}`` stand for those of the elements, which ``names`` has by NumPy's.
        constants: numbers, or parameters of the config, by name.
    """

    function: str
    types: str
    constants: tuple[tuple[str, Value], ...] = ()
    compiler: ClassVar[str]
    names: ClassVar[Mapping[str, str]]

    def ptxas(self, arch: str) -> Path | None:
        """nvcc's: most compilers bring none."""
        return None

    def given(
        self, source: Path, config: Config, dtype: DType, parameters: Callable[[Any], Sequence[str]]
    ) -> Given:
        """``parameters`` are the names of those of a function. Raises ValueError, in one line."""
        function = function_of(source, self.function)
        constants = {name: value_of(value, config) for name, value in self.constants}
        names = [name for name in parameters(function) if name not in constants]
        types = self.types.format(dtype=self._named(dtype.storage), output=self._named(dtype.output)).split()
        if len(types) != len(names):
            there = f"{len(names)} parameters ({', '.join(names)})"
            raise ValueError(f"{self.function} has {there}, not {len(types)}")
        return Given(function, constants, dict(zip(names, types, strict=True)))

    def _named(self, element: Any) -> str:
        if element.name not in self.names:
            known = ", ".join(self.names)
            raise ValueError(f"{self.compiler}: no type for {element.name}; known: {known}")
        return self.names[element.name]

    @contextmanager
    def says(self) -> Iterator[None]:
        """Whatever comes of a user's program and of the compiler becomes a ValueError, in one line."""
        try:
            yield
        except Exception as error:
            raise ValueError(f"{self.compiler}: {' '.join(str(error).split())}") from None


def value_of(value: Value, config: Config) -> int:
    return config[value] if isinstance(value, str) else value


def number_of(arch: str) -> int:
    """90 of "sm_90a"."""
    return int(arch.strip("sm_af"))


def one_entry(ptx: str, name: str) -> str:
    """PTX whose one entry has this name. Raises ValueError for several."""
    entries = ptx_symbols(ptx)
    if len(entries) != 1:
        raise ValueError(f"{name} launches {len(entries)} kernels; only one can be judged")
    return ptx.replace(entries[0], name)


def block_shape(
    threads: tuple[int, int, int], tile: tuple[Value, Value], shared: int, config: Config, static: int = 0
) -> BlockShape:
    """What a block computes, for a declaration: ``tile`` is rows and columns of C; ``shared`` bytes of memory
    are asked for at launch, beside the ``static`` ones."""
    rows, columns = (value_of(size, config) for size in tile)
    return BlockShape(
        threads, (rows, columns), shared_bytes=shared + static, dynamic=True, static_bytes=static
    )


def functions_of(source: Path) -> dict[str, Any]:
    """What a Python file, which is run once, has by name. Raises ValueError."""
    return {**vars(_module(source))}


def function_of(source: Path, name: str) -> Any:
    """A function of a Python file, which is run once. Raises ValueError, also where there is none."""
    function = functions_of(source).get(name)
    if function is None:
        raise ValueError(f"{source.name} has no function {name}")
    return function


@lru_cache(64)
def _module(source: Path) -> Any:
    """The Python file, run once under a name of its own. Raises ValueError."""
    name = f"_gemm_frontend_{source.stem}"
    spec = importlib.util.spec_from_file_location(name, source)
    if spec is None or spec.loader is None:
        raise ValueError(f"{source} is no Python file")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        with without_bytecode():
            spec.loader.exec_module(module)
    except Exception as error:
        raise ValueError(f"{source.name}: {type(error).__name__}: {error}") from None
    return module
