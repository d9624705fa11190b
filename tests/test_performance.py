"""Every timed case against the stored baseline of this GPU."""

from gemm_regression.pytest_plugin import judged

test_performance = judged.test_performance
test_no_orphans = judged.test_no_orphans
