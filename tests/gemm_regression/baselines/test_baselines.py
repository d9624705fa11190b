"""Stored baselines: what is appended and derived, what is refused and why, and that nothing is lost."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gemm_regression import baselines
from gemm_regression.baselines import Baseline, BaselineEntry, BaselineError, append, current, history, prune
from gemm_regression.baselines.lines import read
from gemm_regression.baselines.store import figures_path
from gemm_regression.model import Case
from tests.gemm_regression import synthetic
from tests.gemm_regression.synthetic import GPU, MACHINE, SLUG, baseline, case, entry, five_runs, merged, run

TILED, NAIVE, CUBLAS = case("tiled"), case("naive"), case("cublas")
OURS, THEIRS = "0badcafe", "12345678"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder of baselines that holds one synthetic.measurement, of tiled, naive and cublas."""
    append(tmp_path / "baselines", merged(tmp_path, five_runs([TILED, NAIVE, CUBLAS])), {})
    return tmp_path / "baselines"


@pytest.fixture
def file(root: Path) -> Path:
    return figures_path(root, SLUG)


def on(board: str | None, day: int, of: Case, seconds: float = 0.01, **more: Any) -> BaselineEntry:
    """A figure of a board and a day."""
    machine = MACHINE if board is None else {**MACHINE, "board": board}
    when = f"2026-11-{day:02}T10:00:00+00:00"
    return replace(entry(of, seconds), machine=machine, datetime=when, **more)


def now(root: Path, board: str | None = None) -> Baseline:
    found = current(root, SLUG, board)
    assert found is not None
    return found


# What is baselines.stored


def test_a_pipe_is_no_baseline_and_is_not_waited_for(root: Path, file: Path) -> None:
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(BaselineError, match=r"figures\.jsonl: cannot be read \(.*a pipe; save it as a file"):
        current(root, SLUG, None)


def test_a_round_trip_keeps_every_figure(root: Path, file: Path, tmp_path: Path) -> None:
    measured = merged(tmp_path, five_runs([TILED, NAIVE, CUBLAS]))
    found = now(root)
    assert (found.slug, found.name, found.path, found.case_ids) == (SLUG, GPU, file, measured.case_ids)
    one, was = found.entries[TILED.id], measured.entries[TILED.id]
    # Run 2 is the middle one; all five medians lie within 0.04 %.
    assert one.median_s == one.stats["median"] == 0.01
    assert one.gflops == pytest.approx(TILED.problem.gflops(0.01), rel=1e-5)
    assert one.noise_floor == pytest.approx(0.0004, rel=1e-2)
    assert (one.medians, len(one.medians), len(one.clocks_mhz)) == (was.medians, 5, 5)
    assert one.stats.keys() == was.stats.keys()
    for name, value in was.stats.items():
        # What follows from others, iqr and total, does so from rounded ones.
        near = pytest.approx(value, rel=1e-5, abs=1e-5 * one.median_s) if isinstance(value, float) else value
        assert one.stats[name] == near
    assert (one, one.commit, one.dirty, one.machine) == (was, MEASURED["id"], False, MACHINE)
    assert one.datetime == found.datetime == "2026-11-02T10:04:00+00:00"
    assert found.entry("nothing") is None


MEASURED = {"id": "0123456789abcdef0123456789abcdef01234567"}


def test_what_a_refresh_says_of_a_case_is_kept(tmp_path: Path) -> None:
    said: dict[str, Any] = {"margin": 0.008, "best": ("c" * 64, "d" * 16), "accepted": "it does more: é|<"}
    append(tmp_path, baseline(replace(entry(TILED), **said), entry(NAIVE)), {})
    told, silent = now(tmp_path).entries[TILED.id], now(tmp_path).entries[NAIVE.id]
    assert {name: getattr(told, name) for name in said} == said
    assert (silent.margin, silent.best, silent.accepted) == (None, None, "")


