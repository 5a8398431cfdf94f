"""The mistakes that are looked for in a kernel's code: for each, the edit that would mend it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from refsim.testing.suspects import arithmetic, orders, places, scales
from refsim.testing.suspects.arithmetic import Changes
from refsim.testing.suspects.listing import Line, Listing


@dataclass(frozen=True)
class Repair:
    """A mistake and its cure: `rule(listing, line)` yields the edits of one line that would mend it, as {line: text}.

    `says` is what the kernel does where it is guilty.
    """

    suspect: str
    says: str
    rule: Callable[[Listing, Line], Iterator[Changes]]


REPAIRS = (
    Repair("contraction", "fma rounds once where mul and add round twice", arithmetic.fma_as_mul_and_add),
    Repair("contraction", "mul and add round twice where fma rounds once", arithmetic.mul_and_add_as_fma),
    Repair("flushed subnormals", ".ftz flushes subnormals", arithmetic.subnormals_kept),
    Repair("flushed subnormals", "subnormals are kept where .ftz flushes them", arithmetic.subnormals_flushed),
    Repair("rounding mode", "another rounding", arithmetic.other_rounding),
    Repair("double rounding", "a value is rounded to a narrower type on its way", arithmetic.rounded_once),
    Repair("double rounding", "a value is not rounded to a narrower type on its way", arithmetic.rounded_twice),
    Repair(
        "infinity saturated or propagated", "a saturation or a clamp too many or too few", arithmetic.infinity_other
    ),
    Repair("NaN dropped or propagated", "a NaN takes the other way", arithmetic.nan_other),
    Repair("reduction order", "terms are added in another order", orders.summed_otherwise),
    Repair("reduction order", "lanes exchange sums in another order", orders.exchanged_otherwise),
    Repair(
        "scale rule", "a quotient is a product with the reciprocal, or the other way round", scales.divided_otherwise
    ),
    Repair("scale rule", "the largest value of another format", scales.limit_other),
    Repair("scale rule", "an exponent is rounded another way", scales.exponent_rounded_otherwise),
    Repair("format", "codes of another format", scales.coded_otherwise),
    Repair("swizzle not undone", "an address is swizzled on one side alone", places.not_swizzled),
    Repair("transposed", "a tile is transposed, or is not", places.transposed),
    Repair("tail", "a bound is rounded down, and the tail left out", places.tail_kept),
    Repair("off by one", "a bound is one off", places.bound_moved),
)
