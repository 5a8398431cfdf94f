"""Floating-point formats, one entry each; range, special codes and code values are derived from the entry."""

import math
import re
from dataclasses import dataclass
from enum import Enum
from functools import cache, cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from refsim.errors import RefsimError, unknown
from refsim.render.cards import Facts, NamedCard
from refsim.sources import CUTE_DSL, FNUZ, IEEE754, OCP_MX, OCP_OFP8, PTX, Source

Overflow = Literal["saturate", "nan", "inf"]
"""The result for a value beyond the largest: the largest, the NaN or the infinity of that sign."""


class Specials(Enum):
    """Which codes are not numbers."""

    IEEE = "all-ones exponent: mantissa 0 is infinity, others are NaN"
    NAN_ALL_ONES = "exponent and mantissa all ones is NaN; no infinity"
    NAN_NEGATIVE_ZERO = "the code of -0 is the only NaN; no infinity"
    NONE = "every code is a number"


@cache
def container_of(bits: int) -> np.dtype[np.unsignedinteger]:
    """Return the narrowest unsigned integer type of at least `bits` bits: uint8 for 6, uint32 for 19 + 13."""
    kinds = (np.uint8, np.uint16, np.uint32, np.uint64)
    return np.dtype(next(kind for kind in kinds if bits <= np.iinfo(kind).bits))


def ml_dtype_of(names: tuple[str, ...]) -> np.dtype[Any] | None:
    """Return the type of ml_dtypes that has one of the names, or None."""
    import ml_dtypes

    return next((np.dtype(getattr(ml_dtypes, name)) for name in names if hasattr(ml_dtypes, name)), None)


