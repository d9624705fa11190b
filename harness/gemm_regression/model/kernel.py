"""A declared kernel: its source, its configs, what it accepts, how a problem becomes a launch; and what is
found wrong with it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from gemm_regression.model.arguments import TensorMap
from gemm_regression.model.dtypes import F32, DType
from gemm_regression.model.operation import GEMM, Operation
from gemm_regression.model.parameters import (
    Config,
    Parameter,
    Space,
    expression_refusals,
    narrow,
    parse_parameters,
    signature_refusals,
    usual_parameters,
)
from gemm_regression.model.problem import Problem

# After any other hazard the launch cannot go on, and nothing would be known of its values.
WAIVABLE = ("barrier", "race", "uninit")
_SIZES, _OTHERS = ("m", "n", "k", "batch"), ("lda", "ldb", "ldc", "A", "B", "C")
LARGEST_MARGIN = 0.02  # what is noisier than that cannot be judged, and says so
_FIELD = re.compile(r"\{([^\W\d]\w*)\}")
_LAUNCH = re.compile(r"grid (\d+)x(\d+)x(\d+), block (\d+)x(\d+)x(\d+), (\d+) bytes dynamic")


@dataclass(frozen=True)
class Constraints:
    """The problems that a kernel accepts, as far as its parameters do not restrict them already.

    ``multiples``: a size or leading dimension (``m``, ``n``, ``k``, ``lda`` …, sizes also as the operation
    names them) must be a multiple of this number, or of this parameter of the config: ``{"m": "TILE_M"}``.
    For ``A``, ``B`` and ``C``: the matrix starts at a multiple of so many elements from a 256-byte boundary.
    ``at_least``, ``at_most``: bounds by name. ``square``: m, n and k must be equal. ``unless``: a function
    that returns the reason against a problem, or None. ``finite_c``: the kernel reads C even if beta is 0; C
    is then filled with finite numbers. ``on_grid``: the kernel expects TF32 inputs that are already rounded
    to TF32."""

    multiples: Mapping[str, int | str] = field(default_factory=dict)
    at_least: Mapping[str, int] = field(default_factory=dict)
    at_most: Mapping[str, int] = field(default_factory=dict)
    square: bool = False
    unless: Callable[[Problem, Config], str | None] | None = None
    finite_c: bool = False
    on_grid: bool = False
    _names: Mapping[str, str] = field(default_factory=dict)  # of sizes, as the operation has them

    def __hash__(self) -> int:
        return id(self)

    def by(self, sizes: Sequence[str]) -> Constraints:
        """The same of an operation that calls m, n, k and batch so. Raises ValueError for a name that is none
        of a size, a leading dimension or a matrix."""
        names = dict(zip(sizes, _SIZES, strict=False))
        used = {*self.multiples, *self.at_least, *self.at_most}
        known = (*(sizes or _SIZES), *_OTHERS)
        if strange := sorted(used - {*known, *_SIZES}):
            raise ValueError(f"constraints: {strange[0]!r} is none of {', '.join(known)}")
        if not used & names.keys():
            return self
        limits: Any = {
            of: {names.get(name, name): limit for name, limit in getattr(self, of).items()}
            for of in ("multiples", "at_least", "at_most")
        }
        return replace(self, **limits, _names={own: name for name, own in names.items()})

    def _units(self, config: Config) -> dict[str, int]:
        return {n: config[unit] if isinstance(unit, str) else unit for n, unit in self.multiples.items()}

    def refusals(self, problem: Problem, config: Config) -> Iterator[str]:
        """Why this problem is not accepted, one line per reason."""
        for name, size in self._units(config).items():
            unit = self.multiples[name]
            what = f"{unit} = {size}" if isinstance(unit, str) else str(size)
            if name in ("A", "B", "C"):
                if problem.start(name) % size:
                    yield f"{name} starts at element {problem.start(name)}, not at a multiple of {what}"
            elif getattr(problem, name) % size:
                yield f"{self._told(problem, name)} is not a multiple of {what}"
            elif name in ("m", "n") and not getattr(problem, name):
                yield f"{self._told(problem, name)} is below {what}, and a launch has at least one block"
        for name, least in self.at_least.items():
            if getattr(problem, name) < least:
                yield f"{self._told(problem, name)} is below {least}"
        for name, most in self.at_most.items():
            if getattr(problem, name) > most:
                yield f"{self._told(problem, name)} is above {most}"
        if self.square and not problem.m == problem.n == problem.k:
            yield f"{problem.m}x{problem.n}x{problem.k} is not square"
        if self.unless and (reason := self.unless(problem, config)):
            yield reason

    def _told(self, problem: Problem, name: str) -> str:
        return f"{self._names.get(name, name)} {getattr(problem, name)}"

    def near(self, problem: Problem, config: Config) -> Problem:
        """A similar problem that satisfies these requirements as far as possible: sizes rounded up to
        multiples, within the limits, square; leading dimensions with the same padding, and starts,
        rounded up to multiples."""
        units = self._units(config)

        def up(name: str, value: int) -> int:
            return -(-value // units.get(name, 1)) * units.get(name, 1)

        sizes = {name: getattr(problem, name) for name in ("m", "n", "k")}
        if self.square:
            sizes = dict.fromkeys(sizes, min(max(sizes.values()), 256))
        for name, size in sizes.items():
            size = max(size, self.at_least.get(name, 0))
            size = min(size, self.at_most.get(name, size))
            unit = units.get(name, 1)
            whole = max(up(name, size), unit if unit > 1 and name != "k" else 0)
            sizes[name] = whole if whole <= self.at_most.get(name, whole) else size // unit * unit
        a, b, c = (up(matrix, problem.start(matrix)) for matrix in "ABC")
        tight = replace(problem, lda=0, ldb=0, ldc=0, **sizes, starts=(a, b, c))
        return tight.with_leading({n: up(n, getattr(tight, n) + more) for n, more in problem.beyond.items()})


@dataclass(frozen=True)
class Finding:
    """An error of a kernel, or a note, found by the interpreter, the result check, the compiler or the gate.

    Attributes:
        check: stable name of the check, such as race or exact.
        message: all there is to say.
        file, line: where, relative to the folder of the kernel's source; "" and 0 where that is not known.
        thread, problem: who did what, without the place; "" where the message is all there is.
    """

    check: str
    message: str
    file: str = ""
    line: int = 0
    thread: str = ""
    problem: str = ""

    def __str__(self) -> str:
        return f"{self.check}: {self.message}"

    @property
    def title(self) -> str:
        """``race at sgemm.cu:35``: what equal findings share."""
        return f"{self.check} at {self.file}:{self.line}" if self.line else self.check

    def to_json(self) -> str:
        """As a test records it."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Finding:
        return cls(**json.loads(text))


