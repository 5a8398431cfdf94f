"""Per-tensor FP8 quantization a second time: one element over fractions, sharing no line with the model."""

from collections.abc import Iterable, Sequence

from refsim.reference.block_scaled import signed
from refsim.reference.group_quantize import NARROW_VALUES, SINGLE_GRID, narrow_code
from refsim.reference.rational_float import GRIDS, ONE, ExactNumber, div, extremum, mul


def single(code: int, format: str) -> int:
    """Return the float32 pattern of a code of bf16, f16 or f32: 0x3c00 of f16 is 0x3f800000."""
    if format == "f32":
        return code
    return code << 16 if format == "bf16" else SINGLE_GRID.encode(GRIDS[format].decode(code))


def amax(codes: Iterable[int], format: str) -> int:
    """Return the float32 pattern of the largest magnitude; NaN is ignored, an empty list gives 0."""
    grid = GRIDS[format]
    magnitudes = (code & (grid.sign - 1) for code in codes)
    return single(max((each for each in magnitudes if each <= grid.infinity), default=0), format)


def scale(amax_bits: int, to: str, eps_bits: int) -> int:
    """Return the float32 pattern of fl(MAX / max(amax, eps)): 448 for E4M3 and 1.0."""
    divisor = extremum([SINGLE_GRID.decode(amax_bits), SINGLE_GRID.decode(eps_bits)], True)
    return SINGLE_GRID.encode(div(ExactNumber(False, NARROW_VALUES[to].values[-1]), divisor))


def stored_scale(scale_bits: int) -> int:
    """Return the float32 pattern of fl(1 / scale), with which a kernel dequantizes."""
    return SINGLE_GRID.encode(div(ONE, SINGLE_GRID.decode(scale_bits)))


def quantized(pattern: int, scale_bits: int, to: str) -> int:
    """Return the FP8 code of fl(x * scale), the largest code beyond the range; NaN is 0x7f."""
    return narrow_code(
        SINGLE_GRID.decode(SINGLE_GRID.encode(mul(SINGLE_GRID.decode(pattern), SINGLE_GRID.decode(scale_bits)))), to
    )


def quantize(patterns: Sequence[int], to: str, eps_bits: int, amax_bits: int | None = None) -> list[int]:
    """Return the FP8 codes of float32 patterns and, behind them, the pattern of the scale that is stored."""
    factor = scale(amax(patterns, "f32") if amax_bits is None else amax_bits, to, eps_bits)
    return [*(quantized(each, factor, to) for each in patterns), stored_scale(factor)]


def dequantized(code: int, format: str, scale_bits: int, to: str) -> int:
    """Return the code of fl(q * scale) in f32, then in `to`, each rounded to nearest even."""
    product = SINGLE_GRID.encode(mul(signed(code, format), SINGLE_GRID.decode(scale_bits)))
    return GRIDS[to].encode(SINGLE_GRID.decode(product))