def test_nothing_of_the_host_or_its_user_is_stored(file: Path) -> None:
    text = file.read_text()
    assert synthetic.SECRETS[0] in json.dumps(five_runs([TILED]))  # The runs do tell.
    for secret in (
        *synthetic.SECRETS,
        "jane",
        "Some CPU",
        "node",
        "branch",
        "perf_counter",
        os.uname().nodename,
    ):
        assert secret not in text


def test_what_a_board_does_not_tell_is_null_not_nan(tmp_path: Path) -> None:
    runs = [run(n, {TILED: synthetic.measurement(power_w=float("nan"))}) for n in range(5)]
    append(tmp_path, merged(tmp_path, runs), {})
    assert now(tmp_path).entries[TILED.id].seen == (1000, None, 40, 0)


def test_lines_are_appended_and_never_rewritten(root: Path, file: Path) -> None:
    before = file.read_text()
    append(root, baseline(entry(TILED, 0.008)), {})
    assert file.read_text().startswith(before)
    with pytest.raises(BaselineError, match="contains these figures already"):
        append(root, baseline(entry(TILED, 0.008)), {})


def test_a_gpu_s_folder() -> None:
    assert baselines.gpu_slug("NVIDIA GeForce RTX™ 4090 (Laptop)") == "nvidia-geforce-rtx-4090-laptop"
    assert (baselines.gpu_slug("../../etc/passwd"), baselines.gpu_slug("™")) == ("etc-passwd", "unnamed-gpu")


# What is current


def test_a_boards_own_newest_counts_else_the_models(tmp_path: Path) -> None:
    append(tmp_path, baseline(on(OURS, 1, TILED, 0.011), on(OURS, 1, CUBLAS, 0.012)), {})
    append(tmp_path, baseline(on(THEIRS, 2, TILED, 0.021), on(THEIRS, 2, NAIVE, 0.022)), {})
    append(tmp_path, baseline(on(OURS, 3, TILED, 0.031)), {})
    append(tmp_path, baseline(on(THEIRS, 4, CUBLAS, 0.042)), {})

    def seconds(board: str | None) -> list[float]:
        return [now(tmp_path, board).entries[each.id].median_s for each in (TILED, NAIVE, CUBLAS)]

    assert (seconds(OURS), seconds(THEIRS)) == ([0.031, 0.022, 0.012], [0.021, 0.022, 0.042])
    assert seconds("unknown") == seconds(None) == [0.031, 0.022, 0.042]
    ours = now(tmp_path, OURS)
    assert (ours.board, ours.datetime[:10]) == (OURS, "2026-11-03")
    assert [ours.entries[each.id].board for each in (TILED, NAIVE)] == [OURS, THEIRS]


def test_the_newest_binary_counts_with_a_boards_own_figure_of_it(tmp_path: Path) -> None:
    each = ((OURS, "1"), (OURS, "2"), (THEIRS, "3"), (THEIRS, "1"))
    for day, (board, binary) in enumerate(each, 1):
        one = on(board, day, TILED, 0.01 + day / 1000)
        append(tmp_path, baseline(replace(one, cubin_sha256=binary * 64)), {})
    assert now(tmp_path, OURS).entries[TILED.id].median_s == 0.011  # of binary 1, as it was then
    assert [now(tmp_path, board).entries[TILED.id].median_s for board in (THEIRS, None)] == [0.014] * 2
    assert prune(tmp_path, SLUG, {TILED.id}, newest=1) == 1
    assert now(tmp_path, OURS).entries[TILED.id].median_s == 0.011
    assert sorted(m.datetime[8:10] for m in history(tmp_path, SLUG)) == ["01", "02", "04"]


def test_the_order_of_the_lines_does_not_matter(tmp_path: Path) -> None:
    for day, seconds in ((2, 0.02), (1, 0.01), (3, 0.03)):
        append(tmp_path, baseline(on(OURS, day, TILED, seconds)), {})
    path = figures_path(tmp_path, SLUG)
    before = [(m.number, m.datetime, m.entries) for m in history(tmp_path, SLUG)]
    assert [m.entries[TILED.id].median_s for m in history(tmp_path, SLUG)] == [0.01, 0.02, 0.03]
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[::-1] + lines[:3]))  # and lines that a merge has doubled are one
    assert [(m.number, m.datetime, m.entries) for m in history(tmp_path, SLUG)] == before


