"""The mistakes that refsim searches for in a kernel's code, each with the edit that fixes it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from refsim.testing.suspects import arithmetic, orders, places, scales, terms
from refsim.testing.suspects.listing import Changes, ListedLine, PtxListing


@dataclass(frozen=True)
class SuspectRepair:
    """A mistake and its fix: `rule(listing, line)` yields edits that fix it: a new text of the line, or of several lines.

    `says` describes what a kernel with this mistake does.
    """

    suspect: str
    says: str
    rule: Callable[[PtxListing, ListedLine], Iterator[str | Changes]]


REPAIRS = (
    SuspectRepair("contraction", "fma rounds once where mul and add round twice", arithmetic.fma_as_mul_and_add),
    SuspectRepair("contraction", "mul and add round twice where fma rounds once", arithmetic.mul_and_add_as_fma),
    SuspectRepair("flushed subnormals", ".ftz flushes subnormals", arithmetic.subnormals_kept),
    SuspectRepair("flushed subnormals", "subnormals are kept where .ftz flushes them", arithmetic.subnormals_flushed),
    SuspectRepair("double rounding", "a value is rounded to a narrower type on its way", arithmetic.rounded_once),
    SuspectRepair("double rounding", "a result is rounded to float32 on its way", arithmetic.rounded_as_float64),
    SuspectRepair("rounding mode", "another rounding", arithmetic.other_rounding),
    SuspectRepair("rounding mode", "low bits are cut off by hand", arithmetic.cut_bits),
    SuspectRepair("rounding mode", "low bits are cut off by a load", arithmetic.upper_half_loaded),
    SuspectRepair("rounding mode", "one half is added, and the rest cut off", arithmetic.half_added),
    SuspectRepair("double rounding", "a value is not rounded to a narrower type on its way", arithmetic.rounded_twice),
    SuspectRepair(
        "infinity saturated or propagated", "a saturation or a clamp too many or too few", arithmetic.infinity_other
    ),
    SuspectRepair("NaN dropped or propagated", "a NaN takes the other way", arithmetic.nan_other),
    SuspectRepair("reduction order", "terms are added in another order", orders.summed_otherwise),
    SuspectRepair("reduction order", "lanes exchange sums in another order", orders.exchanged_otherwise),
    SuspectRepair("reduction order", "a loop adds its terms from the other end", terms.summed_from_the_end),
    SuspectRepair("reduction order", "a loop adds to several sums, or to one", terms.summed_together),
    SuspectRepair("reduction order", "a loop adds to one sum, or to several", terms.summed_apart),
    SuspectRepair(
        "scale rule", "a quotient is a product with the reciprocal, or the other way round", scales.divided_otherwise
    ),
    SuspectRepair(
        "special function",
        "another instruction of this function, or one more rounding",
        arithmetic.computed_otherwise,
    ),
    SuspectRepair("scale rule", "the largest value of another format", scales.limit_other),
    SuspectRepair("scale rule", "an exponent is rounded another way", scales.exponent_rounded_otherwise),
    SuspectRepair("format", "codes of another format", scales.coded_otherwise),
    SuspectRepair("swizzle not undone", "an address is swizzled on one side alone", places.not_swizzled),
    SuspectRepair("transposed", "a tile is transposed, or is not", places.transposed),
    SuspectRepair("tail", "a bound is rounded down, and the tail left out", places.tail_kept),
    SuspectRepair("off by one", "a bound is one off", places.bound_moved),
)
