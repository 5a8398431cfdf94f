"""Dot products that tell tensor cores apart: any bits, sums that carry, cancel, vanish or are swamped, and specials."""

import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from refsim.conversions import encode
from refsim.formats import F16, F64, ElementType, Format, float_named
from refsim.reference.operands import composed

Codes = NDArray[Any]
ROWS = COLUMNS = 4  # outputs of one product: 16 dot products share 4 rows of A and 4 of B
# Classes of A and B; those of C and of scales are drawn anew for every element and every row.
OPERANDS = (
    ("any", "any"),
    ("narrow", "narrow"),
    ("wide", "wide"),
    ("cancelling", "cancelling"),
    ("subnormal", "subnormal"),
    ("vanishing", "vanishing"),
    ("special", "special"),
    ("any", "narrow"),
    ("wide", "subnormal"),
    ("edge", "edge"),
)
ADDENDS = ("zero", "any", "narrow", "far", "subnormal", "vanishing", "special")
SCALES = ("narrow", "narrow", "any", "deep", "special")


@dataclass(frozen=True)
class Cases:
    """Codes a (batch, 4, K), b (batch, 4, K), c (batch, 4, 4) and scale codes (batch, 4, blocks) or None."""

    a: Codes
    b: Codes
    c: Codes
    a_scale: Codes | None
    b_scale: Codes | None

    @property
    def count(self) -> int:
        return self.c.size


def exponent_fields(format: Format, kind: str, smallest: int) -> tuple[int, int]:
    """The first and the last exponent field of a class; `smallest` is the exponent at which products vanish."""
    top, bias, half = (1 << format.exponent_bits) - 1, format.bias, smallest // 2
    ranges = {
        "any": (0, top),
        "zero": (0, 0),
        "subnormal": (0, 1),
        "narrow": (bias - 2, bias + 2),
        "special": (bias - 2, bias + 2),
        "wide": (bias - 13, bias + 13),
        "cancelling": (bias - 13, bias + 13),
        "far": (bias - 30, bias + 30),
        "vanishing": (bias + half - 2, bias + half + 2),
        "deep": (bias + half - 22, bias + half + 2),
    }
    low, high = ranges[kind]
    last = top if kind == "any" else max(top - 1, 0)
    return min(max(low, 0), last), min(max(high, 0), last)


def drawn(format: Format, kind: str, shape: tuple[int, ...], random: np.random.Generator, smallest: int) -> Codes:
    """Codes of one class. Special: one in 25 has the highest exponent (infinity or NaN where there are any), one in 10
    is a zero; both signs, and so the NaN 0x80 of FNUZ formats."""
    places = format.mantissa_bits + format.padding_bits
    low, high = exponent_fields(format, kind, smallest)
    field = random.integers(low, high + 1, shape, np.uint64)
    if kind == "vanishing":  # every row around its own exponent
        field = np.maximum(field.astype(np.int64) + random.integers(-9, 8, (*shape[:-1], 1)), 0).astype(np.uint64)
    mantissa = random.integers(0, 1 << places, shape, np.uint64)
    sign = random.integers(0, 2, shape, np.uint64)
    if kind == "special":
        chance = random.random(shape)
        rare, zero = chance < 0.04, chance > 0.9
        field = np.where(rare, np.uint64((1 << format.exponent_bits) - 1), np.where(zero, np.uint64(0), field))
        ends = random.choice(np.array([0, (1 << places) - 1], np.uint64), shape)
        mantissa = np.where(rare & (random.random(shape) < 0.7), ends, np.where(zero, np.uint64(0), mantissa))
    elif kind == "zero":
        mantissa[...] = 0
    return composed(format, sign, field, mantissa).astype(format.code_dtype)


def paired(a: Codes, b: Codes, b_format: Format, random: np.random.Generator) -> None:
    """Every odd product becomes the opposite of the even one before it; of some, b is off by its last bit."""
    a[..., 1::2] = a[..., ::2]
    b[..., 1::2] = b[..., ::2] ^ b.dtype.type(1 << (b_format.bits + b_format.padding_bits - 1))
    off = random.random(b[..., 1::2].shape) < 0.15
    b[..., 1::2] ^= off.astype(b.dtype) << b.dtype.type(b_format.padding_bits)


