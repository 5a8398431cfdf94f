"""Values to codes and back: the public encode and decode, and the lookup tables that make them fast.

Every fast path returns the bits of the definition in `encode_exact`.
"""

from functools import lru_cache
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from refsim.conversions.rounding import (
    INFINITY,
    NAN,
    NEAREST_EVEN,
    OVERFLOWS,
    SATURATE,
    EncodingRule,
    RoundingAlias,
    RoundingName,
    default_nan,
    encode_exact,
    float32_to_odd,
    ieee_rule,
    round_to_odd,
    rounding_named,
)
from refsim.errors import RefsimError, check_named
from refsim.formats import BF16, F16, F32, Format, Overflow, format_named
from refsim.integers import array_of
from refsim.typed_arrays import integers, is_typed, typed, with_format

Codes = NDArray[np.unsignedinteger]
Values = NDArray[np.floating]

_CHUNK = 1 << 16  # elements at a time: the buffers of one step stay in the cache
_TABLE_MANTISSA = 5  # 16 bits rounded to odd keep 6 mantissa bits and the sticky bit: enough for this many
_VALUE_TYPES = ("float16", "float32", "float64")


def encode(
    values: ArrayLike,
    format: str | Format,
    rounding: RoundingName | RoundingAlias = NEAREST_EVEN,
    overflow: Overflow | None = None,
    nan: int | None = None,
    *,
    dtype: DTypeLike | None = None,
) -> NDArray[Any]:
    """Encode each value as the code of a neighboring number of `format`, rounded once from the exact value.

    `values`: float16, bfloat16, float32, float64, integers, or any array of ml_dtypes, of any shape. The codes have
    that shape and `format.code_dtype`, or the ml_dtypes type of that format with dtype="ml_dtypes". `rounding`:
    nearest-even (a tie takes the even code), toward-zero, up, down, ties-away, or a short name (rne, rtz, ru, rd, rna).
    `overflow` says what happens beyond the largest value, infinities included. "saturate" gives the largest value of
    that sign; "nan" and "inf" give the special code of that sign and are refused where the format has none. The default
    is `format.overflow`, as the conversion instructions do: infinity in bf16, f16, tf32 and f32, else "saturate". E5M2
    saturates by default too, because its instructions are .satfinite. A finite value that the rounding direction leads
    back into the range stops at the largest value under every policy. `nan` is the code of a NaN input of either sign.
    Its default is the format's NaN, or the largest value where the format has none (as NVIDIA's fp4 and fp6 do).
    Unsigned formats treat a negative value that does not round to zero as out of range: "saturate" gives code 0, "nan"
    the NaN. E8M0 has no zero: 0 and everything below 2^-127 give code 0, 2^-127.
    encode(464, "e4m3") is 0x7e: halfway between 448 and the missing 480, to even; encode(1e39, "bf16") is 0x7f80.
    Raises RefsimError for an unknown name, f64, a value type that is not listed, an array of the type that holds codes
    of `format` (uint8 for e4m3), or a policy without a code.
    Source: the format's entry; OCP OFP8 section 5.2 for the overflow policies.
    """
    to = narrow(format_named(format))
    overflow = to.overflow if overflow is None else overflow
    direction = rounding_named(rounding)
    _check_overflow(to, overflow)
    if nan is not None and (not isinstance(nan, int | np.integer) or not 0 <= nan < to.code_limit):
        raise RefsimError("out-of-range", f"nan={nan!r} is not a code of {to}", rule=_legal(to))
    code = default_nan(to) if nan is None else int(nan)
    return typed(encode_rule(_exact_numbers(values, to), EncodingRule(to, direction, overflow, code, code)), to, dtype)


def round_bits(
    values: ArrayLike,
    format: str | Format,
    rounding: RoundingName | RoundingAlias = NEAREST_EVEN,
    *,
    error: NDArray[np.float64] | None = None,
    satfinite: bool = False,
) -> Codes:
    """Return the bits of `values` rounded to f16, bf16, tf32 or f32 as float instructions round; overflow is infinity.

    `rounding` as in encode; PTX_ROUNDINGS maps .rn, .rz, .rm, .rp and .rna to it. `error` is the part that an inexact
    float64 result lost (see round_to_odd): the exact sum of both is rounded, once. NaN gives the canonical NaN, 0x7fff
    or 0x7fffffff. round_bits(65520.0, "f16") is 0x7c00.
    Raises RefsimError for an unknown rounding. Source: PTX ISA, rounding modifiers; IEEE 754 section 4.3.
    """
    to = narrow(format_named(format))
    direction = rounding_named(rounding)
    exact = exact_values(values)
    if error is not None:
        exact = round_to_odd(exact.astype(np.float64), np.asarray(error, np.float64))
    nan = default_nan(to)
    overflow = SATURATE if satfinite or not to.has_infinity else INFINITY
    return encode_rule(exact, EncodingRule(to, direction, overflow, nan, nan))


