"""Steps of a fused kernel a second time: each value with a bound on its error, in Python's floats and fractions.

A kernel rounds every float32 operation, in some order, and approximates roots and exponentials. A value therefore has
a bound for all of them. A code is known where both ends of the bound have the same code.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from refsim.reference.group_quantize import counted_values, nearest
from refsim.reference.rational_float import GRIDS, ExactNumber, add, mul

F32_MAX, F32_NORMAL = (2 - 2.0**-23) * 2.0**127, 2.0**-126
ROUNDED, OF_APPROXIMATION, OF_TANH = 2.0**-23, 2.0**-20, 2.0**-16
"""Relative errors of a float32 operation, of an approximate function and of tanh, all more than they are."""
SMALL: Mapping[str, tuple[Fraction, ...]] = {
    "e4m3": counted_values(3, 7, 0x7F),
    "ue4m3": counted_values(3, 7, 0x7F),
    "e5m2": counted_values(2, 15, 0x7C),
    "e2m1": counted_values(1, 1, 0x08),
}


class Near(NamedTuple):
    """A value, and how far the kernel's own may lie from it: infinitely far where float32 may overflow."""

    value: float
    error: float = 0.0

    def off(self, relative: float) -> "Near":
        """Return the value with one more relative error; UNBOUNDED where it may leave the range of float32."""
        size = abs(self.value) + self.error
        return Near(self.value, self.error + size * relative + 2.0**-149) if size <= F32_MAX else UNBOUNDED

    @property
    def ends(self) -> tuple[float, float]:
        """Return the lowest and the highest number that the kernel may have."""
        return self.value - self.error, self.value + self.error


Row = list[Near]
UNBOUNDED = Near(0.0, math.inf)
"""A value of which nothing is certain, such as NaN, an infinity and what follows from them."""


def plus(x: Near, y: Near) -> Near:
    """Return a float32 sum."""
    return Near(x.value + y.value, x.error + y.error).off(ROUNDED)


def times(x: Near, y: Near) -> Near:
    """Return a float32 product."""
    error = abs(x.value) * y.error + abs(y.value) * x.error + x.error * y.error
    return Near(x.value * y.value, error).off(ROUNDED)


def over(x: Near, y: Near, relative: float = OF_APPROXIMATION) -> Near:
    """Return a quotient; its bound is infinite where the divisor may be zero."""
    least = abs(y.value) - y.error
    if not least > 0:
        return UNBOUNDED
    value = x.value / y.value
    return Near(value, (x.error + abs(value) * y.error) / least).off(relative)


def total(values: Row) -> Near:
    """Return the sum of a row in any order."""
    size = math.fsum(abs(each.value) + each.error for each in values)
    error = math.fsum(each.error for each in values) + size * ROUNDED * (len(values) + 1)
    return Near(math.fsum(each.value for each in values), error) if size <= F32_MAX else UNBOUNDED


def exponential(x: Near) -> Near:
    """Return e^x by an approximate power of two."""
    if x.value > 80 or x.error > 1:
        return UNBOUNDED
    if x.value < -86:  # a subnormal number, which an instruction may flush
        return Near(0.0, F32_NORMAL)
    value = math.exp(x.value)
    return Near(value, value * math.expm1(x.error + abs(x.value) * ROUNDED)).off(OF_APPROXIMATION)


# ---- steps of values ---------------------------------------------------------------------------------------------------


def norm(
    x: Row, w: Sequence[float] | None, bias: Sequence[float] | None, eps: float, centres: bool, rounds: str = ""
) -> Row:
    """Return RMSNorm, or LayerNorm where the mean is subtracted; `rounds`: the format of values before the weights."""
    count = Near(float(len(x)))
    if centres:
        mean = over(total(x), count)
        x = [plus(each, Near(-mean.value, mean.error)) for each in x]
    variance = plus(over(total([times(each, each) for each in x]), count), Near(eps, eps * ROUNDED))
    least = variance.value - variance.error
    if not least > 0:
        return [UNBOUNDED] * len(x)
    root = 1 / math.sqrt(variance.value)
    inverse = Near(root, root * variance.error / least).off(OF_APPROXIMATION)
    y = [times(each, inverse) for each in x]
    y = held_in(y, rounds) if rounds else y
    if w is not None:
        y = [times(each, Near(by)) for each, by in zip(y, w, strict=True)]
    return y if bias is None else [plus(each, Near(by)) for each, by in zip(y, bias, strict=True)]


def softmax_near(x: Row, scale: float) -> Row:
    """Return e^(scale (x - max)) over its sum."""
    top, error = max(each.value for each in x), max(each.error for each in x)
    if not (abs(top) + error) * max(1.0, abs(scale) * 2) <= F32_MAX:
        return [UNBOUNDED] * len(x)
    powers = [exponential(times(plus(each, Near(-top, error)), Near(scale, abs(scale) * ROUNDED))) for each in x]
    whole = total(powers)
    return [over(each, whole) for each in powers]


def silu_near(x: Row, up: Sequence[float] | None) -> Row:
    """Return x / (1 + e^-x), times another operand if there is one."""
    y = [over(each, plus(Near(1.0), exponential(Near(-each.value, each.error)))) for each in x]
    return y if up is None else [times(each, Near(by)) for each, by in zip(y, up, strict=True)]