def edges(format: Format, shape: tuple[int, ...], random: np.random.Generator, last: int, cut: int) -> Codes:
    """Powers of two, of both signs: every eighth product is 2^last or zero, the others 2^(cut - 4) to 2^(cut + 4) or zero.

    With `last` the last place of the result and `cut` that of a sum of zeros, what is cut decides the last bit.
    """
    exponent = cut / 2 + random.integers(-2, 3, shape)
    exponent[..., ::8] = last / 2
    values = np.exp2(np.where(random.random(shape) < 0.5, np.floor(exponent), np.ceil(exponent)))
    values *= random.choice([-1.0, 1.0], shape) * (random.random(shape) < 0.6)
    return values.view(np.uint64) if format is F64 else encode(values, format)


def edge_scales(format: Format, shape: tuple[int, ...], random: np.random.Generator) -> Codes:
    """The first block's scales multiply to 2^-149 or near, those of the others to about 2^-173."""
    exponent = random.integers(-88, -84, shape)
    exponent[..., 0] = random.integers(-75, -73, shape[:-1])
    return np.maximum(format.bias + exponent, 0).astype(format.code_dtype)


def mixed(
    format: Format, kinds: tuple[str, ...], shape: tuple[int, ...], random: np.random.Generator, smallest: int, per: int
) -> Codes:
    """A class for every element (`per` = 0) or for every row of the last `per` axes."""
    choice = random.integers(0, len(kinds), shape[: len(shape) - per])
    choice = choice.reshape(choice.shape + (1,) * per)
    codes = drawn(format, kinds[0], shape, random, smallest)
    for index, kind in enumerate(kinds[1:], start=1):
        codes = np.where(choice == index, drawn(format, kind, shape, random, smallest), codes)
    return codes


@pytest.fixture(scope="session")
def cases() -> Callable[..., Cases]:
    """cases(a_format, b_format, d_format, K, at least so many dot products, seed, (scale format, block) or None)."""

    def made(
        a_format: str | ElementType,
        b_format: str | ElementType,
        d_format: str | ElementType,
        k: int,
        count: int,
        seed: int,
        scale: tuple[Format, int] | None = None,
    ) -> Cases:
        random = np.random.default_rng(seed)
        x, y, d = (float_named(name) for name in (a_format, b_format, d_format))
        smallest = -21 if d is F16 else -133
        last, cut = (0, -9) if scale else (-25, smallest - 25) if d is F16 else (-149, smallest - 25)
        batch = -(-count // (ROWS * COLUMNS * len(OPERANDS)))

        def operand(format: Format, kind: str, rows: int) -> Codes:
            shape = (batch, rows, k)
            return (
                edges(format, shape, random, last, cut)
                if kind == "edge"
                else drawn(format, kind, shape, random, smallest)
            )

        pairs = [(operand(x, kinds[0], ROWS), operand(y, kinds[1], COLUMNS)) for kinds in OPERANDS]
        for kinds, pair in zip(OPERANDS, pairs, strict=True):
            if kinds[0] == "cancelling":
                paired(*pair, y, random)
        a, b = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
        c = mixed(d, ADDENDS, (len(a), ROWS, COLUMNS), random, 2 * smallest, per=0)
        if scale is None:
            return Cases(a, b, c, None, None)
        format, blocks = scale[0], k // scale[1]
        scales = [mixed(format, SCALES, (len(a), rows, blocks), random, smallest, per=2) for rows in (ROWS, COLUMNS)]
        for codes in scales:
            codes[-batch:] = edge_scales(format, codes[-batch:].shape, random)
        return Cases(a, b, c, *scales)

    return made


@pytest.fixture(scope="session")
def mmasim() -> Any:
    """The package mmasim; importing it compiles a C++ file with the ninja that is installed beside it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", sysconfig.get_path("scripts"), prepend=":")
        import mmasim.amd
        import mmasim.nv_ptx
    return mmasim
