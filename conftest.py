"""Loads the suite's pytest plugin for every run below this folder."""

pytest_plugins = ["harness.commands.plugin"]
