"""Mistakes whose wrong result follows from the right output alone: wrongly coded, placed or cut off right values."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from refsim.conversions import decode, encode
from refsim.formats import FORMATS, Format, Specials
from refsim.layouts.swizzles import SWIZZLES, Swizzle

Codes = NDArray[np.unsignedinteger]
Fits = Callable[[Codes, Codes, Format | None], bool]


MOST_FLUSHED = 0.1  # FP4 and FP6 flush ordinary numbers: zeros below 0.25 or 1 may come from anything


@dataclass(frozen=True)
class Misreading:
    """One mistake: `fits(got, want, format)` says whether it turns `want` into `got`, in every element it covers.

    Both are codes of one shape; `format` is None where they are integers. Equal arrays fit where the mistake changes
    nothing, such as a transposition of one row. `least` elements must differ for the mistake to be reported.
    """

    suspect: str
    says: str
    fits: Fits
    least: int = 4


def readings() -> Iterator[Misreading]:
    """Yield every mistake that refsim looks for; the first is called "transposed". Source: defined here."""
    yield Misreading("transposed", "the transpose was written", _transposed)
    for step, way in ((1, "behind"), (-1, "before")):
        yield Misreading("off-by-one row", f"each row lies one {way} its place", partial(_shifted, -2, step))
        yield Misreading("off-by-one column", f"each column lies one {way} its place", partial(_shifted, -1, step))
    for row in SWIZZLES:
        if row.bits:
            yield Misreading(
                "swizzle not undone", f"bytes lie as swizzle {row.name} puts them", partial(_swizzled, row)
            )
    yield Misreading("flushed subnormals", "every difference is a zero for a subnormal", _flushed, 1)
    yield Misreading("sign of zero lost", "every -0 is written as +0", _unsigned_zeros, 1)
    yield Misreading(
        "infinity saturated", "every difference is a largest value for an infinity", partial(_ends, saturated=True), 1
    )
    yield Misreading(
        "infinity propagated", "every difference is an infinity for a largest value", partial(_ends, saturated=False), 1
    )
    yield Misreading("NaN dropped", "every difference is a number where a NaN belongs", _dropped, 1)
    yield Misreading("FN / FNUZ", "FN codes are read as FNUZ", _read_as_fnuz)
    for other in FORMATS:
        if other.padding_bits:
            continue  # decode ignores the padding of tf32, so every f32 code would fit
        family = "FN / FNUZ" if other.specials is Specials.NAN_NEGATIVE_ZERO else "format"
        yield Misreading(family, f"the codes are those of {other.name}", partial(_recoded, other))


def _transposed(got: Codes, want: Codes, format: Format | None) -> bool:
    """Return whether `got` holds the transpose of the last two axes of `want`."""
    return want.ndim >= 2 and bool((got.reshape(-1) == np.swapaxes(want, -1, -2).reshape(-1)).all())


def _shifted(axis: int, step: int, got: Codes, want: Codes, format: Format | None) -> bool:
    """Return whether lines along an axis hold their neighbor; the line at the edge may hold anything."""
    if want.ndim < -axis:
        return False
    held, belonging = (slice(1, None), slice(None, -1)) if step > 0 else (slice(None, -1), slice(1, None))
    have, right = np.moveaxis(got, axis, 0)[held], np.moveaxis(want, axis, 0)[belonging]
    return bool((have == right).all())


def _swizzled(row: Swizzle, got: Codes, want: Codes, format: Format | None) -> bool:
    """Return whether the bytes of `want` lie where a swizzle puts them."""
    have, right = (np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in (got, want))
    places = np.asarray(row(np.arange(right.size)))
    return bool((places < right.size).all() and (have[places] == right).all())


def _flushed(got: Codes, want: Codes, format: Format | None) -> bool:
    """Return whether zeros replace exactly the values below the smallest normal number of some format."""
    if format is None or not format.has_zero:
        return False
    wrong, right = got != want, np.abs(_values(want, format))
    if (_values(got[wrong], format) != 0).any() or (wrong.any() and not right[wrong].any()):
        return False  # a zero for a zero of the other sign is not a flush
    for row in FORMATS:  # a value that rounds up to the smallest normal number was also below it
        if row.has_zero and row.min_normal < MOST_FLUSHED:
            below = (right > 0) & (right < row.min_normal)
            if bool(wrong[below].all()) and bool((right[wrong] <= row.min_normal).all()):
                return True
    return False


def _unsigned_zeros(got: Codes, want: Codes, format: Format | None) -> bool:
    """Return whether +0 replaces every -0 and nothing else changes."""
    if format is None or not format.has_zero:
        return False
    right = _values(want, format)
    negative = (right == 0) & np.signbit(right)
    have = _values(got[negative], format)
    return bool((have == 0).all() and not np.signbit(have).any() and (got[~negative] == want[~negative]).all())


def _read_as_fnuz(got: Codes, want: Codes, format: Format | None) -> bool:
    """Return whether FN codes were read as FNUZ: values halved, NaN as the largest numbers, -0 as NaN.

    A wrong factor could also halve everything, so `want` must hold a code with another meaning in FNUZ. A NaN may have
    become anything, so `want` must also hold a number that was halved.
    """
    if format is None or format.code_bits <= 8:
        return False
    have, right = _values(got, format), _values(want, format)
    regular = np.isfinite(right) & ~((right == 0) & np.signbit(right))
    special = have[~regular]
    numbers, nans = np.isfinite(special) & (special != 0), np.isnan(special)
    told = special.size > 0 and bool((numbers | nans).all()) and bool(right[regular].any())
    return bool((have[regular] == right[regular] / 2).all()) and (told or bool((got == want).all()))


def _ends(got: Codes, want: Codes, format: Format | None, *, saturated: bool) -> bool:
    """Return whether largest values replace infinities (`saturated`), or infinities replace largest values."""
    if format is None or not format.has_nan:
        return False
    wrong = got != want
    have, right = _values(got[wrong], format), _values(want[wrong], format)
    ended, endless = (have, right) if saturated else (right, have)
    if not format.has_infinity:  # NaN stands for infinity; both signs must occur, since a clamp maps NaN to one number
        signs = {float(sign) for sign in np.sign(ended)}
        return bool(np.isnan(endless).all() and (np.abs(ended) == format.max_value).all() and signs == {-1.0, 1.0})
    is_alike = np.isinf(endless) & (np.sign(ended) == np.sign(endless))
    return bool(is_alike.all() and (np.abs(ended) == format.max_value).all())


def _dropped(got: Codes, want: Codes, format: Format | None) -> bool:
    """Return whether every difference is a number where a NaN belongs."""
    if format is None or not format.has_nan:
        return False
    wrong = got != want
    have = _values(got[wrong], format)
    if not format.has_infinity and (np.abs(have) == format.max_value).all():
        return False  # an overflow that is not NaN looks the same
    return bool(np.isnan(_values(want[wrong], format)).all() and not np.isnan(have).any())


def _recoded(other: Format, got: Codes, want: Codes, format: Format | None) -> bool:
    """Return whether each code is `other`'s for the value, or for a value next to it on `other`'s grid."""
    if format is None or format == other or format.code_bits != other.code_bits:
        return False
    if (got >= other.code_limit).any() or (want >= format.code_limit).any():
        return False
    have, right = decode(got, other), decode(want, format)
    low, high = (decode(encode(right, other, rounding), other) for rounding in ("down", "up"))
    near = (low <= have) & (have <= high) | (encode(have, format) == want)
    return bool((near | np.isnan(have) & np.isnan(right)).all())


def _values(codes: Codes, format: Format) -> NDArray[np.float64]:
    """Return the values of codes; NaN for a code that the format does not have, which no reading explains."""
    known = codes < format.code_limit if format.code_bits < 8 * codes.itemsize else np.ones(codes.shape, np.bool_)
    return np.where(
        known, np.asarray(decode(np.where(known, codes, 0).astype(codes.dtype), format), np.float64), np.nan
    )