def gelu_near(x: Row, approximate: str) -> Row:
    """Return GELU by tanh or by erf, which changes by at most 1.13 times a change of x."""
    found = []
    for value, error in x:
        inner = value / math.sqrt(2) if approximate == "none" else 0.79788456 * (value + 0.044715 * value**3)
        y = value / 2 * (1 + (math.erf(inner) if approximate == "none" else math.tanh(inner)))
        found.append(Near(y, 1.13 * error + abs(value) * OF_TANH).off(ROUNDED))
    return found


def rotated(x: Row, cos: Sequence[float], sin: Sequence[float], head: int, pairs: bool) -> Row:
    """Return the rotary embedding of a row of heads."""
    found, width = list(x), len(cos)
    for start in range(0, len(x), head):
        for at in range(width):
            one, other = (start + 2 * at, start + 2 * at + 1) if pairs else (start + at, start + at + width)
            c, s = Near(cos[at]), Near(sin[at])
            found[one] = plus(times(x[one], c), times(x[other], Near(-s.value)))
            found[other] = plus(times(x[other], c), times(x[one], s))
    return found


def held_in(x: Row, format: str) -> Row:
    """Return values rounded to a format; a value whose rounding is certain has no error."""
    grid, found = GRIDS[format], []
    for each in x:
        code = code_of(each, format)
        found.append(
            _known(grid.number(code)) if code is not None else each.off(2.0 ** -(7 if format == "bf16" else 10))
        )
    return found


def _known(value: float) -> Near:
    return Near(value) if math.isfinite(value) else UNBOUNDED


def certain(x: Near, by: float, bounded: Callable[[Near, Near], Near], exact: Callable[..., ExactNumber]) -> Near:
    """Return one float32 operation, rounded as IEEE 754 says where the value is certain."""
    if x.error or not math.isfinite(by):
        return bounded(x, Near(by))
    numbers = (ExactNumber(math.copysign(1, each) < 0, Fraction(abs(each))) for each in (x.value, by))
    return _known(GRIDS["f32"].number(GRIDS["f32"].encode(exact(*numbers))))


STEPS_OF_VALUES: Mapping[str, Callable[..., Row]] = {
    "norm": norm,
    "softmax": softmax_near,
    "silu": silu_near,
    "gelu": gelu_near,
    "rope": rotated,
    "rounded": held_in,
    "added to": lambda x, by: [certain(each, other, plus, add) for each, other in zip(x, by, strict=True)],
    "multiplied by": lambda x, by: [certain(each, other, times, mul) for each, other in zip(x, by, strict=True)],
    "divided by": lambda x, by: [over(each, Near(other)) for each, other in zip(x, by, strict=True)],
}


def after(x: Sequence[float], steps: Sequence[tuple[str, tuple[Any, ...]]]) -> Row:
    """Return a row after its steps, each a name of STEPS_OF_VALUES with further arguments."""
    values = [_known(each) for each in x]
    for name, more in steps:
        values = STEPS_OF_VALUES[name](values, *more)
    return values


# ---- codes -------------------------------------------------------------------------------------------------------------


def code_of(x: Near, format: str) -> int | None:
    """Return the code of a value, saturated in a small format; None where the two ends of its bound differ."""
    low, high = x.ends
    if not (math.isfinite(low) and math.isfinite(high)):
        return None
    codes = {_code(low, format), _code(high, format)}
    return codes.pop() if len(codes) == 1 else None


def _code(value: float, format: str) -> int:
    if format == "int8":
        return max(-128, min(127, round(Fraction(value)))) & 0xFF
    if format not in SMALL:
        return GRIDS[format].encode(ExactNumber(math.copysign(1, value) < 0, Fraction(abs(value))))
    values = SMALL[format]
    size = nearest(values, Fraction(abs(value)))
    sign = 0 if format.startswith("u") else {"e2m1": 8}.get(format, 0x80)
    return size | (sign if math.copysign(1, value) < 0 else 0)


def group_scale(members: Row, largest: float, floor: float, power: bool) -> Near | None:
    """Return the scale of a group, peak / largest; a power of two from there on up, None where it is not certain."""
    if not all(math.isfinite(each) for member in members for each in member.ends):
        return None
    top = max(members, key=lambda each: abs(each.value))
    error = max(each.error for each in members)
    peak = Near(max(abs(top.value), floor), error)
    scale = over(peak, Near(largest))
    if not power:
        return scale
    if scale.ends[0] <= 2.0**-126:
        return None
    exponents = {math.ceil(math.log2(end)) for end in scale.ends}
    return Near(math.ldexp(1, exponents.pop())) if len(exponents) == 1 else None


def block_scale(members: Row, factor: float) -> Near | None:
    """Return the scale of an NVFP4 block, peak * factor / 6 in UE4M3; None where it is zero or not certain."""
    top = max(abs(each.value) for each in members)
    error = max(each.error for each in members)
    code = code_of(over(times(Near(top, error), Near(factor)), Near(6.0)), "ue4m3")
    return Near(float(SMALL["ue4m3"][code])) if code else None


def tiled_place(row: int, block: int, blocks: int) -> int:
    """Return the place of a scale in tiles of 128 rows and 4 blocks, which lie across first."""
    tile = row // 128 * -(-blocks // 4) + block // 4
    return tile * 512 + row % 32 * 16 + row % 128 // 32 * 4 + block % 4
