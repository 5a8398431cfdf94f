"""Differences between conversion policies: the comparison, and the table of known differences of the libraries."""

from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from refsim.conversions.coding import Codes
from refsim.conversions.registers import convert
from refsim.conversions.rows import CONVERSIONS, Conversion
from refsim.errors import RefsimError, unknown
from refsim.formats import F32, Format, format_named
from refsim.render.cards import FieldsCard

INPUT_CLASSES = ("exact", "inexact", "tie", "below the smallest", "beyond the largest", "zero", "infinity", "nan")


@dataclass(frozen=True, repr=False)
class PolicyDifference(FieldsCard):
    """Describe one class of inputs on which two policies disagree, with its first example.

    `input_class` is a name of INPUT_CLASSES with "negative " before it where the sign bit is set. `count` is the number
    of patterns of the set that differ, `pattern` the float32 bits of the first; `code` and `other` are the results of
    the two policies for it.
    """

    format: str
    policy: str
    other_policy: str
    input_class: str
    count: int
    pattern: int
    code: int
    other: int


def policy_patterns() -> NDArray[np.uint32]:
    """Return the 196,608 float32 patterns whose lower half is 0x0000, 0x0001 or 0xffff.

    For a format of at most 5 mantissa bits they are a complete set: an input's upper half and whether its lower half is
    zero decide the code, ties have a zero lower half, and their neighbors are one ulp away.
    policy_patterns().size is 196608. Raises nothing. Source: defined here.
    """
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    return np.concatenate([upper, upper | 1, upper | 0xFFFF])


def policy_row(policy: str, format: str | Format) -> Conversion:
    """Return the entry of a policy for a format: ("torch", "e4m3") is torch.float8_e4m3fn; or of an entry's name."""
    to = format_named(format)
    rows = [row for row in CONVERSIONS.values() if row.policy and row.to == to and row.reads is F32]
    for row in rows:
        if policy in (row.policy, row.name):
            return row
    raise unknown("policy", policy, [row.policy for row in rows], where=f"format {to}")


def diff_policies(
    format: str | Format, policy_a: str, policy_b: str, patterns: NDArray[np.uint32] | None = None
) -> tuple[PolicyDifference, ...]:
    """Return every class of float32 inputs on which two policies give different codes, in the order of INPUT_CLASSES.

    `patterns` are uint32 float32 bits, by default `policy_patterns()`. diff_policies("e4m3", "torch", "cuda.satfinite")
    has one entry: NaN with the sign bit is 0xff in torch and 0x7f in CUDA.
    Raises RefsimError for an unknown policy of that format.
    diff_policies("e4m3", "torch", "cuda.satfinite")[0].code is 0xff. Source: the entries of both policies.
    """
    to = format_named(format)
    row_a, row_b = policy_row(policy_a, to), policy_row(policy_b, to)
    inputs = policy_patterns() if patterns is None else np.asarray(patterns)
    if inputs.dtype != np.uint32:
        raise RefsimError("bad-dtype", f"patterns are uint32 float32 bits, not {inputs.dtype}")
    codes = convert(row_a.name, inputs), convert(row_b.name, inputs)
    return tabulate_differences(to, (policy_a, policy_b), inputs, codes)


def tabulate_differences(
    format: Format, policies: tuple[str, str], patterns: NDArray[np.uint32], codes: tuple[Codes, Codes]
) -> tuple[PolicyDifference, ...]:
    """Return the differences of two arrays of codes already computed, for example by a library."""
    differ = np.flatnonzero(codes[0] != codes[1])
    classes = classify(patterns[differ], format)
    negative = patterns[differ] >> 31 != 0
    found = []
    for (index, name), sign in product(enumerate(INPUT_CLASSES), (False, True)):
        members = differ[(classes == index) & (negative == sign)]
        if members.size:
            label, first = f"negative {name}" if sign else name, members[0]
            bits = int(patterns[first]), int(codes[0][first]), int(codes[1][first])
            found.append(PolicyDifference(format.name, *policies, label, int(members.size), *bits))
    return tuple(found)


