"""Repairs of scaling and coding: a division or a reciprocal, another limit, another rounding of an exponent."""

from collections.abc import Iterator

from refsim.testing.suspects.arithmetic import FLOAT_REGISTERS
from refsim.testing.suspects.limits import SCALED_TO, spelled
from refsim.testing.suspects.listing import ListedLine, PtxListing

_CODES = {"e4m3x2": "e5m2x2", "e5m2x2": "e4m3x2", "e2m3x2": "e3m2x2", "e3m2x2": "e2m3x2"}
_DIVISORS = tuple(spelled(value) for value in SCALED_TO)
_RECIPROCALS = tuple(spelled(1 / value) for value in SCALED_TO)
_CARRIES = ("8388607", "4194304", "4194303", "0")
"""Addends to a float32's bits before the mantissa is dropped: round up, to nearest (ties up or down), down."""


def divided_otherwise(listing: PtxListing, line: ListedLine) -> Iterator[str]:
    """Yield a product with the reciprocal for a division, and the reverse."""
    if line.words[-1] != "f32":
        return
    if line.name == "div":
        d, a, b = line.operands
        yield line.reading(".reg .f32 %refsim", f"rcp.rn.f32 %refsim, {b}", f"mul.rn.f32 {d}, {a}, %refsim")
    elif line.name == "mul":
        d, x, y = line.operands
        for factor, other in ((x, y), (y, x)):
            made = listing.definition(factor, line)
            if made is not None and made.name == "rcp":
                yield line.renamed("div.rn.f32", d, other, made.operands[1])
            elif made is not None and made.name == "div":
                yield line.reading(
                    ".reg .f32 %refsim",
                    f"mul.rn.f32 %refsim, {other}, {made.operands[1]}",
                    f"div.rn.f32 {d}, %refsim, {made.operands[2]}",
                )


def limit_other(listing: PtxListing, line: ListedLine) -> Iterator[str]:
    """Yield a quotient or product with another format's largest value, or a quotient for a product."""
    for at, operand in enumerate(line.operands):
        given = listing.constant(operand).upper()
        for family in (_DIVISORS, _RECIPROCALS):
            if line.name in ("div", "mul") and line.words[-1] == "f32" and given in family:
                others = (value for value in family if value != given)
                yield from (
                    line.renamed(line.opcode, *line.operands[:at], f"0f{other[2:]}", *line.operands[at + 1 :])
                    for other in others
                )
        if line.opcode in ("mul.f32", "mul.rn.f32") and given in _RECIPROCALS:
            divisor = f"0f{_DIVISORS[_RECIPROCALS.index(given)][2:]}"
            yield line.renamed("div.rn.f32", line.operands[0], line.operands[3 - at], divisor)


def exponent_rounded_otherwise(listing: PtxListing, line: ListedLine) -> Iterator[str]:
    """Yield other roundings of the exponent of a float32."""
    if line.name == "add" and line.words[-1] in ("s32", "u32", "b32") and line.operands[-1] in _CARRIES[:3]:
        others = (carry for carry in _CARRIES if carry != line.operands[-1])
        yield from (line.renamed(line.opcode, *line.operands[:2], other) for other in others)
    elif line.name == "shr" and line.operands[-1] == "23":
        for carry in _CARRIES[:2]:
            total = (
                f"add.{'u' if line.words[-1][0] == 'b' else line.words[-1][0]}32 %refsim, {line.operands[1]}, {carry}"
            )
            yield line.reading(".reg .b32 %refsim", total, f"{line.opcode} {line.operands[0]}, %refsim, 23")


def coded_otherwise(listing: PtxListing, line: ListedLine) -> Iterator[str]:
    """Yield a conversion to the other format of equal width."""
    if line.name == "cvt":
        for word in line.words:
            if word in _CODES:
                yield line.renamed(line.worded(word, _CODES[word]))


def applied_once(listing: PtxListing, line: ListedLine) -> Iterator[str]:
    """Yield a product of a number with itself, or with a factor that it already has, without this product."""
    if line.name != "mul" or (line.words[-1] not in FLOAT_REGISTERS and line.words[-1] not in ("bf16x2", "f16x2")):
        return
    d, *factors = line.operands
    width = 64 if line.words[-1] == "f64" else 16 if line.words[-1] in ("f16", "bf16") else 32
    for kept, other in (factors, factors[::-1]):
        made = listing.definition(kept, line)
        if kept == other or (made is not None and made.opcode == line.opcode and other in made.operands[1:]):
            yield line.renamed(f"mov.b{width}", d, kept)
            return


def decoded_as_power(listing: PtxListing, line: ListedLine) -> Iterator[str]:
    """Yield a power of two for an integer that is converted to float32."""
    if line.name == "cvt" and line.words[-2] == "f32" and line.words[-1] in ("u8", "u16", "s16", "u32", "s32"):
        d, code = line.operands
        wide = (f"cvt.u32.{line.words[-1]} %refsim, {code}",) if line.words[-1][1:] in ("8", "16") else ()
        shifted = f"shl.b32 %refsim, {'%refsim' if wide else code}, 23"
        yield line.reading(".reg .b32 %refsim", *wide, shifted, f"mov.b32 {d}, %refsim")


def bias_moved(listing: PtxListing, line: ListedLine) -> Iterator[str]:
    """Yield sums and differences with the bias of an exponent, one more or less, also where it is shifted into place."""
    if line.name not in ("add", "sub", "mad") or line.words[-1] not in ("s16", "u16", "s32", "u32"):
        return
    for step in (1, -1):
        for at, operand in enumerate(line.operands[1:], 1):
            given = listing.constant(operand)
            number = int(given) if given.lstrip("-").isdigit() else 0
            unit = 1 << 23 if number and number % (1 << 23) == 0 else 1
            if 100 <= abs(number) // unit <= 300:
                other = str(number + step * unit)
                yield line.renamed(line.opcode, *line.operands[:at], other, *line.operands[at + 1 :])
