"""The random Hadamard transform: it mixes 16 neighbors, which spreads an outlier over all of them before
quantization."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from refsim.errors import RefsimError
from refsim.integers import array_of
from refsim.typed_arrays import is_typed

SIGNS = (1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1)
"""Transformer Engine's signs, equal for every tensor."""


def hadamard(size: int) -> NDArray[np.float64]:
    """Return Sylvester's matrix of 1 and -1: hadamard(2) is [[1, 1], [1, -1]]."""
    if size < 1 or size & (size - 1):
        raise RefsimError("bad-value", f"{size} signs", rule="a power of two")
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix


def random_hadamard(x: ArrayLike, signs: ArrayLike = SIGNS, *, inverse: bool = False) -> NDArray[np.float64]:
    """Multiply every run of len(signs) neighbors along K by diag(signs) H / sqrt(len(signs)), H Sylvester's matrix.

    `x` (..., K): values of any real type. Sums are computed in float64, exact for bf16 values up to 44 binades apart;
    round them to the kernel's type, `.astype(ml_dtypes.bfloat16)`. H is its own inverse: with `inverse` the signs are
    applied after H. random_hadamard([2.0] + [0.0] * 15)[0] is 0.5. Raises RefsimError for K that is no multiple of
    len(signs) and for signs other than 1 or -1. Source: Transformer Engine, custom_recipes/reference_nvfp4.py,
    _build_hadamard_matrix and _apply_rht.
    """
    given, vector = array_of("x", x), array_of("signs", signs)
    if given.dtype.kind not in "fiub" and not is_typed(given.dtype):
        raise RefsimError("bad-dtype", f"x holds {given.dtype}", rule="numbers, which float64 holds")
    values = given.astype(np.float64)
    if vector.ndim != 1 or vector.dtype.kind not in "fiu" or not (np.abs(vector) == 1).all():
        raise RefsimError("bad-value", f"signs {signs!r}", rule="one dimension of 1 and -1")
    vector = vector.astype(np.float64)
    matrix = hadamard(vector.size)
    if values.ndim < 1 or values.shape[-1] % vector.size:
        what = f"x has shape {values.shape}: its last dimension is not a multiple of {vector.size}"
        raise RefsimError("bad-shape", what, rule="one sign for each of a run of neighbors")
    runs = values.reshape(*values.shape[:-1], values.shape[-1] // vector.size, vector.size)
    with np.errstate(all="ignore"):
        mixed = (runs @ matrix) * vector if inverse else (runs * vector) @ matrix
        return np.asarray(mixed / np.sqrt(vector.size)).reshape(values.shape)
