"""Findings that a declaration waives: shown, not red; red once nothing matches them any more."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from gemm_regression.cli import init
from gemm_regression.devices.emulated import EmulatedDevice
from gemm_regression.model import F32, BlockShape, Case, Config, DType, Kernel, Problem, Waiver
from gemm_regression.oracle import Examined, examine
from gemm_regression.run.checked import unused
from ptxsan.nvcc import compile_file
from tests.gemm_regression.cli.repo import harness

RACE = Waiver("race", "seen[0] =   N | threadIdx.x << 8;", "whose number it is does not matter")
OTHERWISE = "a waiver of '{}': only barrier, race, uninit can be waived"
LACKING = "a waiver of {} needs the text of a line, and a reason"
PARAMETERS = "const float *A, const float *B, float *C, int M, int N, int K"
SOURCE = f"""extern "C" __global__ void gemm({PARAMETERS}) {{
    __shared__ int seen[1];
    seen[0] = N | threadIdx.x << 8;
    __syncthreads();
    int row = blockIdx.y * 8 + threadIdx.y, column = blockIdx.x * 8 + threadIdx.x;
    float sum = 0;
    for (int k = 0; row < M && column < N && k < K; ++k) sum += A[row * K + k] * B[k * N + column];
    if (row < M && column < N) C[row * (seen[0] & 255) + column] = sum;
}}
"""
DECLARED = """from gemm_regression.model import BlockShape, Kernel, Problem, Waiver
from gemm_regression.project.suites import Suite

