"""Causes between a quantizer's read of x and its stored codes and scales, step by step."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from refsim.computations.amax_changes import peaks
from refsim.computations.engine import Aspect
from refsim.computations.quantising import QuantizingRule, ScaleGrid, Singles
from refsim.computations.row_functions import AS_READ, flushed, taken_for
from refsim.computations.ways import Cause, DoesNotApplyError, Family, Way, rounded_to
from refsim.conversions import encode
from refsim.formats import BF16, E2M1, E4M3FNUZ, E5M2, E8M0, F16, F32, FORMATS, Format
from refsim.scaling.grids import Pair
from refsim.sources import DEEPGEMM, FNUZ, IEEE754, OCP_MX, PTX

_ONE, _RULE = np.float32(1), OCP_MX["section 6.3"]
LARGEST_FLOAT = float(np.finfo(np.float32).max)
Marks = Callable[[ScaleGrid, QuantizingRule], NDArray[np.bool_]]

# ---- what is read: x (..., rows, columns) in float32, and its format -------------------------------------------------


def _narrowed(narrow: Format, x: Singles, format: Format) -> Singles:
    """Return x rounded to a narrower format first."""
    if format.mantissa_bits <= narrow.mantissa_bits:
        raise DoesNotApplyError
    return rounded_to(x, narrow)


def _turned(x: Singles, format: Format) -> Singles:
    if x.shape[-1] != x.shape[-2]:
        raise DoesNotApplyError
    return np.ascontiguousarray(np.swapaxes(x, -1, -2))


def _readings() -> Iterator[Way]:
    yield AS_READ
    for narrow in (BF16, F16):
        says = f"x is rounded to {narrow} before anything else"
        yield Way(says, Family.DOUBLE_ROUNDING, IEEE754["section 4.3"], partial(_narrowed, narrow))
        yield Way(f"x is read as codes of {narrow}", Family.FORMAT, PTX["cvt"], partial(taken_for, narrow), 2)
    yield Way("subnormals of x are zeros", Family.FLUSHED, PTX["ftz"], flushed)
    yield Way("x is read as its transpose", Family.TRANSPOSED, PTX["ldmatrix, .trans"], _turned)


# ---- what bounds it --------------------------------------------------------------------------------------------------

FLOORS = (0.0, 1e-12, 1e-10, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 2.0**-126, 2.0**-24)


def _bounded(floor: float, peak: Singles, rule: QuantizingRule) -> Singles:
    """Return the largest magnitudes, raised to at least `floor`; `rule` is there for the signature of the step."""
    return np.asarray(np.maximum(peak, np.float32(floor)), np.float32)


def _scale_bounded(floor: float, peak: Singles, rule: QuantizingRule) -> Singles:
    """Return the largest magnitudes, raised so that a scale is at least `floor`."""
    return np.asarray(np.maximum(peak, np.float32(floor) * np.float32(rule.element.to.max_value)), np.float32)


_CAST = DEEPGEMM["per_token_cast_to_fp8"]
OWN_BOUND = Way(
    "amax is bounded as the rule says", Family.CLAMP, _CAST, lambda peak, rule: _bounded(rule.floor, peak, rule), 0
)


def _bounds() -> Iterator[Way]:
    yield OWN_BOUND
    for floor in FLOORS:
        says = f"amax is at least {floor:g}" if floor else "nothing bounds amax from below"
        yield Way(says, Family.CLAMP, _CAST, partial(_bounded, floor))
        if floor:
            yield Way(f"amax / MAX is at least {floor:g}", Family.CLAMP, _CAST, partial(_scale_bounded, floor), 2)
            added = partial(lambda eps, peak, rule: peak + eps, np.float32(floor))
            yield Way(f"{floor:g} is added to amax", Family.CLAMP, _CAST, added, 2)
    yield Way("amax / MAX is at least 1", Family.CLAMP, _CAST, partial(_scale_bounded, 1.0), 2)


# ---- which scale an element gets: rows and columns of the grid, its shape --------------------------------------------

Places = Callable[[Any, Any, Pair], tuple[Any, Any]]


def _from_place(place: Places, grid: ScaleGrid, rule: QuantizingRule) -> NDArray[Any]:
    """Return the stored scales with each one taken from another place of the grid."""
    rows, blocks = grid.stored.shape[-2:]
    row, block = np.ogrid[:rows, :blocks]
    return grid.stored[(..., *place(row, block, (rows, blocks)))]


_BLOCKS = OCP_MX["section 5.2"]
OWN_SCALE = Way(
    "each element is made with the scale of its block", Family.SCALE_LAYOUT, _BLOCKS, lambda r, t, s: (r, t), 0
)
_PLACES: tuple[tuple[str, Places], ...] = (
    ("the block before", lambda r, t, s: (r, np.maximum(t - 1, 0))),
    ("the next block", lambda r, t, s: (r, np.minimum(t + 1, s[1] - 1))),
    ("the block before, around the end", lambda r, t, s: (r, (t - 1) % s[1])),
    ("the next block, around the end", lambda r, t, s: (r, (t + 1) % s[1])),
    ("the row before", lambda r, t, s: (np.maximum(r - 1, 0), t)),
    ("the next row", lambda r, t, s: (np.minimum(r + 1, s[0] - 1), t)),
    ("the other block of two", lambda r, t, s: (r, np.minimum(t ^ 1, s[1] - 1))),
    ("the other row of two", lambda r, t, s: (np.minimum(r ^ 1, s[0] - 1), t)),
    ("the first block of its row", lambda r, t, s: (r, 0 * t)),
    ("the first row", lambda r, t, s: (0 * r, t)),
    ("the first block of four", lambda r, t, s: (r, t // 4 * 4)),
    ("the block at the other end of four", lambda r, t, s: (r, np.minimum(t ^ 3, s[1] - 1))),
    ("the first two blocks of four in turn", lambda r, t, s: (r, t // 4 * 4 + t % 2)),
    ("the first of four rows, 32 apart, of a tile", lambda r, t, s: (r // 128 * 128 + r % 32, t)),
    ("the first row of each 4", lambda r, t, s: (r // 4 * 4, t)),
    ("the first row of each 128", lambda r, t, s: (r // 128 * 128, t)),
    ("the same row of the first 128", lambda r, t, s: (r % 128, t)),
    ("the place in the transposed grid", lambda r, t, s: ((t * s[0] + r) // s[1], (t * s[0] + r) % s[1])),
)


def _uses() -> Iterator[Way]:
    yield OWN_SCALE
    for words, place in _PLACES:
        yield Way(f"elements are made with the scale of {words}", Family.SCALE_LAYOUT, _BLOCKS, place)


# ---- the scale: a grid and its rule give another grid ----------------------------------------------------------------


def _stored(grid: ScaleGrid, values: Any, rule: QuantizingRule, rounding: Any = "nearest-even") -> NDArray[Any]:
    """Return values in the format of stored scales."""
    if rule.stored_as is F32:
        return np.asarray(values, np.float32)
    return np.asarray(encode(np.asarray(values, np.float64), rule.stored_as, rounding), grid.stored.dtype)


def _power(round_power: Callable[[Any], Any], grid: ScaleGrid, rule: QuantizingRule) -> NDArray[Any]:
    """Return scales as powers of two, with exponents rounded by `round_power`."""
    with np.errstate(all="ignore"):
        exponents = round_power(np.log2(grid.value.astype(np.float64)))
        return _stored(grid, np.exp2(exponents), rule)


def _times(factor: float, grid: ScaleGrid, rule: QuantizingRule) -> NDArray[Any]:
    return _stored(grid, rule.decoded(grid.stored).astype(np.float64) * factor, rule)


def _through(narrow: Format, grid: ScaleGrid, rule: QuantizingRule) -> NDArray[Any]:
    if rule.stored_as is not F32:
        raise DoesNotApplyError
    return rounded_to(grid.stored, narrow)


def _written(rounding: str, grid: ScaleGrid, rule: QuantizingRule) -> NDArray[Any]:
    if rule.stored_as in (F32, E8M0):
        raise DoesNotApplyError
    return _stored(grid, grid.value, rule, rounding)


def _above_cut(bits: int, grid: ScaleGrid, rule: QuantizingRule) -> NDArray[Any]:
    """Return the power of two above amax / MAX where only the first `bits` fraction bits count."""
    words = np.ascontiguousarray(grid.value).view(np.uint32)
    seen = np.uint32((1 << bits) - 1 << F32.mantissa_bits - bits)
    codes = np.clip((words >> F32.mantissa_bits) + ((words & seen) != 0), 1, 254).astype(np.uint32)
    powers = codes if rule.stored_as is E8M0 else (codes << F32.mantissa_bits).view(np.float32)
    if rule.stored_as not in (E8M0, F32):
        raise DoesNotApplyError
    return np.where(np.isfinite(grid.peak), powers.astype(grid.stored.dtype), grid.stored)


def _by_reciprocal(grid: ScaleGrid, rule: QuantizingRule) -> NDArray[Any]:
    """Return amax times the rounded 1 / MAX; rounded up to a power of two where the rule's scales are."""
    values = grid.peak * (_ONE / np.float32(rule.element.to.max_value))
    if rule.stored_as is F32 and not (np.frexp(grid.stored)[0] == 0.5).all():
        return np.asarray(values, np.float32)
    return _above_cut(F32.mantissa_bits, replace(grid, value=np.asarray(values, np.float32)), rule)