@overload
def decode(codes: ArrayLike, format: str | Format | None = None) -> NDArray[np.float64]: ...
@overload
def decode(codes: ArrayLike, format: str | Format | None, dtype: type[np.float32]) -> NDArray[np.float32]: ...
@overload
def decode(codes: ArrayLike, format: str | Format | None = None, *, dtype: type[np.float32]) -> NDArray[np.float32]: ...
@overload
def decode(codes: ArrayLike, format: str | Format | None = None, dtype: DTypeLike = ...) -> Values: ...
def decode(codes: ArrayLike, format: str | Format | None = None, dtype: DTypeLike = np.float64) -> Values:
    """Return the exact value of every code; a NaN code gives NaN.

    `codes`: unsigned integers, one code each, any shape; the values have that shape. An array of ml_dtypes knows its
    format: `format` may be left out, and must agree where it is given. Arrays of int4, uint4 and similar types hold
    their values. `dtype` is float64 or float32, both exact for every format. A NaN has the sign bit of its code.
    Padding bits (tf32) are ignored.
    decode(0x7e, "e4m3") is 448.0.
    Raises RefsimError for signed or float arrays and for codes that the format does not have (0x80 for UE4M3).
    Source: the format's entry.
    """
    whole = integers(codes) if format is None and isinstance(codes, np.ndarray | np.generic) else None
    if dtype not in (np.float32, np.float64, "float32", "float64"):
        raise RefsimError("bad-dtype", f"decode to {dtype!r} is not offered", help="dtype=np.float32 or np.float64")
    kind = np.dtype(dtype)
    if whole is not None:
        return whole.astype(kind)
    codes, to = with_format(codes, format)
    legal = checked_codes(codes, narrow(to))
    if to.code_dtype.itemsize > 1:
        with np.errstate(invalid="ignore"):
            return _decode_wide(legal, to).astype(kind, copy=False)
    return _decode_narrow(legal, to, kind)


def narrow(format: Format) -> Format:
    """Return `format`; raise for f64, which is wider than the float64 steps of a conversion carry exactly."""
    if format.bits > 32:
        help = "codes.view(np.float64) and values.view(np.uint64) are its codes"
        raise RefsimError("unsupported-format", f"{format} is the type of values, not a format to encode", help=help)
    return format


def _exact_numbers(values: ArrayLike, to: Format) -> Values:
    """Return `exact_values`; raise for an array of the type that holds codes of the format: it may hold codes."""
    if isinstance(values, np.ndarray | np.generic) and values.dtype.newbyteorder("=") == to.code_dtype:
        numbers = np.dtype(np.float64 if to.code_dtype.itemsize > 2 else np.float32)
        raise RefsimError(
            "bad-dtype",
            f"an array of {to.code_dtype} may hold codes of {to}, so it is not taken for numbers",
            rule="codes and values never share a type",
            help=f"refsim.decode(codes, '{to}') if it holds codes; encode(numbers.astype(np.{numbers}), '{to}') if numbers",
        )
    return exact_values(values)


def exact_values(values: ArrayLike) -> Values:
    """Return `values` as float16, float32 or float64 without loss; integers beyond 2^53 are rounded to odd."""
    array = array_of("values", values)
    if is_typed(array.dtype):
        return _typed_values(array)
    if array.dtype.kind in "iu":
        return _from_integers(array)
    if array.dtype.name not in _VALUE_TYPES:
        rule = f"values are {', '.join(_VALUE_TYPES)}, integers or of ml_dtypes"
        help = "values.astype(np.float64) for numbers of another type or in text; refsim.decode(codes, ...) for codes"
        raise RefsimError("bad-dtype", f"cannot encode an array of {array.dtype}", rule=rule, help=help)
    if array.dtype == np.float16:
        with np.errstate(all="ignore"):
            return array.astype(np.float32)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _typed_values(array: NDArray[Any]) -> Values:
    whole = integers(array)
    return decode(array, dtype=np.float32) if whole is None else whole.astype(np.float32)