@dataclass(frozen=True, repr=False)
class Format(NamedCard):
    """Describe a number format: sign, exponent and mantissa fields from the top bit down.

    A value with exponent field e > 0 is (1 + m / 2^mantissa_bits) x 2^(e - bias); with e = 0 it is m x 2^(1 - bias -
    mantissa_bits). E4M3 code 0x7e = 0 1111 110 is 1.75 x 2^8 = 448.
    `binades_from_zero` (E8M0) makes e = 0 an ordinary binade, so there is no zero. `twos_complement` (MX INT8) reads
    the whole code as an integer times the quantum. `padding_bits` are ignored low bits of the container (tf32).
    `overflow` is the result of the format's conversion instructions for a value beyond the largest: `cvt.rn.bf16.f32`
    gives infinity, `cvt.rn.satfinite.e4m3x2.f32` 448.
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int
    specials: Specials
    source: Source
    signed: bool = True
    binades_from_zero: bool = False
    twos_complement: bool = False
    padding_bits: int = 0
    overflow: Overflow = "saturate"
    aliases: tuple[str, ...] = ()

    def __hash__(self) -> int:
        return hash(self.name)  # formats are keys of the conversion tables: equal formats have equal names

    @property
    def bits(self) -> int:
        """Return the width of a code in bits, without padding: 7 for UE4M3, 19 for tf32."""
        return int(self.signed) + self.exponent_bits + self.mantissa_bits

    @cached_property
    def code_dtype(self) -> np.dtype[np.unsignedinteger]:
        """Return the unsigned integer type that holds one code in an array."""
        return container_of(self.code_bits)

    @property
    def code_bits(self) -> int:
        """Return the width of a code in bits with its padding: 32 for tf32, 7 for UE4M3."""
        return self.bits + self.padding_bits

    @property
    def is_integer(self) -> bool:
        """Return False: an element type is an `Integer` or a `Format`."""
        return False

    @cached_property
    def array_dtype(self) -> np.dtype[Any] | None:
        """Return NumPy's own type of equal bits: float16, float32 or float64; None for all other formats."""
        if self.padding_bits or self.specials is not Specials.IEEE:
            return None
        fields = {kind: (np.finfo(kind).iexp, np.finfo(kind).nmant) for kind in (np.float16, np.float32, np.float64)}
        return next(
            (np.dtype(kind) for kind, bits in fields.items() if bits == (self.exponent_bits, self.mantissa_bits)), None
        )

    @cached_property
    def ml_dtype(self) -> np.dtype[Any] | None:
        """Return the type of ml_dtypes with equal codes: float8_e4m3fn for E4M3, None where there is none.

        The type only labels arrays; refsim decodes codes itself and never casts with ml_dtypes.
        """
        return ml_dtype_of(self.aliases)

    @property
    def sign_mask(self) -> int:
        """Return the sign bit within a code (0 for unsigned formats), padding included."""
        return (1 << (self.bits - 1)) << self.padding_bits if self.signed else 0

    @property
    def code_limit(self) -> int:
        """Return one more than the largest legal code: 0x80 for UE4M3, whose top container bit must be 0."""
        return 1 << self.code_bits

    @property
    def magnitude_limit(self) -> int:
        """Return one more than the largest code without its sign and padding."""
        return 1 << (self.exponent_bits + self.mantissa_bits)

    @property
    def has_infinity(self) -> bool:
        """Return whether the format has codes for infinities."""
        return self.specials is Specials.IEEE

    @property
    def has_nan(self) -> bool:
        """Return whether the format has a code for NaN."""
        return self.specials is not Specials.NONE

    @property
    def has_zero(self) -> bool:
        """Return whether the format has a zero: E8M0 has none."""
        return not self.binades_from_zero

    @property
    def has_negative_zero(self) -> bool:
        """Return whether a code means -0."""
        return (
            self.signed and self.has_zero and not self.twos_complement
        ) and self.specials is not Specials.NAN_NEGATIVE_ZERO

    @property
    def infinity_code(self) -> int | None:
        """Return the code of +infinity, or None."""
        if not self.has_infinity:
            return None
        return (((1 << self.exponent_bits) - 1) << self.mantissa_bits) << self.padding_bits

    @property
    def nan_code(self) -> int | None:
        """Return the NaN that NVIDIA hardware writes: all ones below the sign (0x7f, 0x7fff), 0x80 for FNUZ, or None.

        Padding bits are 0: tf32 gives 0x7fffe000.
        """
        if self.specials is Specials.NONE:
            return None
        if self.specials is Specials.NAN_NEGATIVE_ZERO:
            return self.sign_mask
        return (self.magnitude_limit - 1) << self.padding_bits

    @property
    def max_code(self) -> int:
        """Return the code of the largest finite value."""
        match self.specials:
            case Specials.IEEE:
                magnitude = (((1 << self.exponent_bits) - 1) << self.mantissa_bits) - 1
            case Specials.NAN_ALL_ONES:
                magnitude = self.magnitude_limit - 2
            case _:
                magnitude = self.magnitude_limit - 1
        return magnitude << self.padding_bits

    @property
    def max_value(self) -> float:
        """Return the largest finite value: 448 for E4M3."""
        return self.magnitude_value(self.max_code >> self.padding_bits)

    @property
    def min_value(self) -> float:
        """Return the most negative finite value; for unsigned formats 0 or the smallest positive value."""
        if self.twos_complement:
            return -self.magnitude_limit * self.quantum
        return -self.max_value if self.signed else self.magnitude_value(0)

    @property
    def quantum(self) -> float:
        """Return the spacing of the smallest binade: the smallest subnormal where there is one (2^-9 for E4M3)."""
        return float(2.0 ** (1 - self.bias - self.mantissa_bits - int(self.binades_from_zero)))

    @property
    def min_normal(self) -> float:
        """Return the smallest value with a full mantissa: 2^-6 for E4M3."""
        return float(2.0 ** (1 - self.bias - int(self.binades_from_zero)))

    def magnitude_value(self, magnitude: int) -> float:
        """Return the value of a code without sign and padding, specials read as ordinary numbers."""
        exponent, mantissa = magnitude >> self.mantissa_bits, magnitude & ((1 << self.mantissa_bits) - 1)
        if self.twos_complement or (exponent == 0 and not self.binades_from_zero):
            return magnitude * self.quantum
        return float((mantissa + (1 << self.mantissa_bits)) * 2.0 ** (exponent - self.bias - self.mantissa_bits))

    @cached_property
    def table(self) -> NDArray[np.float64]:
        """Return the exact value of every code, in code order; only for formats of at most 16 bits.

        Shape (code_limit,), NaN with the sign bit of the code at NaN codes. Raises RefsimError for wider formats.
        """
        if self.code_bits > 16:
            raise RefsimError("too-large", f"{self.name} has 2^{self.bits} codes: too many for a table")
        values = np.array([self.value(code) for code in range(self.code_limit)])
        values.setflags(write=False)
        return values

    def value(self, code: int) -> float:
        """Return the exact value of a code, 448 for 0x7e in E4M3; a NaN has its code's sign, padding is ignored."""
        magnitude = code >> self.padding_bits & (self.magnitude_limit - 1)
        negative = bool(code & self.sign_mask)
        if self.twos_complement:
            return (magnitude - negative * self.magnitude_limit) * self.quantum
        return math.copysign(self._magnitude_or_special(magnitude, negative), -1.0 if negative else 1.0)

    def _magnitude_or_special(self, magnitude: int, negative: bool) -> float:
        top = self.magnitude_limit - 1
        infinity = top + 1 - (1 << self.mantissa_bits)
        match self.specials:
            case Specials.NAN_ALL_ONES if magnitude == top:
                return math.nan
            case Specials.NAN_NEGATIVE_ZERO if negative and magnitude == 0:
                return math.nan
            case Specials.IEEE if magnitude >= infinity:
                return math.inf if magnitude == infinity else math.nan
            case _:
                return self.magnitude_value(magnitude)

    def _repr_summary(self) -> str:
        return f"{self.name}: {self.bits} bits"

    def _facts(self) -> Facts:
        fields = (
            f"sign {int(self.signed)}, exponent {self.exponent_bits}, mantissa {self.mantissa_bits}, bias {self.bias}"
        )
        yield "bits", f"{self.bits}: {fields}"
        yield "largest", f"{self.max_value:g} ({self.max_code:#x})"
        yield "smallest", f"{self.quantum:g}"
        yield "special codes", self.specials.value
        yield "beyond the largest", self.overflow
        yield "also called", ", ".join(self.aliases)
        yield "source", self.source


