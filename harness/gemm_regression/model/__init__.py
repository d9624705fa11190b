"""The words of the suite as frozen data: dtype, operation, problem, config, kernel, case, launch.

Nothing here touches CUDA, a file or a clock; every other module speaks in these types.
"""

from gemm_regression.model.case import Case, CaseId, stage_name, variant_name
from gemm_regression.model.config import Config, Rule, Space, Values
from gemm_regression.model.constraints import Constraints
from gemm_regression.model.dtype import (
    BF16,
    DTYPES,
    F16,
    F16_ACC16,
    F32,
    S8,
    TF32,
    Array,
    DType,
    find_dtype,
    with_output,
)
from gemm_regression.model.kernel import (
    BlockShape,
    Kernel,
    Launch,
    Resources,
    Waiver,
    Workspace,
)
from gemm_regression.model.operation import (
    GELU,
    GELU_ERF,
    GEMM,
    GEMM_BATCHED,
    GEMM_BIAS_GELU,
    GEMM_BIAS_RELU,
    RELU,
    SPARSE,
    Activation,
    Operand,
    Operation,
    Storage,
    gemm,
    gemm_bias,
)
from gemm_regression.model.parameters import Argument, Parameter, TensorMap
from gemm_regression.model.problem import INT_MAX, Problem, find_problem

__all__ = [
    "BF16",
    "DTYPES",
    "F16",
    "F16_ACC16",
    "F32",
    "GELU",
    "GELU_ERF",
    "GEMM",
    "GEMM_BATCHED",
    "GEMM_BIAS_GELU",
    "GEMM_BIAS_RELU",
    "INT_MAX",
    "RELU",
    "S8",
    "SPARSE",
    "TF32",
    "Activation",
    "Argument",
    "Array",
    "BlockShape",
    "Case",
    "CaseId",
    "Config",
    "Constraints",
    "DType",
    "Kernel",
    "Launch",
    "Operand",
    "Operation",
    "Parameter",
    "Problem",
    "Resources",
    "Rule",
    "Space",
    "Storage",
    "TensorMap",
    "Values",
    "Waiver",
    "Workspace",
    "find_dtype",
    "find_problem",
    "gemm",
    "gemm_bias",
    "stage_name",
    "variant_name",
    "with_output",
]
