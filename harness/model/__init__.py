"""The words of the suite as frozen data: dtype, problem, config, kernel, case, launch.

Nothing here touches CUDA, a file or a clock; every other module speaks in these types.
"""

from harness.model.case import Case
from harness.model.config import Config
from harness.model.dtype import BF16, DTYPES, F16, F32, TF32, DType
from harness.model.kernel import KERNELS_DIR, BlockShape, Kernel, Launch, Resources, variant_name
from harness.model.problem import INT_MAX, Problem, find_problem

__all__ = [
    "BF16",
    "DTYPES",
    "F16",
    "F32",
    "INT_MAX",
    "KERNELS_DIR",
    "TF32",
    "BlockShape",
    "Case",
    "Config",
    "DType",
    "Kernel",
    "Launch",
    "Problem",
    "Resources",
    "find_problem",
    "variant_name",
]
