"""Loads the suite's pytest plugin for every run below this folder."""

from importlib.util import find_spec

pytest_plugins = ["harness.plugin"] if find_spec("harness.plugin") else []
