"""What compilers and disassemblers made, kept on disk.

The cache lies in $GEMM_CACHE_DIR, else $XDG_CACHE_HOME/gemm-regression, else ~/.cache/gemm-regression;
removing it costs time only.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import json
import os
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path

from gemm_regression.files import write_whole


def cache_dir() -> Path:
    """Where compiled kernels are kept."""
    if folder := os.environ.get("GEMM_CACHE_DIR"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gemm-regression"


@contextlib.contextmanager
def alone(entry: Path) -> Iterator[None]:
    """One at a time, of all processes: who waited finds the entry made. Where nothing can be locked, all
    make it."""
    lock = entry.with_suffix(".lock")
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            entry.parent.mkdir(parents=True, exist_ok=True)
            fcntl.flock(held.enter_context(lock.open("w")), fcntl.LOCK_EX)
            held.callback(lock.unlink, missing_ok=True)
        yield


def cache_entry(key: object) -> Path:
    """The file of the cache that belongs to a key, which json can write."""
    return cache_dir() / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()}.zip"


def load_entry(entry: Path) -> tuple[bytes, str] | None:
    """What was stored, or None. A zip checks its own sums; a damaged entry, whatever the damage, is none."""
    try:
        with zipfile.ZipFile(entry) as stored:
            return stored.read("out"), stored.read("log").decode()
    except Exception:
        return None


def store_entry(entry: Path, out: bytes, log: str) -> None:
    """Keep an output; whole or not at all, also under a kill, a full disk or another process."""
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as stored:
            stored.writestr("out", out)
            stored.writestr("log", log)
        write_whole(entry, packed.getvalue())
    except OSError as error:
        warnings.warn(
            f"compiled kernels cannot be kept in {entry.parent} ({error.strerror}): every run compiles all;"
            " set GEMM_CACHE_DIR",
            stacklevel=2,
        )
