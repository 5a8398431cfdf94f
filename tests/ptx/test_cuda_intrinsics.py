"""CUDA's expf, __logf, __powf, rsqrtf and their like, compiled by NVRTC with and without -use_fast_math, run in the simulator.

What each must write is its expansion written down here: single roundings over fractions, and the instructions of the
special-function unit by name (`numerics.approx`). Every bit is compared; no launch may leave bits open.
"""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest

from refsim import numerics, ptx
from refsim.device.compile import compile_ptx
from refsim.mufu import unit
from refsim.reference import rational_float as rational
from refsim.reference.operands import special_codes

FILE = Path(__file__).parent / "cuda_intrinsics.cu"
F32 = rational.GRIDS["f32"]
Definition = Callable[..., int]
LOG2_E, LN_2, LOG10_2, LOG2_10 = 0x3FB8AA3B, 0x3F317218, 0x3E9A209B, 0x40549A78
ONE, MINUS_ONE, HALF, INFINITY, MINUS_INFINITY = 0x3F800000, 0xBF800000, 0x3F000000, 0x7F800000, 0xFF800000
SIGN = 0x80000000


def decode(word: int, *, ftz: bool = False) -> rational.ExactNumber:
    return F32.decode(word, ftz=ftz)


def mul(x: int, y: int, *, ftz: bool = False) -> int:
    return F32.encode(rational.mul(decode(x, ftz=ftz), decode(y, ftz=ftz)), ftz=ftz)


def fma(x: int, y: int, z: int, mode: str = "rn", *, sat: bool = False) -> int:
    return F32.encode(rational.fma(decode(x), decode(y), decode(z), mode), mode, sat=sat)


def add(x: int, y: int) -> int:
    return F32.encode(rational.add(decode(x), decode(y)))


def by_unit(name: str, *words: int, ftz: bool = False) -> int:
    """NAME.approx of float32 words; NAME may end in .full."""
    mnemonic, _, kind = name.partition(".")
    operands = (np.array([word], np.uint32).view(np.float32) for word in words)
    found = numerics.approx(f"{mnemonic}.{kind or 'approx'}{'.ftz' if ftz else ''}.f32", *operands)
    return int(found.view(np.uint32)[0])


def polynomial(x: int, *coefficients: int) -> int:
    """Horner's rule, one rounding a step."""
    total = coefficients[0]
    for each in coefficients[1:]:
        total = fma(total, x, each)
    return total


# ---- what -use_fast_math turns every function into, with .ftz; __expf and its like are the same without it ------------
def fast_exp(x: int, y: int, *, ftz: bool) -> int:
    return by_unit("ex2", mul(x, LOG2_E, ftz=ftz), ftz=ftz)


def fast_exp10(x: int, y: int, *, ftz: bool) -> int:
    return by_unit("ex2", mul(x, LOG2_10, ftz=ftz), ftz=ftz)


def fast_log(x: int, y: int, *, ftz: bool) -> int:
    return mul(by_unit("lg2", x, ftz=ftz), LN_2, ftz=ftz)


def fast_log10(x: int, y: int, *, ftz: bool) -> int:
    return mul(by_unit("lg2", x, ftz=ftz), LOG10_2, ftz=ftz)


def fast_pow(x: int, y: int, *, ftz: bool) -> int:
    return by_unit("ex2", mul(y, by_unit("lg2", x, ftz=ftz), ftz=ftz), ftz=ftz)


def fast_tan(x: int, y: int, *, ftz: bool) -> int:
    return by_unit("div", by_unit("sin", x, ftz=ftz), by_unit("cos", x, ftz=ftz), ftz=ftz)


def of_unit(name: str, x: int, y: int, *, ftz: bool) -> int:
    return by_unit(name, x, ftz=ftz)


def fast_divide(x: int, y: int, *, ftz: bool) -> int:
    return by_unit("div", x, y, ftz=ftz)


def rounded_rcp(x: int, y: int, *, ftz: bool) -> int:
    return F32.encode(rational.div(rational.ONE, decode(x, ftz=ftz)), ftz=ftz)


def rounded_rsqrt(x: int, y: int, *, ftz: bool) -> int:
    """The reciprocal root rounded once: whoever lies beside it is on the other side of the exact one."""
    number = decode(x, ftz=ftz)
    if number.is_nan or (number.negative and number.magnitude):
        return F32.nan
    if number.is_infinite or not number.magnitude:
        return 0 if number.is_infinite else (x & SIGN) | INFINITY
    guess = int(np.float32(1 / np.sqrt(float(number.magnitude))).view(np.uint32))

    def is_above(word: int) -> bool:
        """Whether the middle of a word and the next one is beyond the exact root."""
        middle = (decode(word).magnitude + decode(word + 1).magnitude) / 2
        return middle * middle * number.magnitude > 1

    return next(word for word in (guess - 1, guess, guess + 1) if is_above(word))


# ---- without -use_fast_math -----------------------------------------------------------------------------------------
def exp_of(x: int, y: int, *, ftz: bool) -> int:
    """2^n by the exponent, 2^r by the unit, r = x log2(e) - n from log2(e) in two parts."""
    shifted = fma(x, 0x3BBB989D, HALF, sat=True)  # x / (252 ln 2) + 1/2
    whole = fma(shifted, 0x437C0000, 0x4B400001, "rm")  # n + 127 in the last places
    n = add(whole, 0xCB40007F) ^ SIGN
    rest = fma(x, 0x32A57060, fma(x, LOG2_E, n))
    return mul(by_unit("ex2", rest, ftz=True), whole << 23 & 0xFFFFFFFF)