def _of_subnormals(code: int, grid: ScaleGrid, rule: QuantizingRule) -> NDArray[Any]:
    """Return E8M0 scales with one code for every amax / MAX of at most 2^-127."""
    if rule.stored_as is not E8M0:
        raise DoesNotApplyError
    is_tiny = (grid.value > 0) & (grid.value <= np.float32(2.0**-127))
    return np.where(is_tiny, np.uint8(code), grid.stored)


def _without_bias(grid: ScaleGrid, rule: QuantizingRule) -> NDArray[Any]:
    if rule.stored_as is not E8M0:
        raise DoesNotApplyError
    return grid.stored - np.uint8(E8M0.bias)


def _where(marked: Marks, value: float, grid: ScaleGrid, rule: QuantizingRule) -> NDArray[Any]:
    """Return scales with one value in marked blocks."""
    return np.where(marked(grid, rule), _stored(grid, np.float32(value), rule), grid.stored)


_CHANGES: tuple[tuple[str, Family, Callable[[ScaleGrid, QuantizingRule], NDArray[Any]]], ...] = (
    ("the power of two above amax / MAX", Family.SCALE_RULE, partial(_power, np.ceil)),
    ("a power of two always above amax / MAX", Family.SCALE_RULE, partial(_power, lambda e: np.floor(e) + 1)),
    ("the power of two below amax / MAX", Family.SCALE_RULE, partial(_power, np.floor)),
    ("the nearest power of two to amax / MAX", Family.SCALE_RULE, partial(_power, np.rint)),
    ("twice as large", Family.SCALE_RULE, partial(_times, 2.0)),
    ("half as large", Family.SCALE_RULE, partial(_times, 0.5)),
    ("four times as large", Family.SCALE_RULE, partial(_times, 4.0)),
    ("a quarter as large", Family.SCALE_RULE, partial(_times, 0.25)),
    (
        "their reciprocals",
        Family.SCALE_RULE,
        lambda grid, rule: _stored(grid, _ONE / rule.decoded(grid.stored), rule),
    ),
    ("amax itself, not divided by MAX", Family.SCALE_RULE, lambda grid, rule: _stored(grid, grid.peak, rule)),
    ("without their bias", Family.SCALE_RULE, _without_bias),
    ("amax times 1 / MAX, rounded, not divided by MAX", Family.SCALE_RULE, _by_reciprocal),
    (
        "1 / (MAX / amax)",
        Family.SCALE_RULE,
        lambda grid, rule: _stored(grid, _ONE / (np.float32(rule.element.to.max_value) / grid.peak), rule),
    ),
    ("2^-126 where amax / MAX is 2^-127 or less", Family.SCALE_RULE, partial(_of_subnormals, 1)),
    ("2^-127 where amax / MAX is 2^-127 or less", Family.SCALE_RULE, partial(_of_subnormals, 0)),
    *(
        (f"the power of two above amax / MAX cut to {bits} bits", Family.SCALE_RULE, partial(_above_cut, bits))
        for bits in (1, 2, 3, 7, 10)
    ),
    *(
        (f"{n:g} where amax is {words}", family, partial(_where, marked, n))
        for words, family, marked, numbers in (
            (
                "no more than its bound",
                Family.CLAMP,
                lambda grid, rule: grid.peak <= np.float32(rule.floor),
                (1.0, 0.0),
            ),
            ("NaN", Family.NAN, lambda grid, rule: np.isnan(grid.peak), (0.0, 1.0, np.inf, np.nan)),
        )
        for n in numbers
    ),
    *((f"rounded to {row}", Family.DOUBLE_ROUNDING, partial(_through, row)) for row in (BF16, F16)),
    *((f"rounded {way}", Family.ROUNDING, partial(_written, way)) for way in ("toward-zero", "up")),
    ("rounded ties-away", Family.TIES, partial(_written, "ties-away")),
)


