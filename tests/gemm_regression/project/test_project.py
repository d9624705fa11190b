"""A project is found, loaded and checked; what is wrong with one is told in one line with its place."""

from __future__ import annotations

import os
import py_compile
import sys
from pathlib import Path

import pytest

from gemm_regression.model import BlockShape
from gemm_regression.project.loader import Project, ProjectError, find, load

HEAD = (
    "from gemm_regression.model import F16, F32, BlockShape, Config, Kernel, TensorMap\n"
    "from gemm_regression.project.suites import Suite\n"
)
SHAPE = "BlockShape((32, 1), (1, 32))"
PLAIN = f'Kernel("one", "one.cu", "one", {SHAPE})'


def mapped(maps: str) -> str:
    parameters = "const CUtensorMap mapA, B, C"
    return f'Kernel("one", "one.cu", "one", {SHAPE}, "", (F32, F16), parameters="{parameters}", maps={maps})'


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project with one kernel."""
    (tmp_path / "pyproject.toml").write_text("[tool.gemm-regression]\n")
    (tmp_path / "kernels" / "headers").mkdir(parents=True)
    (tmp_path / "kernels" / "one.cu").write_text("")
    declare(tmp_path, f"KERNELS = ({PLAIN},)")
    return tmp_path


def declare(root: Path, text: str) -> None:
    (root / "kernels" / "__init__.py").write_text(HEAD + text + "\n")


def refusal(root: Path) -> str:
    with pytest.raises(ProjectError) as caught:
        load(root)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_plain_declaration_is_enough(root: Path) -> None:
    project = load(root)
    (kernel,) = project.kernels
    assert kernel.source == root / "kernels" / "one.cu"
    assert (project.root, project.baselines, project.static) == (
        root,
        root / "baselines",
        root / "baselines" / "static",
    )
    assert list(project.suites) == ["smoke", "full"]


@pytest.mark.parametrize("edited", ["kernels/__init__.py", "kernels/shapes.py", "shared_with_others.py"])
def test_an_edit_of_the_same_size_and_second_is_seen(
    edited: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's own bytecode would be taken for that of the file."""
    monkeypatch.syspath_prepend(root)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    shape = "from .shapes import X\nfrom shared_with_others import Y\nZ = 32\n"
    declare(root, f'{shape}KERNELS = (Kernel("one", "one.cu", "one", BlockShape((X, Y), (Z, 1))),)')
    (root / "kernels" / "shapes.py").write_text("X = 32\n")
    (root / "shared_with_others.py").write_text("Y = 32\n")
    for file in root.rglob("*.py"):
        os.utime(file, (1e9, 1e9))
        py_compile.compile(str(file), doraise=True)  # as whoever imports it otherwise

    def loaded() -> BlockShape:
        sys.modules.pop("shared_with_others", None)
        (kernel,) = load(root).kernels
        return kernel.shape_of(kernel.configs[0], kernel.dtypes[0])

    assert loaded() == BlockShape((32, 32), (32, 1))
    file = root / edited
    file.write_text(file.read_text().replace("= 32\n", "= 16\n"))
    os.utime(file, (1e9, 1e9))
    assert 16 in (*(seen := loaded()).threads, *seen.tile)
    sys.modules.pop("shared_with_others", None)


def test_paths_are_relative_to_the_declaring_file(root: Path) -> None:
    (root / "mine.py").write_text(
        HEAD + f'KERNELS = (Kernel("one", "kernels/one.cu", "one", {SHAPE}, include=("kernels/headers",)),)\n'
    )
    (root / "pyproject.toml").write_text(
        '[tool.gemm-regression]\nkernels = "mine.py"\nbaselines = "stored"\n'
    )
    project = load(root)
    assert project.kernels[0].source == root / "kernels" / "one.cu"
    assert project.kernels[0].include == (root / "kernels" / "headers",)
    assert project.baselines == root / "stored"


def test_suites_of_its_own_stand_beside_the_usual_ones(root: Path) -> None:
    declare(root, f'KERNELS = ({PLAIN},)\nSUITES = (Suite("mine", (), ()), Suite("smoke", (), ()))')
    suites = load(root).suites
    assert list(suites) == ["smoke", "full", "mine"]
    assert suites["smoke"].timed == ()


def test_the_nearest_table_above_is_found(root: Path, tmp_path: Path) -> None:
    inner = root / "kernels" / "headers"
    (root / "kernels" / "pyproject.toml").write_text("[tool.other]\n")
    assert find(inner) == root.resolve()
    (inner / "pyproject.toml").write_text("[tool.gemm-regression]\n")
    assert find(inner) == inner.resolve()


def test_no_table_is_told_how_to_begin(tmp_path: Path) -> None:
    with pytest.raises(
        ProjectError, match=r"create one with `gemm-regression init`, or name one with --project"
    ):
        find(tmp_path)


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ('kernel = "x"', r"\[tool.gemm-regression\] has the unknown key 'kernel'; known: kernels, baselines"),
        ("kernels = 3", r"kernels = 3 is not a path"),
        ('kernels = "nowhere"', r"has no nowhere/__init__.py, which must declare its kernels"),
        ('kernels = "x.py"', r"has no x.py"),
        ("kernels = ", r"pyproject.toml: cannot be read"),
    ],
)
def test_a_wrong_table_is_one_line(table: str, why: str, root: Path) -> None:
    (root / "pyproject.toml").write_text(f"[tool.gemm-regression]\n{table}\n")
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(refusal(root))