@dataclass(frozen=True)
class Waiver:
    """An accepted finding: its ``check``, the text of its ``line`` in the file that is named, which may be a
    header or what a frontend made (spaces do not matter), and the ``reason``. Values are still compared.

    Raises ValueError for a check that cannot be waived, and without a line or a reason.
    """

    check: str
    line: str
    reason: str

    def __post_init__(self) -> None:
        if self.check not in WAIVABLE:
            raise ValueError(f"a waiver of {self.check!r}: only {', '.join(WAIVABLE)} can be waived")
        if not self.line.strip() or not self.reason.strip():
            raise ValueError(f"a waiver of {self.check} needs the text of a line, and a reason")

    def matches(self, check: str, line: str) -> bool:
        """Whether it is for a finding of this check at a line with this text."""
        return check == self.check and line.split() == self.line.split()

    def __str__(self) -> str:
        return f"{self.check} at `{' '.join(self.line.split())}`: {self.reason}"


@dataclass(frozen=True)
class BlockShape:
    """What a block computes, as declared. The legality rules check it.

    ``threads``: (x, y) or (x, y, z) per block. ``tile``: rows and columns of C per block. ``thread_tile``:
    rows and columns per thread; None for warp-wide kernels. ``shared_bytes``: static and dynamic shared
    memory per block; None if not declared. ``dynamic``: the shared memory is requested at launch, except for
    its ``static_bytes``. ``vectors``: (name, row stride in elements, vector width in elements) for every
    vector access to shared memory. ``whole_warps``: the number of threads must be a multiple of 32.
    ``batch``: matrices of a batch per block. ``split``: blocks that share the K of a tile. ``cluster``:
    rows and columns of tiles that the blocks of a cluster compute."""

    threads: tuple[int, int] | tuple[int, int, int]
    tile: tuple[int, int]
    thread_tile: tuple[int, int] | None = None
    shared_bytes: int | None = None
    dynamic: bool = False
    static_bytes: int = 0
    vectors: tuple[tuple[str, int, int], ...] = ()
    whole_warps: bool = False
    batch: int = 1
    split: int = 1
    cluster: tuple[int, int] = (1, 1)

    @property
    def block(self) -> tuple[int, int, int]:
        """Threads per block in x, y and z."""
        x, y, z = (*self.threads, 1)[:3]
        return x, y, z

    @property
    def dynamic_bytes(self) -> int:
        """Bytes of shared memory that a launch requests."""
        return (self.shared_bytes or 0) - self.static_bytes if self.dynamic else 0


