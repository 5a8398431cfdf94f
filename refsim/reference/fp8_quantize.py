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


def largest_and_nan(codes: Sequence[int], format: str) -> list[int]:
    """Return the float32 patterns on which a group's factor depends: its largest magnitude, and a NaN if it has one.
    For bf16's [0x3f80, 0xc000, 0x7fc1] it is [0x40000000, 0x7fc10000]."""
    grid = GRIDS[format]
    nan = next((code for code in codes if code & (grid.sign - 1) > grid.infinity), None)
    return [amax(codes, format), *([] if nan is None else [single(nan, format)])]


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


def dequantized(code: int, format: str, scale_bits: int, to: str) -> int:
    """Return the code of fl(q * scale) in f32, then in `to`, each rounded to nearest even."""
    product = SINGLE_GRID.encode(mul(signed(code, format), SINGLE_GRID.decode(scale_bits)))
    return GRIDS[to].encode(SINGLE_GRID.decode(product))
