"""pycuda.characterize on the simulated GPU."""

from typing import Any

from refsim.standins.seams import refusing

__getattr__ = refusing("pycuda.characterize")


def has_double_support(dev: Any = None) -> bool:
    return True


def has_stack() -> bool:
    return True


def platform_bits() -> int:
    return 64
