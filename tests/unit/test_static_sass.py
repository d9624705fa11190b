"""Sections of a cubin, and the instruction mix of a listing that nvdisasm wrote (recorded: two kernels in a
row)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gemm_regression.compiler import objects, tools
from gemm_regression.compiler.nvcc import compile_cubin
from gemm_regression.compiler.static import metrics
from gemm_regression.compiler.tools import Disassembler, ToolchainError
from gemm_regression.model import F32, BlockShape, Config, Kernel

# A copy of a float4 each through shared memory, then c = v.x * v.y + v.z * v.w; and c = 1.
LISTING = (Path(__file__).parent / "nvdisasm_sm_90a.txt").read_text()
SIZES = [640, 384]


def test_the_recorded_kernels_are_told_apart() -> None:
    first, second = map(metrics.instruction_mix, metrics.count_opcodes(LISTING, SIZES))
    assert first == {
        **{"BAR": 1, "BRA": 1, "FFMA": 1, "FMUL": 1, "LDG.128": 1, "LDS.128": 1, "STG.32": 1, "STS.128": 1},
        "total": 26,
    }
    assert second == {"BRA": 1, "STG.32": 1, "total": 9}


def test_a_predicate_is_no_opcode() -> None:
    first, _ = metrics.count_opcodes(LISTING, SIZES)
    assert first["EXIT"] == 2  # one of them @P0
    assert sum(first.values()) == 640 / 16


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace("        /*0160*/                   FFMA R5, R4, R5, R7 ;\n", ""),
        lambda text: text[:1500],
        lambda text: "",
        lambda text: text.replace("/*", "<").replace("*/", ">"),
    ],
    ids=["a line lost", "truncated", "empty", "another format"],
)
def test_a_listing_that_lacks_instructions_is_refused(damage: object) -> None:
    """Counted as fewer, they would be a change of the kernel that nobody made."""
    assert callable(damage)
    with pytest.raises(ToolchainError, match=r"listed \d+ instructions, but the code has 64"):
        metrics.count_opcodes(damage(LISTING), SIZES)


@pytest.mark.parametrize(
    ("opcode", "counted"),
    [
        ("LDS", "LDS.32"),
        ("LDS.U.64", "LDS.64"),
        ("STS.U16", "STS.16"),
        ("LDG.E.U8.CONSTANT", "LDG.8"),
        ("LDG.E.LTC128B.64.CONSTANT", "LDG.64"),
        ("LDGSTS.E.BYPASS.128", "LDGSTS.128"),
        ("LD.E", "LD.32"),
        ("LDL.LU", "LDL.32"),
        ("LDSM.16.MT88.4", "LDSM"),
        ("HMMA.16816.F32.BF16", "HMMA.16816.F32.BF16"),
        ("HMMA.16816.F16", "HMMA.16816.F16"),
        ("HGMMA.64x256x16.F32.BF16", "HGMMA.64x256x16.F32.BF16"),
        ("BAR.SYNC.DEFER_BLOCKING", "BAR"),
        ("BRA.U", "BRA"),
        ("FFMA.FTZ", "FFMA"),
        ("FFMA2", "FFMA2"),
    ],
)
def test_an_opcode_is_counted_as(opcode: str, counted: str) -> None:
    assert metrics.instruction_mix({opcode: 3}) == {counted: 3, "total": 3}


@pytest.mark.parametrize("opcode", ["HFMA2.MMA", "LDC.64", "IMAD", "BSSY", "LEA.HI"])
def test_the_rest_counts_in_the_total_only(opcode: str) -> None:
    """HFMA2.MMA has nothing of tensor cores: it is how a constant reaches a register."""
    assert metrics.instruction_mix({opcode: 2}) == {"total": 2}


def test_padding_is_no_instruction() -> None:
    assert metrics.instruction_mix({"FFMA": 1, "NOP": 14}) == {"FFMA": 1, "total": 1}


def planted(folder: Path, body: str, name: str = "planted") -> Kernel:
    source = folder / f"{name}.cu"
    source.write_text(body)
    shape = BlockShape((32, 1), (1, 32))
    return Kernel(name, source, "gemm_planted", shape)


@pytest.mark.compile
def test_constant_banks_are_those_of_the_cubin(tmp_path: Path) -> None:
    """On sm_90a bank 0 holds 0x210 bytes of the launch's own, then the parameters; bank 3 the table."""
    body = (
        '__constant__ float table[16];\nextern "C" __global__ void gemm_planted(float* c, int n)\n'
        "{ c[n] = table[n & 15]; }\n"
    )
    made = compile_cubin(planted(tmp_path, body), Config(), F32, "sm_90a")
    assert objects.constant_bytes(made.cubin, made.symbol) == 0x210 + 8 + 4 + 64


@pytest.fixture
def nvdisasm() -> Disassembler:
    try:
        return tools.pinned_tools()[1]
    except ToolchainError as error:
        pytest.skip(str(error))


@pytest.mark.compile
class TestTheDisassembler:
    ONE = 'extern "C" __global__ void gemm_planted(float* c) { c[threadIdx.x] = 1.0f; }\n'
    TWO = 'extern "C" __global__ void gemm_planted(float4* c) { c[threadIdx.x] = c[threadIdx.x + 1]; }\n'

    @pytest.fixture(autouse=True)
    def cache(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GEMM_CACHE_DIR", str(tmp_path / "cache"))

    def cubins(self, folder: Path, arch: str) -> list[bytes]:
        kernels = [planted(folder, body, f"k{i}") for i, body in enumerate((self.ONE, self.TWO))]
        made = [compile_cubin(kernel, Config(), F32, arch) for kernel in kernels]
        return [objects.code(binary.cubin, binary.symbol) for binary in made]

    @pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a", "sm_120a"])
    def test_reads_every_architecture(self, arch: str, tmp_path: Path, nvdisasm: Disassembler) -> None:
        one, two = map(metrics.instruction_mix, metrics.opcodes(self.cubins(tmp_path, arch), arch, nvdisasm))
        assert (one["STG.32"], two["LDG.128"], two["STG.128"]) == (1, 1, 1)
        assert "LDG.128" not in one

    def test_what_the_cache_holds_is_not_read_again(self, tmp_path: Path, nvdisasm: Disassembler) -> None:
        one, two = self.cubins(tmp_path, "sm_80")
        first = metrics.opcodes([two], "sm_80", nvdisasm)
        gone = replace(nvdisasm, path=Path("/nowhere"))
        assert metrics.opcodes([two, two], "sm_80", gone) == first * 2
        with pytest.raises(ToolchainError, match="/nowhere cannot be run"):
            metrics.opcodes([one, two], "sm_80", gone)

    def test_a_failure_of_it_is_one_line(self, tmp_path: Path, nvdisasm: Disassembler) -> None:
        with pytest.raises(ToolchainError, match="nvdisasm failed") as caught:
            metrics.opcodes(self.cubins(tmp_path, "sm_80"), "sm_999", nvdisasm)
        assert "\n" not in str(caught.value)
