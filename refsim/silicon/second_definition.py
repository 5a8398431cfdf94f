"""The model's products against a slow second definition, for instructions of any target.

The operands are drawn so that they show each parameter of the arithmetic. In some rows products cancel, so that what
was cut off the others remains; in others they lie so far below C that each loses bits, by up to 44 binary places.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.formats import ElementType
from refsim.numerics.multiply import ProductSpec
from refsim.numerics.rows import Profile
from refsim.numerics.sparse import decompress, sparsity_of
from refsim.reference.block_scaled import SCALED_FIELDS
from refsim.reference.tensor_cores import Factors, dot_product
from refsim.targets import target_named

Codes = NDArray[Any]
_WINDOW, _BELOW_C, _AGAINST_C, _TINY, _ORDINARY, _SPECIAL = range(6)
PLAN = ((_WINDOW, 26), (_BELOW_C, 20), (_AGAINST_C, 8), (_TINY, 24), (_ORDINARY, 12), (_SPECIAL, 6))
"""The kinds of rows and their numbers."""
DRAWN_ROWS = sum(count for _, count in PLAN)
_FIELDS = SCALED_FIELDS | {"f32": (8, 23, 127)}
_FINITE_TOP = ("e4m3", "e2m3", "e3m2", "e2m1", "ue4m3")


def code(format: str, exponent: int, sign: int, fraction: int) -> int:
    """Return the code of +-2^exponent x 1.fraction, whose upper bits count. The `fraction` has 23 bits. The exponent is
    at most the largest of the format; a subnormal loses low bits. code("bf16", 1, 0, 0) is 0x4000, 2."""
    exponent_bits, mantissa_bits, bias = _FIELDS[format]
    least = 1 - bias
    significand = 1 << mantissa_bits | fraction >> (23 - mantissa_bits)
    magnitude = significand >> min(least - exponent, 31) if exponent < least else significand
    if exponent >= least:
        magnitude += (exponent - least) << mantissa_bits
    magnitude -= format in ("e4m3", "ue4m3") and magnitude == 0x7F  # its only NaN
    return (sign << exponent_bits + mantissa_bits | magnitude) << (13 if format == "tf32" else 0)


class DrawnProducts:
    """Operands A and B (DRAWN_ROWS, k) and C (DRAWN_ROWS,) as codes; `block` elements share a scale, 0: no scales."""

    def __init__(self, formats: tuple[ElementType, ElementType, ElementType], k: int, block: int) -> None:
        """Draw every row: floating-point rows by PLAN, integers and f64 from all codes and about N(0, 1)."""
        self.types = (formats[0].name, formats[1].name, formats[2].name)
        self.k, self.block, self.random = k, block, np.random.default_rng(k)
        shapes = ((DRAWN_ROWS, k), (DRAWN_ROWS, k), (DRAWN_ROWS,))
        if formats[0].is_integer:
            counts = [1 << 8 * each.code_dtype.itemsize for each in formats]
            drawn = [self.random.integers(0, count, shape) for count, shape in zip(counts, shapes, strict=True)]
        elif self.types[0] == "f64":
            drawn = [self.random.standard_normal(shape).view(np.uint64) for shape in shapes]
        else:
            drawn = [np.zeros(shape, np.int64) for shape in shapes]
        self.a, self.b, self.c = (each.astype(format.code_dtype) for each, format in zip(drawn, formats, strict=True))
        self.apart = np.zeros(DRAWN_ROWS, int)
        if self.types[0] in SCALED_FIELDS:
            kinds = [(kind, place, count) for kind, count in PLAN for place in range(count)]
            for row, (kind, place, count) in enumerate(kinds):
                self._draw(row, kind, place, 6 + 38 * place // count)

    def _draw(self, row: int, kind: int, place: int, apart: int) -> None:
        """Draw one row, whose terms lie `apart` places below its largest."""
        (a_least, a_most), (b_least, b_most) = self._range(0), self._range(1)
        least, most, reach = a_least + b_least, a_most + b_most, 15 if self.types[2] == "f16" else 120
        smallest = -24 if self.types[2] == "f16" else -149
        if kind == _TINY and least <= smallest - 4:
            self._product(row, 0, smallest, sign=0, power=True)
            self._product(row, 1, smallest - 2 - place, sign=1, power=True)
            if self.types[2] == "f16":  # a tie, which the smaller product turns
                self._product(row, 2, smallest - 1, sign=0, power=True)
            return
        highest = {_WINDOW: reach + apart, _BELOW_C: reach - apart}.get(kind, reach)
        top = min(most, highest) - int(self.random.integers(0, 8))
        if kind in (_TINY, _ORDINARY, _SPECIAL):
            top = max(least, min(0, most - 3)) + 3
        self.apart[row] = apart if kind in (_WINDOW, _AGAINST_C) else 0
        for i, below in enumerate(self.random.integers(0, 7 if kind == _ORDINARY else 4, self.k)):
            self._product(
                row, i, max(top - self.apart[row] - int(below), least), sign=place % 2 if kind == _BELOW_C else None
            )
        if kind == _ORDINARY:
            self.a[row][self.random.random(self.k) < 0.3] = 0
        at, sign, fraction = top, place % 2, int(self.random.integers(0, 1 << 23))
        if kind == _AGAINST_C:
            self._product(row, int(self.random.integers(self.k)), top, sign=1 - sign, power=True)
            fraction = 0
        self.c[row] = (
            0 if kind == _WINDOW else code(self.types[2], at + (apart if kind == _BELOW_C else 0), sign, fraction)
        )
        if kind == _WINDOW:
            self._cancelled(row, top)
        if kind == _SPECIAL:
            _, mantissa_bits, _ = SCALED_FIELDS[self.types[0]]
            everything = (1 << sum(SCALED_FIELDS[self.types[0]][:2])) - 1
            self.a[row, row % self.k] = (everything >> mantissa_bits * (place % 2) << mantissa_bits * (place % 2)) << (
                13 if self.types[0] == "tf32" else 0
            )

    def _range(self, operand: int) -> tuple[int, int]:
        """Return the exponents of the least and the largest number of an operand's format."""
        format = self.types[operand]
        exponent_bits, mantissa_bits, bias = SCALED_FIELDS[format]
        return 1 - bias - mantissa_bits, (1 << exponent_bits) - 1 - bias - (format not in _FINITE_TOP)

    def _product(self, row: int, i: int, exponent: int, *, sign: int | None = None, power: bool = False) -> None:
        """Draw two operands whose product has an exponent and perhaps a sign, or the nearest; or that power of two."""
        (a_least, a_most), (b_least, b_most) = self._range(0), self._range(1)
        first, last = max(a_least, exponent - b_most), min(a_most, exponent - b_least)
        a = int(self.random.integers(min(first, last), max(first, last) + 1))
        of_a, of_b = (0, 0) if power else map(int, self.random.integers(0, 1 << 23, 2))
        signs = int(self.random.integers(0, 2)), int(self.random.integers(0, 2))
        self.a[row, i] = code(self.types[0], a, signs[0], of_a)
        self.b[row, i] = code(self.types[1], exponent - a, signs[1] if sign is None else signs[0] ^ sign, of_b)

    def _cancelled(self, row: int, top: int) -> None:
        """Make the largest products cancel: two of them, or with scales a group of 16 and the next."""
        turned = code(self.types[1], -(1 << 20), 1, 0)
        if self.block:
            self.a[row, 16:32], self.b[row, 16:32] = self.a[row, :16], self.b[row, :16] ^ turned
            return
        first, second = self.random.choice(self.k, 2, replace=False)
        self._product(row, int(first), top)
        self.a[row, second], self.b[row, second] = self.a[row, first], self.b[row, first] ^ turned

    def scales(self, kind: str) -> tuple[Codes, Codes]:
        """Draw the scales of A and B: large for the first 32 elements, smaller for the others where terms lie apart."""
        found = np.zeros((2, DRAWN_ROWS, self.k // self.block), np.uint8)
        for side, row, block in np.ndindex(found.shape):
            is_first = block * self.block < 32
            down = 0 if is_first else (int(self.apart[row]) + side + int(self.random.integers(0, 3))) // 2
            fraction = int(self.random.integers(0, 1 << 23)) if not is_first else 0
            found[side, row, block] = 131 - down if kind == "e8m0" else code("e4m3", 8 - down, 0, fraction)
        return found[0], found[1]


def differing(row: Profile, target: str, shape: ProductSpec, *, sparse: bool) -> NDArray[np.bool_]:
    """Return which drawn dot products differ between the model and the second definition, for every type of scale.

    `row` has the scales; the K of `shape` is the instruction's own, elements of the whole A.
    """
    found = [_of_scale(target, shape, scale, block, sparse) for scale, block in row.scales or ((None, 0),)]
    return np.concatenate(found)


def _of_scale(
    target: str, shape: ProductSpec, scale: ElementType | None, block: int, sparse: bool
) -> NDArray[np.bool_]:
    """Return the differing dot products of one type of scale."""
    formats = (shape.a_format, shape.b_format, shape.d_format)
    stored = shape.k // 2 if sparse else shape.k
    draw = DrawnProducts(formats, stored, block)
    given: dict[str, Any] = {}
    scales = draw.scales(scale.name) if scale else None
    if scale and scales:
        given |= {"a_scale": scales[0][:, None], "b_scale": scales[1][:, None], "scale_format": scale.name}
    b = draw.b
    if sparse:
        sparsity = sparsity_of(shape.a_format, shape.unit)
        runs = 2 * np.arange(sparsity.kept // sparsity.together)[:, None] % (sparsity.group // sparsity.together)
        places = (runs * sparsity.together + np.arange(sparsity.together)).ravel()
        metadata = np.broadcast_to(np.resize(places, stored).astype(np.uint8), draw.a.shape)
        b = decompress(draw.b, metadata, shape.b_format, unit=shape.unit)
        given["metadata"] = metadata[:, None]
    got = shape.codes(draw.a[:, None], b[:, None], draw.c[:, None, None], target=target, **given).reshape(-1)
    want = []
    for at in range(DRAWN_ROWS):
        of_row = tuple(each[at].tolist() for each in scales) if scales else ((), ())
        words = draw.a[at].tolist(), draw.b[at].tolist(), int(draw.c[at])
        operands = Factors(*words, draw.types, (of_row[0], of_row[1]), scale.name if scale else "")
        want.append(dot_product(operands, target_named(target).number, shape.unit, stored))
    return np.asarray(got != np.array(want, got.dtype))
