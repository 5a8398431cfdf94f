"""Per-tensor FP8 quantisation a second time: one element over fractions, sharing no line with the model."""

from collections.abc import Iterable, Sequence
from fractions import Fraction

from refsim.reference.block_scaled import term
from refsim.reference.group_quantize import NARROW_VALUES, SINGLE_GRID, narrow_code
from refsim.reference.rational_float import GRIDS, NOT_A_NUMBER, ONE, ExactNumber, div, extremum, mul


def single(code: int, format: str) -> int:
    """The float32 pattern of a code of bf16, f16 or f32: 0x3c00 of f16 is 0x3f800000."""
    if format == "f32":
        return code
    return code << 16 if format == "bf16" else SINGLE_GRID.encode(GRIDS[format].decode(code))


def amax(codes: Iterable[int], format: str) -> int:
    """The float32 pattern of the largest magnitude; NaN is ignored, of nothing it is 0."""
    grid = GRIDS[format]
    magnitudes = (code & (grid.sign - 1) for code in codes)
    return single(max((each for each in magnitudes if each <= grid.infinity), default=0), format)


def largest_and_nan(codes: Sequence[int], format: str) -> list[int]:
    """All that a group's factor depends on, as float32 patterns: its largest magnitude, and a NaN where it has one.

    Of bf16's [0x3f80, 0xc000, 0x7fc1] that is [0x40000000, 0x7fc10000].
    """
    grid = GRIDS[format]
    nan = next((code for code in codes if code & (grid.sign - 1) > grid.infinity), None)
    return [amax(codes, format), *([] if nan is None else [single(nan, format)])]


def scale(amax_bits: int, to: str, eps_bits: int) -> int:
    """The pattern of fl(MAX / max(amax, eps)): of 448 and 1.0 that of 448."""
    divisor = extremum([SINGLE_GRID.decode(amax_bits), SINGLE_GRID.decode(eps_bits)], True)
    return SINGLE_GRID.encode(div(ExactNumber(False, NARROW_VALUES[to].values[-1]), divisor))


def stored_scale(scale_bits: int) -> int:
    """The pattern of fl(1 / scale), which undoes it."""
    return SINGLE_GRID.encode(div(ONE, SINGLE_GRID.decode(scale_bits)))


def quantized(pattern: int, scale_bits: int, to: str) -> int:
    """The FP8 code of fl(x * scale), the largest beyond the range; the NaN is 0x7f."""
    return narrow_code(
        SINGLE_GRID.decode(SINGLE_GRID.encode(mul(SINGLE_GRID.decode(pattern), SINGLE_GRID.decode(scale_bits)))), to
    )


def dequantized(code: int, format: str, scale_bits: int, to: str) -> int:
    """The code of fl(q * scale) in f32, then in `to`, each rounded to nearest even."""
    value = term(code, format).value
    negative = bool(code & 0x80)
    number = ExactNumber(negative, abs(value)) if isinstance(value, Fraction) else _special(value, negative=negative)
    product = SINGLE_GRID.encode(mul(number, SINGLE_GRID.decode(scale_bits)))
    return GRIDS[to].encode(SINGLE_GRID.decode(product))


def _special(value: float, *, negative: bool) -> ExactNumber:
    return NOT_A_NUMBER if value != value else ExactNumber(negative, abs(value))  # noqa: PLR0124 (NaN alone differs from itself)
