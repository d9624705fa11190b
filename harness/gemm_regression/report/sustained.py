"""What ``--sustained`` measured, one line a case."""

from __future__ import annotations

from collections.abc import Iterable

from gemm_regression.model import Case
from gemm_regression.report.figures import gflops_text
from gemm_regression.run.timed import Result


def sustained_texts(results: Iterable[Result]) -> list[str]:
    """The throughput of back-to-back launches, next to that of the timed rounds, which is judged; with its
    share of the library's, where that ran the same problem back to back, too."""
    found = [(r.case, s) for r in results if (s := _sustained(r)) is not None]
    library = {_problem(case): s for case, s in found if case.kernel.library}
    return [
        _text(result, s, library.get(_problem(result.case)))
        for result in results
        if (s := _sustained(result)) is not None
    ]


def _sustained(result: Result) -> float | None:
    """Seconds a launch."""
    return result.measurement.extra.get("sustained_s") if result.measurement else None


def _problem(case: Case) -> tuple[object, ...]:
    return case.kernel.operation, case.dtype, case.problem


def _text(result: Result, seconds: float, library: float | None) -> str:
    m, case = result.measurement, result.case
    assert m is not None
    clock, power = (m.extra[name] or "?" for name in ("sustained_mhz", "sustained_w"))
    share = "" if library is None or case.kernel.library else f", {100 * library / seconds:.1f} % of cuBLAS"
    return (
        f"sustained, not judged: {case.id}: {gflops_text(case.gflops(seconds))} GFLOPS at {clock} MHz and "
        f"{power} W{share}; in timed rounds {gflops_text(case.gflops(m.median))} at {m.sm_clock_mhz} MHz"
    )
