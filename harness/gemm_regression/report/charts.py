"""Charts: Vega-Lite specifications in ``charts/``, drawn from `records`; the pictures of ladder and roofline.

A specification names its data set and its parameters; in the browser a parameter is bound to the control of
the page with its name. vl-convert, which has Vega and Vega-Lite inside, draws the same specification as SVG
without a browser.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from gemm_regression.baselines import gpu_slug
from gemm_regression.files import write_whole
from gemm_regression.model import Kernel
from gemm_regression.report import records
from gemm_regression.report.records import Record
from gemm_regression.report.sources import Content

_WIDTH = 620  # pixels
# What the pictures use of the records.
_USED = ("source", "stage", "dtype", "problem", "best", "gflops", "compulsory", "requested", "dram")


class NoDrawingError(Exception):
    """vl-convert is not installed."""


@cache
def _text(name: str) -> str:
    return (resources.files(__package__) / "charts" / name).read_text(encoding="utf-8")


def on_paper() -> dict[str, Any]:
    """What a specification of a picture has besides its own: the look, and a white ground."""
    return {"config": json.loads(_text("look.json")), "background": "white"}


def specification(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The specification of a chart, with the look that all have and these values of its parameters, which it
    must have."""
    made: dict[str, Any] = {"config": json.loads(_text("look.json")), **json.loads(_text(f"{name}.vl.json"))}
    known = {parameter["name"]: parameter for parameter in made.get("params", ())}
    for parameter, value in values.items():
        known[parameter]["value"] = value
    return made


def bundle() -> str:
    """The JavaScript of Vega, Vega-Lite and Vega-Embed in one text. Raises NoDrawingError."""
    return str(_vl_convert().javascript_bundle()).replace("</script", "<\\/script")


def picture(
    name: str, values: Mapping[str, Any], data: Mapping[str, Sequence[Record]], width: int
) -> dict[str, Any]:
    """The specification of a picture for paper: its own data, a width in pixels, no controls."""
    made = specification(name, values) | on_paper() | {"datasets": dict(data), "width": width}
    made["params"] = [
        {key: value for key, value in parameter.items() if key != "bind"}
        for parameter in made.get("params", ())
        if "select" not in parameter
    ]
    return made


def mark_of(spec: Mapping[str, Any]) -> str:
    """What a picture was made of: SHA-256 of its specification and data. The same wherever it is drawn."""
    return f"made of {hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()}"


def made_of(drawn: str, spec: Mapping[str, Any]) -> bool:
    """Whether a picture was made of this specification: an SVG file whose first description says so."""
    head, _, rest = drawn.partition("<desc>")
    whole = head.startswith("<svg") and drawn.endswith("</svg>\n")
    return whole and rest.startswith(f"{mark_of(spec)}<")


def svg(spec: Mapping[str, Any], mark: str = "") -> str:
    """The picture as SVG, with a mark in it, by default that of the specification. Raises NoDrawingError."""
    drawn = str(_vl_convert().vegalite_to_svg(dict(spec)))
    return drawn.replace(">", f"><desc>{mark or mark_of(spec)}</desc>", 1) + "\n"


def _vl_convert() -> Any:
    try:
        import vl_convert  # late: the harness is used without it
    except ImportError as error:
        raise NoDrawingError(
            f"no charts ({error}): `nox -s report` runs this where vl-convert-python is installed; of the "
            "package, it is in the extra `report`"
        ) from None
    return vl_convert


def update(folder: Path, content: Content, kernels: Sequence[Kernel], check: bool) -> list[Path]:
    """The pictures that are missing or were made of something else; unless ``check``, they are written.

    Raises NoDrawingError where something must be drawn without vl-convert, OSError.
    """
    stale = []
    for name, spec in _wanted(content, kernels):
        path = folder / name
        if path.is_file() and made_of(path.read_text(encoding="utf-8"), spec):
            continue
        stale.append(path)
        if not check:
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(path, svg(spec))
    return stale


def _wanted(content: Content, kernels: Sequence[Kernel]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each picture's file name and specification."""
    declared = records.variants(kernels)
    newest = {gpu_slug(source.gpu): source for source in reversed(content.baselines)}
    for slug, source in newest.items():
        measured = records.cases([source], declared, content.known)
        problem = records.usual_problem(measured)
        shown = _bare(r for r in measured if r["best"] and r["problem"] == problem)
        chosen = {"source": source.label, "problem": problem}
        roofs = records.roof_lines([source], shown)
        yield f"ladder-{slug}.svg", picture("ladder", chosen, {"cases": shown}, _WIDTH)
        yield f"roofline-{slug}.svg", picture("roofline", chosen, {"cases": shown, "roofs": roofs}, _WIDTH)


def _bare(shown: Iterable[Record]) -> list[Record]:
    """What the pictures use of the records; kernels that are not shown leave no trace in their order."""
    ordered = sorted(shown, key=lambda r: int(r["order"]))
    stages = list(dict.fromkeys(r["stage"] for r in ordered))
    return [
        {name: r[name] for name in _USED if name in r} | {"order": stages.index(r["stage"])} for r in ordered
    ]
