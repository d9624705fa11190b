"""What commands share: how one is declared, its errors, the project and its tests."""

from __future__ import annotations

import argparse
import inspect
import os
import re
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from gemm_regression.cli.options import add_options
from gemm_regression.devices import Gpu
from gemm_regression.model import variant_name
from gemm_regression.model.kernel import LARGEST_MARGIN
from gemm_regression.project.loader import Project, ProjectError, find, load

KERNELS, PERFORMANCE, STATIC = "test_kernels.py", "test_performance.py", "test_static.py"
# What a command shows of pytest's own: no versions, and in place of dots how far it is. And a name.
# Hypothesis' plugin, where there is one, takes a second for a summary of tests that are none of these.
SHOWN = ("-p", "no:hypothesispytest", "--no-header", "-o", "console_output_style=classic", "--progress")
_LEFT_OUT = ("--ignore", "--ignore-glob", "--deselect")  # before a file or id that is not to run
# Needed if the harness is not installed, only on the path; and no warning about pytest's import order.
_NO_WARNING = "ignore:Module already:pytest.PytestAssertRewriteWarning"
PLUGIN = ("-p", "gemm_regression.pytest_plugin.entry", "-W", _NO_WARNING)


# Commands

Option = str | tuple[tuple[str, ...], dict[str, Any]]


def option(*names: str, **settings: Any) -> Option:
    """An option, or argument, that one command alone has, as argparse's add_argument takes it."""
    return names, settings


@dataclass(frozen=True)
class Command:
    """Called with its words, it parses them, runs, and returns the exit status. Of an error, the user's or
    the machine's, a line is printed.

    ``name``: as it is typed; ``run``: takes the parsed options, its docstring is what --help says;
    ``options``: names of OPTIONS, or its own; ``failed``: the status of an error; ``pytests``: the options
    that it hands on to pytest, in ``rest`` of the parsed options, with all that it does not know itself.
    """

    name: str
    run: Callable[..., int]
    options: Sequence[Option]
    failed: int
    pytests: Sequence[str]

    def __call__(self, words: Sequence[str] | None = None, *more: Any) -> int:
        words = sys.argv[1:] if words is None else words
        parser = self._parser(not {"-h", "--help"}.isdisjoint(words))
        given, rest = parser.parse_known_args(words)
        given.rest = rest
        if rest and not self.pytests:
            parser.error(f"unrecognized arguments: {' '.join(rest)}")
        try:
            return self.run(given, *more)
        except KeyboardInterrupt:
            return fail("stopped", 130)
        except Exception as error:
            # Each class of exception of the suite's own is a mistake, or a lack, told in one line.
            own = type(error).__module__.startswith("gemm_regression.")
            if isinstance(error, BrokenPipeError) or not (own or isinstance(error, ValueError | OSError)):
                raise
            return fail(error, self.failed)

    def completed(self, words: Sequence[str]) -> tuple[argparse.ArgumentParser, int]:
        """Its parser, for a shell, and how many of the words name a part of it."""
        return self._parser(True), 0

    def _parser(self, whole: bool) -> argparse.ArgumentParser:
        """``whole``: also with the options that pytest parses."""
        parser = argparse.ArgumentParser(
            f"gemm-regression {self.name}", description=about(self.run.__doc__), allow_abbrev=not self.pytests
        )
        options = list(self.options)
        if self.pytests:
            parser.usage = f"{parser.prog} [options] [pytest's options]"
            parser.epilog = "All other options are pytest's own; `pytest --help` lists them."
            options += self.pytests if whole else ["--project"]
        for each in options:
            if isinstance(each, str):
                add_options(parser.add_argument, each)
            else:
                parser.add_argument(*each[0], **each[1])
        return parser


def command(
    name: str, *options: Option, failed: int = 2, pytests: Sequence[str] = ()
) -> Callable[[Callable[..., int]], Command]:
    """Makes a `Command` of the function below it."""
    return lambda run: Command(name, run, options, failed, pytests)


