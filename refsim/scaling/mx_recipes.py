"""Recipes of MX blocks: how the scale of a block follows from its largest magnitude, and elements from the scale.

    y = amax / 2^floor(log2 MAX), or amax / MAX       MAX: the largest value of an element
    scale = y rounded down or up to a power of two, or to the nearest by the element's mantissa (`EVEN`)
    element = the conversion of x * 2^-scale, one float32 product

The treatment of zero, infinity and NaN is data of the entry: no two libraries agree on it.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from refsim.formats import E8M0, F32, Format
from refsim.render.cards import Facts, NamedCard
from refsim.scaling.block_formats import MX_FORMATS
from refsim.scaling.rows import QUOTIENTS, NanRule, Quotient
from refsim.sources import (
    AITER,
    COMPRESSED_TENSORS,
    CUBLAS,
    DEEPGEMM,
    MICROXCALING,
    MODELOPT,
    OCP_MX,
    TORCHAO,
    TRANSFORMER_ENGINE,
    TRITON,
    Source,
)

Divisor = Literal["power", "largest"]
Direction = Literal["down", "up", "even"]
NAN_SCALE = 0xFF
LARGEST_SCALE = 0xFE
_INFINITY = np.uint32(0x7F800000)
_FRACTION = np.uint32(0x007FFFFF)
_LOWEST = np.uint32(0x00400000)  # 2^-127: larger subnormals are rounded up to 2^-126


@dataclass(frozen=True, repr=False)
class MxRecipe(NamedCard):
    """One way from the largest magnitude of a block to the code of its E8M0 scale.

    `divisor`: amax is divided by the largest power of two of the element (256 for e4m3) or by its largest value (448).
    `direction`: the quotient goes down, up, or ("even") to the power that the element's mantissa would round it to;
    `even_bits` gives the bits of that mantissa where it is not the element's own. `quotient` "reciprocal" multiplies by
    fl(1 / MAX). `lifts_subnormals`: a positive quotient becomes at least 2^-126. `infinity` is the code where amax is
    infinite or rounds to infinity, None where it counts as 2^128; `nan_code` is the code where amax is NaN. `nan`
    "ignored": a NaN never counts. `by_log2`: the exponent is floor(log2) with log2 rounded to float32, which is one
    more just below large powers of two. `flushes`: a block whose amax is subnormal becomes zeros. `eps` bounds amax
    from below, `least` bounds the code. `multipliers` are the factors of codes where they are not 2^(127 - code); code
    0xff has NaN unless listed. `policy` is the conversion of the elements, `formats` are the block formats it can make.
    """

    name: str
    divisor: Divisor
    direction: Direction
    summary: str
    source: Source
    quotient: Quotient = "divide"
    even_bits: tuple[tuple[str, int], ...] = ()
    lifts_subnormals: bool = False
    infinity: int | None = NAN_SCALE
    nan_code: int = NAN_SCALE
    nan: NanRule = "spreads"
    by_log2: bool = False
    flushes: bool = False
    eps: tuple[tuple[str, float], ...] = ()
    least: int = 0
    multipliers: tuple[tuple[int, float], ...] = ()
    policy: str = "cuda.satfinite"
    formats: tuple[str, ...] = MX_FORMATS

    def _repr_summary(self) -> str:
        return f"{self.name}: {self.summary}"

    def _facts(self) -> Facts:
        yield "for", ", ".join(self.formats)
        yield "infinity", "taken for 2^128" if self.infinity is None else f"{self.infinity:#04x}"
        yield "NaN", f"{self.nan_code:#04x}" if self.nan == "spreads" else "ignored"
        yield "elements", self.policy
        yield "source", self.source


def mx_scale_codes(peak: NDArray[np.float32], recipe: MxRecipe, element: Format) -> NDArray[np.uint8]:
    """Return the E8M0 code of each block (blocks,) whose largest magnitude is `peak`; a NaN counts as the block's."""
    bits = peak.view(np.uint32)
    unknown = bits > _INFINITY
    floor = np.float32(dict(recipe.eps).get(element.name, 0)).view(np.uint32)
    bits = np.maximum(np.where(unknown, np.uint32(0), bits), floor)
    if recipe.direction == "even":
        kept = dict(recipe.even_bits).get(element.name, element.mantissa_bits)
        bits = np.minimum(bits + np.uint32(1 << F32.mantissa_bits - kept - 1), _INFINITY) & ~_FRACTION
    infinite = bits == _INFINITY
    power = int(np.log2(element.max_value))
    if recipe.divisor == "power":
        codes = _exponents(bits, recipe).astype(np.int64) - power
    else:
        codes = _exponents(_quotient(bits.view(np.float32), recipe, element).view(np.uint32), recipe).astype(np.int64)
    codes = np.clip(codes, recipe.least, LARGEST_SCALE)
    codes[infinite] = 255 - power if recipe.infinity is None else recipe.infinity
    codes[unknown] = recipe.nan_code
    return codes.astype(np.uint8)


