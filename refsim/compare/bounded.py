"""Compare an array with exact values that each have a bound: which elements lie beyond it, and how far."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.compare.code_line import code_line, codes_of
from refsim.compare.differences import Layout, Owner, array_named, attribution, label_of
from refsim.compare.mismatch import LISTED_ELEMENTS, Element, Mismatch
from refsim.compare.patterns import place_patterns
from refsim.errors import RefsimError
from refsim.formats import Format


def within_bound(
    got: NDArray[Any],
    value: NDArray[np.float64],
    bound: NDArray[np.float64],
    format: str | Format | None = None,
    layout: Layout | None = None,
    owner: Owner | None = None,
    *,
    name: str = "",
) -> Mismatch:
    """Return the elements of `got` whose decoded value differs from `value` by more than `bound`.

    `value` and `bound` are float64, absolute, and have the shape of `got`. An element agrees where |decode(got) -
    value| <= bound, in float64; the sign of a zero does not count. Where `value` is NaN the element must be a NaN of
    any payload, and a NaN agrees nowhere else. Where `value` is infinite the element must be that infinity, unless the
    bound is infinite too: such a bound accepts every number and both infinities. A code that the format does not have
    agrees with nothing. The other arguments are those of `refsim.compare.bits`. Raises RefsimError for shapes, dtypes
    or formats that do not match, and for a bound that is negative or NaN. within_bound(np.uint8([8, 9]),
    np.array([2.0**-6, 2.0**-6]), np.array([0.0, 0.0]), "e4m3").count is 1.
    Source: defined here.
    """
    got = array_named("got", got)
    value, bound = (np.asarray(each, np.float64) for each in (value, bound))
    for label, array in (("value", value), ("bound", bound)):
        if array.shape != got.shape:
            raise RefsimError("bad-shape", f"got has shape {got.shape}, {label} has shape {array.shape}", where=name)
    if not (bound >= 0).all():
        raise RefsimError("bad-bound", "a bound is negative or NaN", where=name)
    line = code_line(got.dtype, got.dtype, format)
    codes, wanted, bounds = codes_of(got), value.reshape(-1), bound.reshape(-1)
    exists = codes < line.limit if line.limit <= np.iinfo(codes.dtype).max else np.ones(codes.shape, np.bool_)
    held = np.zeros(codes.shape, np.float64)
    held[exists] = line.values(codes[exists])
    with np.errstate(all="ignore"):
        error = np.abs(held - wanted)
    is_nan, is_equal = np.isnan(held) & np.isnan(wanted), held == wanted  # equal infinities have no difference
    is_free = np.isinf(bounds) & ~np.isnan(held) & ~np.isnan(wanted)
    agrees = exists & (is_nan | is_equal | is_free | (error <= bounds))
    flat = np.flatnonzero(~agrees)
    found = Mismatch(len(flat), got.size, got.shape, line.name, line.bits, label_of(name, layout), is_bounded=True)
    if not found:
        return found

    def element(position: int) -> Element:
        index = tuple(int(i) for i in np.unravel_index(position, got.shape))
        code = int(codes[position])
        owned = attribution(index, layout, owner)
        return Element(
            index, code, None, line.value(code), float(wanted[position]), None, owned, float(bounds[position])
        )

    with np.errstate(all="ignore"):
        multiple = np.where(np.isnan(error[flat]) | ~exists[flat], np.inf, error[flat] / bounds[flat])
    worst = int(flat[np.argmax(multiple)])
    patterns = tuple(place_patterns(flat, got.shape))
    listed = tuple(element(int(position)) for position in flat[:LISTED_ELEMENTS])
    return replace(found, first=listed[0], worst=element(worst), patterns=patterns, elements=listed)
