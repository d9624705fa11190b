"""What the documentation names is there, and what users meet is in the documentation."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemm_regression.cli import init
from gemm_regression.model import F16, F32, BlockShape, Case, Config, Kernel, Problem
from gemm_regression.oracle import reference, verify
from tests.gemm_regression.cli.repo import harness
from tests.gemm_regression.fakes import NumpyDevice

ROOT = Path(__file__).parents[2]


PAGES = sorted((ROOT / "docs").rglob("*.md")) + [
    ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "harness/ptxsan/README.md")
]


@pytest.mark.parametrize("page", ["architecture", "verdicts", "timing", "emulation"])
def test_files_and_folders_that_a_page_names_exist(page: str) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    names = set(re.findall(r"`([\w/]+(?:\.py|\.cu|/))`", text))
    assert names
    tops = [ROOT / top for top in ("harness", "kernels", "baselines", "tests")]
    there = [p.relative_to(ROOT).as_posix() for top in tops for p in (top, *top.rglob("*"))]
    assert [n for n in sorted(names) if not any(f"/{p}".endswith(f"/{n.rstrip('/')}") for p in there)] == []


def test_the_architecture_has_the_layers_of_the_import_contract() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    layers = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    order = [name for line in reversed(layers["layers"]) for name in line.split(" | ") if name != "__main__"]
    (shown,) = re.findall(r"```\n(files, .*?)```", text, re.DOTALL)
    assert re.findall(r"\w+", shown) == order


def test_the_ladder_of_the_readme_is_that_of_the_results() -> None:
    rows = {
        (cells[0], cells[2]): (cells[7], cells[8])
        for line in (ROOT / "docs" / "results" / "ladder.md").read_text(encoding="utf-8").splitlines()
        if len(cells := [cell.strip() for cell in line.strip("|").split("|")]) == 10
    }
    row = r"^\| (\w+) \| [^|]+ \| (\w+) \| ([\d,.]+) \| ([\d.]+) \|$"
    shown = re.findall(row, (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert (len(shown), [row for row in shown if rows[row[0], row[1]] != row[2:]]) == (10, [])


def test_the_guide_stays_short() -> None:
    pages = [page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md")]
    assert len(pages) <= 12
    assert sum(len(page.split()) for page in pages) <= 20_000
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def _anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if link.startswith("http"):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            broken.append(link)
    assert broken == []


def _claims() -> list[tuple[str, list[str]]]:
    """Each claim of docs/sees.md with the tests that it names."""
    rows = re.findall(r"^\| (?!what \||---)(.*?) \| (.*?) \|$", (ROOT / "docs" / "sees.md").read_text(), re.M)
    return [(claim, re.findall(r"`(test_\w+::test_\w+|\w+\.toml::\w+)`", tests)) for claim, tests in rows]


def test_every_claim_of_what_it_sees_names_tests_that_there_are() -> None:
    claims = _claims()
    assert len(claims) > 20
    assert [claim for claim, tests in claims if not tests] == []
    functions = {
        f"{path.stem}::{node.name}"
        for path in (ROOT / "tests").rglob("test_*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
    }
    functions |= {
        f"{path.name}::{snippet['name']}"
        for path in (ROOT / "tests" / "ptxsan" / "snippets").glob("*.toml")
        for snippet in tomllib.loads(path.read_text(encoding="utf-8"))["snippet"]
    }
    assert [test for _, tests in claims for test in tests if test not in functions] == []


def _codes(file: str) -> set[str]:
    """The words in capitals that a module holds as texts: kinds of verdicts, reasons, codes of errors."""
    tree = ast.parse((ROOT / "harness" / "gemm_regression" / file).read_text(encoding="utf-8"))
    texts = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    words = {text for text in texts if re.fullmatch(r"[A-Z][A-Z0-9_]{2,}[A-Z]", text)}
    return {word for word in words if not word.endswith("_NUM_THREADS")}  # variables of the environment


_TELLING = [f"judge/{name}.py" for name in ("vocabulary", "evidence", "machine")] + ["run/checked.py"]
_TELLING += [f"devices/{name}.py" for name in ("reply", "cuda/client", "cuda/worker")]


@pytest.mark.parametrize("file", _TELLING)
def test_every_verdict_reason_and_error_is_explained(file: str) -> None:
    codes = _codes(file)
    assert codes
    text = (ROOT / "docs" / "verdicts.md").read_text(encoding="utf-8")
    assert sorted(codes - set(re.findall(r"[A-Z][A-Z0-9_]+", text))) == []


def test_the_declarations_of_the_documentation_are_declarations() -> None:
    text = (ROOT / "docs" / "declaring.md").read_text(encoding="utf-8")
    told: dict[str, Any] = {"__file__": "kernels.py"}
    for block in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        exec(block, told)
    kernel, matmul = told["KERNELS"]
    case = Case(matmul, F16, matmul.configs[0], matmul.narrowed(Problem(5, 6, 7, lda=9)))
    assert [[one.buffer or one.value for one in a.members] for a in case.arguments] == [
        ["A", 5, 7, 9],
        ["B", 7, 6, 6],
        ["C", 5, 6, 6],
    ]
    case = Case(kernel, F32, kernel.configs[0], kernel.narrowed(Problem(5, 6, 7, beta=1, lda=9)))
    assert [a.buffer or a.value for a in case.arguments] == [5, 6, 7, 1, "A", "B", 1, "C"]
    assert kernel.entry_of(case.config, F32) == "sgemm<32>"
    config, problem = Config(TILE_M=64, TILE_N=64, TILE=32, SPLIT=2), Problem(64, 64, 8)
    assert not list(told["constraints"].refusals(problem, config))
    assert told["workspace"].bytes(config, F32, problem) == 256 + 4 * 2 * 64 * 64
    assert set(told["maps"](config, F32)) == {"A", "B"}
    residual = Kernel("k", None, "", BlockShape((1, 1), (1, 1)), operation=told["RESIDUAL"])
    problem = Problem(5, 6, 7, alpha=2, beta=3, ldc=8)
    assert verify(NumpyDevice(), Case(residual, F32, Config(), problem)) == []


def test_the_operations_of_the_documentation_are_operations() -> None:
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    told: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        exec(block, told)
    gemv, rows = told["GEMV_W4A16"], told["SOFTMAX"]
    problem = gemv.problem(7, 96)
    assert gemv.storages(problem, told["with_output"](F16, F16))["weights"].shape == (7, 48)
    assert reference(gemv, problem, told["with_output"](F16, F16), "normal").shape == (1, 7, 1)
    assert np.allclose(reference(rows, rows.problem(5, 33), F32, "normal").sum(axis=2), 1)


@pytest.mark.compile
def test_the_first_kernels_are_right_as_they_are_shown(tmp_path: Path) -> None:
    """And the page shows what the check says of the first."""
    assert init.main(["--project", str(tmp_path)]) == 0
    page = (ROOT / "docs" / "first-kernel.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```(cuda|python)\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    for text in (text for kind, text in blocks if kind == "cuda"):
        (tmp_path / text.split()[1].rstrip(":")).write_text(text)
    declared = "\n".join(text for kind, text in blocks if kind == "python")
    (tmp_path / "kernels" / "__init__.py").write_text(declared)
    done = harness(tmp_path, "check", "-n", "0")
    assert "4 variants checked without a GPU: 4 PASS" in done.stdout, done.stdout
    row = next(line for line in page.splitlines() if re.match(r"mine +f32", line))
    assert row.split() in [line.split() for line in done.stdout.splitlines()]


_ROOMS = ("lab/study", *(f"gemm_regression/{name}" for name in ("baselines", "judge", "run", "timing")))


def test_docstring_of_a_public_dataclass_names_each_attribute() -> None:
    unnamed, seen = [], 0
    for file in (file for room in _ROOMS for file in sorted((ROOT / "harness" / room).glob("*.py"))):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ClassDef) or node.name.startswith("_"):
                continue
            if not any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
                continue
            names = [ast.unparse(s.target) for s in node.body if isinstance(s, ast.AnnAssign)]
            fields = [name for name in names if not name.startswith("_")]
            seen += len(fields)
            said = ast.get_docstring(node) or ""
            unnamed += [f"{node.name}.{f}" for f in fields if not re.search(rf"\b{f}\b", said)]
    assert seen > 100
    assert unnamed == []
