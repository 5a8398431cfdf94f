"""The exact core: a float64 becomes a code by integer arithmetic on its bit pattern, with one rounding."""

import math
import sys
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from refsim.errors import RefsimError, unknown
from refsim.formats import Format, Overflow, Specials

NEAREST_EVEN: Final = "nearest-even"
TOWARD_ZERO: Final = "toward-zero"
UP: Final = "up"
DOWN: Final = "down"
TIES_AWAY: Final = "ties-away"
STOCHASTIC: Final = "stochastic"
RoundingName = Literal["nearest-even", "toward-zero", "up", "down", "ties-away"]
ConversionRounding = RoundingName | Literal["stochastic"]
ROUNDINGS: tuple[RoundingName, ...] = get_args(RoundingName)
PTX_ROUNDINGS: dict[str, RoundingName] = {"rn": NEAREST_EVEN, "rz": TOWARD_ZERO, "rm": DOWN, "rp": UP, "rna": TIES_AWAY}
"""The rounding of each PTX modifier. .rs is missing: it needs random bits, which only its instructions have."""
RoundingAlias = Literal["rn", "rne", "rz", "rtz", "rm", "rd", "rdn", "rp", "ru", "rup", "rna", "rmm"]
ROUNDING_ALIASES: dict[str, RoundingName] = {
    **PTX_ROUNDINGS,
    "rne": NEAREST_EVEN,
    "rtz": TOWARD_ZERO,
    "rd": DOWN,
    "rdn": DOWN,
    "ru": UP,
    "rup": UP,
    "rmm": TIES_AWAY,
}
"""Short names of PTX and of RISC-V, accepted wherever a name of ROUNDINGS is."""
SATURATE: Final = "saturate"
NAN, INFINITY = "nan", "inf"
OVERFLOWS: tuple[Overflow, ...] = get_args(Overflow)

_CHUNK = 1 << 15
_WIDEST_SHIFT = 60  # significands have 53 bits: a larger shift is done in two steps, so that 64 bits suffice


@dataclass(frozen=True)
class EncodingRule:
    """Describe how a value becomes a code: everything that distinguishes one instruction or library from another.

    `overflow` says what |x| beyond the largest value becomes, infinity included. `nan` and `negative_nan` are the codes
    of a NaN input by its sign. `absolute` drops the sign first (E8M0); `relu` turns every code with a sign into 0.
    `overrides` lists (first, last, code): inputs whose float32 pattern, rounded to odd at 16 bits, lies in that range.
    E4M3 with SATURATE: 1e9 becomes 0x7e, 448.
    """

    to: Format
    rounding: ConversionRounding
    overflow: str
    nan: int
    negative_nan: int
    absolute: bool = False
    relu: bool = False
    overrides: tuple[tuple[int, int, int], ...] = ()


def rounding_named(name: str) -> RoundingName:
    """Return the name of ROUNDINGS for a name, or for a short name of PTX, RISC-V or LLVM, in any case.

    rounding_named("RNE") is "nearest-even". Raises RefsimError `unknown-rounding` with all names. Source: PTX ISA,
    rounding modifiers; RISC-V ISA, rounding modes.
    """
    given = str(name).lower().removeprefix(".").replace("_", "-")
    if given in ROUNDINGS or given in ROUNDING_ALIASES:
        return ROUNDING_ALIASES.get(given) or ROUNDINGS[ROUNDINGS.index(given)]
    what, spelled = f"no rounding is called {str(name)[:80]!r}", ", ".join(ROUNDING_ALIASES)
    meant = ROUNDING_ALIASES.get(given.partition("-")[0])  # rne-f32 is the rounding of a tensor core's sum
    way = meant or unknown("rounding", name, [*ROUNDINGS, *ROUNDING_ALIASES]).help
    if given in ("rs", "sr", "stochastic"):
        way = "stochastic rounding needs random bits: refsim.convert(name, ..., random_bits=bits) in Python"
    raise RefsimError("unknown-rounding", what, rule=f"roundings are {', '.join(ROUNDINGS)}, or {spelled}", help=way)


def default_nan(format: Format) -> int:
    """Return the code that NVIDIA writes for a NaN: 0x7f, 0x7fff, 0xff for E8M0; the largest value without NaN."""
    return format.max_code if format.nan_code is None else format.nan_code