@dataclass(frozen=True)
class Group:
    """Commands of one ``name``: the word after it chooses one; without, the first of ``parts`` runs."""

    name: str
    doc: str | None
    parts: Sequence[Command]

    @property
    def _named(self) -> dict[str, Command]:
        return {part.name.removeprefix(f"{self.name} "): part for part in self.parts}

    def completed(self, words: Sequence[str]) -> tuple[argparse.ArgumentParser, int]:
        """As `Command.completed`: of a part, or of the first with the names of all."""
        if words and (part := self._named.get(words[0])):
            return part.completed(())[0], 1
        parser, _ = self.parts[0].completed(())
        parser.add_argument("part", nargs="?", choices=self._named)
        return parser, 0

    def __call__(self, words: Sequence[str]) -> int:
        parts = self._named
        first = words[0] if words else ""
        if first in parts:
            return parts[first](words[1:])
        if first in ("-h", "--help") or (first[:1] not in ("", "-") and self.parts[0].pytests):
            parser = argparse.ArgumentParser(f"gemm-regression {self.name}", description=about(self.doc))
            each = parser.add_subparsers(metavar="COMMAND", help=f"default: {next(iter(parts))}")
            for name, part in parts.items():
                each.add_parser(name, help=about(part.run.__doc__, 1))
            parser.parse_args(words)
        return self.parts[0](words)


def fail(reason: object, status: int = 1) -> int:
    """Says why a command ends; returns its exit status."""
    if isinstance(reason, OSError) and reason.filename:
        reason = f"{reason.filename}: {reason.strerror}"
    print(f"error: {reason}", file=sys.stderr)
    return status


def about(doc: str | None, paragraphs: int | None = None) -> str:
    """A docstring as the description of a command: without the command's name, which it may begin with, and
    with single marks around code; the first ``paragraphs``, or all."""
    said = "\n\n".join(inspect.cleandoc(doc or "").split("\n\n")[:paragraphs])
    said = re.sub(r"^``[^`]+``: ", "", said).replace("``", "`").strip()
    return said if "/" in said.partition(" ")[0] else said[:1].upper() + said[1:]


# What a shell completes: commands, options, names of kernels, configs, suites, cases


def complete(commands: Iterable[str], find_command: Callable[[str], Command | Group]) -> None:
    """Prints the words that fit what is typed, and ends the process."""
    import argcomplete  # no command needs it

    line = os.environ.get("COMP_LINE", "")[: int(os.environ.get("COMP_POINT", 1 << 30))]
    words = line.split()
    typed = words[1:] if line.endswith(" ") else words[1:-1]
    parser = argparse.ArgumentParser("gemm-regression")
    if typed and typed[0] in commands:
        parser, depth = find_command(typed[0]).completed(typed[1:])
        os.environ["_ARGCOMPLETE"] = str(2 + depth)  # the last word of the command stands for the program
    else:
        parser.add_argument("command", choices=sorted(commands))
    for action in parser._actions:
        if names := _NAMES.get(action.dest):
            action.completer = _completer(names)  # type: ignore[attr-defined]
    argcomplete.autocomplete(parser)


def _completer(names: Callable[[Project], Iterable[str]]) -> Callable[..., list[str]]:
    def completed(**_: Any) -> list[str]:
        try:
            return list(names(load(find(Path.cwd()))))
        except ProjectError:
            return []

    return completed


def _cases(project: Project) -> Iterable[str]:
    every = ((k, c, d) for k in project.kernels for d in k.dtypes for c in k.configs)
    return (f"{variant_name(*each)}-1024x1024x1024" for each in every)


_NAMES: dict[str, Callable[[Project], Iterable[str]]] = {
    "kernel": lambda project: (kernel.name for kernel in project.kernels),
    "config": lambda project: sorted({c.label for k in project.kernels for c in k.configs if c.label}),
    "suite": lambda project: project.suites,
    **dict.fromkeys(("cases", "case", "accept_slower"), _cases),
}


# The project and its tests


def project_of(given: argparse.Namespace) -> Project:
    """The project named by --project, else the nearest one above the working directory. Raises
    ProjectError."""
    return load(find(given.project or Path.cwd()))


def for_pytest(given: argparse.Namespace, *options: str) -> list[str]:
    """What pytest is started with, after its files: the suite's plugin, these, and what the user gave."""
    project = ("--project", str(project_of(given).root)) if given.project else ()
    return [*options, *PLUGIN, *project, *given.rest]


def in_ci() -> bool:
    """Whether this is a run of CI, which leaves nothing out."""
    return os.environ.get("CI", "") not in ("", "0", "false")