def test_dates_are_compared_as_moments_not_as_text(tmp_path: Path) -> None:
    early = replace(on(OURS, 1, TILED, 0.01), datetime="2026-11-02T01:00:00+05:00")
    late = replace(on(OURS, 1, TILED, 0.02), datetime="2026-11-01T22:00:00+00:00")
    append(tmp_path, baseline(late), {})
    append(tmp_path, baseline(early), {})
    assert now(tmp_path).entries[TILED.id].median_s == 0.02


# What is refused when read


def refused(path: Path, *reasons: str) -> None:
    with pytest.raises(BaselineError) as caught:
        history(path.parents[1], path.parent.name)
    message = str(caught.value)
    assert message.startswith(f"{path}:")
    assert "\n" not in message
    for reason in reasons:
        assert reason in message


def test_refusals_of_what_is_no_line(file: Path) -> None:
    good = file.read_text()
    for text, reason in [
        ('{"id":"x","figure":{', "truncated or damaged"),
        ('{"id":1,"id":2}', "contains id twice"),
        ("[" * 100_000, "not valid JSON"),
        ("[1, 2]", "no JSON object"),
        ("{}", "neither a run"),
        ('{"id":"x","run":{},"more":1}', "neither a run"),
        ('{"run":{}}', "neither a run"),
        ("<<<<<<< ours", "a conflict of git"),
        ("=======", "a conflict of git"),
        (">>>>>>> theirs", "keep the lines of both sides"),
    ]:
        file.write_text(f"{good}{text}\n")
        refused(file, f":{good.count(chr(10)) + 1}: ", reason)
    file.write_bytes(b"\xff\xfe{}")
    refused(file, "cannot be read")


def test_a_truncated_file_is_refused_or_has_only_whole_lines(file: Path) -> None:
    text = file.read_text()
    whole = {len(each) for each in (text[:end] for end in range(len(text))) if each.endswith(("\n", "}}"))}
    for end in range(1, len(text) - 1, 53):
        file.write_text(text[:end])
        if end not in whole:
            refused(file, "truncated", "restore it from git")


def test_an_edit_by_hand_is_refused(file: Path) -> None:
    text = file.read_text()
    for old, new in (
        (":[10002,", ":[10003,"),
        ('"999.1"', '"999.2"'),
        ('"l2"', '"l3"'),
        (synthetic.OLD[:9], "b" * 9),
    ):
        if old in text:
            file.write_text(text.replace(old, new, 1))
            refused(file, "its id does not match: edited by hand or damaged")
    assert ":[10002," in text


def sealed(path: Path, kind: str, change: Callable[[dict[str, Any]], Any]) -> None:
    """Changes the first line of a kind, with an id that fits; other lines name the old one."""
    lines = path.read_text().splitlines()
    number = next(n for n, text in enumerate(lines) if f',"{kind}":' in text)
    says = json.loads(lines[number])[kind]
    change(says)
    body = f'"{kind}":{json.dumps(says, separators=(",", ":"))}}}'
    lines[number] = f'{{"id":"{hashlib.sha256(body.encode()).hexdigest()[:16]}",{body}'
    path.write_text("\n".join(lines) + "\n")


