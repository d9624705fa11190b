"""``python -m harness COMMAND``."""

from harness.commands.cli import run

if __name__ == "__main__":
    run()
