"""Kernel Tuner's cache file, a line per config: every evaluation is on disk before the next begins, and a
search that was stopped goes on from it.

The format is Kernel Tuner's own; what it does not record (compiler, sources, dtype) is in the same header. A
file whose last line is torn loses that line; any other damage is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gemm_regression.files import write_whole
from gemm_regression.tune.evaluating import Measured

_OTHER = {
    "kernel_name": "kernel",
    "device_name": "GPU",
    "problem_size": "problem",
    "nvcc": "compiler",
    "sources": "version of the kernel's source",
    "tune_params_keys": "order of axes",
}


class CacheError(ValueError):
    """A cache file that belongs to something else, or is damaged; one line with the file and what to do."""


@dataclass
class CacheFile:
    """``head``: what it belongs to; ``entries``: what is known of each config, by Kernel Tuner's key, the
    values with commas; ``dropped``: whether the last line was torn."""

    path: Path
    head: Mapping[str, Any]
    entries: dict[str, dict[str, Any]] = field(default_factory=dict)
    dropped: bool = False

    def prepare(self) -> None:
        """Writes it anew, open for further lines. Raises CacheError."""
        lines = [_head_line(self.head), *(_line(key, entry) for key, entry in self.entries.items())]
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self.path, "\n".join(lines))
        except OSError as error:
            raise CacheError(f"{self.path}: cannot be written ({error.strerror})") from None

    def add(self, values: Sequence[int], measured: Measured) -> None:
        """One more line, written at once."""
        named = dict(zip(self.head["tune_params_keys"], values, strict=True))
        self.entries[key_of(values)] = entry = {**named, **measured.as_dict()}
        if measured.code:
            entry["__error__"] = "RuntimeFailedConfig"  # as Kernel Tuner marks it
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"\n{_line(key_of(values), entry)}")


def head(
    device: str, kernel: str, problem: str, axes: Mapping[str, Sequence[int]], nvcc: str, sources: str
) -> dict[str, Any]:
    """What a cache file belongs to. ``kernel`` with its dtype, ``sources`` a digest of its source files."""
    return {
        "device_name": device,
        "kernel_name": kernel,
        "problem_size": problem,
        "tune_params_keys": list(axes),
        "tune_params": {name: list(values) for name, values in axes.items()},
        "nvcc": nvcc,
        "sources": sources,
    }


def opened(path: Path, ours: Mapping[str, Any]) -> CacheFile:
    """The cache file at ``path``, or a new one. Raises CacheError for one of another kernel, GPU, problem,
    compiler or source, and for a damaged one; the file stays as it is."""
    if not path.exists():
        return CacheFile(path, ours)
    again = "remove it, or begin anew with --fresh"
    try:
        first, *rest = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise CacheError(
            f"{path}: cannot be read ({getattr(error, 'strerror', None) or 'not UTF-8'}); {again}"
        ) from None
    try:
        header = json.loads(first + "}}")
        del header["cache"]
    except (ValueError, KeyError, TypeError):
        raise CacheError(
            f"{path}: no cache file of this suite, or its first line is damaged; {again}"
        ) from None
    for name, what in _OTHER.items():
        if header.get(name) != ours[name]:
            raise CacheError(
                f"{path}: the cache of another {what}: {_shown(header.get(name))}, not {_shown(ours[name])}; "
                "name another with --cache, or begin anew with --fresh"
            )
    cache = CacheFile(path, ours)
    lines = [(number, line) for number, line in enumerate(rest, 2) if line.strip(" }")]
    for number, line in lines:
        try:
            cache.entries |= _entry(line, ours)
        except ValueError:
            if number != lines[-1][0]:
                raise CacheError(f"{path}: line {number} is damaged; remove that line, or {again}") from None
            cache.dropped = True
    return cache


def key_of(values: Sequence[int]) -> str:
    return ",".join(map(str, values))


def _entry(line: str, header: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    # Kernel Tuner closes its file with }\n}, the first of these on the last entry's line.
    text = line.rstrip().rstrip(",")
    try:
        found = json.loads("{" + text + "}")
    except ValueError:
        found = json.loads("{" + text)
    ((key, entry),) = found.items()
    if not isinstance(entry, dict) or [entry.get(n) for n in header["tune_params_keys"]] != [
        *map(int, key.split(","))
    ]:
        raise ValueError("an entry of other axes")
    return {key: entry}


def _head_line(header: Mapping[str, Any]) -> str:
    return json.dumps(header)[:-1] + ', "cache": {'


def _line(key: str, entry: Mapping[str, Any]) -> str:
    return json.dumps({key: {n: str(v) if n == "__error__" else v for n, v in entry.items()}})[1:-1] + ","


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
