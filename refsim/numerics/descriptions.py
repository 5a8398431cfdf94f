"""Texts about tensor-core arithmetic: the bits that a step keeps and returns, the place of C, the steps."""

from refsim.evidence import Level
from refsim.numerics.dot.definition import GROUP
from refsim.numerics.methods import AFTER, BYTE_PAIRS, EARLY, WITH
from refsim.numerics.rows import Profile

NOT_KNOWN = "not known"


def kept_bits(row: Profile) -> str:
    """Return the bits of the sum that a step keeps, from its largest term down: "14" for Hopper's FP8 wgmma."""
    if row.evidence.level is Level.UNVERIFIED:
        return NOT_KNOWN
    own = "" if row.d_format.is_integer else str(row.rounding.fraction_bits + 1)
    return row.method.kept.format(result=own) or str((row.fraction or 0) + 1)


def result_bits(row: Profile) -> str:
    """Return the bits of the result's significand and their rounding: "14, cut", "11, nearest", "32, wrapped"."""
    if row.evidence.level is Level.UNVERIFIED:
        return NOT_KNOWN
    if row.d_format.is_integer:
        return f"{row.d_format.bits}, wrapped"
    rounding = row.rounding
    return f"{rounding.fraction_bits + 1}, {'nearest' if rounding.nearest else 'cut'}"


def where_c_enters(row: Profile) -> str:
    """Return where C enters: with the products, after the products, or in the sum."""
    if row.evidence.level is Level.UNVERIFIED:
        return NOT_KNOWN
    return row.method.c_enters or (WITH if row.c_enters is EARLY else AFTER)


def arithmetic(row: Profile) -> str:
    """Return one sentence on how a step of a profile works."""
    sentence = row.method.late_sentence if row.adds_c_last else row.method.sentence
    order = "the first two of each four k, then the other two" if row.order is BYTE_PAIRS else "ascending k"
    return sentence.format(
        length=row.length,
        fraction=row.fraction,
        operands=row.operands,
        order=order,
        group=GROUP,
        rounded=row.rounding.sentence,
    )