def ieee_rule(format: Format, rounding: RoundingName = NEAREST_EVEN) -> EncodingRule:
    """Return the rule of IEEE 754 for a format with infinities: overflow gives infinity, NaN the canonical NaN."""
    nan = default_nan(format)
    return EncodingRule(format, rounding, INFINITY, nan, nan)


def encode_exact(
    values: NDArray[np.float64], rule: EncodingRule, random: NDArray[np.uint32] | None = None, random_width: int = 0
) -> NDArray[np.unsignedinteger]:
    """Return the code of every value by the definition: any finite float64 is an integer times a power of two.

    `values` is one-dimensional. `random` (same shape) holds `random_width` random bits an element for stochastic
    rounding: they are added to the top of the discarded bits and the carry rounds away from zero.
    """
    codes = np.empty(values.shape, rule.to.code_dtype)
    for start in range(0, values.size, _CHUNK):
        part = slice(start, start + _CHUNK)
        codes[part] = _encode_part(values[part], rule, None if random is None else random[part], random_width)
    return codes


def _encode_part(
    values: NDArray[np.float64], rule: EncodingRule, random: NDArray[np.uint32] | None, random_width: int
) -> NDArray[np.int64]:
    """Encode one chunk of `encode_exact`: round magnitudes, then apply overflow, sign, relu and NaN in this order."""
    to = rule.to
    pattern = values.view(np.uint64)
    sign = (pattern >> 63).astype(np.bool_)
    negative = np.zeros_like(sign) if rule.absolute else sign
    magnitude, nonzero = _magnitudes(pattern, negative, rule, random, random_width)
    infinite, nan = np.isinf(values), np.isnan(values)

    largest = np.int64(to.max_code >> to.padding_bits) + (negative if to.twos_complement else 0)
    beyond = infinite | (magnitude > largest)
    codes = np.where(beyond, largest, np.maximum(magnitude, 0))
    if rule.overflow != SATURATE:
        special = to.infinity_code if rule.overflow == INFINITY else to.nan_code
        assert special is not None  # callers refuse a policy that the format has no code for
        codes[infinite | (beyond & ~_rounds_inward(negative, rule))] = special >> to.padding_bits
    codes = _with_sign(codes, negative, nonzero | infinite, rule) << to.padding_bits
    if rule.relu:
        codes[(codes & to.sign_mask) != 0] = 0
    codes[nan & ~sign], codes[nan & sign] = rule.nan, rule.negative_nan
    return codes


