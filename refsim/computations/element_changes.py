"""Causes in the conversion of a quotient to the code of an element, and in the places of codes."""

import functools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from refsim.computations.placing import Placing, placings
from refsim.computations.quantising import Singles
from refsim.computations.reading import exchanged
from refsim.computations.row_functions import flushed
from refsim.computations.ways import Codes, DoesNotApplyError, Family, Way, subnormals_flushed
from refsim.conversions import OVERFLOWS, ROUNDINGS, decode, encode
from refsim.conversions.coding import encode_rule
from refsim.conversions.rounding import TIES_AWAY, EncodingRule
from refsim.errors import RefsimError
from refsim.formats import BF16, F16, FORMATS, TF32, Format
from refsim.sources import FNUZ, IEEE754, PTX

RUNS_OF_CODES = (0, 16, 32, 64, 128)
"""Lengths of runs whose halves are packed next to each other; 0: a whole row."""


def _rounded(rounding: Any, values: Singles, rule: EncodingRule) -> Codes:
    return encode_rule(values, replace(rule, rounding=rounding))


def _away(values: Singles, rule: EncodingRule) -> Codes:
    """Return codes of values rounded away from zero."""
    up, down = (encode_rule(values, replace(rule, rounding=way)) for way in ("up", "down"))
    return np.where(np.signbit(values), down, up)


def _ties(toward: float, values: Singles, rule: EncodingRule) -> Codes:
    """Return codes where a tie goes toward a value, and every other number is rounded by the rule."""
    with np.errstate(all="ignore"):
        moved = np.where(np.isfinite(values), np.nextafter(values, np.float32(toward)), values)
    exact = decode(encode_rule(values, rule), rule.to, np.float32) == values
    return encode_rule(np.where(exact, values, moved).astype(np.float32), rule)


def _through(narrow: Format, way: Any, values: Singles, rule: EncodingRule) -> Codes:
    """Return codes of values rounded to a wider format first."""
    if narrow.mantissa_bits <= rule.to.mantissa_bits and not rule.to.twos_complement:
        raise DoesNotApplyError
    return encode_rule(decode(encode(values, narrow, way), narrow, np.float32), rule)


def _beyond(overflow: Any, values: Singles, rule: EncodingRule) -> Codes:
    """Return codes where overflow becomes NaN or infinity."""
    try:
        return np.asarray(encode(values, rule.to, overflow=overflow))
    except RefsimError:
        raise DoesNotApplyError from None


def _beyond_largest(from_itself: bool, values: Singles, rule: EncodingRule) -> Codes:
    """Return codes where values above the largest number, or from it on, become NaN."""
    if not rule.to.has_nan:
        raise DoesNotApplyError
    codes = encode_rule(values, rule)
    nan = encode(np.copysign(np.nan, values), rule.to)
    beyond = np.abs(values) >= rule.to.max_value if from_itself else np.abs(values) > rule.to.max_value
    return np.where(beyond, nan, codes).astype(codes.dtype)


def _wrapped(values: Singles, rule: EncodingRule) -> Codes:
    """Return codes where an overflow loses the exponent bits that the format does not have."""
    to = rule.to
    mantissa, exponent = np.frexp(np.abs(values.astype(np.float64)))
    with np.errstate(all="ignore"):
        kept = np.rint(np.ldexp(mantissa, to.mantissa_bits + 1))
        whole = np.where(np.isfinite(kept), kept, 0).astype(np.int64)
    codes = ((exponent.astype(np.int64) - 1 + to.bias - 1) << to.mantissa_bits) + whole
    right = encode_rule(values, rule)
    signs = np.where(np.signbit(values), to.sign_mask, 0)
    beyond = np.isfinite(values) & (codes > to.max_code)
    return np.where(beyond, codes & (to.sign_mask - 1) | signs, right).astype(right.dtype)


def _whole_wrapped(values: Singles, rule: EncodingRule) -> Codes:
    """Return the lower bits of whole numbers that are too large."""
    whole = np.rint(np.where(np.isfinite(values), values, 0)).astype(np.int64)
    return (whole & (rule.to.code_limit - 1)).astype(rule.to.code_dtype)


def _in_codes_of(other: Format, values: Singles, rule: EncodingRule) -> Codes:
    return np.asarray(encode(values, other), rule.to.code_dtype)


def _recoded(other: Format, values: Singles, rule: EncodingRule) -> Codes:
    """Return right codes whose values are written in another format."""
    return np.asarray(encode(decode(encode_rule(values, rule), rule.to), other), rule.to.code_dtype)


def _read_back(other: Format, values: Singles, rule: EncodingRule) -> Codes:
    """Return right codes read as another format and converted again."""
    return np.asarray(encode(decode(encode_rule(values, rule), other), rule.to))


def _of_nan(code: Callable[[Format], int], values: Singles, rule: EncodingRule) -> Codes:
    """Return codes with one given code for every NaN."""
    codes = encode_rule(values, rule)
    return np.where(np.isnan(values), codes.dtype.type(code(rule.to)), codes)


def _without_sign(zeros_alone: bool, values: Singles, rule: EncodingRule) -> Codes:
    """Return codes without a sign, for all elements or for zeros alone."""
    codes, mask = encode_rule(values, rule), rule.to.sign_mask
    magnitudes = codes & codes.dtype.type(mask - 1)
    return np.where((magnitudes == 0) | (not zeros_alone), magnitudes, codes)