E4M3 = Format("e4m3", 4, 3, 7, Specials.NAN_ALL_ONES, OCP_OFP8["table 1"], aliases=("e4m3fn", "float8_e4m3fn", "hf8"))
E5M2 = Format("e5m2", 5, 2, 15, Specials.IEEE, OCP_OFP8["table 1"], aliases=("float8_e5m2",))
E2M1 = Format("e2m1", 2, 1, 1, Specials.NONE, OCP_MX["section 5.3.3"], aliases=("fp4", "float4_e2m1fn", "f4", "float4"))
E2M3 = Format("e2m3", 2, 3, 1, Specials.NONE, OCP_MX["section 5.3.2"], aliases=("float6_e2m3fn",))
E3M2 = Format("e3m2", 3, 2, 3, Specials.NONE, OCP_MX["section 5.3.2"], aliases=("float6_e3m2fn",))
E8M0 = Format(
    "e8m0",
    8,
    0,
    127,
    Specials.NAN_ALL_ONES,
    OCP_MX["section 5.4.1"],
    signed=False,
    binades_from_zero=True,
    aliases=("ue8m0", "float8_e8m0fnu"),
)
UE4M3 = Format("ue4m3", 4, 3, 7, Specials.NAN_ALL_ONES, PTX["alternate floating point data formats"], signed=False)
UE5M3 = Format("ue5m3", 5, 3, 15, Specials.NAN_ALL_ONES, CUTE_DSL["FloatNV8E5M3FNU"], signed=False)
E4M3FNUZ = Format("e4m3fnuz", 4, 3, 8, Specials.NAN_NEGATIVE_ZERO, FNUZ["section 3"], aliases=("float8_e4m3fnuz",))
E5M2FNUZ = Format("e5m2fnuz", 5, 2, 16, Specials.NAN_NEGATIVE_ZERO, FNUZ["section 3"], aliases=("float8_e5m2fnuz",))
MXINT8 = Format("mxint8", 0, 7, 0, Specials.NONE, OCP_MX["section 5.3.4"], twos_complement=True)
_ALTERNATE = PTX["alternate floating point data formats"]
BF16 = Format("bf16", 8, 7, 127, Specials.IEEE, _ALTERNATE, overflow="inf", aliases=("bfloat16",))
F16 = Format("f16", 5, 10, 15, Specials.IEEE, IEEE754["binary16"], overflow="inf", aliases=("float16", "half"))
TF32 = Format("tf32", 8, 10, 127, Specials.IEEE, _ALTERNATE, padding_bits=13, overflow="inf")
F32 = Format("f32", 8, 23, 127, Specials.IEEE, IEEE754["binary32"], overflow="inf", aliases=("float32", "float"))
F64 = Format("f64", 11, 52, 1023, Specials.IEEE, IEEE754["binary64"], overflow="inf")

