"""``python -m ptxsan``, as the command ``ptxsan``."""

from ptxsan.command import run

if __name__ == "__main__":
    run()
