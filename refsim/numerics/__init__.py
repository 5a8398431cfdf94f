"""Arithmetic on arrays of numbers: exact, one rounding, no mode that outlives a call.

Names are loaded when first used: IEEE arithmetic does not import the tensor cores.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from refsim.numerics.bounds import error_bound, exact_product, fma_product
    from refsim.numerics.multiply import UnverifiedProfileWarning, mma
    from refsim.numerics.profiles import PROFILES, Profile, profile

__all__ = [
    "PROFILES",
    "Profile",
    "UnverifiedProfileWarning",
    "error_bound",
    "exact_product",
    "fma_product",
    "mma",
    "profile",
]

_HOME_OF = {
    "PROFILES": "refsim.numerics.profiles",
    "Profile": "refsim.numerics.profiles",
    "UnverifiedProfileWarning": "refsim.numerics.multiply",
    "error_bound": "refsim.numerics.bounds",
    "exact_product": "refsim.numerics.bounds",
    "fma_product": "refsim.numerics.bounds",
    "mma": "refsim.numerics.multiply",
    "profile": "refsim.numerics.profiles",
}


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        return getattr(import_module(_HOME_OF[name]), name)
    raise AttributeError(f"module 'refsim.numerics' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