def _magnitudes(
    pattern: NDArray[np.uint64],
    negative: NDArray[np.bool_],
    rule: EncodingRule,
    random: NDArray[np.uint32] | None,
    random_width: int,
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return rounded magnitudes counted in codes from 0 without an upper bound, and whether each is not zero.

    Both arrays have the shape of `pattern`, which holds float64 bits.
    """
    to = rule.to
    field = ((pattern >> 52) & 0x7FF).astype(np.int64)
    significand = (pattern & ((1 << 52) - 1)) | ((field != 0).astype(np.uint64) << 52)
    binade = np.maximum(field, 1) - 1023
    lowest_ulp = 1 - to.bias - to.mantissa_bits - int(to.binades_from_zero)
    ulp = np.full_like(binade, lowest_ulp) if to.twos_complement else np.maximum(binade - to.mantissa_bits, lowest_ulp)
    shift = np.maximum(ulp - binade + 52, 1)

    excess = np.clip(shift - _WIDEST_SHIFT, 0, 63).astype(np.uint64)
    lost = (significand & ((np.uint64(1) << excess) - np.uint64(1))) != 0
    significand = (significand >> excess) | lost
    shift = np.minimum(shift, _WIDEST_SHIFT).astype(np.uint64)

    kept = (significand >> shift).astype(np.int64)
    rest = significand & ((np.uint64(1) << shift) - np.uint64(1))
    code = kept + ((ulp - lowest_ulp) << to.mantissa_bits) - int(to.binades_from_zero)
    if rule.rounding == STOCHASTIC:
        assert random is not None
        away = (rest >> (shift - np.uint64(random_width))) + random >= 1 << random_width
    else:
        away = _rounds_away(rest, np.uint64(1) << (shift - np.uint64(1)), code, negative, rule.rounding)
    return code + away, kept + away > 0


def _rounds_away(
    rest: NDArray[np.uint64],
    half: NDArray[np.uint64],
    code: NDArray[np.int64],
    negative: NDArray[np.bool_],
    rounding: RoundingName,
) -> NDArray[np.bool_]:
    """Return where rounding adds one to the magnitude; `rest` are the discarded bits and `half` half an ulp."""
    away: NDArray[np.bool_]
    match rounding:
        case "nearest-even":
            away = (rest > half) | ((rest == half) & ((code & 1) != 0))
        case "ties-away":
            away = rest >= half
        case "up":
            away = (rest != 0) & ~negative
        case "down":
            away = (rest != 0) & negative
        case _:
            away = np.zeros(rest.shape, np.bool_)
    return away


def _rounds_inward(negative: NDArray[np.bool_], rule: EncodingRule) -> NDArray[np.bool_]:
    """Return where the rounding direction points to zero: finite values then stop at the largest value."""
    match rule.rounding:
        case "toward-zero":
            return np.ones_like(negative)
        case "up":
            return negative
        case "down":
            return ~negative
        case _:
            return np.zeros_like(negative)


def _with_sign(
    codes: NDArray[np.int64], negative: NDArray[np.bool_], nonzero: NDArray[np.bool_], rule: EncodingRule
) -> NDArray[np.int64]:
    to = rule.to
    if to.twos_complement:
        return np.where(negative, -codes & (to.code_limit - 1), codes)
    if not to.signed:
        below = 0 if rule.overflow == SATURATE or to.nan_code is None else to.nan_code
        return np.where(negative & nonzero, below, codes)
    if to.specials is Specials.NAN_NEGATIVE_ZERO:
        negative = negative & (codes != 0)
    return codes | np.where(negative, to.sign_mask >> to.padding_bits, 0)


def round_to_odd(values: NDArray[np.float64], error: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the exact sum `values + error` as a float64 with a sticky last bit, safe to round once more to <= 51 bits.

    `values` is the sum rounded to nearest and `error` what that rounding lost (the pair of TwoSum or of a product by
    fma), so |error| is at most half an ulp of `values`. 1.0 with error -2^-60 gives 1 - 2^-53: below 1, odd.
    round_to_odd(np.array([1.0]), np.array([-(2.0**-60)])) is [1 - 2.0**-53]. Raises nothing.
    Source: Boldo and Melquiond, Emulation of FMA and correctly rounded sums, 2008.
    """
    pattern = np.ascontiguousarray(values, np.float64).view(np.uint64)
    adjustable = (error != 0) & np.isfinite(values) & np.isfinite(error)
    shrink = adjustable & (np.signbit(error) != np.signbit(values))
    return np.asarray(((pattern - shrink) | adjustable).view(np.float64))


def odd_double(exact: Fraction | float) -> float:
    """Return a double that rounds to every format of at most 51 bits as the exact number does.

    odd_double(Fraction(1, 10)) is 0x1.9999999999999p-4; its odd last bit represents all lower digits. A float is
    returned unchanged; a number beyond the range of doubles gives the largest double.
    """
    if isinstance(exact, float):
        return exact
    try:
        nearest = float(exact)
    except OverflowError:
        return sys.float_info.max if exact > 0 else -sys.float_info.max
    lost = exact - Fraction(nearest)
    if not lost:
        return nearest
    return float(round_to_odd(np.array([nearest]), np.array([math.copysign(1e-300, lost)]))[0])


def float32_to_odd(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return each float64 as the float32 below or equal to it in magnitude, the last bit set where anything was lost.

    The cast rounds to nearest; where that moved away from zero, one step back undoes it. Values beyond the range give
    the largest float32, whose last bit is set. 1 + 2^-40 gives 0x3f800001.
    """
    with np.errstate(all="ignore"):
        nearest = values.astype(np.float32)
        inexact = nearest.astype(np.float64) != values
        grown = np.abs(nearest) > np.abs(values)
    return np.asarray(((nearest.view(np.uint32) - grown) | inexact).view(np.float32))
