"""``check --watch``: the check again whenever a file of the project is saved."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from gemm_regression.project.loader import Project
from gemm_regression.report.figures import count_text

_SUFFIXES = {".cu", ".cuh", ".h", ".hpp", ".py", ".ptx", ".toml", ".cubin"}
_SECONDS = 0.3  # between two looks
State = dict[str, tuple[int, int]]


def folders(project: Project) -> list[Path]:
    """Where the declarations, sources, headers and tests of a project are, none of them within another."""
    found = {project.declarations.parent, project.root / project.table.tests}
    for kernel in project.kernels:
        found |= {kernel.source.parent} if kernel.source else set()
        found |= {Path(folder) for folder in kernel.include}
    whole = sorted({folder.resolve() for folder in found if folder.is_dir()})
    return [one for one in whole if not any(one != other and one.is_relative_to(other) for other in whole)]


def state(roots: list[Path]) -> State:
    """When each file that matters was written, and its size."""

    def files() -> Iterator[str]:
        for root in roots:
            for folder, below, names in os.walk(root):
                below[:] = [name for name in below if not name.startswith((".", "__pycache__"))]
                yield from (os.path.join(folder, name) for name in names if Path(name).suffix in _SUFFIXES)

    found: State = {}
    for name in files():
        try:
            status = os.stat(name)
        except OSError:  # an editor replaces it just now
            continue
        found[name] = status.st_mtime_ns, status.st_size
    return found


def watch(
    run: Callable[[], int], look: Callable[[], State], sleep: Callable[[float], None] = time.sleep
) -> int:
    """Runs, and again after each change, until Ctrl-C; the status of the last run."""
    status, seen = 0, look()
    try:
        while True:
            status = run()
            print(f"watching {count_text(len(seen), 'file')}; Ctrl-C ends", flush=True)
            while (now := look()) == seen:
                sleep(_SECONDS)
            changed = sorted(name for name in {*now, *seen} if now.get(name) != seen.get(name))
            print(f"changed: {', '.join(map(os.path.relpath, changed[:4]))}", flush=True)
            seen = now
    except KeyboardInterrupt:
        return status