FORMATS = (E4M3, E5M2, E2M1, E2M3, E3M2, E8M0, UE4M3, UE5M3, E4M3FNUZ, E5M2FNUZ, MXINT8, BF16, F16, TF32, F32)
"""The formats of encode, decode and files: all except f64, which holds values."""
_BY_NAME = {name: row for row in FORMATS for name in (row.name, *row.aliases)}


_WIDTHS = re.compile(r"(?:__nv_|_)?(?:float|fp|f)([468])_?(e[0-9].*)")
_FP8, _FP6 = (E4M3, E5M2), (E2M3, E3M2)
_ASKED: dict[str, tuple[Format, ...]] = {
    **dict.fromkeys(("fp8", "f8", "float8", "mxfp8"), _FP8),
    **dict.fromkeys(("fp6", "f6", "float6", "mxfp6"), _FP6),
    "bf8": (E5M2, E5M2FNUZ),
}
"""Names that several formats have: bf8 is e5m2 by OCP, and e5m2fnuz on gfx942."""
_UNCODED = re.compile(r"u?int[0-9]*|[su][0-9]+|b1|bool|f(?:p|loat)?64|double")
_IN_BLOCKS = re.compile(r"(nvfp4|mxfp[468])(?:_(e[0-9]m[0-9]))?")


def format_named(name: "str | Format") -> Format:
    """Return the entry of a format given by name, alias or as the entry itself; an error lists the nearest names.

    Names with a width before them are read too: fp8_e4m3, f8e5m2, __nv_fp8_e4m3. A name that several formats have is an
    error that lists them. format_named("float8_e4m3fn").max_value is 448.0.
    Raises RefsimError `unknown-format`, and `ambiguous-name` for "fp8". Source: the entry's.
    """
    if isinstance(name, Format):
        return name
    if not isinstance(name, str):
        raise RefsimError("unknown-format", f"a format is given by its name or its row, not {name!r:.80}")
    given = name.lower()
    widths = _WIDTHS.fullmatch(given)
    row = _BY_NAME.get(given) or (_BY_NAME.get(widths[2]) if widths else None)
    if row is not None and (given in _BY_NAME or (widths and row.bits == int(widths[1]))):
        return row
    if candidates := _ASKED.get(given):
        raise RefsimError(
            "ambiguous-name",
            f"{name} is {' or '.join(map(str, candidates))}",
            rule="; ".join(
                f"{each}: {each.mantissa_bits} bits of mantissa, to {each.max_value:g}" for each in candidates
            ),
            help=f"name one: {' or '.join(map(str, candidates))}",
        )
    if block := _IN_BLOCKS.fullmatch(given):
        element, scale = block[2] or "e2m1", UE4M3 if given == "nvfp4" else E8M0
        rule = f"{name} is {element} elements, and {scale} scales that each belong to a block of elements"
        help = f"{element} for its elements, {scale} for its scales; `refsim quantize` and refsim.quantize take {name}"
        raise RefsimError("ambiguous-name", f"{name} is a block format, not a number format", rule=rule, help=help)
    if _UNCODED.fullmatch(given):
        what = f"{name} is an element type, not a number format: it has nothing to encode or decode"
        way = "refsim mma and refsim.numerics take s8, u8, s4, u4, s32, b1 and f64; an integer format is mxint8"
        raise RefsimError("unknown-format", what, help=way)
    raise unknown("format", name, sorted(_BY_NAME))