@pytest.mark.parametrize(
    ("declared", "why"),
    [
        ("KERNELS = (", r"kernels/__init__.py:3: SyntaxError: '\(' was never closed"),
        ("\nx = 1 / 0", r"kernels/__init__.py:4: ZeroDivisionError: division by zero"),
        ("import no_such_module", r"kernels/__init__.py:3: ModuleNotFoundError: "),
        ('KERNELS = (Kernel("one", purpose=1),)', r":3: TypeError: .*unexpected keyword argument 'purpose'"),
        ("raise SystemExit('no')", r":3: SystemExit: no"),
        ("LADDER = ()", r"it must define KERNELS, a tuple of Kernel"),
        ("KERNELS = (3,)", r"KERNELS: number 1 is of type int, not Kernel"),
        (f"KERNELS = ({PLAIN}, {PLAIN})", r"two kernels are named 'one'"),
        (
            f'KERNELS = (Kernel("a-b", "one.cu", "one", {SHAPE}),)',
            r"kernel 'a-b': its name must consist of letters",
        ),
        (
            f'KERNELS = (Kernel("one", "two.cu", "one", {SHAPE}),)',
            r"'one': the source file two.cu does not exist",
        ),
        (
            f'KERNELS = (Kernel("one", "one.cu", "one", {SHAPE}, include=("nowhere",)),)',
            r"'one': the include folder .*nowhere does not exist",
        ),
        (
            f'KERNELS = (Kernel("one", "one.cu", "one", {SHAPE}, configs=(Config(A=1), Config(A=1))),)',
            r"'one': two configs have the label a1",
        ),
        (
            f'KERNELS = (Kernel("one", "one.cu", "one", {SHAPE}, configs=()),)',
            r"configs must be a tuple such",
        ),
        (
            f'KERNELS = (Kernel("one", "one.cu", "one", {SHAPE}, configs=[Config()]),)',
            r"configs must be a tuple such as \(Config\(TILE=32\),\)",
        ),
        (f'KERNELS = (Kernel("one", "one.cu", "one", {SHAPE}, dtypes=()),)', r"dtypes must be a tuple such"),
        (f'KERNELS = (Kernel("one", "one.cu", "one", {SHAPE}, features="tma"),)', r"features is not a tuple"),
        (
            f'KERNELS = (Kernel("one", "one.cu", "one", {SHAPE}, parameters="float *Q"),)',
            r"'one': parameters: ",
        ),
        (
            'KERNELS = (Kernel("one", "one.cu", "one", lambda c, d: BlockShape((c["T"], 1), (1, 1))),)',
            r"'one': shape of config '': KeyError: 'T'",
        ),
        ('KERNELS = (Kernel("one", "one.cu", "one", lambda c, d: 3),)', r"shape returns int, not BlockShape"),
        (
            'KERNELS = (Kernel("one", "one.cu", "one", lambda c: 3),)',
            r"'one': shape takes \(c\), not \(config, dtype\): write shape=lambda config, dtype: Block",
        ),
        (
            f"KERNELS = ({mapped('lambda config: {}')},)",
            r"'one': maps takes \(config\), not \(config, dtype\): write maps=lambda config, dtype: {\"A\": ",
        ),
        (
            f"KERNELS = ({mapped('lambda config, dtype: {}')},)",
            r"'one': maps of config '', f32: parameter mapA: no tensor map is declared for A",
        ),
        (
            f"KERNELS = ({mapped('lambda config, dtype: {3: dtype}')},)",
            r"'one': maps of config '', f32: 3 is of type DType, not TensorMap",
        ),
        (f"KERNELS = ({mapped('lambda *of: 3')},)", r"'one': maps of config '', f32: int, not a dict of "),
        (
            f"KERNELS = ({mapped('lambda c, d: c[TILE]')},)",
            r"'one': maps of config '', f32: NameError: name 'TILE' is not defined",
        ),
        (
            f"KERNELS = ({mapped('lambda c, d: {chr(65): TensorMap((8, 8), tf32=True)}')},)",
            r"'one': maps of config '', f16: parameter mapA: a tensor map with tf32=True rounds FP32 "
            r"elements, and those of A are float16: write tf32=\(dtype == TF32\)",
        ),
        (f'KERNELS = (Kernel("one", 3, "one", {SHAPE}),)', r"source is of type int, not a path"),
        (f'KERNELS = ({PLAIN},)\nSUITES = ("smoke",)', r"SUITES: 'smoke' is not a Suite"),
    ],
)
def test_a_wrong_declaration_is_one_line_with_its_place(declared: str, why: str, root: Path) -> None:
    declare(root, declared)
    said = refusal(root)
    assert said.startswith("kernels/__init__.py")
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(said)


def test_two_projects_do_not_meet(root: Path, tmp_path: Path) -> None:
    (root / "kernels" / "sizes.py").write_text("SIZE = 64\n")
    declare(root, f"from .sizes import SIZE\nKERNELS = ({PLAIN},)\nassert SIZE == 64")
    first, second = load(root), load(root)
    assert isinstance(first, Project)
    assert first.kernels[0] == second.kernels[0]
    import kernels

    assert kernels.__file__ != str(first.declarations)
