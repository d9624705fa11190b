"""Every kernel variant of the suite is right on the problems of the suite, on whichever device there is."""

from gemm_regression.pytest_plugin import judged

test_kernel = judged.test_kernel
test_paths = judged.test_paths
