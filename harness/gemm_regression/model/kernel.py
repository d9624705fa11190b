"""A declared kernel: its source, its configs, what it accepts, how a problem becomes a launch; and what is
found wrong with it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path

from gemm_regression.model.operation import F32, GEMM, DType, Operation, Problem
from gemm_regression.model.parameters import (
    Config,
    Parameter,
    Space,
    TensorMap,
    narrow,
    parse_parameters,
    signature_refusals,
    usual_parameters,
)

# After any other hazard the launch cannot go on, and nothing would be known of its values.
WAIVABLE = ("barrier", "race", "uninit")
LARGEST_MARGIN = 0.02  # what is noisier than that cannot be judged, and says so
_LAUNCH = re.compile(r"grid (\d+)x(\d+)x(\d+), block (\d+)x(\d+)x(\d+), (\d+) bytes dynamic")


@dataclass(frozen=True)
class Constraints:
    """What a kernel requires of a problem, besides what its parameters can express.

    ``multiples`` of sizes and leading dimensions, by name (``m``, ``n``, ``k``, ``lda`` …): a number, or a
    parameter of the config, ``{"m": "TILE_M"}``; of ``A``, ``B`` and ``C``: the elements from a 256-byte
    boundary to the start of the matrix, since any element of a larger one may be its first. ``at_least`` and
    ``at_most`` by name; ``square``: m, n and k must be equal; ``unless`` returns a reason against a problem,
    or None. ``finite_c``: the kernel reads C even if beta is 0, as ``alpha * sum + beta * C`` does; C is then
    filled with finite numbers. ``on_grid``: it multiplies TF32 without rounding A and B to it, which already
    hold such numbers."""

    multiples: Mapping[str, int | str] = field(default_factory=dict)
    at_least: Mapping[str, int] = field(default_factory=dict)
    at_most: Mapping[str, int] = field(default_factory=dict)
    square: bool = False
    unless: Callable[[Problem, Config], str | None] | None = None
    finite_c: bool = False
    on_grid: bool = False

    def __hash__(self) -> int:
        return id(self)

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
                yield f"{name} {getattr(problem, name)} is not a multiple of {what}"
            elif name in ("m", "n") and not getattr(problem, name):
                yield f"{name} 0 is below {what}, and a launch has at least one block"
        for name, least in self.at_least.items():
            if getattr(problem, name) < least:
                yield f"{name} {getattr(problem, name)} is below {least}"
        for name, most in self.at_most.items():
            if getattr(problem, name) > most:
                yield f"{name} {getattr(problem, name)} is above {most}"
        if self.square and not problem.m == problem.n == problem.k:
            yield f"{problem.m}x{problem.n}x{problem.k} is not square"
        if self.unless and (reason := self.unless(problem, config)):
            yield reason

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
    """What the interpreter, the oracle, the compiler or a gate found wrong with a kernel, or notes of it.

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
    """A finding that is no error for this kernel: its ``check``, the ``line`` of the ``.cu`` file that it
    names, given by its text (spaces do not matter), and the ``reason``. Values are checked all the same.

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
    """What one block computes, as declared; checked by the legality rules.

    ``threads``: (x, y) or (x, y, z) per block; ``tile``: rows and columns of C per block; ``thread_tile``:
    rows and columns per thread (None for warp-wide kernels); ``shared_bytes``: static and dynamic shared
    memory per block, None if not declared; ``dynamic``: whether it is requested at launch, but for
    ``static_bytes`` of it; ``vectors``: (name, row stride in elements, vector width in elements) for every
    vector access to shared memory; ``whole_warps``: whether the threads must be a multiple of 32; ``batch``:
    matrices of a batch per block; ``split``: number of blocks that share the K of a tile."""

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
    """Global memory for communication between blocks: ``bytes`` in total, of which the first ``zeroed`` bytes
    are zero at the start of a launch and must be zero after it; the rest has arbitrary contents."""

    bytes: Callable[[Config, Problem], int]
    zeroed: Callable[[Config, Problem], int] = lambda config, problem: 0


@dataclass(frozen=True)
class Kernel:
    """A kernel under test. ``source`` None means a library call (cuBLAS), which has no config; or, with
    ``is_dispatcher``, a row that is for each problem the declared kernel and config that
    `gemm_regression.tune.select` chooses.

    ``source`` is the ``.cu`` file, relative to the declaration; ``include``: additional include folders.
    ``entry`` names the ``__global__`` function: its plain name, with namespace (``ns::gemm``), or an instance
    of a template, in which ``{TILE_M}`` stands for a parameter of the config, and which is followed by its
    parameters if it is overloaded. ``idea``: one line for the ladder table. ``operation`` is what it
    computes; ``parameters`` its parameters as declared in C++ (``parse_parameters``), empty for the default
    ones; ``constraints`` what it accepts; ``workspace`` the global memory it needs. ``shape`` is what
    a block computes, constant or by config and dtype; ``configs`` are all configs to test, of which the first
    is timed at every shape; ``advised`` configs that others recommend or warn of, in ``configs`` or not,
    which suites of advice run; ``grid`` the blocks of a launch if they are not one per tile with x along the
    columns of C. ``min_capability`` and ``max_capability`` bound the GPUs it is made for. ``flags`` are
    further options for nvcc. ``maps`` are the tensor maps of a config and dtype, by operand, for parameters
    of type ``CUtensorMap``. ``features`` are hardware features that cannot be emulated, such as ``wgmma`` and
    ``tma``. ``margin`` is the slowdown that counts as a regression, at most 2 %, for a kernel whose own noise
    needs more than 0.5 %; ``largest_timed`` skips timing of problems with more FLOP; ``duty`` is the duty
    cycle of the timing, below 1 for kernels that would otherwise reach the power cap. ``waived`` are findings
    of the emulated device that are accepted. ``space`` is where `nox -s tune` looks for better configs.
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

    def __post_init__(self) -> None:
        if isinstance(self.source, str):
            object.__setattr__(self, "source", Path(self.source))
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
        """The C++ name of the function. Raises ValueError for a field that is not a parameter of the
        config."""
        try:
            return self.entry.format(**config)
        except (KeyError, IndexError) as error:
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
        said = signature_refusals(self.signature, self.operation, problem)
        return (*said, *self.constraints.refusals(problem, config))

    def narrowed(self, problem: Problem) -> Problem:
        """The problem, restricted to what the parameters can express."""
        return narrow(self.signature, self.operation, problem) if self.compiled else problem


@dataclass(frozen=True)
class Resources:
    """The resources of a binary: registers per thread, bytes of shared memory per block and of local memory
    per thread, and the SHA-256 of the cubin."""

    registers: int
    shared_bytes: int
    local_bytes: int
    cubin_sha256: str