def files_of_tests(project: Project, *names: str, given: Sequence[str] = ()) -> list[str]:
    """The project's test files with these names, or those that the user named instead; none where the user
    gave ids of tests, which run alone. Raises ProjectError if one is missing."""
    words = [word for before, word in pairwise(("", *given)) if word[:1] != "-" and before not in _LEFT_OUT]
    if any(".py::" in word for word in words):
        return []
    if named := [word for word in words if word.endswith(".py") and Path(word).is_file()]:
        return named
    paths = [project.tests / name for name in names]
    if missing := next((path for path in paths if not path.is_file()), None):
        raise ProjectError(f"{os.path.relpath(missing)} does not exist; `gemm-regression init` creates it")
    return [os.path.relpath(path) for path in paths]


def swallowed(words: Sequence[str]) -> str:
    """What is wrong with the id of a test beside a file or folder that it is in, of which pytest runs all and
    does not look whether there is such a test; empty if nothing is."""
    whole = [word for word in words if "::" not in word]
    for one in (word for word in words if "::" in word):
        file = Path(one.partition("::")[0]).resolve()
        if outer := next((word for word in whole if file.is_relative_to(Path(word).resolve())), None):
            return (
                f"{one}: all of {outer} would run, this test or not; leave one of them out, or select with -k"
            )
    return ""


# Values of options, each refused in one line by a ValueError


def share(option: str, text: str, example: str) -> float:
    """A percentage as a share of 1: "1.5%" is 0.015. Raises ValueError unless it is between 0 and 100 %."""
    try:
        value = float(text.removesuffix("%")) / 100
    except ValueError:
        value = -1.0
    if not 0 < value < 1:
        raise ValueError(f"{option} {text}: must be between 0 % and 100 %, such as {example}")
    return value


def margin_of(text: str | None) -> float | None:
    """The value of ``--margin``, None if it is not given. Raises ValueError unless it is at most 2 %."""
    margin = None if text is None else share("--margin", text, "0.5%")
    if margin and margin > LARGEST_MARGIN:
        raise ValueError(f"--margin {text}: must be at most {100 * LARGEST_MARGIN:g}%")
    return margin


def can_be_written(option: str, file: Path | str | None) -> None:
    """Raises ValueError for a file that cannot be written; said before the run that is to fill it."""
    if not file:
        return
    path = Path(file).resolve()
    if not path.parent.is_dir():
        raise ValueError(f"{option} {file}: its folder does not exist")
    if path.is_dir():
        raise ValueError(f"{option} {file}: is a folder; name a file")
    try:
        if path.is_file() or not path.exists():
            tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise ValueError(f"{option} {file}: cannot be written ({error.strerror})") from None


def gpu_numbers(text: str, there: int) -> list[int]:
    """The GPUs that ``--gpus`` names, of ``there`` visible ones. Raises ValueError."""
    said = f"--gpus {text}"
    if not re.fullmatch(r"all|\d+|\d+(,\d+)*,?", text):
        raise ValueError(f"{said}: must be all, a number of GPUs such as 2, or their numbers, such as 0,2")
    if "," in text:
        numbers = [int(part) for part in text.split(",") if part]
    else:
        # Nobody asks for no GPU at all: 0 is the first one.
        numbers = list(range(there if text == "all" else int(text))) or [0]
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"{said}: names a GPU twice")
    if missing := [number for number in numbers if number >= there]:
        few = "there is one GPU, number 0" if there == 1 else f"there are {there} GPUs, 0 to {there - 1}"
        raise ValueError(f"{said}: no GPU {missing[0]}; {few}")
    return numbers


def refuse_busy(device: Gpu, allowed: bool) -> None:
    """Raises ValueError for a GPU that others use, unless that is allowed."""
    if not allowed and (others := device.busy()):
        raise ValueError(busy_text(device.info.name, others))


def busy_text(gpu: str, others: Sequence[str]) -> str:
    """Why nothing is timed while ``others`` use the GPU, in one line."""
    return f"{gpu} is in use by {'; '.join(others)}: timings would be useless. Stop it, or pass --allow-busy"


def end_on_sigterm() -> None:
    """SIGTERM ends the process in an orderly way, as Ctrl-C does: workers are stopped, worktrees removed."""
    signal.signal(signal.SIGTERM, _end)


def _end(number: int, frame: Any) -> None:
    raise SystemExit(128 + number)
