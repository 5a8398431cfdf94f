"""The anatomy of a code against an independent reading: encode, the order of values, and arithmetic on its text."""

import math
import re
from fractions import Fraction

import numpy as np
import pytest

from refsim.cli.answers.anatomy import anatomy, as_bits, exact_value, nearest_even_interval, neighbours, step
from refsim.conversions import encode
from refsim.formats import FORMATS, format_named
from refsim.render import Bits

NARROW = [row for row in FORMATS if row.bits <= 8]
SAMPLED = {
    "f32": [0, 1, 0x7FFFFF, 0x800000, 0x3DCCCCCD, 0x3F800000, 0x7F7FFFFF, 0xBF800001, 0x80000000],
    "bf16": [0, 1, 0x7F, 0x80, 0x3F80, 0x7F7F, 0xC049],
    "f16": [0, 1, 0x3FF, 0x400, 0x3C00, 0x7BFF, 0xBC01],
    "tf32": [0, 0x2000, 0x3F800000, 0x7F7FE000, 0xBF802000],
}
CASES = [(row, code) for row in NARROW for code in range(row.code_limit)]
CASES += [(format_named(name), code) for name, codes in SAMPLED.items() for code in codes]
FINITE = [(row, code) for row, code in CASES if math.isfinite(exact_value(code, row))]


def encoded(values, row):
    return [int(code) for code in encode(np.array(values, np.float64), row)]


def test_interval_is_what_encode_does():
    for row, code in FINITE:
        interval = nearest_even_interval(code, row)
        low, high = float(interval.low.value), float(interval.high.value)
        inside, outside = [], []
        (inside if interval.low_closed else outside).append(low)
        (inside if interval.high_closed else outside).append(high)
        inside += [math.nextafter(low, math.inf), math.nextafter(high, -math.inf)] if low < high else []
        outside += [math.nextafter(low, -math.inf), math.nextafter(high, math.inf)]
        largest = abs(exact_value(code, row)) == row.max_value or exact_value(code, row) == row.min_value
        assert set(encoded(inside, row)) <= {code, code ^ row.sign_mask if exact_value(code, row) == 0 else code}
        if not largest and exact_value(code, row) != 0:
            assert code not in encoded(outside, row), (row, hex(code))


def test_neighbours_are_the_next_values():
    for row in NARROW:
        values = {code: value for code in range(row.code_limit) if math.isfinite(value := exact_value(code, row))}
        ordered = sorted(set(values.values()))
        for code, value in values.items():
            place = ordered.index(value)
            below, above = neighbours(code, row)
            if place:
                assert exact_value(below, row) == ordered[place - 1]
            if place < len(ordered) - 1:
                assert exact_value(above, row) == ordered[place + 1]


def test_neighbours_of_the_largest_are_special_or_none():
    assert anatomy(0x7E, format_named("e4m3")).above.code == Bits(0x7F, 8)
    assert anatomy(0x7B, format_named("e5m2")).above.value.text == "inf"
    assert anatomy(0x7, format_named("e2m1")).above is None
    assert anatomy(0x80, format_named("mxint8")).below is None


def read_expression(expression):
    """The value of 1.110b x 2^8, -3 x 2^-6 or 2^-127."""
    sign, head, _, exponent = re.fullmatch(r"(-?)(?:([01]\.[01]*b|\d+)( x ))?2\^(-?\d+)", expression).groups()
    if head is None:
        factor = Fraction(1)
    elif head.endswith("b"):
        digits = head[:-1].replace(".", "")
        factor = Fraction(int(digits, 2), 2 ** (len(digits) - 1))
    else:
        factor = Fraction(int(head))
    return (-1 if sign else 1) * factor * Fraction(2) ** int(exponent)


def test_expression_is_the_value():
    for row, code in FINITE:
        found = anatomy(code, row)
        value = exact_value(code, row)
        if value == 0:
            assert found.expression is None
        else:
            assert read_expression(found.expression) == Fraction(value), (row, hex(code))


def test_spelled_value_leads_back_to_the_code():
    for row, code in FINITE:
        text = anatomy(code, row).value.text
        value = Fraction(text.removeprefix("~"))
        if not text.startswith("~"):
            assert value == Fraction(exact_value(code, row))
        padding = (1 << row.padding_bits) - 1
        again = int(encode(float(value), row))
        assert again == (code & ~padding) or value == 0, (row, hex(code), text)


def test_fields_are_the_code():
    for row, code in CASES:
        digits = "".join(part for _, part in anatomy(code, row).fields.parts)
        assert int(digits, 2) == code
        assert len(digits) == as_bits(code, row).width


@pytest.mark.parametrize(
    ("name", "code", "kind"),
    [
        ("e4m3", 0x00, "zero"),
        ("e4m3", 0x80, "negative zero"),
        ("e4m3", 0x01, "smallest subnormal"),
        ("e4m3", 0x07, "largest subnormal"),
        ("e4m3", 0x03, "subnormal"),
        ("e4m3", 0x08, "smallest normal"),
        ("e4m3", 0x38, "normal"),
        ("e4m3", 0x7E, "largest finite"),
        ("e4m3", 0xFE, "largest finite"),
        ("e4m3", 0x7F, "nan"),
        ("e5m2", 0x7C, "infinity"),
        ("e5m2", 0x7D, "nan"),
        ("e2m1", 0x1, "the only subnormal"),
        ("e8m0", 0x00, "smallest"),
        ("e8m0", 0x7F, "power of two"),
        ("mxint8", 0x80, "lowest"),
        ("mxint8", 0x81, "largest finite"),
        ("mxint8", 0x01, "smallest"),
        ("mxint8", 0x40, "fixed point"),
        ("e4m3fnuz", 0x80, "nan"),
    ],
)
def test_kind_of_code(name, code, kind):
    assert anatomy(code, format_named(name)).kind == kind


def test_step_is_the_distance_to_the_next_magnitude():
    assert step(0x38, format_named("e4m3")) == Fraction(1, 8)
    assert step(0x7E, format_named("e4m3")) == 32
    assert step(0xC0, format_named("mxint8")) == Fraction(1, 64)