@dataclass(frozen=True)
class Launch:
    """Grid and block dimensions, and the dynamic shared memory in bytes."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_shared: int

    def __str__(self) -> str:
        grid, block = ("x".join(map(str, size)) for size in (self.grid, self.block))
        return f"grid {grid}, block {block}, {self.dynamic_shared} bytes dynamic"

    @classmethod
    def parse(cls, text: str) -> Launch:
        """The inverse of ``str``. Raises ValueError."""
        match = _LAUNCH.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not a launch")
        x, y, z, i, j, k, shared = map(int, match.groups())
        return cls((x, y, z), (i, j, k), shared)


@dataclass(frozen=True)
class Workspace:
    """Global memory that the blocks of a launch share. ``bytes``: its size. ``zeroed``: the first bytes,
    which are zero at the start of a launch and must be zero again after it. The rest is arbitrary."""

    bytes: Callable[[Config, DType, Problem], int]
    zeroed: Callable[[Config, DType, Problem], int] = lambda config, dtype, problem: 0


class Frontend(Protocol):
    """A compiler other than nvcc, such as Triton's."""

    def ptx(self, source: Path, config: Config, dtype: DType, arch: str) -> str:
        """The PTX of a variant for an architecture ("sm_90a"), the same each time. Raises ValueError, in one
        line, where it does not compile."""
        ...

    def ptxas(self, arch: str) -> Path | None:
        """Its own ptxas, which may know newer PTX than nvcc's; None: nvcc's."""
        ...