def classify(patterns: NDArray[np.uint32], format: Format) -> NDArray[np.int64]:
    """Return the index in INPUT_CLASSES of every float32 pattern, by its magnitude."""
    with np.errstate(invalid="ignore"):
        magnitude = np.abs(patterns.view(np.float32).astype(np.float64))
    table = format.table
    positive = np.unique(np.abs(table[np.isfinite(table)]))
    above = np.clip(np.searchsorted(positive, magnitude), 1, positive.size - 1)
    low, high = positive[above - 1], positive[above]
    smallest = positive[positive > 0][0]
    conditions = {
        "nan": np.isnan(magnitude),
        "infinity": np.isinf(magnitude),
        "zero": magnitude == 0,
        "beyond the largest": magnitude > format.max_value,
        "below the smallest": magnitude < smallest,
        "tie": magnitude * 2 == low + high,
        "exact": (magnitude == low) | (magnitude == high),
    }
    names = [INPUT_CLASSES.index(name) for name in conditions]
    return np.select(list(conditions.values()), names, INPUT_CLASSES.index("inexact"))


_SATFINITE, _CONSTRUCTOR = "cuda.satfinite", "cuda.constructor"

# Results of the libraries' own casts on policy_patterns() where CUDA differs; a pair of policies that is missing here
# agrees on every pattern. Recorded from ml_dtypes 0.6 and torch 2.13; the tests compare with the libraries.
KNOWN_DIFFERENCES = (
    PolicyDifference("e4m3", "ml_dtypes", _SATFINITE, "beyond the largest", 45767, 0x43E90000, 0x7F, 0x7E),
    PolicyDifference("e4m3", "ml_dtypes", _SATFINITE, "negative beyond the largest", 45767, 0xC3E90000, 0xFF, 0xFE),
    PolicyDifference("e4m3", "ml_dtypes", _SATFINITE, "infinity", 1, 0x7F800000, 0x7F, 0x7E),
    PolicyDifference("e4m3", "ml_dtypes", _SATFINITE, "negative infinity", 1, 0xFF800000, 0xFF, 0xFE),
    PolicyDifference("e4m3", "ml_dtypes", _SATFINITE, "negative nan", 383, 0xFF810000, 0xFF, 0x7F),
    PolicyDifference("e4m3", "torch", _SATFINITE, "negative nan", 383, 0xFF810000, 0xFF, 0x7F),
    PolicyDifference("e5m2", "ml_dtypes", _SATFINITE, "beyond the largest", 43056, 0x47700000, 0x7C, 0x7B),
    PolicyDifference("e5m2", "ml_dtypes", _SATFINITE, "negative beyond the largest", 43056, 0xC7700000, 0xFC, 0xFB),
    PolicyDifference("e5m2", "ml_dtypes", _SATFINITE, "infinity", 1, 0x7F800000, 0x7C, 0x7B),
    PolicyDifference("e5m2", "ml_dtypes", _SATFINITE, "negative infinity", 1, 0xFF800000, 0xFC, 0xFB),
    PolicyDifference("e5m2", "ml_dtypes", _SATFINITE, "nan", 383, 0x7F810000, 0x7E, 0x7F),
    PolicyDifference("e5m2", "ml_dtypes", _SATFINITE, "negative nan", 383, 0xFF810000, 0xFE, 0x7F),
    PolicyDifference("e5m2", "torch", _SATFINITE, "beyond the largest", 43056, 0x47700000, 0x7C, 0x7B),
    PolicyDifference("e5m2", "torch", _SATFINITE, "negative beyond the largest", 43056, 0xC7700000, 0xFC, 0xFB),
    PolicyDifference("e5m2", "torch", _SATFINITE, "infinity", 1, 0x7F800000, 0x7C, 0x7B),
    PolicyDifference("e5m2", "torch", _SATFINITE, "negative infinity", 1, 0xFF800000, 0xFC, 0xFB),
    PolicyDifference("e5m2", "torch", _SATFINITE, "negative nan", 383, 0xFF810000, 0xFF, 0x7F),
    PolicyDifference("e2m1", "ml_dtypes", _SATFINITE, "nan", 383, 0x7F810000, 0x08, 0x07),
    PolicyDifference("e2m1", "ml_dtypes", _SATFINITE, "negative nan", 383, 0xFF810000, 0x00, 0x07),
    PolicyDifference("e2m3", "ml_dtypes", _SATFINITE, "nan", 383, 0x7F810000, 0x20, 0x1F),
    PolicyDifference("e2m3", "ml_dtypes", _SATFINITE, "negative nan", 383, 0xFF810000, 0x00, 0x1F),
    PolicyDifference("e3m2", "ml_dtypes", _SATFINITE, "nan", 383, 0x7F810000, 0x20, 0x1F),
    PolicyDifference("e3m2", "ml_dtypes", _SATFINITE, "negative nan", 383, 0xFF810000, 0x00, 0x1F),
    PolicyDifference("e8m0", "ml_dtypes", _CONSTRUCTOR, "negative exact", 255, 0x80400000, 0xFF, 0x00),
    PolicyDifference("e8m0", "ml_dtypes", _CONSTRUCTOR, "inexact", 48323, 0x00810000, 0x01, 0x02),
    PolicyDifference("e8m0", "ml_dtypes", _CONSTRUCTOR, "negative inexact", 96836, 0x80410000, 0xFF, 0x01),
    PolicyDifference("e8m0", "ml_dtypes", _CONSTRUCTOR, "negative tie", 254, 0x80600000, 0xFF, 0x01),
    PolicyDifference("e8m0", "ml_dtypes", _CONSTRUCTOR, "negative below the smallest", 191, 0x80010000, 0xFF, 0x00),
    PolicyDifference("e8m0", "ml_dtypes", _CONSTRUCTOR, "beyond the largest", 192, 0x7F400000, 0xFF, 0xFE),
    PolicyDifference("e8m0", "ml_dtypes", _CONSTRUCTOR, "negative beyond the largest", 383, 0xFF010000, 0xFF, 0xFE),
    PolicyDifference("e8m0", "ml_dtypes", _CONSTRUCTOR, "zero", 1, 0x00000000, 0xFF, 0x00),
    PolicyDifference("e8m0", "ml_dtypes", _CONSTRUCTOR, "negative zero", 1, 0x80000000, 0xFF, 0x00),
    PolicyDifference("e8m0", "ml_dtypes", _CONSTRUCTOR, "infinity", 1, 0x7F800000, 0xFF, 0xFE),
    PolicyDifference("e8m0", "ml_dtypes", _CONSTRUCTOR, "negative infinity", 1, 0xFF800000, 0xFF, 0xFE),
    PolicyDifference("e8m0", "torch", _CONSTRUCTOR, "inexact", 48323, 0x00810000, 0x01, 0x02),
    PolicyDifference("e8m0", "torch", _CONSTRUCTOR, "negative inexact", 48323, 0x80810000, 0x01, 0x02),
    PolicyDifference("e8m0", "torch", _CONSTRUCTOR, "beyond the largest", 192, 0x7F400000, 0xFF, 0xFE),
    PolicyDifference("e8m0", "torch", _CONSTRUCTOR, "negative beyond the largest", 192, 0xFF400000, 0xFF, 0xFE),
    PolicyDifference("e8m0", "torch", _CONSTRUCTOR, "infinity", 1, 0x7F800000, 0xFF, 0xFE),
    PolicyDifference("e8m0", "torch", _CONSTRUCTOR, "negative infinity", 1, 0xFF800000, 0xFF, 0xFE),
)
