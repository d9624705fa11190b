"""``cache``: what is kept of compiled kernels and passed tests, and how to be rid of it."""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from gemm_regression.cli import common
from gemm_regression.cli.common import command, option
from gemm_regression.report.figures import count_text
from ptxsan.native import cache_dir

_DAY = 86400.0
# By suffix, or by the folder that it lies in.
_KINDS = {
    ".zip": "compiled kernels and passed tests",
    ".so": "the interpreter's compiled code",
    "pycuda": "what PyCUDA compiled",
    "sources": "copies of sources",
    "tilelang": "CUDA C++ that TileLang made",
}


def _files(root: Path) -> Iterator[Path]:
    return (path for path in sorted(root.rglob("*")) if path.is_file() and not path.is_symlink())


def _kind(path: Path, root: Path) -> str:
    top, *below = path.relative_to(root).parts
    return _KINDS.get(top if below else path.suffix, "other files")


def size_text(count: float) -> str:
    return f"{count / 1e6:,.1f} MB"


@command("cache")
def _show(given: argparse.Namespace) -> int:
    """Shows where the cache is, and how much is in it."""
    root, sizes = cache_dir(), defaultdict[str, list[int]](list)
    for path in _files(root):
        sizes[_kind(path, root)].append(path.stat().st_size)
    total = sum(map(sum, sizes.values()))
    print(f"{root}: {size_text(total)} in {count_text(sum(map(len, sizes.values())), 'file')}")
    width = max(map(len, sizes), default=0)
    for kind, each in sorted(sizes.items(), key=lambda item: -sum(item[1])):
        print(f"  {kind:<{width}}  {len(each):>7,}  {size_text(sum(each)):>12}")
    return 0


@command(
    "cache clear",
    option("--older", type=float, default=0.0, metavar="DAYS", help="only what is older than so many days"),
)
def _clear(given: argparse.Namespace) -> int:
    """Removes what is in the cache. What is needed again is compiled again."""
    if given.older < 0:
        raise ValueError(f"--older {given.older:g}: must not be below 0")
    root, before, removed = cache_dir(), time.time() - given.older * _DAY, list[int]()
    for path in _files(root):
        status = path.stat()
        if status.st_mtime <= before:
            path.unlink(missing_ok=True)  # another process may have removed it
            removed.append(status.st_size)
    for folder in sorted((path for path in root.rglob("*") if path.is_dir()), reverse=True):
        if not any(folder.iterdir()):
            folder.rmdir()
    print(f"removed {count_text(len(removed), 'file')}, {size_text(sum(removed))}, from {root}")
    return 0


main = common.Group("cache", __doc__, (_show, _clear))