def log_of(x: int, y: int, *, ftz: bool) -> int:
    """No special function: a polynomial of the mantissa from 2/3 on, and the exponent times ln 2."""
    small = x < 0x00800000 or x >= SIGN  # below the smallest normal number, negative ones among them
    if decode(x).is_nan:
        return F32.nan
    scaled = mul(x, 0x4B000000) if small else x
    exponent = (scaled - 0x3F2AAAAB) & 0xFF800000
    mantissa = add((scaled - exponent) & 0xFFFFFFFF, MINUS_ONE)
    signed = exponent - (1 << 32) if exponent & SIGN else exponent
    count = F32.encode(rational.ExactNumber(signed < 0, rational.Fraction(abs(signed))))
    count = fma(count, 0x34000000, 0xC1B80000 if small else 0)
    terms = (0xBE055027, 0x3E1039F6, 0xBDF8CDCC, 0x3E0F2955, 0xBE2AD8B9, 0x3E4CED0B, 0xBE7FFF22, 0x3EAAAA78, 0xBF000000)
    series = fma(mul(mantissa, polynomial(mantissa, *terms)), mantissa, mantissa)
    found = fma(count, LN_2, series)
    if scaled >= INFINITY:
        found = fma(scaled, INFINITY, INFINITY)
    return MINUS_INFINITY if scaled & ~SIGN == 0 else found


def tanh_of(x: int, y: int, *, ftz: bool) -> int:
    """1 - 2 / (e^2|x| + 1) from 0.6 on, a polynomial below."""
    size = x & ~SIGN
    if decode(x).is_nan:
        return F32.nan
    if size < 0x3F19999A:
        terms = (0x3C80F082, 0xBD563CAE, 0x3E085941, 0xBEAAA9ED, 0)
        return fma(polynomial(mul(x, x), *terms), x, x)
    power = add(by_unit("ex2", mul(size, 0x4038AA3B), ftz=True), ONE)
    found = ONE if size >= 0x41102CB4 else fma(by_unit("rcp", power, ftz=True), 0xC0000000, ONE)
    return (x & SIGN) | found


def sqrt_of(x: int, y: int, *, ftz: bool) -> int:
    return F32.encode(rational.sqrt(decode(x)))


def quotient(x: int, y: int, *, ftz: bool) -> int:
    return F32.encode(rational.div(decode(x), decode(y)))


def tanh_by_unit(x: int, y: int, *, ftz: bool) -> int:
    return by_unit("tanh", x)


ALWAYS: dict[str, Definition] = {
    "fast_exp": fast_exp,
    "fast_exp10": fast_exp10,
    "fast_log": fast_log,
    "fast_log2": partial(of_unit, "lg2"),
    "fast_log10": fast_log10,
    "fast_pow": fast_pow,
    "fast_sin": partial(of_unit, "sin"),
    "fast_cos": partial(of_unit, "cos"),
    "fast_tan": fast_tan,
    "fast_divide": fast_divide,
    "rounded_rcp": rounded_rcp,
    "rounded_rsqrt": rounded_rsqrt,
    "exp2_of": partial(of_unit, "ex2"),
    "rsqrt_of": partial(of_unit, "rsqrt"),
}
PLAIN = {"exp_of": exp_of, "log_of": log_of, "tanh_of": tanh_of, "sqrt_of": sqrt_of, "quotient": quotient}
FAST = {
    "exp_of": fast_exp,
    "log_of": fast_log,
    "tanh_of": tanh_by_unit,
    "sqrt_of": partial(of_unit, "sqrt"),
    "quotient": fast_divide,
}
NEEDS = {"fast_sin": "sin", "fast_cos": "cos", "fast_tan": "sin"}
CASES = [
    pytest.param(
        name,
        options,
        marks=pytest.mark.skipif(needed not in unit.FUNCTIONS, reason=f"the unit's {needed} has no model"),
    )
    for options, own in (((), PLAIN), (("--use_fast_math",), FAST))
    for name in ALWAYS | own
    for needed in [NEEDS.get(name, "tanh" if own.get(name) is tanh_by_unit else "ex2")]
]


@cache
def program(options: tuple[str, ...]) -> ptx.Program:
    return ptx.load(compile_ptx(FILE, "sm_90a", options).text)


def operands() -> tuple[np.ndarray, np.ndarray]:
    """Special numbers with each other, numbers of every exponent, and those near 1 and -1."""
    generator = np.random.default_rng(14)
    special = np.array(special_codes("f32"), np.uint32)
    drawn = generator.integers(0, 1 << 32, 96, np.uint32)
    usual = generator.uniform(-12, 12, 96).astype(np.float32).view(np.uint32)
    xs = np.concatenate([special, drawn, usual])
    ys = np.concatenate([np.roll(special, 3), np.roll(usual, 5), np.roll(drawn, 7)])
    return xs, ys


@pytest.mark.parametrize(("name", "options"), CASES)
def test_every_bit_is_that_of_the_expansion(name: str, options: tuple[str, ...]) -> None:
    xs, ys = operands()
    found = np.zeros(len(xs), np.float32)
    arguments = [xs.view(np.float32), ys.view(np.float32), found, np.uint32(len(xs))]
    trace = program(options).launch(name, (-(-len(xs) // 128),), (128,), arguments, arithmetic="known")
    assert trace.is_exact
    definition = (ALWAYS | (FAST if options else PLAIN))[name]
    want = [definition(x, y, ftz=bool(options)) for x, y in zip(xs.tolist(), ys.tolist(), strict=True)]
    wrong = [
        f"{x:#010x}, {y:#010x}: {got:#010x}, not {one:#010x}"
        for x, y, got, one in zip(xs.tolist(), ys.tolist(), found.view(np.uint32).tolist(), want, strict=True)
        if got != one
    ]
    assert wrong == []
