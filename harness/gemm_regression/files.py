"""Files, for every layer: atomic writes, no bytecode, and one line on what is wrong with a document."""

from __future__ import annotations

import contextlib
import errno
import os
import reprlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # `doctor` says what is missing, so it runs without
    from pydantic import ValidationError


def read_whole(path: Path) -> bytes:
    """The content of a file. Raises OSError, also for a pipe, for whose end a reader waits."""
    if path.is_fifo():
        raise OSError(errno.EINVAL, "a pipe; save it as a file, and name that", str(path))
    return path.read_bytes()


def write_whole(path: Path, content: str | bytes) -> None:
    """Writes a file (text as UTF-8) atomically: a reader sees the old content or all of ``content``.

    Uses a temporary file in the same folder, which is removed on failure; on return everything is on disk.
    Special files, such as ``/dev/stdout``, are written directly. Raises OSError.
    """
    data, given = content.encode() if isinstance(content, str) else content, path
    path = path.resolve()
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    try:
        handle, name = tempfile.mkstemp(prefix=f"{path.name}.", suffix=".tmp", dir=path.parent)
    except OSError as error:
        error.filename = str(given)
        raise
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, _mode(path))
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _mode(path: Path) -> int:
    """The mode of the existing file, else the default mode of a new one."""
    if path.exists():
        return path.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def fault(error: ValidationError) -> str:
    """The first error in a document, in one line: which field, and what it should be."""
    first = error.errors(include_url=False)[0]
    name = ".".join(map(str, first["loc"])) or "it"
    if first["type"] == "missing":
        return f"{name} is missing"
    if first["type"] == "value_error":
        return str(first["ctx"]["error"])
    said = first["msg"][0].lower() + first["msg"][1:]
    if first["type"] == "model_type":
        said = "it should be an object with fields"
    return f"{name} is {reprlib.repr(first['input'])}: {said}"


def no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For json's ``object_pairs_hook``. Raises ValueError for an object with a key twice, of which json would
    keep the last."""
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"contains {next(n for n in names if names.count(n) > 1)} twice")
    return made


@contextlib.contextmanager
def without_bytecode() -> Iterator[None]:
    """Meanwhile Python neither reads bytecode nor writes it: it is taken for that of a file of the same size
    and second, so an edit could go unnoticed."""
    before = sys.pycache_prefix, sys.dont_write_bytecode
    sys.pycache_prefix, sys.dont_write_bytecode = os.devnull, True
    try:
        yield
    finally:
        sys.pycache_prefix, sys.dont_write_bytecode = before
