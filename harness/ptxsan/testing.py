"""What the fixture ``ptxsan`` of pytest gives: launches whose findings fail the test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ptxsan import report
from ptxsan.api import LaunchResult, Module, load
from ptxsan.arguments import Empty, Im2col, Multicast, Surface, Texture, Tiled, device_array, to_device
from ptxsan.report import CHECKS
from ptxsan.streams import Event, Stream, synchronize


class Launcher:
    """What the fixture gives. ``results``: those of the test's launches so far."""

    Empty, Tiled, Im2col, Stream, Event = Empty, Tiled, Im2col, Stream, Event
    Texture, Surface, Multicast = Texture, Surface, Multicast
    to_device, device_array = staticmethod(to_device), staticmethod(device_array)
    synchronize = staticmethod(synchronize)

    def __init__(
        self, config: pytest.Config, folder: Path, options: dict[str, Any], annotations: list[str]
    ) -> None:
        self._folder, self._annotations = folder, annotations
        self._allow = tuple(options.pop("allow", ()))
        self._strict = options.pop("strict", config.getoption("ptxsan_strict"))
        self._arch = options.pop("arch", config.getoption("ptxsan_arch"))
        unknown = [*options, *(check for check in self._allow if check not in CHECKS)]
        if unknown:
            known = f"allow, strict and arch; checks are {', '.join(CHECKS)}"
            raise pytest.UsageError(f"mark ptxsan: {unknown[0]} is unknown; it takes {known}")
        self.results: list[LaunchResult] = []

    def load(self, source: str | Path, **options: Any) -> Module:
        """As ``ptxsan.load``. A launch with findings fails the test; paths start at the test's file."""
        module = load(self._path(source), **{"arch": self._arch, **options})
        module.judge = self._judge
        return module

    def _path(self, source: str | Path) -> str | Path:
        return source if isinstance(source, str) and "\n" in source else self._folder / source

    def _judge(self, result: LaunchResult) -> None:
        self.results.append(result)
        found = [*result.hazards, *(result.notes if self._strict else ())]
        wrong = [each for each in found if each.check not in self._allow]
        self._annotations += report.github_annotations(result, wrong)
        if wrong:
            many = "1 finding" if len(wrong) == 1 else f"{len(wrong)} findings"
            texts = [f"{many} of {report.launch_text(result)}", *(report.shown(result, h) for h in wrong)]
            texts += [
                f"`ptxsan explain {check}` says more" for check in dict.fromkeys(h.check for h in wrong)
            ]
            pytest.fail("\n".join(texts), pytrace=False)