def _quotient(peak: NDArray[np.float32], recipe: MxRecipe, element: Format) -> NDArray[np.float32]:
    """Return amax / MAX in float32, or amax times the rounded reciprocal of MAX."""
    largest = np.float32(element.max_value)
    with np.errstate(all="ignore"):
        return peak * (np.float32(1) / largest) if recipe.quotient == QUOTIENTS[0] else peak / largest


def _exponents(bits: NDArray[np.uint32], recipe: MxRecipe) -> NDArray[np.uint32]:
    """Return the biased exponent of the power of two that a float32 is rounded to."""
    if recipe.by_log2:
        with np.errstate(divide="ignore"):
            logarithm = np.log2(bits.view(np.float32).astype(np.float64)).astype(np.float32)
        return np.asarray(np.clip(np.floor(logarithm) + F32.bias, 0, 255), np.uint32)
    field = bits >> np.uint32(F32.mantissa_bits)
    if recipe.direction != "up":
        return field
    inexact = (bits & _FRACTION) != 0
    if not recipe.lifts_subnormals:
        inexact &= bits > _LOWEST
    return np.asarray(field + inexact, np.uint32)


def multiplier_table(recipe: MxRecipe) -> NDArray[np.float32]:
    """Return the factor of the elements for each of the 256 codes: 2^(127 - code), NaN for 0xff, or the entry's."""
    table = np.exp2(E8M0.bias - np.arange(256, dtype=np.float64)).astype(np.float32)
    table[NAN_SCALE] = np.nan
    for code, factor in recipe.multipliers:
        table[code] = factor
    return table


_CUBLAS = CUBLAS["1D block quantization"]
_TO_MX = TORCHAO["prototype/mx_formats/mx_tensor.py, to_mx"]
_TRITON = TRITON["triton_kernels, numerics_details/mxfp.py, downcast_to_mxfp_torch"]
_AITER = AITER["aiter/utility/fp4_utils.py, f32_to_mx_e8m0_scale"]
_SIX_BITS = ("mxfp6_e2m3", "mxfp6_e3m2")
_EIGHT_AND_FOUR = tuple(name for name in MX_FORMATS if name not in _SIX_BITS)
_NO_NAN_SCALE = ((0, 2.0**126), (NAN_SCALE, 0.0))  # divisors of at least 2^-126; 0xff divides by infinity