@dataclass(frozen=True)
class Keeping:
    """A change of scales, and where it acts: in the stored scales, in the scales that elements use, or both.

    `value` returns the numbers that elements use in place of rounded scales.
    """

    change: Callable[[ScaleGrid, QuantizingRule], NDArray[Any]] | None = None
    is_stored: bool = True
    is_used: bool = True
    value: Callable[[ScaleGrid, QuantizingRule], Singles] | None = None


def _flushed_factors(grid: ScaleGrid, rule: QuantizingRule) -> Singles:
    """Return scales whose subnormal reciprocals count as zeros."""
    scales = rule.decoded(grid.stored)
    return np.where(scales > np.float32(2.0**126), np.float32(np.inf), scales)


SCALES_AS_RULED = Keeping()


def _keepings() -> Iterator[Cause]:
    """Yield the causes in stored and used scales: aspect `keeping`."""

    def row(family: Family, says: str, keeping: Keeping, rank: int = 1) -> Cause:
        return Cause(family, says, "keeping", keeping, _RULE, rank)

    unrounded = Keeping(value=lambda grid, rule: grid.value)
    yield row(Family.SCALE_RULE, "scales are those of the rule", SCALES_AS_RULED, 0)
    yield row(Family.SCALE_RULE, "elements are made with the scale before it is rounded", unrounded)
    says = "reciprocals of scales that are subnormal are zeros"
    yield row(Family.FLUSHED, says, Keeping(value=_flushed_factors))
    for words, family, change in _CHANGES:
        yield row(family, f"scales are {words}", Keeping(change))
        stored = f"scales are stored {words}, elements are made with those of the rule"
        yield row(family, stored, Keeping(change, is_used=False), 2)
        used = f"elements are made with scales that are {words}, those of the rule are stored"
        yield row(family, used, Keeping(change, is_stored=False), 3)
    for words, place in _PLACES:
        says = f"where the scale of a block belongs, that of {words} is stored"
        yield row(Family.SCALE_LAYOUT, says, Keeping(partial(_from_place, place), is_used=False))
        says = f"a block has the scale of {words}, stored and used"
        yield row(Family.SCALE_LAYOUT, says, Keeping(partial(_from_place, place)), 2)


