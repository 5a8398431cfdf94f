"""The command line: `main` runs one command and returns its exit code."""

from refsim.cli.program import main

__all__ = ["main"]