SMALL = Problem(3, 2, 7)
SUITES = (Suite("full", (Problem(13, 11, 9), SMALL), ()), Suite("smoke", (SMALL,), ()))
KERNELS = (
    Kernel("gemm", "gemm.cu", "gemm", BlockShape((8, 8), (8, 8)), parameters={!r}, waived={!r}),
)
"""
# At another line, and not waived.
SECOND = SOURCE.replace(
    "    __syncthreads();\n",
    "    __syncthreads();\n    seen[0] = N | threadIdx.y << 8;\n    __syncthreads();\n",
)


def examined(folder: Path, source: str, *waived: Waiver) -> Examined:
    file = folder / "gemm.cu"
    file.write_text(source)
    kernel = Kernel("gemm", file, "gemm", BlockShape((8, 8), (8, 8)), parameters=PARAMETERS, waived=waived)
    return examine(EmulatedDevice(), Case(kernel, F32, Config(), Problem(13, 11, 9)))


@pytest.mark.compile
def test_a_finding_is_waived_by_its_check_and_its_line(tmp_path: Path) -> None:
    assert {finding.check for finding in examined(tmp_path, SOURCE).findings} == {"race"}
    waived = examined(tmp_path, SOURCE, RACE)
    assert (waived.findings, waived.waived) == ((), (RACE,))
    for other in (Waiver("uninit", RACE.line, "no"), Waiver("race", "seen[0] = M;", "no")):
        assert {finding.check for finding in examined(tmp_path, SOURCE, other).findings} == {"race"}
    both = examined(tmp_path, SECOND, RACE)
    assert both.waived == (RACE,)
    assert all("gemm.cu:5" in finding.message for finding in both.findings)
    assert both.findings


@pytest.mark.compile
@pytest.mark.parametrize("first", [True, False])
def test_a_waiver_hides_no_other_finding_however_many_it_matches(first: bool, tmp_path: Path) -> None:
    """One waived line of twelve stores, then lines that are not waived, or the other way round."""
    many = "for (int i = 0; i < 12; ++i) ((volatile int*)seen)[i] = N | threadIdx.x << 8;"
    others = "\n".join(f"    ((volatile int*)more)[{i}] = threadIdx.x;" for i in range(12))
    pair = (f"    #pragma unroll\n    {many}\n", f"{others}\n")
    source = SOURCE.replace("    __shared__ int seen[1];\n", "    __shared__ int seen[12], more[12];\n")
    source = source.replace(
        "    seen[0] = N | threadIdx.x << 8;\n", "".join(pair if first else reversed(pair))
    )
    waived = examined(tmp_path, source, Waiver("race", many, RACE.reason))
    lines = [number for number, line in enumerate(source.splitlines(), 1) if "int*)more" in line]
    assert len(waived.waived) == 1
    found = {int(finding.message.partition("gemm.cu:")[2].split()[0]) for finding in waived.findings}
    assert found == {*lines}


@pytest.mark.compile
def test_a_finding_in_a_header_is_waived_by_its_line_there(tmp_path: Path) -> None:
    (tmp_path / "body.cuh").write_text(SOURCE)
    including = "// seen[0] = N | threadIdx.x << 8;\n" * 3 + '#include "body.cuh"\n'
    assert examined(tmp_path, including, RACE).waived == (RACE,)
    (tmp_path / "body.cuh").write_text(SECOND)
    found = examined(tmp_path, including, RACE)
    assert found.waived == (RACE,)
    assert all("body.cuh:5" in finding.message for finding in found.findings)
    assert found.findings


@dataclass(frozen=True)
class Writes:
    """A frontend whose compiler writes CUDA C++ first, into another folder; findings name lines of that."""

    made: Path

    def ptx(self, source: Path, config: Config, dtype: DType, arch: str) -> str:
        self.made.write_text(source.read_text().removeprefix("in a language of its own\n"))
        return compile_file(self.made, arch)

    def ptxas(self, arch: str) -> Path | None:
        return None


@pytest.mark.compile
def test_a_finding_is_waived_by_its_line_of_what_a_frontend_made(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    kernel = Kernel(
        "gemm", tmp_path / "gemm.py", "gemm", BlockShape((8, 8), (8, 8)), parameters=PARAMETERS,
        frontend=Writes(tmp_path / "cache" / "gemm.cu"), waived=(RACE,),
    )  # fmt: skip
    for source, left in ((SOURCE, set[int]()), (SECOND, {5})):
        (tmp_path / "gemm.py").write_text(f"in a language of its own\n{source}")
        found = examine(EmulatedDevice(), Case(kernel, F32, Config(), Problem(13, 11, 9)))
        assert found.waived == (RACE,)
        assert {(one.check, one.file, one.line) for one in found.findings} == {
            ("race", "gemm.cu", line) for line in left
        }


@pytest.mark.compile
def test_wrong_values_are_found_where_a_finding_is_waived(tmp_path: Path) -> None:
    wrong = examined(tmp_path, SOURCE.replace("] = sum;", "] = sum + 1;"), RACE)
    assert [finding.check for finding in wrong.findings] == ["exact"]


@pytest.mark.parametrize(
    ("waiver", "said"),
    [
        *((("bounds", "x", "y"), OTHERWISE), (("hang", "x", "y"), OTHERWISE)),
        *((("exact", "x", "y"), OTHERWISE), (("rase", "x", "y"), OTHERWISE)),
        *((("race", "", "why"), LACKING), (("race", "x = 1;", "  "), LACKING)),
    ],
)
def test_a_waiver_has_a_line_and_a_reason_and_stops_no_launch(
    waiver: tuple[str, str, str], said: str
) -> None:
    with pytest.raises(ValueError, match=said.format(waiver[0])):
        Waiver(*waiver)


def test_waivers_that_match_nothing() -> None:
    declared, planned = {"one": [RACE]}, {"one": ["one-a", "one-b"]}
    assert unused(declared, {"one": [str(RACE)]}, planned, {"one-a", "one-b"}) == []
    assert unused(declared, {}, planned, {"one-a", "one-b"}) == [("one", RACE)]
    assert unused(declared, {}, planned, {"one-a"}) == []  # of a part of the cases nothing is known
    assert unused(declared, {}, {}, set()) == []


@pytest.mark.compile
def test_a_run_shows_waivers_and_is_red_for_one_too_many(tmp_path: Path) -> None:
    assert init.main(["--project", str(tmp_path)]) == 0
    (tmp_path / "kernels" / "gemm.cu").write_text(SOURCE)

    def check(*options: str, waived: tuple[Waiver, ...]) -> tuple[int, str]:
        (tmp_path / "kernels" / "__init__.py").write_text(DECLARED.format(PARAMETERS, waived))
        done = harness(tmp_path, "check", "-n", "0", *options)
        return done.returncode, done.stdout + done.stderr

    status, said = check(waived=())
    assert status == 1, said
    status, said = check(waived=(RACE,))
    assert status == 0, said
    assert f"waived: gemm: race at `{' '.join(RACE.line.split())}`: {RACE.reason} (variants: 1" in said
    old = Waiver("race", "seen[1] = N;", "long gone")
    status, said = check(waived=(RACE, old))
    assert status == 1
    assert "matches no finding any more, remove it: gemm: waiver of race at `seen[1] = N;`: long gone" in said
    status, said = check("--suite", "smoke", waived=(RACE, old))
    assert status == 0, said  # only some of the cases
    assert "long gone" not in said
