"""Operands whose result shows the order of a sum: ordinary numbers, and sums whose exact value is zero."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from refsim.bringup.bench import Codes, reach
from refsim.bringup.order.asking import OrderSubject
from refsim.conversions import encode
from refsim.formats import Format

Floats = NDArray[np.float64]
POOL = 4  # rows of A that differ; further rows repeat them, so every place in a batch has a result to be compared with
MOST_SPREAD = 10  # binades around 1 of the magnitudes, in addition to a normal distribution; fewer in narrow formats


@dataclass(frozen=True)
class TellingOperands:
    """`pool` (4, K) and `b` (N, K), codes; row r of a batch is pool[r % 4]."""

    pool: Codes
    b: Codes

    def rows(self, m: int) -> Codes:
        """Return A of a batch of m rows."""
        return self.pool[np.arange(m) % len(self.pool)]


def telling(subject: OrderSubject, seed: int) -> tuple[TellingOperands, TellingOperands]:
    """Return two test cases of a seed: numbers of several binades, and such numbers with every product also negated.

    The second result is the error of the additions: it shows the order even through a result of few bits. The two
    places that cancel are random, so no kernel's order puts them together systematically.
    """
    generator = np.random.default_rng(seed)
    sides = (POOL, subject.a_format), (subject.n, subject.b_format)
    most = min(MOST_SPREAD, reach(subject.d_format) / 3)  # so that the result holds their sum
    pool, b = (_numbers(generator, (height, subject.k), row, most) for height, row in sides)
    if not subject.a_is_free:
        pool = np.ones_like(pool)
    if not subject.b_is_free:
        b = np.ones_like(b)
    half = subject.k // 2
    places = generator.permutation(subject.k)[: 2 * half]
    mirrored_pool, mirrored_b = pool.copy(), b.copy()
    mirrored_pool[:, places[half:]] = pool[:, places[:half]]
    mirrored_b[:, places[half:]] = -b[:, places[:half]]
    if not subject.b_is_free:
        mirrored_pool[:, places[half:]], mirrored_b = -mirrored_pool[:, places[half:]], b
    return _coded(subject, pool, b), _coded(subject, mirrored_pool, mirrored_b)


def uniform(subject: OrderSubject, m: int, seed: int) -> list[tuple[Codes, Codes]]:
    """Return A and B of `telling` with one row of A and one row of B repeated: every element of D is the same sum."""
    return [(each.pool[[0] * m], each.b[[0] * subject.n]) for each in telling(replace(subject, n=1), seed)]


def _numbers(generator: np.random.Generator, shape: tuple[int, int], row: Format, most: float) -> Floats:
    spread = min(most, reach(row) / 3)
    return generator.standard_normal(shape) * np.exp2(generator.uniform(-spread, spread, shape))


def _coded(subject: OrderSubject, pool: Floats, b: Floats) -> TellingOperands:

    def codes(numbers: Floats, row: Format) -> Codes:
        return encode(numbers, row, overflow="saturate")

    return TellingOperands(codes(pool, subject.a_format), codes(b, subject.b_format))
