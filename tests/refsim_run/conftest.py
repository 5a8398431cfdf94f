"""`refsim run` within the test's process, as the other commands run in tests/cli."""

from tests.cli.conftest import refsim

__all__ = ["refsim"]
