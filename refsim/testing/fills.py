"""The contents of tensors and matrices of a recipe: a name, a generator, and the codes or values drawn from it.

A saved case holds a fill's name and a seed, so a fill must never change: new contents need a new name. Operands for
sums of products are drawn in `refsim.reference.operands`, operands of recorded GPU runs in
`refsim.silicon.tensor_classes`. All three take the special values of a format from `special_codes`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.conversions import decode, encode
from refsim.formats import Format
from refsim.reference.operands import special_codes

# Fills: (generator, n, format entry, target entry) -> codes, shape (n,).

Fill = Callable[[np.random.Generator, int, Format, Format], NDArray[Any]]


def _finite(values: NDArray[Any], row: Format) -> NDArray[Any]:
    """Return the codes of values, saturated at the largest value: infinities have their own fill."""
    return encode(values, row, overflow="saturate")


def _zeros(generator: np.random.Generator, n: int, row: Format, target: Format) -> NDArray[Any]:
    return np.zeros(n, row.code_dtype)


def _ones(generator: np.random.Generator, n: int, row: Format, target: Format) -> NDArray[Any]:
    return _finite(np.ones(n), row)


def _one_hot(generator: np.random.Generator, n: int, row: Format, target: Format) -> NDArray[Any]:
    values = np.zeros(n)
    values[generator.integers(n)] = 1.0
    return _finite(values, row)


def _gaussian(generator: np.random.Generator, n: int, row: Format, target: Format) -> NDArray[Any]:
    return _finite(generator.standard_normal(n), row)


def _log_uniform(generator: np.random.Generator, n: int, row: Format, target: Format) -> NDArray[Any]:
    low, high = np.log2(row.quantum), np.log2(row.max_value)
    return _finite(np.exp2(generator.uniform(low, high, n)) * generator.choice([-1.0, 1.0], n), row)


def _subnormals(generator: np.random.Generator, n: int, row: Format, target: Format) -> NDArray[Any]:
    magnitudes = generator.integers(1, 1 << max(row.mantissa_bits, 1), n) << row.padding_bits
    return magnitudes | row.sign_mask * generator.integers(0, 2, n)


def _uniform_bits(generator: np.random.Generator, n: int, row: Format, target: Format) -> NDArray[Any]:
    return generator.integers(0, row.code_limit, n, dtype=np.uint64)


def _specials(generator: np.random.Generator, n: int, row: Format, target: Format) -> NDArray[Any]:
    codes = np.array(special_codes(row), row.code_dtype)
    return np.take(codes, (np.arange(n) + generator.integers(len(codes))) % len(codes))


def _ties(generator: np.random.Generator, n: int, row: Format, target: Format) -> NDArray[Any]:
    """Return midpoints of the target and their two neighbors, times a power of two; element 0 is the target's maximum.

    With this maximum as amax, the scale is the inverse power of two, so that the scaled values are exact ties again.
    """
    largest_shift = min(4, int(np.floor(np.log2(row.max_value / target.max_value))))
    shift = 2.0 ** int(generator.integers(min(-4, largest_shift), largest_shift + 1))
    magnitudes = np.arange(target.max_code >> target.padding_bits) << target.padding_bits
    values = decode(magnitudes.astype(target.code_dtype), target)
    gaps = np.append(values[1:], target.max_value) - values
    codes = _finite((values + gaps / 2)[generator.integers(len(values), size=n)] * shift, row).astype(np.int64)
    codes = np.maximum(codes + (generator.integers(-1, 2, n) << row.padding_bits), 0)
    codes = codes | row.sign_mask * generator.integers(0, 2, n)
    codes[0] = int(_finite(np.full(1, target.max_value * shift), row)[0])
    return codes


def _near_overflow(generator: np.random.Generator, n: int, row: Format, target: Format) -> NDArray[Any]:
    """Return elements around the target's largest value, in half of the draws mixed with the format's largest."""
    around_target = _finite(target.max_value * generator.uniform(0.9, 1.3, n), row).astype(np.int64)
    around_own = (row.max_code >> row.padding_bits) - generator.integers(0, 4, n) << row.padding_bits
    own = generator.integers(0, 2, n) if generator.integers(0, 2) else np.zeros(n, np.int64)
    return np.where(own, around_own, around_target) | row.sign_mask * generator.integers(0, 2, n)


FILLS: dict[str, Fill] = {
    "zeros": _zeros,
    "ones": _ones,
    "one-hot": _one_hot,
    "gaussian": _gaussian,
    "log-uniform": _log_uniform,
    "subnormals": _subnormals,
    "bits": _uniform_bits,
    "specials": _specials,
    "ties": _ties,
    "near-overflow": _near_overflow,
}


# Fills of matrices: (generator, rows, columns) -> values, shape (rows, columns).

RowFill = Callable[[np.random.Generator, int, int], NDArray[np.float64]]


def _narrow(generator: np.random.Generator, rows: int, columns: int) -> NDArray[Any]:
    """Return values of one binade and both signs: sums round at every step, and cancel."""
    return np.asarray(generator.uniform(1, 2, (rows, columns)) * generator.choice([-1.0, 1.0], (rows, columns)))


def _one_hot_rows(generator: np.random.Generator, rows: int, columns: int) -> NDArray[Any]:
    """Return a single one in each row: a product then picks columns, so that a misplaced column is visible."""
    values = np.zeros((rows, columns))
    values[np.arange(rows), generator.integers(columns, size=rows)] = 1.0
    return values


def _distinct(generator: np.random.Generator, rows: int, columns: int) -> NDArray[Any]:
    """Return different numbers from 1 to 15.9 for 512 neighbors, so that a scale of another group is visible."""
    place = np.arange(rows * columns).reshape(rows, columns) + generator.integers(512)
    return np.asarray((1 + place % 128 / 128) * 2.0 ** (place // 128 % 4))


ROW_FILLS: dict[str, RowFill] = {"narrow": _narrow, "one-hot rows": _one_hot_rows, "distinct": _distinct}
