"""The results as a page of Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from tests.public.results import Judged, Result
from tests.public.source import Source

_HEAD = """# Public kernels

GEMM kernels that others have published, judged by `check` without a GPU from a declaration alone: no file of
theirs was edited. A tool that reports what is not so is soon switched off, and so everything reported of them
has to be explained in one line: by what is wrong with the kernel, or by an instruction that is not emulated.
Notes fail nothing: what CUDA C++ leaves undefined and PTX or the machine defines, and reads of what nobody
wrote that nothing depends on. Written by `{command}`; do not edit.

`FOLDER` has a folder per repository: its files at the revision named below, unchanged; a project
([declaring.md](../declaring.md)) whose declarations say what each kernel computes and accepts; `source.toml`:
`repository`, `revision`, `date`, `licence`, `declared`, `on_gpu`, and for each known fault a table
`[explained.KERNEL]` with `checks = [...]` and `why = "..."`. If other checks fail than those explained, the
command fails. Neither the kernels nor their projects are part of this repository.
"""


def render(found: Mapping[str, tuple[Source, Sequence[Judged]]], command: str) -> str:
    """The page, of the projects by name."""
    every = [judged for _, kernels in found.values() for judged in kernels]
    shown = [result for result in Result if not Judged("", result).failed or _count(every, result)]
    parts = [_HEAD.format(command=command), "## By repository\n"]
    parts += [
        _row("repository", "revision", "licence", "kernels", *shown),
        _row(*["---"] * 3, *["---:"] * (1 + len(shown))),
    ]
    for source, kernels in found.values():
        parts.append(
            _row(*_origin(source), len(kernels), *(_count(kernels, result) or "" for result in shown))
        )
    parts.append(_row("all", "", "", len(every), *(_count(every, result) or "" for result in shown)))
    parts += ["\n## On a GPU\n", _row("repository", "the same checks on a GPU"), _row(*["---"] * 2)]
    parts += [_row(source.repository, source.on_gpu or "not run") for source, _ in found.values()]
    parts += [
        "\n## Faults, notes and refusals\n",
        _row("repository", "kernel", "result", "why"),
        _row(*["---"] * 4),
    ]
    for source, kernels in found.values():
        for judged in kernels:
            if judged.result is not Result.PASS:
                line = judged.line.replace("|", "\\|")
                parts.append(_row(source.repository, f"`{judged.kernel}`", judged.result, line))
    parts.append("\n## What the declarations say\n")
    for source, kernels in found.values():
        names = ", ".join(f"`{judged.kernel}`" for judged in kernels)
        parts.append(f"- **{source.repository}**: {names}. {source.declared}".rstrip())
    return "\n".join(parts) + "\n"


def counts(kernels: Sequence[Judged]) -> str:
    """``12 kernels: 11 right, 1 red, explained``."""
    said = Counter(judged.result for judged in kernels)
    return f"{len(kernels)} kernels: " + ", ".join(f"{said[r]} {r}" for r in Result if said[r])


def _count(kernels: Sequence[Judged], result: Result) -> int:
    return sum(judged.result is result for judged in kernels)


def _origin(source: Source) -> tuple[str, str, str]:
    link = f"[{source.repository}](https://github.com/{source.repository})"
    return link, f"{source.revision} ({source.date})", source.licence


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"
