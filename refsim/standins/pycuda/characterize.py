"""pycuda.characterize on the simulated GPU."""

from typing import Any

from refsim.standins.seams import refuse


def has_double_support(dev: Any = None) -> bool:
    return True


def has_stack() -> bool:
    return True


def platform_bits() -> int:
    return 64


def __getattr__(name: str) -> Any:
    raise refuse("pycuda.characterize", name)