def at(key: str, place: int, value: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda says: says[key].__setitem__(place, value)


def put(**values: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda says: says.update(values)


@pytest.mark.parametrize(
    ("kind", "change", "reason"),
    [
        ("figure", at("us", 0, float("nan")), "us.0 is nan: input should be a finite number"),
        ("figure", at("us", 0, -1), "us.0 is -1: input should be greater than 0"),
        ("figure", at("us", 0, True), "us.0 is True"),
        ("figure", put(us=[10_000] * 4), "us has 4 medians, at least 5"),
        ("figure", put(us=[20_000] * 5), "the middle median of (20000"),
        ("figure", put(mhz=[1000.0]), "1 clocks, but 5 medians"),
        ("figure", at("stats", 2, 0), "stats.2 is 0: input should be greater than 0"),
        ("figure", put(seen=[1, 2]), "seen.2 is missing"),
        ("figure", put(run="0" * 16), f"its run {'0' * 16} is in no line"),
        ("figure", put(timed="0" * 16), f"its timed {'0' * 16} is in no line"),
        ("figure", put(more=1), "more is 1: unexpected"),
        ("timed", put(cubin="zz"), "cubin is 'zz'"),
        ("timed", put(l2="warm"), "is in no line"),
        ("run", lambda says: says.pop("datetime"), "datetime is missing"),
        ("run", put(datetime="../../x"), "isoformat"),
        ("run", lambda says: says["machine"].pop("driver"), "machine.driver is missing"),
    ],
)
def test_nonsense_is_refused_even_under_a_fitting_id(
    file: Path, kind: str, change: Callable[[dict[str, Any]], Any], reason: str
) -> None:
    assert history(file.parents[1], SLUG)
    sealed(file, kind, change)
    refused(file, reason, "restore it from git")


def test_two_figures_of_a_case_in_one_run_are_refused(file: Path) -> None:
    text = file.read_text()
    sealed(file, "figure", put(ratio=0.75))
    file.write_text(text + file.read_text())
    refused(file, f"{TILED.id} twice in run")


def test_figures_in_the_folder_of_another_gpu_are_refused(file: Path) -> None:
    moved = file.parent.rename(file.parents[1] / "nvidia-h200") / file.name
    refused(moved, f"has figures of {GPU}")
    with pytest.raises(BaselineError, match=f"has figures of {GPU}"):
        baselines.stored(file.parents[1])


# Writing is whole or nothing


def test_a_full_disk_loses_nothing(root: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = file.read_text()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BaselineError, match=r"No space left on device\); it is unchanged"):
        append(root, baseline(entry(TILED, 0.008)), {})
    assert file.read_text() == before


def test_a_file_without_its_last_newline_is_appended_to(root: Path, file: Path) -> None:
    file.write_text(file.read_text().rstrip("\n"))
    append(root, baseline(entry(TILED, 0.008)), {})
    assert len(history(root, SLUG)) == 2


def test_what_would_be_refused_is_not_written(tmp_path: Path) -> None:
    broken = replace(entry(TILED), us=(10_000.0,) * 4)
    with pytest.raises(BaselineError, match=f"not written: {TILED.id}: .*us has 4 medians"):
        append(tmp_path / "new", baseline(entry(NAIVE), broken), {})
    assert not (tmp_path / "new").exists()


# Pruning


def test_pruning_removes_cases_and_what_only_they_named(root: Path, file: Path) -> None:
    before = read(file)
    assert prune(root, SLUG, {NAIVE.id}) == 2
    assert now(root).case_ids == (NAIVE.id,)
    assert {each.text for each in read(file)} < {each.text for each in before}
    append(root, baseline(on(None, 9, NAIVE)), {})
    assert prune(root, SLUG, {NAIVE.id}) == 0
    assert len(history(root, SLUG)) == 2  # older ones are kept unless told otherwise


def test_pruning_keeps_what_is_current_on_some_board(tmp_path: Path) -> None:
    every = [TILED, NAIVE]
    append(tmp_path, baseline(*(on(OURS, 1, each) for each in every)), {})
    for day in (2, 3, 4):
        append(tmp_path, baseline(on(OURS, day, TILED)), {})
    append(tmp_path, baseline(on(THEIRS, 1, TILED)), {})
    before = {board: now(tmp_path, board).entries for board in (OURS, THEIRS, None)}
    assert prune(tmp_path, SLUG, {each.id for each in every}, newest=2) == 2
    assert {board: now(tmp_path, board).entries for board in (OURS, THEIRS, None)} == before
    left = [(m.board, m.datetime[8:10], m.case_ids) for m in history(tmp_path, SLUG)]
    ours = [(OURS, "01", (NAIVE.id,)), (OURS, "03", (TILED.id,)), (OURS, "04", (TILED.id,))]
    assert sorted(left) == sorted([*ours, (THEIRS, "01", (TILED.id,))])
