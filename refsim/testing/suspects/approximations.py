"""Repairs of functions: an approximate quotient, reciprocal or root instead of a rounded one, and the reverse."""

from collections.abc import Iterator

from refsim.testing.suspects.arithmetic import Changes
from refsim.testing.suspects.limits import spelled
from refsim.testing.suspects.listing import ListedLine, PtxListing

_KINDS = {"div": ("full", "approx", "rn"), "rcp": ("approx", "rn"), "sqrt": ("approx", "rn")}
_ONE = spelled(1.0)


def computed_otherwise(listing: PtxListing, line: ListedLine) -> Iterator[Changes]:
    """Yield other instructions for a quotient, a reciprocal or a root of float32.

    These are div, rcp and sqrt with another rounding, a quotient for a product with an approximate reciprocal, rsqrt
    for two roundings, and the reverse of each.
    """
    if line.words[-1] != "f32" or (line.name not in _KINDS and line.name not in ("mul", "rsqrt")):
        return
    flush = ".ftz" if "ftz" in line.words else ""
    yield from (
        {line.at: line.renamed(f"{line.name}.{kind}{flush}.f32")}
        for kind in _KINDS.get(line.name, ())
        if kind not in line.words
    )
    d, x = line.operands[:2]
    if line.name == "div":
        reciprocal = f"rcp.approx{flush}.f32 %refsim, {line.operands[2]}"
        yield {line.at: line.reading(".reg .f32 %refsim", reciprocal, f"mul.rn{flush}.f32 {d}, {x}, %refsim")}
    elif line.name == "mul":
        for factor, other in ((x, line.operands[2]), (line.operands[2], x)):
            made = listing.definition(factor, line)
            if made is not None and made.name == "rcp" and made.words[-1] == "f32":
                kinds = (kind for kind in _KINDS["div"] if kind != "rn")  # scales.divided_otherwise yields rn
                yield from (
                    {line.at: line.renamed(f"div.{kind}{flush}.f32", d, other, made.operands[1])} for kind in kinds
                )
    elif line.name == "rsqrt":
        root = (f"cvt{flush}.f64.f32 %refsim, {x}", "sqrt.rn.f64 %refsim, %refsim", "rcp.rn.f64 %refsim, %refsim")
        one_nan = f"mul.rn.f32 {d}, {d}, 0f3F800000"  # the conversion would keep sign and payload of float64's NaN
        yield {
            line.at: line.reading(".reg .f64 %refsim", *root, f"cvt.rn{flush}.f32.f64 {d}, %refsim", one_nan),
        }
    root_of = _root_below(listing, line)
    if root_of:
        yield {line.at: line.renamed(f"rsqrt.approx{flush}.f32", d, root_of)}


def _root_below(listing: PtxListing, line: ListedLine) -> str:
    """Return the register whose square root a line divides 1 by; else ""."""
    is_quotient = line.name == "div" and listing.constant(line.operands[1]).upper() == _ONE
    if line.name != "rcp" and not is_quotient:
        return ""
    made = listing.definition(line.operands[-1], line)
    return made.operands[1] if made is not None and made.name == "sqrt" and made.words[-1] == "f32" else ""
