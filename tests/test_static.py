"""The compiler's figures and the counts of every variant are those in baselines/static; no GPU."""

from gemm_regression.pytest_plugin import judged

test_compiler_metrics = judged.test_compiler_metrics
test_counts = judged.test_counts
