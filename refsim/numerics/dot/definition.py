"""The definition: one dot product over Python integers, step by step, as the hardware is specified.

Every function takes terms and returns a step with its intermediate values. `refsim.numerics.dot.chains` computes the
same results on arrays; properties compare the two.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from refsim.formats import F16, F32, F64, ElementType, Format, Specials, element_named, float_named
from refsim.numerics import methods
from refsim.numerics.methods import GROUP, RNE_F16, RNE_F32, TO_NEAREST, Method, Rounding
from refsim.numerics.rows import Profile

FINITE, INFINITE, IS_NAN = "finite", "infinite", "nan"


@dataclass(frozen=True)
class Term:
    """Describe the number (-1)^negative x magnitude x 2^(exponent - fraction_bits).

    The datapath aligns by this exponent, the exponent of the format's field: a subnormal E4M3 has -6. It is None for a
    zero, which takes part with the zero exponent of its profile. E4M3 0x01 is 1 x 2^(-6 - 3).
    """

    negative: bool
    magnitude: int
    exponent: int | None
    fraction_bits: int
    kind: str = FINITE

    @property
    def significand(self) -> int:
        """Return the magnitude with its sign."""
        return -self.magnitude if self.negative else self.magnitude

    @property
    def value(self) -> Fraction:
        """Return the exact value of a finite term."""
        return (
            Fraction(0)
            if self.exponent is None
            else self.significand * Fraction(2) ** (self.exponent - self.fraction_bits)
        )

    def scaled(self, exponent: int) -> "Term":
        """Return the term with a power of two multiplied into its exponent; a zero stays a zero."""
        return self if self.exponent is None else replace(self, exponent=self.exponent + exponent)


def decoded(code: int, format: Format) -> Term:
    """Return the term of one code, without padding bits (tf32): a NaN with payload only there becomes infinite."""
    code >>= format.padding_bits
    negative = format.signed and bool(code >> (format.bits - 1))
    magnitude = code & (format.magnitude_limit - 1)
    field, mantissa = magnitude >> format.mantissa_bits, magnitude & ((1 << format.mantissa_bits) - 1)
    kind = _kind(format, negative, field, mantissa)
    if kind is not FINITE:
        return Term(negative, 0, None, format.mantissa_bits, kind)
    if format.binades_from_zero:
        return Term(False, 1, field - format.bias, 0)
    significand = mantissa if field == 0 else mantissa | 1 << format.mantissa_bits
    return Term(negative, significand, max(field, 1) - format.bias if significand else None, format.mantissa_bits)


def _kind(format: Format, negative: bool, field: int, mantissa: int) -> str:
    all_ones = field == (1 << format.exponent_bits) - 1
    match format.specials:
        case Specials.IEEE if all_ones:
            return IS_NAN if mantissa else INFINITE
        case Specials.NAN_ALL_ONES if all_ones and mantissa == (1 << format.mantissa_bits) - 1:
            return IS_NAN
        case Specials.NAN_NEGATIVE_ZERO if negative and field == 0 and mantissa == 0:
            return IS_NAN
        case _:
            return FINITE


def multiplied(a: Term, b: Term) -> Term:
    """Return the product: magnitudes multiply, exponents add, nothing is normalized. 1.5 x 1.5 is 2.25, exponent 0."""
    negative, bits = a.negative != b.negative, a.fraction_bits + b.fraction_bits
    zero = any(term.kind is FINITE and term.exponent is None for term in (a, b))
    if IS_NAN in (a.kind, b.kind) or (INFINITE in (a.kind, b.kind) and zero):
        return Term(negative, 0, None, bits, IS_NAN)
    if INFINITE in (a.kind, b.kind):
        return Term(negative, 0, None, bits, INFINITE)
    exponent = None if a.exponent is None or b.exponent is None else a.exponent + b.exponent
    return Term(negative, a.magnitude * b.magnitude, exponent, bits)


def shifted(significand: int, places: int) -> int:
    """Return significand x 2^places with the lost bits of the magnitude cut: shifted(-7, -1) is -3."""
    magnitude = abs(significand) << places if places >= 0 else abs(significand) >> -places
    return -magnitude if significand < 0 else magnitude


def rounded(total: int, quantum: int, rounding: Rounding) -> int:
    """Return the code of total x 2^quantum, rounded once. A finite sum beyond the range is infinite in every rounding.

    rounded(5, -1, RZ_F32) is 0x40200000, 2.5.
    """
    format, magnitude = rounding.format, abs(total)
    unit = max(magnitude.bit_length() - 1 + quantum, 1 - format.bias) - rounding.fraction_bits
    kept = shifted(magnitude, quantum - unit)
    if rounding.nearest and quantum < unit:
        rest, half = magnitude - (kept << (unit - quantum)), 1 << (unit - quantum - 1)
        kept += rest > half or (rest == half and kept & 1)
    dropped = format.mantissa_bits - rounding.fraction_bits
    lowest = 1 - format.bias - rounding.fraction_bits
    code = (kept << dropped) + ((unit - lowest) << format.mantissa_bits) if kept else 0
    keeps_sign = total < 0 and (kept != 0 or rounding.signed_zero)
    return min(code, rounding.infinity) | (rounding.sign if keeps_sign else 0)


NO_PRODUCT = -999  # exponent of a CDNA3 sum without nonzero products
FLOOR_BITS = 31  # fraction bits to which CDNA3 rounds its sum down before the last rounding


@dataclass(frozen=True)
class Sum:
    """Describe terms cut onto one grid: `aligned` counts units of 2^quantum, `exponent` is their common exponent."""

    terms: tuple[Term, ...]
    exponent: int
    quantum: int
    aligned: tuple[int, ...]

    @property
    def total(self) -> int:
        """Return the sum in units of 2^quantum."""
        return sum(self.aligned)


@dataclass(frozen=True)
class FusedStep:
    """Describe one fused step: its terms, their common exponent, the aligned integers, their sum and the result.

    The last of `terms` and `aligned` is C. An aligned integer counts units of 2^quantum, in a truncated step of
    2^(exponent - fraction). `exponent` and `quantum` are None where a NaN or an infinity decided. `result` is the code
    of the rounded sum. `places` are the i of the products; an addition of C alone has none. CDNA3 adds its products in
    one or two `sums` first: then the two of `aligned` are the sum of products and C.
    """

    terms: tuple[Term, ...]
    exponent: int | None
    aligned: tuple[int, ...]
    total: int
    result: int
    quantum: int | None = None
    places: tuple[int, ...] = ()
    sums: tuple[Sum, ...] = ()


@dataclass(frozen=True)
class DotProduct:
    """Describe one dot product: its steps in order, the final code, and its products before any scale, one per i."""

    steps: tuple[FusedStep, ...]
    result: int
    products: tuple[Term, ...]


def dot_product(
    a: Sequence[int],
    b: Sequence[int],
    c: int,
    profile: Profile,
    k: int,
    *,
    a_format: str | ElementType,
    b_format: str | ElementType,
    a_scale: Sequence[int] = (),
    b_scale: Sequence[int] = (),
    scale_format: str | Format | None = None,
) -> DotProduct:
    """Return d = c + sum of a[i] b[i], as the instructions of `profile` with this `k` chain it over ascending i.

    `a`, `b`: codes, one each for every i, a multiple of `k`; `c`: the code of the accumulator in the result's format;
    scales: one code for each block. E4M3 ones (0x38) 32 times with C = 0 on wgmma give 0x42000000, 32.
    Source: the profile's.
    """
    if profile.d_format.is_integer:
        return _integer(a, b, c, element_named(a_format), element_named(b_format))
    codes = [_terms(x, float_named(name), profile) for x, name in ((a, a_format), (b, b_format))]
    scales = [[decoded(s, float_named(scale_format)) for s in row] for row in (a_scale, b_scale) if scale_format]
    products = [multiplied(x, y) for x, y in zip(*codes, strict=True)]
    steps: list[FusedStep] = []
    for start in range(0, len(products), k):
        late = profile.adds_c_last
        d = 0 if late else _entering(c, profile)
        for places in profile.steps(k):
            chosen = [start + i for i in places]
            terms = [products[i] for i in chosen]
            if scales:
                block = len(products) // len(scales[0])
                factors = [multiplied(scales[0][i // block], scales[1][i // block]) for i in chosen]
                terms = (_grouped if profile.method.groups else _scaled)(terms, factors)
            step = _STEPS[profile.method](terms, d, profile)
            kept = _kept_nan(b[chosen[0]], d, a[chosen[0]]) if profile.keeps_nan else None
            steps.append(replace(step, places=tuple(chosen), result=step.result if kept is None else kept))
            d = steps[-1].result
        if late:
            steps.append(_added(d, c, profile))
            d = steps[-1].result
        c = d
    return DotProduct(tuple(steps), c, tuple(products))


def _terms(codes: Sequence[int], format: Format, profile: Profile) -> list[Term]:
    terms = [decoded(code, format) for code in codes]
    if profile.operands is F16:
        terms = [_as_half(term) for term in terms]
    return [_without_subnormal(term) for term in terms] if profile.method.flushes else terms


def _entering(c: int, profile: Profile) -> int:
    """Return C as an instruction reads it: CDNA2 turns a subnormal or -0 into +0, but not the -0 of its own step."""
    flushes = profile.method.flushes and c & (F32.magnitude_limit - 1) < 1 << F32.mantissa_bits
    return 0 if flushes else c


def _as_half(term: Term) -> Term:
    """Return an FP8 number converted to f16, which is exact: a subnormal E4M3 becomes normal."""
    if term.exponent is None:
        return term
    return decoded(rounded(term.significand, term.exponent - term.fraction_bits, RNE_F16), F16)


def _kept_nan(*codes: int) -> int | None:
    """Return the first f64 NaN of the codes, made quiet: 0x7ff0000000000001 becomes 0x7ff8000000000001."""
    quiet = 1 << (F64.mantissa_bits - 1)
    return next((code | quiet for code in codes if decoded(code, F64).kind is IS_NAN), None)


def _scaled(terms: list[Term], factors: list[Term]) -> list[Term]:
    """Return the products of a step times the two scales of their block: exponents add, significands multiply.

    A scale that is NaN makes a NaN whatever it multiplies.
    """
    return [
        factor if factor.kind is IS_NAN else multiplied(term, factor)
        for term, factor in zip(terms, factors, strict=True)
    ]


def _grouped(terms: list[Term], factors: list[Term]) -> list[Term]:
    """Return FP4 terms: 16 products that share their scales are one term with the exponent of the scales alone.

    A group whose products are all zero is a zero; a group that merely cancels keeps its exponent.
    """
    return [_one_term(terms[start : start + GROUP], factors[start]) for start in range(0, len(terms), GROUP)]


def _one_term(group: list[Term], factor: Term) -> Term:
    bits = group[0].fraction_bits
    if factor.kind is IS_NAN:
        return factor
    # E2M1 exponents are 0, 1 or 2: all products are integers of 2^-bits.
    total = sum(term.significand << term.exponent for term in group if term.exponent is not None)
    present = factor.exponent is not None and any(term.exponent is not None for term in group)
    exponent = factor.exponent if present else None
    return Term(total < 0, abs(total) * factor.magnitude, exponent, bits + factor.fraction_bits)


def _special(terms: Sequence[Term], rounding: Rounding) -> FusedStep | None:
    """Return the step that a NaN or infinities decide (both signs give NaN); None if all terms are finite."""
    signs = {term.negative for term in terms if term.kind is INFINITE}
    if len(signs) == 2 or any(term.kind is IS_NAN for term in terms):
        return FusedStep(tuple(terms), None, (), 0, rounding.nan)
    if signs:
        return FusedStep(tuple(terms), None, (), 0, rounding.infinity | (rounding.sign if signs.pop() else 0))
    return None


def _aligned(terms: Sequence[Term], exponent: int, fraction: int) -> tuple[int, ...]:
    """Return every term as an integer of units 2^(exponent - fraction), cut toward zero."""
    exponents = (None if each.exponent is None else each.exponent - each.fraction_bits for each in terms)
    pairs = zip(terms, exponents, strict=True)
    return tuple(0 if e is None else shifted(term.significand, e - exponent + fraction) for term, e in pairs)


def _truncated(products: Sequence[Term], c: int, profile: Profile) -> FusedStep:
    """Return a step that aligns the products and C to the largest exponent, cuts, sums and rounds."""
    assert profile.fraction is not None
    assert profile.zero_exponent is not None
    rounding = profile.rounding
    terms = (*products, decoded(c, rounding.format))
    special = _special(terms, rounding)
    if special:
        return special
    exponent = max(profile.zero_exponent if term.exponent is None else term.exponent for term in terms)
    aligned, quantum = _aligned(terms, exponent, profile.fraction), exponent - profile.fraction
    return FusedStep(terms, exponent, aligned, sum(aligned), rounded(sum(aligned), quantum, rounding), quantum)


def _exact(terms: Sequence[Term], rounding: Rounding) -> FusedStep:
    """Return the exact sum, rounded once; an exact zero is +0."""
    special = _special(terms, rounding)
    if special:
        return special
    bits = max(term.fraction_bits for term in terms)
    lowest = min((term.exponent for term in terms if term.exponent is not None), default=0)
    aligned, quantum = _aligned(terms, lowest, bits), lowest - bits
    return FusedStep(tuple(terms), lowest, aligned, sum(aligned), rounded(sum(aligned), quantum, rounding), quantum)


def _ieee(terms: Sequence[Term], rounding: Rounding) -> FusedStep:
    """Return the exact sum, rounded once by IEEE 754: a sum of negative zeros is -0."""
    step = _exact(terms, rounding)
    zeros = all(term.kind is FINITE and term.exponent is None and term.negative for term in terms)
    return replace(step, result=rounding.sign) if zeros else step


def _at_once(products: Sequence[Term], c: int, profile: Profile) -> FusedStep:
    """Return the exact sum of products and C, rounded once; an FMA gives its zero the sign of IEEE 754."""
    total = _ieee if profile.method is methods.FMA_CHAIN else _exact
    return total((*products, decoded(c, profile.rounding.format)), profile.rounding)


def _added(d: int, c: int, profile: Profile) -> FusedStep:
    """Return the IEEE addition of C at the end of an instruction, to nearest even."""
    rounding = TO_NEAREST[profile.d_format]
    return _ieee((decoded(d, rounding.format), decoded(c, rounding.format)), rounding)


def _without_subnormal(term: Term) -> Term:
    """Return the operand with a subnormal replaced by +0."""
    subnormal = term.kind is FINITE and term.magnitude < 1 << term.fraction_bits
    return Term(False, 0, None, term.fraction_bits) if subnormal else term


def _flushed_sum(terms: Sequence[Term]) -> Term:
    """Return the float32 sum, to nearest even, with a subnormal result replaced by a zero of its sign."""
    term = decoded(_ieee(terms, RNE_F32).result, F32)
    subnormal = term.kind is FINITE and term.magnitude < 1 << F32.mantissa_bits
    return Term(term.negative, 0, None, F32.mantissa_bits) if subnormal else term


def _flushed_tree(products: Sequence[Term], c: int, profile: Profile) -> FusedStep:
    """Return a step of float32 arithmetic that flushes subnormals: products, their sum by pairs, then C."""
    level = [_flushed_sum([term]) for term in products]
    while len(level) > 1:
        level = [_flushed_sum(level[i : i + 2]) for i in range(0, len(level), 2)]
    terms = (*level, decoded(c, F32))
    total = _flushed_sum(terms)
    rounding = RNE_F32
    special = _special([total], rounding)
    if special:
        return special
    sign = rounding.sign if total.negative else 0
    quantum = None if total.exponent is None else total.exponent - F32.mantissa_bits
    code = 0 if quantum is None else rounded(total.magnitude, quantum, rounding)
    return FusedStep(terms, total.exponent, (total.significand,), total.significand, code | sign, quantum)


def _summed(products: Sequence[Term], fraction: int) -> Sum:
    """Return the truncated sum of products alone, in units of 2^(exponent - fraction)."""
    exponent = max((term.exponent for term in products if term.exponent is not None), default=NO_PRODUCT)
    return Sum(tuple(products), exponent, exponent - fraction, _aligned(products, exponent, fraction))


def _floored(total: int, places: int) -> int:
    """Return total x 2^places rounded down: _floored(-7, -1) is -4."""
    return total << places if places >= 0 else total >> -places


def _beyond(term: Term) -> Term:
    """Return a product of 2^128 or more as an infinity; other terms are unchanged."""
    large = term.exponent is not None and abs(term.value) >= 1 << 128
    return Term(term.negative, 0, None, term.fraction_bits, INFINITE) if large else term


def _late(products: Sequence[Term], c: int, profile: Profile) -> FusedStep:
    """Return a step of CDNA3: products are summed first; their sum and C are rounded down at the larger exponent."""
    assert profile.fraction is not None
    rounding, fraction = profile.rounding, profile.fraction
    accumulator = decoded(c, rounding.format)
    terms = (*(_beyond(term) for term in products), accumulator)
    special = _special(terms, rounding)
    if special:
        return special
    parts = [terms[start:-1:2] for start in (0, 1)] if profile.method.halves else [terms[:-1]]
    sums = tuple(_summed(part, fraction) for part in parts)
    dot_exponent = max(each.exponent for each in sums)
    dot = sum(_floored(each.total, each.exponent - dot_exponent) for each in sums)
    own = 1 - rounding.format.bias if accumulator.exponent is None else accumulator.exponent
    exponent = max(dot_exponent, own)
    unit = exponent - FLOOR_BITS - 1
    dot = _floored(dot, dot_exponent - fraction - unit)
    added = _floored(accumulator.significand, own - accumulator.fraction_bits - exponent + fraction)
    if profile.method.halves and own < exponent - fraction - 1:
        added = 0
    aligned = (dot, added << (FLOOR_BITS + 1 - fraction))
    total = sum(aligned)
    lowest = max(abs(total).bit_length() - 1 + unit, 1 - rounding.format.bias, unit + FLOOR_BITS) - FLOOR_BITS
    code = rounded(_floored(total, unit - lowest), lowest, rounding)
    return FusedStep(terms, exponent, aligned, total, code, unit, sums=sums)


def _integer(a: Sequence[int], b: Sequence[int], c: int, a_format: ElementType, b_format: ElementType) -> DotProduct:
    """Return the exact integer sum, wrapped to 32 bits."""
    products = [int(a_format.value(x) * b_format.value(y)) for x, y in zip(a, b, strict=True)]
    total = c + sum(products)
    terms = tuple(Term(value < 0, abs(value), 0 if value else None, 0) for value in products)
    return DotProduct((), (total + (1 << 31)) % (1 << 32) - (1 << 31), terms)


_STEPS: dict[Method, Callable[[Sequence[Term], int, Profile], FusedStep]] = {
    methods.TRUNCATED: _truncated,
    methods.GROUPED: _truncated,
    methods.EXACT: _at_once,
    methods.FMA_CHAIN: _at_once,
    methods.FLUSHED_TREE: _flushed_tree,
    methods.LATE_TRUNCATED: _late,
    methods.LATE_EVEN_ODD: _late,
}