def _from_integers(array: NDArray[Any]) -> NDArray[np.float64]:
    negative = array < 0
    magnitude = array.astype(np.uint64)
    magnitude = np.where(negative, np.uint64(0) - magnitude, magnitude)
    large = magnitude >= 1 << 53
    odd = (magnitude >> np.uint64(11)) | ((magnitude & np.uint64(0x7FF)) != 0)
    exact = np.where(large, odd.astype(np.float64) * 2048.0, np.where(large, 0, magnitude).astype(np.float64))
    return np.where(negative, -exact, exact)


def encode_rule(values: Values, rule: EncodingRule) -> Codes:
    """Return the codes of values from `exact_values` by any rule that is not stochastic, by the fastest exact path."""
    to = rule.to
    if to.code_dtype.itemsize == 1 and to.mantissa_bits <= _TABLE_MANTISSA:
        return _encode_by_table(values, rule)
    flat = np.ascontiguousarray(values).reshape(-1)
    if rule == ieee_rule(to):
        if to is F16:
            return _cast_to_f16(flat).reshape(values.shape)
        if to is BF16 and flat.dtype == np.float32:
            return _truncate_to_bf16(flat.view(np.uint32)).reshape(values.shape)
        if to is F32:
            return _cast_to_f32(flat).reshape(values.shape)
    codes = encode_exact(_widened(flat), rule)
    if rule.overrides:
        odd = _odd_halves(flat)
        for first, last, code in rule.overrides:
            codes[(odd >= first) & (odd <= last)] = code
    return codes.reshape(values.shape)


def _odd_halves(values: Values) -> NDArray[np.uint32]:
    """Return the upper half of each float32 pattern, its last bit set where the lower half is not zero."""
    pattern = (values if values.dtype == np.float32 else float32_to_odd(_widened(values))).view(np.uint32)
    return np.asarray((pattern >> np.uint32(16)) | ((pattern & np.uint32(0xFFFF)) != 0))


def _widened(values: Values) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore"):
        return values.astype(np.float64, copy=False)


def _cast_to_f16(values: Values) -> NDArray[np.uint16]:
    with np.errstate(all="ignore"):
        codes = values.astype(np.float16).view(np.uint16)
    codes[np.isnan(values)] = default_nan(F16)
    return codes


def _cast_to_f32(values: Values) -> NDArray[np.uint32]:
    with np.errstate(all="ignore"):
        codes = values.astype(np.float32).view(np.uint32)
    codes[np.isnan(values)] = default_nan(F32)
    return codes


def _truncate_to_bf16(pattern: NDArray[np.uint32]) -> NDArray[np.uint16]:
    """Return float32 patterns rounded to bf16, nearest-even.

    Adding half a bf16 ulp less the parity carries into the upper half exactly when nearest-even rounds away.
    """
    codes = np.empty(pattern.size, np.uint16)
    for start in range(0, pattern.size, _CHUNK):
        part = pattern[start : start + _CHUNK]
        rounded = part >> 16
        rounded &= 1
        rounded += 0x7FFF
        rounded += part
        rounded >>= 16
        rounded[(part & 0x7FFFFFFF) > 0x7F800000] = default_nan(BF16)
        codes[start : start + _CHUNK] = rounded
    return codes


@lru_cache(maxsize=256)
def code_table(rule: EncodingRule) -> NDArray[np.uint8]:
    """Return the code of every float32 pattern rounded to odd at 16 bits; odd indices are open intervals."""
    patterns = np.arange(1 << 16, dtype=np.uint32)
    with np.errstate(invalid="ignore"):
        values = (patterns << 16).view(np.float32).astype(np.float64)
    table = encode_exact(values, rule).astype(np.uint8)
    for first, last, code in rule.overrides:
        table[first : last + 1] = code
    table.setflags(write=False)
    return table


