"""``python -m gemm_regression COMMAND``."""

from gemm_regression.cli.main import run

if __name__ == "__main__":
    run()
