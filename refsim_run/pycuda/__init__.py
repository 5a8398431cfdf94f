"""PyCUDA on the simulated GPU: the version that its interface follows."""

from refsim_run.seams import refusing

VERSION = (2026, 1)
VERSION_STATUS = ""
VERSION_TEXT = "2026.1"
__getattr__ = refusing("pycuda")