@dataclass(frozen=True)
class Kernel:
    """A kernel under test.

    ``name``: in the ids of its cases. ``source``: the ``.cu``, ``.ptx`` or ``.cubin`` file, relative to the
    declaration, or that of which a ``frontend`` makes PTX. None means a library call (cuBLAS), which has no
    config; or a dispatcher (``is_dispatcher``), which runs, for each problem, the kernel and config that
    `gemm_regression.tune.select` chooses. ``include``: additional include folders. ``flags``: further options
    for nvcc. ``entry``: the C++ name of the ``__global__`` function. It may have a namespace (``ns::gemm``)
    or be an instance of a template, in which ``{TILE_M}`` stands for a parameter of the config. The name of
    an overloaded function is followed by its parameters.

    ``operation``: what the kernel computes. ``parameters``: its parameters in C++ (``parse_parameters``);
    empty for the default ones. ``dtypes``: its element types. ``constraints``: the problems that it accepts.
    ``workspace``: the global memory that it needs. ``maps``: the tensor maps of a config and dtype, by
    operand, for parameters of type ``CUtensorMap``. ``shape``: what a block computes, constant or by config
    and dtype. ``grid``: the blocks of a launch, if not one per tile with x along the columns of C.

    ``configs``: all configs to test; the first is timed at every shape. ``advised``: configs that tuning
    guides recommend or warn of, for suites of advice. ``space``: the search space of ``tune``. ``idea``:
    one line for the ladder table. ``min_capability``, ``max_capability``: the GPUs that it is made for.
    ``features``: hardware features that cannot be emulated, such as ``wgmma`` and ``tma``. ``waived``:
    accepted findings of the emulated device.

    ``margin``: the smallest slowdown that fails, at most 2 %, for a kernel whose times are too noisy for 0.5
    %. ``largest_timed``: problems with more FLOP are not timed. ``duty``: the duty cycle of the timing, below
    1 for kernels that would otherwise reach the power cap.
    """

    name: str
    source: Path | None
    entry: str
    shape: BlockShape | Callable[[Config, DType], BlockShape]
    idea: str = ""
    dtypes: tuple[DType, ...] = (F32,)
    configs: tuple[Config, ...] = (Config(),)
    advised: tuple[Config, ...] = ()
    operation: Operation = GEMM
    parameters: str = ""
    constraints: Constraints = Constraints()
    workspace: Workspace | None = None
    min_capability: tuple[int, int] = (7, 5)
    max_capability: tuple[int, int] = (99, 9)
    flags: tuple[str, ...] = ()
    include: tuple[Path | str, ...] = ()
    features: tuple[str, ...] = ()
    maps: Callable[[Config, DType], Mapping[str, TensorMap]] | None = None
    margin: float | None = None
    largest_timed: float = float("inf")
    duty: float = 1.0
    grid: Callable[[BlockShape, Problem], tuple[int, int, int]] | None = None
    waived: tuple[Waiver, ...] = ()
    is_dispatcher: bool = False
    space: Space | None = field(default=None, compare=False)
    frontend: Frontend | None = None

    def __post_init__(self) -> None:
        if isinstance(self.source, str):
            object.__setattr__(self, "source", Path(self.source))
        if self.from_cubin and not self.features:
            object.__setattr__(self, "features", ("a GPU",))
        try:
            object.__setattr__(self, "constraints", self.constraints.by(self.operation.sizes))
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}") from None
        if self.margin is not None and not 0 < self.margin <= LARGEST_MARGIN:
            most = f"at most {LARGEST_MARGIN:g}, such as 0.01 for 1 %"
            raise ValueError(f"{self.name}: margin {self.margin:g}: must be above 0 and {most}")
        activation = self.operation.activation
        integer = next((dtype for dtype in self.dtypes if dtype.integer), None)
        if integer and activation and not activation.exact:
            what = f"{activation.name} does not produce integers"
            raise ValueError(f"{self.name}: {what}, but {integer} has an integer output")

    @property
    def library(self) -> bool:
        """Whether it is a library call."""
        return self.source is None and not self.is_dispatcher

    @property
    def compiled(self) -> bool:
        """Whether it has a source of its own."""
        return self.source is not None

    @property
    def by_nvcc(self) -> bool:
        """Whether nvcc compiles its source: CUDA C++."""
        made = self.frontend is not None or self.from_cubin
        return self.source is not None and not made and self.source.suffix != ".ptx"

    @property
    def from_cubin(self) -> bool:
        """Whether its source is a binary."""
        return isinstance(self.source, Path) and self.source.suffix == ".cubin"

    def __hash__(self) -> int:
        return hash((self.name, self.entry))  # a key in many places: not of all configs each time

    @property
    def declared(self) -> tuple[Config, ...]:
        """All its configs, each once."""
        return tuple(dict.fromkeys((*self.configs, *self.advised)))

    @cached_property
    def signature(self) -> tuple[Parameter, ...]:
        """Its parameters, in its own order. Raises ValueError if the declaration cannot be parsed."""
        text = self.parameters or usual_parameters(self.operation, self.workspace is not None)
        return parse_parameters(text, self.operation)

    def entry_of(self, config: Config, dtype: DType) -> str:
        """The C++ name of the function; other braces are C++'s, as in ``decltype(f{})``. Raises ValueError
        for a name that is not a parameter of the config."""
        try:
            return _FIELD.sub(lambda found: str(config[found[1]]), self.entry)
        except KeyError as error:
            raise ValueError(f"{self.name}: entry {self.entry!r}: the config has no {error}") from None

    def shape_of(self, config: Config, dtype: DType) -> BlockShape:
        """What a block computes."""
        return self.shape if isinstance(self.shape, BlockShape) else self.shape(config, dtype)

    def maps_of(self, config: Config, dtype: DType) -> Mapping[str, TensorMap]:
        """Its tensor maps, by operand."""
        return self.maps(config, dtype) if self.maps else {}

    def launch(self, config: Config, dtype: DType, problem: Problem) -> Launch:
        """Grid and block for a problem: by default one block per tile (or as many as share it), x along the
        columns of C."""
        shape = self.shape_of(config, dtype)
        rows, columns = shape.tile
        batches = -(-problem.batch // shape.batch)
        tiles = (-(-problem.n // columns), -(-problem.m // rows), batches * shape.split)
        # CUDA rejects an empty grid, so one block is launched for an empty problem.
        x, y, z = (max(1, count) for count in (self.grid(shape, problem) if self.grid else tiles))
        return Launch((x, y, z), shape.block, shape.dynamic_bytes)

    def refusals(self, config: Config, problem: Problem) -> tuple[str, ...]:
        """Why it does not accept a problem, one line per reason; empty if it does."""
        if (said := self._refused.get(problem)) is None:
            parameters, operation = self.signature, self.operation
            without = expression_refusals(parameters, operation, problem, self.dtypes[0])
            said = self._refused[problem] = (*signature_refusals(parameters, operation, problem), *without)
        return (*said, *self.constraints.refusals(problem, config))

    @cached_property
    def _refused(self) -> dict[Problem, tuple[str, ...]]:
        """What its parameters alone refuse: the same for all configs, and asked thousands of times."""
        return {}

    def narrowed(self, problem: Problem) -> Problem:
        """The problem, restricted to what the parameters can express."""
        return narrow(self.signature, self.operation, problem) if self.compiled else problem


@dataclass(frozen=True)
class Resources:
    """The resources of a binary: registers per thread, shared memory per block and local memory per thread in
    bytes, and the SHA-256 of the cubin."""

    registers: int
    shared_bytes: int
    local_bytes: int
    cubin_sha256: str
