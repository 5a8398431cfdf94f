"""Arithmetic on arrays of numbers: exact, one rounding, no mode that outlives a call.

Names are loaded when first used: IEEE arithmetic does not import the tensor cores.
"""

from typing import TYPE_CHECKING

__all__ = [
    "PROFILES",
    "Profile",
    "UnverifiedProfileWarning",
    "approx",
    "compress",
    "decompress",
    "error_bound",
    "exact_product",
    "fma_product",
    "mma",
    "profile",
    "sparse_profile",
]

if TYPE_CHECKING:
    from refsim.numerics.bounds import error_bound, exact_product, fma_product
    from refsim.numerics.multiply import UnverifiedProfileWarning, mma
    from refsim.numerics.profiles import PROFILES, profile
    from refsim.numerics.rows import Profile
    from refsim.numerics.sparse import compress, decompress, sparse_profile
    from refsim.numerics.special import approx
else:
    from refsim.lazy import exports

    __getattr__, __dir__ = exports(
        __name__,
        {
            "refsim.numerics.bounds": ("error_bound", "exact_product", "fma_product"),
            "refsim.numerics.multiply": ("UnverifiedProfileWarning", "mma"),
            "refsim.numerics.profiles": ("PROFILES", "Profile", "profile"),
            "refsim.numerics.sparse": ("compress", "decompress", "sparse_profile"),
            "refsim.numerics.special": ("approx",),
        },
    )
    del exports
