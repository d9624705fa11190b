"""The report in a real browser: charts drawn, filters and links work, nothing fails in the console.

Needs Chromium or Chrome and its driver on PATH (`apt-get install chromium chromium-driver`), and is skipped
without; where GEMM_BROWSER is set, as in CI, that is a failure, and screenshots of the whole page at two
widths are written to results/, to be looked at.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from gemm_regression.judge.evidence import UNUSABLE
from gemm_regression.report import page, sources
from tests.browser.chromium import ASKED, DRAWN, PHONE, WIDE, Browser
from tests.gemm_regression.report import made_report
from tests.gemm_regression.report.made_report import CRASHED, SLOWER, WRONG
from tests.ladder import LADDER, PROJECT

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> tuple[Path, Path, Path]:
    """A run with three faults, a comparison, and the folder of a series with a regression."""
    return made_report.save(tmp_path_factory.mktemp("planted"))


@pytest.fixture(scope="module")
def planted(saved: tuple[Path, Path, Path]) -> Path:
    """The report of them."""
    run, compared, root = saved
    path = run.parent / "report.html"
    path.write_text(page.html(sources.gather(root, [run, compared]), LADDER), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Path:
    """The report of the baselines of this repository."""
    path = tmp_path_factory.mktemp("stored") / "report.html"
    path.write_text(page.html(sources.gather(PROJECT.baselines), LADDER), encoding="utf-8")
    return path


MARKS = """return Object.fromEntries([...document.querySelectorAll("section:not([hidden]) .chart")].map(
    e => [e.id, e.querySelectorAll(".role-mark path, .role-mark line, .role-mark text").length]))"""


@pytest.mark.parametrize("width", [WIDE, PHONE])
@pytest.mark.parametrize("name", ["planted", "stored"])
def test_charts_are_drawn_at_both_widths(
    name: str, width: int, browser: Browser, request: pytest.FixtureRequest
) -> None:
    browser.open(request.getfixturevalue(name), width=width, dark=width == PHONE)
    marks = browser.run(MARKS)
    expected = {"ladder", "sizes", "roofline", "configs", "against", "history"}
    if name == "planted":
        expected.add("compared")
    assert {chart for chart, count in marks.items() if count > 4} == {f"chart-{one}" for one in expected}
    assert browser.run("return document.documentElement.scrollWidth") <= width
    assert browser.run("return performance.getEntriesByType('resource').length") == 0
    if os.environ.get(ASKED):
        browser.picture(PROJECT.root / "results" / f"report-{name}-{width}.png")
    assert browser.errors() == []


def test_on_a_usual_screen_the_table_shows_what_is_judged(browser: Browser, planted: Path) -> None:
    browser.open(planted, width=1400)
    ends = browser.run(
        "return Object.fromEntries([...document.querySelectorAll('#cases-table th')]"
        ".map(e => [e.dataset.field, e.getBoundingClientRect().right]))"
    )
    assert max(ends[name] for name in ("verdict", "change", "noise", "bound", "of_bound")) < 1400
    assert browser.run("return document.documentElement.scrollWidth") <= 1400


def test_the_ladder_shows_all_dtypes_beside_each_other(browser: Browser, stored: Path) -> None:
    browser.open(stored)
    names = "[...document.querySelectorAll('#chart-ladder .role-axis-label text')].map(e => e.textContent)"
    assert "wgmma f16" not in browser.run(f"return {names}")
    browser.choose("ladder-dtype", "all")
    browser.wait(f"return {names}.includes('wgmma f16')")
    assert {"naive f32", "cublas tf32"} <= set(browser.run(f"return {names}"))
    assert browser.errors() == []


def test_a_chart_that_fails_is_seen(browser: Browser, stored: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.html"
    text = stored.read_text(encoding="utf-8")
    assert '"calculate":"datum[metric]"' in text
    broken.write_text(text.replace('"calculate":"datum[metric]"', '"calculate":"datum[["'), encoding="utf-8")
    browser.driver.get(broken.as_uri())
    browser.run("return new Promise(done => setTimeout(done, 3000))")
    assert browser.errors() != []
    assert not browser.run(DRAWN)


def test_faults_come_first_each_with_its_command(browser: Browser, planted: Path) -> None:
    browser.open(planted)
    shown = browser.run("return [...document.querySelectorAll('.verdict.red[open]')].map(e => e.innerText)")
    for text, kind, case in zip(
        shown, ("WRONG", "CRASHED", "REGRESSED"), (WRONG, CRASHED, SLOWER), strict=False
    ):
        assert text.startswith(kind)
        assert f'nox -s gpu -- -k "[{case.id}]"' in text
    assert browser.run("return document.title").startswith("GEMM report: 4 red")


def test_a_regression_stands_out_in_the_history(browser: Browser, planted: Path) -> None:
    browser.open(planted)
    lines = browser.run(
        "return [...document.querySelectorAll('#chart-history .mark-line path')]"
        ".filter(e => e.getAttribute('stroke') === '#e5484d').map(e => e.getAttribute('stroke-width'))"
    )
    assert lines == ["3"]
    texts = browser.run("return document.querySelector('#chart-history').textContent")
    assert re.search(r"−(3\.[5-9]|4\.[0-2])(?!\d)", texts.partition("GFLOPS in %")[2])


def test_filters_and_order_last_over_a_reload(browser: Browser, stored: Path) -> None:
    browser.open(stored)
    every = len(browser.rows())
    browser.choose("filter-text", "tiled 4096x4096x4096")
    browser.choose("filter-dtype", "f32")
    shown = len(browser.rows())
    assert 0 < shown < every
    assert set(browser.rows(1)) == {"f32"}
    assert browser.run("return document.getElementById('filter-count').textContent") == f"{shown} of {every}"
    browser.run("document.querySelector('th[data-field=gflops] button').click()")
    speeds = [float(text.replace(",", "")) for text in browser.rows(4)]
    assert speeds == sorted(speeds, reverse=True)
    link = browser.run("return location.hash")
    browser.open(stored, link)
    assert [float(text.replace(",", "")) for text in browser.rows(4)] == speeds
    browser.run("document.querySelector('th[data-field=gflops] button').click()")
    assert [float(text.replace(",", "")) for text in browser.rows(4)] == speeds[::-1]
    browser.choose("filter-text", "no such case")
    assert browser.rows() == []
    assert browser.errors() == []


def test_controls_change_their_charts(browser: Browser, stored: Path) -> None:
    browser.open(stored)
    title = "return document.querySelector('#chart-ladder .role-title-text')?.textContent"
    assert browser.run(title) == "GFLOPS, f32, 4096x4096x4096"
    browser.choose("ladder-metric", "share")
    browser.choose("ladder-problem", "1024x1024x1024")
    browser.wait(f"return ({title.removeprefix('return ')}) === '% of cuBLAS, f32, 1024x1024x1024'")
    labels = browser.run(
        "return [...document.querySelectorAll('#chart-ladder .role-mark.mark-text text')]"
        ".map(e => e.textContent)"
    )
    assert "100" in labels
    other = browser.run("return document.getElementById('source').options[1].value")
    browser.choose("source", other)
    browser.wait(f"return document.querySelector('#chart-ladder').textContent.includes({other!r})")
    assert browser.errors() == []


def test_a_run_of_other_problems_than_the_ladders_is_drawn(
    browser: Browser, saved: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    """Of a suite without 4096³: its own problems can be chosen, and nothing is drawn of nothing."""
    run, root = tmp_path / "run.json", saved[2]
    document = json.loads(saved[0].read_text())
    kept = [one for one in document["benchmarks"] if one["group"] in ("1024x1024x1024", "4095x4095x4095")]
    run.write_text(json.dumps(document | {"benchmarks": kept, UNUSABLE: []}))
    path = tmp_path / "report.html"
    path.write_text(page.html(sources.gather(root, [run]), LADDER), encoding="utf-8")
    browser.open(path)
    options = "[...document.getElementById('{}-problem').options].filter(o => !o.disabled).map(o => o.value)"
    for name in ("ladder", "roofline"):
        assert set(browser.run(f"return {options.format(name)}")) == {"1024x1024x1024", "4095x4095x4095"}
        height = browser.run(f"return document.querySelector('#chart-{name} svg').viewBox.baseVal.height")
        assert 100 < height < 2000
    browser.choose("source", browser.run("return document.getElementById('source').options[1].value"))
    browser.wait("return document.getElementById('ladder-problem').options.length > 2")
    browser.choose("ladder-problem", "4096x4096x4096")
    browser.wait("return document.querySelector('#chart-ladder').textContent.includes('4096x4096x4096')")
    assert browser.errors() == []


def test_a_heat_map_follows_its_space_and_axes(browser: Browser, planted: Path) -> None:
    browser.open(planted)
    axes = "return [...document.getElementById('configs-down').options].map(e => e.value)"
    text = "document.getElementById('chart-configs').textContent"
    assert browser.run(axes)[:2] == ["TILE_M", "TILE_N"]
    browser.choose("configs-across", "STAGES")
    browser.wait(f"return {text}.includes('STAGES 5') && {text}.includes('TILE_M 256')")
    assert browser.errors() == []


def test_a_deep_link_opens_a_case_with_samples_clock_and_temperature(browser: Browser, planted: Path) -> None:
    browser.open(planted, f"#case={SLOWER.id}")
    text = browser.run("return document.getElementById('case').innerText")
    assert text.startswith(SLOWER.id)
    assert "REGRESSED SLOWER" in text
    for chart in ("history", "us", "mhz", "celsius"):
        points = f"#chart-case-{chart} .mark-symbol path"
        assert browser.run(f"return document.querySelectorAll('{points}').length") >= 12, chart
    browser.open(planted, f"#case={CRASHED.id}")
    assert "CRASHED ILLEGAL_ADDRESS" in browser.run("return document.getElementById('case').innerText")
    browser.run("document.getElementById('case-close').click()")
    assert "case=" not in browser.run("return location.hash")
    assert browser.errors() == []


def test_a_tap_on_a_bar_opens_its_case(browser: Browser, stored: Path) -> None:
    browser.open(stored)
    bar = browser.driver.find_element("css selector", "#chart-ladder .mark-rect.role-mark path")
    browser.run("document.getElementById('chart-ladder').scrollIntoView()")
    bar.click()
    browser.wait("return document.documentElement.dataset.opened")
    assert browser.run("return document.getElementById('case-name').textContent").startswith("strided-f32")
