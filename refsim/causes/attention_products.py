"""The products of attention: the sums of a plan, and all steps in float64."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.causes.accumulating import Adder
from refsim.causes.row_subject import Doubles, Floats
from refsim.conversions import decode
from refsim.formats import F32, Format

AT_ONCE = 8  # rows whose products a loop holds at a time


def wide_attention(
    sides: Sequence[Doubles], factor: float, seen: NDArray[np.int64], pads: int
) -> tuple[Doubles, Doubles]:
    """Return O and the logarithms of the sums (rows, 1) in float64.

    `sides` are the values of q, k and v; each row sees its first `seen` keys; `pads` zeros follow the keys.
    """
    q, k, v = sides[0], *(padded(each, len(each) + pads) for each in sides[1:])
    s = np.where(np.arange(len(k)) < seen[:, None], q @ k.T * factor, -np.inf)
    top = s.max(axis=1, keepdims=True, initial=-np.inf)
    top = np.where(np.isneginf(top), 0, top)
    p = np.exp(s - top)
    total = p.sum(axis=1, keepdims=True)
    return np.where(total == 0, 0, p @ v / np.where(total == 0, 1, total)), top + np.log(total)


def padded(codes: NDArray[Any], width: int) -> NDArray[Any]:
    """Return codes with zeros up to `width` keys; keys after `width` stay but are never used."""
    return np.pad(codes, ((0, max(0, width - len(codes))), (0, 0)))


def sum_of_products(
    adder: Adder, a: NDArray[Any], b: NDArray[Any], c: Floats | None, formats: tuple[Format, Format]
) -> Floats:
    """Return a B^T + C. A loop of fma with exact products in float32 is computed as one running sum."""
    wide = (decode(a, formats[0], np.float32), decode(b, formats[1], np.float32))
    bits = sum(each.mantissa_bits + 1 for each in formats)
    if adder.row is not None or "fma" not in adder.name or bits > F32.mantissa_bits + 1:
        return adder.sum(a, b, c, formats)
    made = np.zeros((len(a), len(b)), np.float32)
    for first in range(0, len(a), AT_ONCE):
        part = slice(first, first + AT_ONCE)
        products = wide[0][part, None, :] * wide[1][None]
        beginning = np.zeros_like(products[:, :, :1]) if c is None else c[part, :, None]
        made[part] = np.add.accumulate(np.concatenate([beginning, products], axis=2), axis=2, dtype=np.float32)[
            :, :, -1
        ]
    return made