CONVERTED = Way("elements are converted as the rule says", Family.ROUNDING, IEEE754["section 4.3"], encode_rule, 0)


@functools.cache
def conversions_of(format: Format) -> tuple[Way, ...]:
    """Return every way to convert a quotient to a code, the right one first."""
    modes, cvt = IEEE754["section 4.3"], PTX["cvt"]
    found = [CONVERTED]
    for rounding in ROUNDINGS[1:]:
        family = Family.TIES if rounding == TIES_AWAY else Family.ROUNDING
        found.append(Way(f"elements are rounded {rounding}", family, modes, partial(_rounded, rounding)))
    found.append(Way("elements are rounded away from zero", Family.ROUNDING, modes, _away))
    for toward, words in ((0.0, "toward zero"), (np.inf, "up"), (-np.inf, "down")):
        found.append(Way(f"ties of elements go {words}", Family.TIES, modes, partial(_ties, toward)))
    for via in (BF16, F16, TF32):
        says = f"quotients are rounded to {via} before they are converted"
        found.append(Way(says, Family.DOUBLE_ROUNDING, modes, partial(_through, via, ROUNDINGS[0])))
        cut = partial(_through, via, "toward-zero")
        found.append(Way(f"{says}, the first time toward zero", Family.DOUBLE_ROUNDING, modes, cut, 3))
    if format.twos_complement:
        found.append(Way("whole numbers that are too large wrap around", Family.SATURATION, cvt, _whole_wrapped))
        says, least = f"whole numbers are at least {-format.max_value:g}", np.float32(-format.max_value)
        found.append(Way(says, Family.SATURATION, cvt, lambda x, rule: encode_rule(np.maximum(x, least), rule)))
        return tuple(found)
    for overflow in OVERFLOWS[1:]:
        says = f"what is too large becomes {overflow}"
        found.append(Way(says, Family.SATURATION, cvt, partial(_beyond, overflow)))
    for from_itself, words in ((True, "reaches"), (False, "is beyond")):
        says = f"what {words} the largest value becomes NaN, before it is rounded"
        found.append(Way(says, Family.SATURATION, cvt, partial(_beyond_largest, from_itself)))
    found.append(Way("what is too large loses the upper bits of its exponent", Family.SATURATION, cvt, _wrapped))
    if format.mantissa_bits:
        says, ftz = f"subnormals of {format} are zeros", PTX["ftz"]
        found.append(Way(says, Family.FLUSHED, ftz, lambda x, rule: subnormals_flushed(encode_rule(x, rule), rule.to)))
        says = f"quotients below the least normal {format} are zeros"
        found.append(Way(says, Family.FLUSHED, ftz, lambda x, rule: encode_rule(flushed(x, rule.to), rule)))
    for other in FORMATS:
        if other is format or other.code_bits != format.code_bits or other.padding_bits or not other.signed:
            continue
        fields = (other.exponent_bits, other.mantissa_bits) == (format.exponent_bits, format.mantissa_bits)
        family, rank = (Family.FNUZ, 1) if fields else (Family.FORMAT, 2)
        for says, change in (
            (f"quotients are converted to {other}", _in_codes_of),
            (f"codes are written again as those of {other}", _recoded),
            (f"codes are read as {other} and written again", _read_back),
        ):
            found.append(Way(says, family, FNUZ["table 1"], partial(change, other), rank))
    for says, code in (("0", lambda to: 0), ("the largest value", lambda to: to.max_code)):
        found.append(Way(f"NaN becomes {says}", Family.NAN, cvt, partial(_of_nan, code)))
    found.append(Way("zeros lose their sign", Family.ZERO_SIGN, cvt, partial(_without_sign, True)))
    found.append(Way("elements lose their sign", Family.ZERO_SIGN, cvt, partial(_without_sign, False)))
    return tuple(found)


# ---- codes of 4 bits in bytes -----------------------------------------------------------------------------------------------


def halves_joined(run: int, back: bool, codes: Codes) -> Codes:
    """Return codes where element i of one half of a run lies next to element i of the other half."""
    run = run or codes.shape[-1]
    if codes.shape[-1] % run or run < 4 or run % 2:
        raise DoesNotApplyError
    shape = (2, run // 2) if not back else (run // 2, 2)
    parts = codes.reshape(*codes.shape[:-1], -1, *shape)
    return np.ascontiguousarray(np.swapaxes(parts, -1, -2)).reshape(codes.shape)


@functools.cache
def code_placings(format: Format) -> tuple[Placing, ...]:
    """Return the places of element codes: those of any output, and the orders of two 4-bit codes in a byte."""
    if format.code_bits > 4:
        return placings()
    source = PTX["cvt: e2m1x2"]
    found = [Placing("with the two of a byte exchanged", Family.PACKING, source, exchanged, back=exchanged)]
    for run in RUNS_OF_CODES:
        says = f"with one half of each {run or 'row'} packed next to the other"
        put, back = partial(halves_joined, run, False), partial(halves_joined, run, True)
        found.append(Placing(says, Family.PACKING, source, put, back=back))
    return (*placings(), *found)
