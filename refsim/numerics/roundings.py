"""How the sum of a step becomes a result: one entry per rounding. No module compares a rounding with a name."""

from dataclasses import dataclass

from refsim.formats import F16, F32, F64, S32, ElementType, Format, float_named


@dataclass(frozen=True)
class Rounding:
    """Describe a rounding: `result` holds the sum with `fraction_bits` bits, to nearest even or toward zero.

    A finite sum beyond the range is infinite in every rounding. `signed_zero` keeps the sign of a sum that underflows;
    tensor cores of NVIDIA write +0. Integers keep the low bits of their sum: nothing is rounded.
    """

    name: str
    result: ElementType
    fraction_bits: int = 0
    nearest: bool = False
    signed_zero: bool = False

    @property
    def format(self) -> Format:
        """Return the floating-point format of the result; raise for a sum of integers, which has none."""
        return float_named(self.result)

    @property
    def sentence(self) -> str:
        """Return the effect on a sum as text: "cut toward zero to 13 fraction bits"."""
        if self.result.is_integer:
            return f"wrapped to {self.result.bits} bits"
        if self.nearest:
            return f"rounded to nearest even in {self.result}"
        whole = self.fraction_bits == self.format.mantissa_bits
        return f"cut toward zero to {self.result if whole else f'{self.fraction_bits} fraction bits'}"

    @property
    def nan(self) -> int:
        """Return the NaN that is written: 0x7fffffff, 0x7fff; in f64 0xfff8000000000000."""
        return 0xFFF8 << 48 if self.format is F64 else self.format.magnitude_limit - 1

    @property
    def infinity(self) -> int:
        """Return the code of +infinity."""
        return ((1 << self.format.exponent_bits) - 1) << self.format.mantissa_bits

    @property
    def sign(self) -> int:
        """Return the sign bit of a code."""
        return 1 << (self.format.bits - 1)

    def __hash__(self) -> int:
        return hash(self.name)  # equal roundings have equal names

    def __str__(self) -> str:
        return self.name


RZ_F32 = Rounding("rz-f32", F32, 23)
RZ_E8M13 = Rounding("rz-e8m13", F32, 13)
RNE_F16 = Rounding("rne-f16", F16, 10, nearest=True)
RNE_F32 = Rounding("rne-f32", F32, 23, nearest=True, signed_zero=True)
RNE_F64 = Rounding("rne-f64", F64, 52, nearest=True, signed_zero=True)
WRAP_S32 = Rounding("wrap-s32", S32)

SUM_ROUNDINGS = (RZ_F32, RZ_E8M13, RNE_F16, RNE_F32, RNE_F64, WRAP_S32)
TO_NEAREST: dict[ElementType, Rounding] = {F32: RNE_F32, F16: RNE_F16, F64: RNE_F64}
"""The rounding of IEEE arithmetic with a result of this type."""
