"""How a step of a tensor core accumulates: one entry per method, with the facts that other modules need.

Three tables keyed by these entries hold the arithmetic: `dot.definition` (one dot product), `dot.chains` (arrays) and
`bounds` (the loss of a step). No module compares a method, an order or the way of C with a name.
"""

from dataclasses import dataclass
from enum import StrEnum

from refsim.formats import F16, F32, F64, S32, ElementType, Format, float_named


class Order(StrEnum):
    """Name the products of a step: neighbors in ascending k, or the first two of each four k, then the other two."""

    ASCENDING = "ascending"
    BYTE_PAIRS = "byte-pairs"


class CEnters(StrEnum):
    """Name when C enters: aligned with the products of the first step, or added after products are summed."""

    EARLY = "early"
    LATE = "late"


ASCENDING, BYTE_PAIRS = Order
EARLY, LATE = CEnters
GROUP = 16  # FP4 products that one scale pair is multiplied into


@dataclass(frozen=True)
class Method:
    """Describe one way to add products and C.

    `sentence` describes a step, with the fields of its profile in braces, and `late_sentence` a step where C is added
    last. `kept` are the bits of the sum that a step keeps, "" for the bits of the profile's fraction. `c_enters` is the
    place of C where the method decides it, "" where the profile does. `aligns`: terms are cut below the largest
    exponent. `parametrised`: length, fraction, rounding, order and the way of C decide all, so that probing finds them.
    `adds_c`: a late C is added after the steps by one IEEE addition. `groups`: 16 products that share their scales are
    one term. `flushes`: subnormal operands, sums and C become zero. `halves`: products of even and of odd k are added
    separately. `rounds_each`: an exact sum is rounded once, for each step.
    """

    name: str
    sentence: str
    kept: str = ""
    c_enters: str = ""
    late_sentence: str = ""
    aligns: bool = False
    parametrised: bool = False
    adds_c: bool = False
    groups: bool = False
    flushes: bool = False
    halves: bool = False
    rounds_each: bool = False

    def __hash__(self) -> int:
        return hash(self.name)  # methods are keys of the tables of steps: equal methods have equal names

    def __str__(self) -> str:
        return self.name


IN_THE_SUM, AFTER, WITH = "in the sum", "after the products", "with the products"

TRUNCATED = Method(
    "truncated",
    "a step takes {length} products and C, cuts them toward zero below 2^(E - {fraction}), where E is their "
    "largest exponent; their sum is {rounded}",
    aligns=True,
    parametrised=True,
    adds_c=True,
    late_sentence="operands become {operands}; a step takes half of the products ({order}) and what came before, cuts them "
    "below 2^(E - {fraction}), their sum is {rounded}; C is added last, to nearest even",
)
GROUPED = Method(
    "grouped",
    "a step takes {length} products; the exact sum of {group} times their scales is one term, with the exponent "
    "of the scales; terms and C are cut below 2^(E - {fraction}), their sum is {rounded}",
    aligns=True,
    groups=True,
)
INTEGER = Method("integer", "products and sum are exact; the sum wraps to 32 bits", kept="all", c_enters=IN_THE_SUM)
FMA_CHAIN = Method(
    "fma-chain",
    "one fused multiply-add for each k, each rounded to nearest even",
    kept="{result}, rounded for each k",
    c_enters=IN_THE_SUM,
    rounds_each=True,
)
EXACT = Method(
    "exact",
    "a step adds {length} products and C exactly and rounds once, to nearest even",
    kept="all",
    c_enters=IN_THE_SUM,
    rounds_each=True,
)
FLUSHED_TREE = Method(
    "flushed-tree",
    "{length} products, their sums by pairs and C, each rounded to f32; subnormals become zero",
    kept="24, each sum rounded",
    flushes=True,
)
_LATE = (
    "a step takes {{length}} products; those{} are cut toward zero below 2^(E - {{fraction}}), where E is their largest "
    "exponent, and added; that sum and C are rounded down at the larger exponent, added, rounded down and then rounded to "
    "nearest even"
)
LATE_TRUNCATED = Method("late-truncated", _LATE.format(""), aligns=True)
LATE_EVEN_ODD = Method("late-even-odd", _LATE.format(" of even k, and apart those of odd k,"), aligns=True, halves=True)

METHODS = (TRUNCATED, GROUPED, INTEGER, FMA_CHAIN, EXACT, FLUSHED_TREE, LATE_TRUNCATED, LATE_EVEN_ODD)


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