# ---- one factor for the tensor ---------------------------------------------------------------------------------------


def _left_out(kept: Singles) -> Singles:
    if (kept == 1).all():
        raise DoesNotApplyError
    return np.ones_like(kept)


def _kept_times(factor: float, kept: Singles) -> Singles:
    return np.asarray(_left_out(kept) * kept * np.float32(factor), np.float32)


TENSOR_AS_RULED = Way("the tensor's factor is that of the rule", Family.SCALE_RULE, _RULE, lambda kept: kept, 0)
_TIMES = ((1 / 448, "448 times too small"), (448.0, "448 times too large"), (2.0, "twice as large"), (0.5, "half"))
TENSORS = (
    TENSOR_AS_RULED,
    Way("the tensor's factor is left out", Family.SCALE_RULE, _RULE, _left_out),
    *(
        Way(f"the tensor's factor is {words}", Family.SCALE_RULE, _RULE, partial(_kept_times, factor), 2)
        for factor, words in _TIMES
    ),
)


# ---- the value that is converted to an element, given right scales -----------------------------------------------------


def _of_amax(way: str, x: Singles, grid: ScaleGrid, rule: QuantizingRule) -> Singles:
    """Return x scaled by its block's amax, regardless of the rounded scale and of the tensor's factor."""
    largest = np.float32(rule.element.to.max_value)
    if way == "times MAX / amax":
        return np.asarray(x * (largest / grid.peak), np.float32)
    scales = grid.peak / largest
    return np.asarray(x / scales if way == "divided by amax / MAX" else x * (_ONE / scales), np.float32)


def _divided(by_reciprocal: bool, x: Singles, grid: ScaleGrid, rule: QuantizingRule) -> Singles:
    """Return x divided by the stored scale. Raises DoesNotApplyError for rules with a factor of the tensor."""
    if not (grid.kept == 1).all():
        raise DoesNotApplyError
    scales = grid.value if grid.is_unrounded else rule.decoded(grid.stored)
    return np.asarray(x * (_ONE / scales) if by_reciprocal else x / scales, np.float32)


def _in(narrow: Format, has_wide_product: bool, x: Singles, grid: ScaleGrid, rule: QuantizingRule) -> Singles:
    """Return the product of x and its factor, both rounded to a narrow format first; the product is rounded to it too.

    `has_wide_product`: the product is rounded to float32 only.
    """
    factors = rule.scaled(np.ones_like(x), grid)
    product = np.asarray(rounded_to(x, narrow) * rounded_to(factors, narrow), np.float32)
    return product if has_wide_product else rounded_to(product, narrow)


