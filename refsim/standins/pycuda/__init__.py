"""PyCUDA on the simulated GPU: the version that its interface follows."""

from typing import Any

from refsim.standins.seams import refuse

VERSION = (2026, 1)
VERSION_STATUS = ""
VERSION_TEXT = "2026.1"


def __getattr__(name: str) -> Any:
    raise refuse("pycuda", name)