# fmt: off
MX_RECIPES = (
    MxRecipe(
        "floor", "power", "down", "OCP MX: 2^(floor(log2 amax) - floor(log2 MAX)); the largest may saturate",
        OCP_MX["section 6.3, conversion to MX"],
    ),
    MxRecipe("rceil", "largest", "up", "amax / MAX rounded up: nothing saturates", _CUBLAS, quotient="reciprocal",
             infinity=LARGEST_SCALE),
    MxRecipe("even", "power", "even", "amax rounded to the element's bits, then as floor", TORCHAO["ScaleCalculationMode.EVEN"]),
    MxRecipe("ceil", "power", "up", "ceil(log2 amax): nothing saturates, one binade is unused",
             TORCHAO["ScaleCalculationMode.CEIL"]),
    MxRecipe(
        "te", "largest", "up", "Transformer Engine: rceil; scale code 0 multiplies by 1, NaN does not count",
        TRANSFORMER_ENGINE["common/util/ptx.cuh, float_to_e8m0 and exp2f_rcp"], quotient="reciprocal",
        infinity=LARGEST_SCALE, nan="ignored", multipliers=((0, 1.0),), formats=("mxfp8", "mxfp8_e5m2"),
    ),
    MxRecipe("torchao_floor", "power", "down", "to_mx of torchao by default", _TO_MX, infinity=None,
             multipliers=_NO_NAN_SCALE, policy="torchao"),
    MxRecipe(
        "torchao_rceil", "largest", "up", "to_mx of torchao with RCEIL, as its configurations choose", _TO_MX,
        infinity=LARGEST_SCALE, multipliers=((0, 1.0),), policy="torchao",
    ),
    MxRecipe("torchao_even", "power", "even", "to_mx of torchao with EVEN", _TO_MX, infinity=None,
             multipliers=_NO_NAN_SCALE, policy="torchao"),
    MxRecipe("torchao_ceil", "power", "up", "to_mx of torchao with CEIL", _TO_MX, infinity=None,
             multipliers=_NO_NAN_SCALE, policy="torchao"),
    MxRecipe(
        "triton", "largest", "up", "triton_kernels, ROUND_UP: NaN gives scale code 0, and code 0 multiplies by 0",
        _TRITON, lifts_subnormals=True, nan_code=0, multipliers=((0, 0.0), (NAN_SCALE, 0.0)), formats=_EIGHT_AND_FOUR,
    ),
    MxRecipe(
        "aiter", "largest", "up", "AITER, RoundUp: a positive quotient gives a scale of at least 2^-126", _AITER,
        lifts_subnormals=True, formats=("mxfp8", "mxfp4"),
    ),
    MxRecipe(
        "compressed_tensors", "power", "even", "amax rounded to one mantissa bit (e2m3: three bits), then as floor",
        COMPRESSED_TENSORS["quantization/utils/mxfp_utils.py, generate_mx_scales"],
        even_bits=(("e4m3", 1), ("e2m1", 1), ("e2m3", 3)), multipliers=((NAN_SCALE, 0.0),),
        policy="compressed_tensors", formats=("mxfp8", "mxfp6_e2m3", "mxfp4"),
    ),
    MxRecipe(
        "modelopt", "largest", "up", "Model Optimizer: amax / MAX rounded up; e2m1 ties go down, zeros become -0",
        MODELOPT["qtensor/mxfp4_tensor.py, MXFP4QTensor.quantize"], policy="modelopt_mx", formats=("mxfp4",),
    ),
    MxRecipe(
        "deepgemm", "largest", "up", "DeepGEMM: as for FP8; e2m1 ties go to zero, and zeros have no sign",
        DEEPGEMM["deep_gemm/utils/math.py, per_token_cast_to_fp4 with use_ue8m0"], infinity=LARGEST_SCALE,
        nan_code=LARGEST_SCALE, lifts_subnormals=True, eps=(("e2m1", 1e-4),), least=1, policy="deepgemm",
        formats=("mxfp4",),
    ),
    *(
        MxRecipe(
            f"microxcaling{name}", "power", "down", f"Microsoft's emulation: floor by log2 in float32, {says}",
            MICROXCALING["mx/mx_ops.py, _quantize_mx; elemwise_ops.py, _round_mantissa"], by_log2=True, flushes=flushes,
            policy=f"microxcaling{policy}",
        )
        for name, policy, flushes, says in (
            ("", "", False, "elements to nearest, ties away"),
            ("_even", "_even", False, "elements to nearest, ties to even"),
            ("_floor", "_floor", False, "elements truncated"),
            ("_flush", "", True, "elements to nearest, ties away; blocks with subnormal amax become zeros"),
        )
    ),
    MxRecipe(
        "deepgemm", "largest", "up", "DeepGEMM: amax at least 1e-4, codes 1 to 254, never a NaN",
        DEEPGEMM["per_token_cast_to_fp8 with use_ue8m0"], infinity=LARGEST_SCALE, nan_code=LARGEST_SCALE,
        lifts_subnormals=True, eps=(("e4m3", 1e-4),), least=1, formats=("mxfp8",),
    ),
)
# fmt: on