def _encode_by_table(values: Values, rule: EncodingRule) -> NDArray[np.uint8]:
    """Encode values to a format of one byte by `code_table`, from float32 patterns rounded to odd."""
    table = code_table(rule)
    flat = np.ascontiguousarray(values).reshape(-1)
    codes = np.empty(flat.size, np.uint8)
    sticky = np.empty(min(flat.size, _CHUNK), np.bool_)
    index = np.empty(sticky.size, np.uint16)
    upper, lower = (1, 0) if np.little_endian else (0, 1)
    for start in range(0, flat.size, _CHUNK):
        part = flat[start : start + _CHUNK]
        count = part.size
        halves = (part if part.dtype == np.float32 else float32_to_odd(_widened(part))).view(np.uint16)
        np.not_equal(halves[lower::2], 0, out=sticky[:count])
        np.bitwise_or(halves[upper::2], sticky[:count], out=index[:count])
        np.take(table, index[:count], out=codes[start : start + count], mode="wrap")
    return codes.reshape(values.shape)


def checked_codes(codes: ArrayLike, format: Format) -> Codes:
    """Return `codes` in the format's own code type, after a check of type and range."""
    array = array_of("codes", codes)
    plain = not isinstance(codes, np.ndarray | np.generic) and array.dtype.kind == "i"
    if array.dtype.kind != "u" and not plain and array.size:
        what = f"codes of {format} are unsigned integers, not {array.dtype}"
        rule = "codes and values never share a type"
        raise RefsimError("bad-dtype", what, rule=rule, help=codes_from(array.dtype, format))
    width = 8 * array.dtype.itemsize
    if array.size and (plain or width > format.bits + format.padding_bits):
        outside = (array < 0) | (array >= format.code_limit) if plain else array >= format.code_limit
        if outside.any():
            first = int(array[outside].flat[0])
            raise RefsimError("out-of-range", f"{first:#x} is not a code of {format}", rule=_legal(format))
    return array.astype(format.code_dtype, copy=False)


def codes_from(dtype: np.dtype[Any], format: Format) -> str:
    """Return the help on turning another array into codes, one an element: by its bits only if the widths agree."""
    same_width = dtype.itemsize == format.code_dtype.itemsize
    if dtype.kind == "i" and not same_width:
        return f"codes.astype(np.{format.code_dtype}) where each integer is one code"
    bits = f"array.view(np.{format.code_dtype}) where its bits are the codes"
    if dtype.kind == "f":
        values = f"refsim.encode(values, '{format}') turns values into codes"
        return f"{values}; {bits}" if same_width else values
    return bits if dtype.kind == "i" else f"an array of np.{format.code_dtype}"


def _legal(format: Format) -> str:
    return f"codes of {format} are 0 to {format.code_limit - 1:#x}"


def _check_overflow(to: Format, overflow: str) -> None:
    check_named("overflow policy", overflow, OVERFLOWS)
    if (overflow == NAN and not to.has_nan) or (overflow == INFINITY and not to.has_infinity):
        what = f"{to} has no code for overflow={overflow!r}"
        rule = f"special codes of {to}: {to.specials.value}"
        raise RefsimError("no-such-value", what, rule=rule, help='overflow="saturate" gives the largest value')


def _decode_wide(codes: Codes, to: Format) -> Values:
    if to is F16:
        return codes.view(np.float16).astype(np.float32)
    pattern = codes.astype(np.uint32) << 16 if to is BF16 else codes & ~np.uint32((1 << to.padding_bits) - 1)
    return pattern.view(np.float32)


@lru_cache(maxsize=64)
def _value_table(format: Format, kind: np.dtype[Any]) -> NDArray[Any]:
    table = np.full(256, np.nan, kind)
    table[: format.code_limit] = format.table
    return table


@lru_cache(maxsize=16)
def _pair_table(format: Format) -> NDArray[np.uint64]:
    """Return the two float32 of every pair of adjacent code bytes, as one 64-bit integer."""
    pairs = np.arange(1 << 16, dtype=np.uint16).view(np.uint8)
    return _value_table(format, np.dtype(np.float32))[pairs].view(np.uint64)


def _decode_narrow(codes: Codes, to: Format, kind: np.dtype[Any]) -> Values:
    flat = np.ascontiguousarray(codes).reshape(-1)
    if kind == np.float64 or flat.size < _CHUNK:
        return np.take(_value_table(to, kind), flat, mode="wrap").reshape(codes.shape)
    values = np.empty(flat.size, np.float32)
    even = flat.size & ~1
    pairs, words, table = flat[:even].view(np.uint16), values[:even].view(np.uint64), _pair_table(to)
    for start in range(0, pairs.size, _CHUNK):
        part = slice(start, start + _CHUNK)
        np.take(table, pairs[part], out=words[part], mode="wrap")
    values[even:] = _value_table(to, kind)[flat[even:]]
    return values.reshape(codes.shape)
