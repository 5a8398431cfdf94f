"""Arithmetic on arrays of numbers: exact, one rounding, no mode that outlives a call.

Names are loaded when first used: IEEE arithmetic does not import the tensor cores.
"""

from typing import TYPE_CHECKING

from refsim.lazy import exports

if TYPE_CHECKING:
    from refsim.numerics.bounds import error_bound as error_bound
    from refsim.numerics.bounds import exact_product as exact_product
    from refsim.numerics.bounds import fma_product as fma_product
    from refsim.numerics.multiply import UnverifiedProfileWarning as UnverifiedProfileWarning
    from refsim.numerics.multiply import mma as mma
    from refsim.numerics.profiles import PROFILES as PROFILES
    from refsim.numerics.profiles import profile as profile
    from refsim.numerics.rows import Profile as Profile
    from refsim.numerics.sparse import compress as compress
    from refsim.numerics.sparse import decompress as decompress
    from refsim.numerics.sparse import sparse_profile as sparse_profile
    from refsim.numerics.special import approx as approx
else:
    __getattr__, __dir__ = exports(__name__)
