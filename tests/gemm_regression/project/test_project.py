"""A project is found, loaded and checked; what is wrong with one is told in one line with its place."""

from __future__ import annotations

import os
import py_compile
import re
import sys
from pathlib import Path

import pytest

from gemm_regression.model import BlockShape
from gemm_regression.project.loader import Project, ProjectError, find, load

HEAD = (
    "from gemm_regression.model import F16, F32, BlockShape, Config, Kernel, TensorMap, Workspace\n"
    "from gemm_regression.project.suites import Suite\n"
)
SHAPE = "BlockShape((32, 1), (1, 32))"


def one(more: str = "", name: str = '"one"', source: str = '"one.cu"', shape: str = SHAPE) -> str:
    return f'Kernel({name}, {source}, "one", {shape}, {more})'


def mapped(maps: str) -> str:
    return one(f'"", (F32, F16), parameters="const CUtensorMap mapA, B, C", maps={maps}')


PLAIN = one()


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
    assert (project.baselines, project.static) == (root / "baselines", root / "baselines" / "static")
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
    kernel = one('include=("kernels/headers",)', source='"kernels/one.cu"')
    (root / "mine.py").write_text(f"{HEAD}KERNELS = ({kernel},)\n")
    table = '[tool.gemm-regression]\nkernels = "mine.py"\nbaselines = "stored"\n'
    (root / "pyproject.toml").write_text(table)
    project = load(root)
    (loaded,), folder = project.kernels, root / "kernels"
    assert (loaded.source, loaded.include) == (folder / "one.cu", (folder / "headers",))
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
    with pytest.raises(ProjectError, match="create one with `gemm-regression init`, or name one with --pro"):
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
    assert re.search(why, refusal(root))


@pytest.mark.parametrize(
    ("declared", "why"),
    [
        ("KERNELS = (", r"kernels/__init__.py:3: SyntaxError: '\(' was never closed"),
        ("\nx = 1 / 0", r"kernels/__init__.py:4: ZeroDivisionError: division by zero"),
        ("import no_such_module", r"kernels/__init__.py:3: ModuleNotFoundError: "),
        ('KERNELS = (Kernel("one", purpose=1),)', r":3: TypeError: .*unexpected keyword argument 'purpose'"),
        ("raise SystemExit('no')", r":3: SystemExit: no"),
        ("LADDER = ()", r"it must define KERNELS, a tuple of Kernel"),
        ("KERNELS = (3,)", r"KERNELS: 3 is not a Kernel"),
        (f"KERNELS = ({PLAIN}, {PLAIN})", r"two kernels are named 'one'"),
        (f'KERNELS = ({PLAIN},)\nSUITES = ("smoke",)', r"SUITES: 'smoke' is not a Suite"),
        (one(name='"a-b"'), r"kernel 'a-b': its name must consist of letters"),
        (one(source='"two.cu"'), r"'one': the source file two.cu does not exist"),
        (one(source="3"), r"source is of type int, not a path"),
        (one('include=("nowhere",)'), r"'one': the include folder .*nowhere does not exist"),
        (one("configs=(Config(A=1), Config(A=1))"), r"'one': two configs have the label a1"),
        (one("configs=()"), r"configs must be a tuple such"),
        (one("configs=[Config()]"), r"configs must be a tuple such as \(Config\(TILE=32\),\)"),
        (one("dtypes=()"), r"dtypes must be a tuple such"),
        (one('features="tma"'), r"features is not a tuple"),
        (one('parameters="float *Q"'), r"'one': parameters: "),
        (
            one('parameters="const uint32_t* weight=B, float* A, float* C", dtypes=(F16,)'),
            r"parameters, f16: parameter uint32_t \*weight: B has elements of type float16; if the kernel "
            r"takes them apart itself, declare void \*weight=B",
        ),
        (one('parameters="double *A, B, C"'), r"f32: parameter double \*A: A has elements of type float32"),
        (one(shape='lambda c, d: BlockShape((c["T"], 1), (1, 1))'), r"shape of config '': KeyError: 'T'"),
        (one(shape="lambda c, d: 3"), r"shape returns int, not BlockShape"),
        (
            one(shape="BlockShape((32, 1), (1, 0))"),
            r"tile \(1, 0\), batch 1, split 1: each must be 1 or more",
        ),
        (one(shape="BlockShape((32,), (1, 1))"), r"'': threads is \(32,\): must be \(x, y\) or \(x, y, z\)"),
        (one(shape="BlockShape((32, 1), 16)"), r"'': tile is 16: must be \(rows, columns\), whole numbers"),
        (one(shape="BlockShape((32, 1), (8, 8.0))"), r"'': tile is \(8, 8.0\): must be \(rows, columns\)"),
        (
            one(shape="lambda c: 3"),
            r"shape of config '': TypeError: .* takes 1 positional argument but 2 were",
        ),
        (
            one("workspace=Workspace(lambda config, problem: 4)"),
            r"'one': workspace, which is asked with \(config, dtype, problem\): TypeError: ",
        ),
        (mapped("lambda c, d: {}"), r"config '', f32: parameter mapA: no tensor map is declared for A"),
        (
            one("parameters='A, B, C, {int m=M, uint8_t p=256}'"),
            r"parameters of config '', f32: parameter p is 256, more than 8 bits hold$",
        ),
        (mapped("lambda *of: 3"), r"'one': maps of config '', f32: TypeError: "),
        (mapped("lambda c, d: c[TILE]"), r"maps of config '', f32: NameError: name 'TILE' is not defined"),
        (
            mapped("lambda c, d: {chr(65): TensorMap((8, 8), tf32=True)}"),
            r"config '', f16: parameter mapA: a tensor map with tf32=True rounds FP32 elements, and those of",
        ),
    ],
)
def test_a_wrong_declaration_is_one_line_with_its_place(declared: str, why: str, root: Path) -> None:
    declare(root, f"KERNELS = ({declared},)" if declared.startswith("Kernel(") else declared)
    said = refusal(root)
    assert said.startswith("kernels/__init__.py")
    assert re.search(why, said), said


def test_two_projects_do_not_meet(root: Path, tmp_path: Path) -> None:
    (root / "kernels" / "sizes.py").write_text("SIZE = 64\n")
    declare(root, f"from .sizes import SIZE\nKERNELS = ({PLAIN},)\nassert SIZE == 64")
    first, second = load(root), load(root)
    assert isinstance(first, Project)
    assert first.kernels[0] == second.kernels[0]
    import kernels

    assert kernels.__file__ != str(first.declarations)