def _kept(is_inverted: bool, x: Singles, grid: ScaleGrid, rule: QuantizingRule) -> Singles:
    """Return x scaled with the tensor's factor inverted or left out."""
    ones = _left_out(grid.kept)
    return rule.scaled(x, replace(grid, kept=np.asarray(ones / grid.kept if is_inverted else ones, np.float32)))


def _times_where(marked: Marks, factor: float, x: Singles, grid: ScaleGrid, rule: QuantizingRule) -> Singles:
    """Return x times a factor in marked blocks, and scaled by the rule in all others."""
    marks = marked(grid, rule)
    if not marks.any():
        raise DoesNotApplyError
    return np.where(marks, x * np.float32(factor), rule.scaled(x, grid))


_SPECIAL: tuple[tuple[str, Family, Marks, tuple[float, ...]], ...] = (
    (
        "the code of the scale is 0",
        Family.SCALE_RULE,
        lambda grid, rule: grid.stored == 0,
        (0.0, 1.0, 2.0**126, 2.0**127, LARGEST_FLOAT, np.inf),
    ),
    (
        "the scale is NaN",
        Family.NAN,
        lambda grid, rule: np.isnan(rule.decoded(grid.stored)),
        (0.0, 1.0, -np.inf, np.inf, 2.0**-127, np.nan),
    ),
)


def _quotients() -> Iterator[Way]:
    """Yield every way to compute the value that is converted, the rule's first."""
    family, mul, says = Family.SCALE_RULE, PTX["mul.rn, div.rn, rcp.rn"], "elements are x by its scale as the rule says"
    yield Way(says, family, _RULE, lambda x, grid, rule: rule.scaled(x, grid), 0)
    for way in ("times MAX / amax", "divided by amax / MAX", "times 1 / (amax / MAX)"):
        yield Way(f"elements are x {way}, whatever the scale is rounded to", family, mul, partial(_of_amax, way))
    for by_reciprocal, words in ((False, "divided by the scale"), (True, "times the reciprocal of the scale")):
        yield Way(f"elements are x {words}", family, mul, partial(_divided, by_reciprocal), 2)
    for narrow in (F16, BF16):
        for is_wide, words in ((False, f"in {narrow}"), (True, f"by factors in {narrow}")):
            says, change = f"x is multiplied {words} before it is converted", partial(_in, narrow, is_wide)
            yield Way(says, Family.DOUBLE_ROUNDING, IEEE754["section 4.3"], change, 2)
    for is_inverted, words in ((True, "inverted"), (False, "left out")):
        says = f"the tensor's factor is {words} where elements are made"
        yield Way(says, family, _RULE, partial(_kept, is_inverted))
    for times, words in ((2.0, "twice"), (0.5, "half")):
        scaled = partial(lambda times, x, grid, rule: rule.scaled(x, grid) * np.float32(times), times)
        yield Way(f"elements are {words} as large as their scale says", family, _RULE, scaled, 2)
    for where, family, marked, factors in _SPECIAL:
        for factor in factors:
            says = f"where {where}, elements are multiplied by {factor:g}"
            yield Way(says, family, _RULE, partial(_times_where, marked, factor), 2)


class LargestOfCodes(NamedTuple):
    """A number to which scales map amax by mistake where elements are whole numbers."""

    max_value: float


@functools.cache
def limits_of(element: Format) -> tuple[Format | LargestOfCodes, ...]:
    """Return formats whose largest value a scale may use by mistake, the right format first."""
    if element.twos_complement:
        return (element, *map(LargestOfCodes, (128.0, 255.0, 256.0, 7.0, 1.0)))
    return (element, *(row for row in (E4M3FNUZ, E5M2, E2M1, *FORMATS[:2]) if row.max_value != element.max_value))


STEPS_OF_QUANTISERS = (
    Aspect("read", tuple(_readings())),
    Aspect("peak", tuple(peaks())),
    Aspect("bound", tuple(_bounds())),
    Aspect("used", tuple(_uses())),
    Aspect("tensor", TENSORS),
    Aspect("quotient", tuple(_quotients())),
    Aspect("keeping", tuple(_keepings()), SCALES_AS_RULED),
)
"""The steps between x and the values that are converted."""


def limit_causes(element: Format) -> Iterator[Cause]:
    """Yield the causes in the format to whose largest value scales map amax: aspect `limit`."""
    for limit in limits_of(element):
        of = f"the largest of {limit}" if isinstance(limit, Format) else f"not {element.max_value:g}"
        says = f"MAX is {limit.max_value:g}, {of}"
        family = Family.FNUZ if limit is E4M3FNUZ else Family.SCALE_RULE
        yield Cause(family, says, "limit", limit, FNUZ["table 1"], int(limit is not element))
