"""Outputs that take longer than the time allows: some rows are judged, causes are tried, the end is kept."""

import time

import numpy as np
import pytest

from conformance.explained import arithmetic
from refsim.causes import DiffOutcome, Family, ProductOperands, explain_diff
from refsim.causes.alone import OtherOutput
from refsim.computations.placing import placings
from refsim.computations.products import PlainProduct
from refsim.layouts.swizzles import SWIZZLES

ROWS, COLUMNS, K = 512, 1024, 64
SECONDS_OF_ALL, SECONDS_OF_CALL = 100.0, 0.5
"""What one plan of the whole output would take, and what anything takes."""


@pytest.fixture
def clock(monkeypatch):
    """Processor time that passes as elements of a product are asked for and computed, and at no other time."""
    now = [0.0]

    def timed(computed, seconds_of_all):
        def codes(self, plan, sample=None):
            found = computed(self, plan, sample)
            now[0] += SECONDS_OF_CALL + seconds_of_all * found.size / (ROWS * COLUMNS)
            return found

        return codes

    monkeypatch.setattr(time, "process_time", lambda: now[0])
    for subject, seconds_of_all in ((PlainProduct, SECONDS_OF_ALL), (OtherOutput, 0.0)):
        monkeypatch.setattr(subject, "codes", timed(subject.codes, seconds_of_all))
    return now


@pytest.fixture(scope="module")
def operands():
    random = np.random.default_rng(0)
    a, b = (
        arithmetic.e4m3(random.normal(0, 1, (rows, K)) * 2.0 ** random.integers(-5, 6, K)) for rows in (ROWS, COLUMNS)
    )
    return ProductOperands(a=a, b=b, a_format="e4m3", b_format="e4m3")


@pytest.fixture(scope="module")
def looped(operands):
    return arithmetic.float32_loop(operands.a, operands.b)


def test_a_cause_is_named_by_the_rows_that_there_is_time_for(clock, operands, looped):
    found = explain_diff(looped, operands=operands, seconds=200.0)
    assert [each.causes[0].family for each in found.named] == [Family.ACCUMULATOR]
    assert "fma" in found.named[0].causes[0].says
    assert 0 < found.judged < found.size
    assert found.judged % COLUMNS == 0


@pytest.mark.parametrize("beside", [False, True])
def test_the_end_is_kept_and_causes_are_tried(clock, operands, looped, beside):
    """One tile, and one candidate, is what may come after the end; phases are told before the first cause."""
    noise = looped * np.random.default_rng(1).uniform(0.9, 1.1, looped.shape).astype(np.float32)
    told = []
    want = looped if beside else None
    found = explain_diff(noise, want, operands=operands, seconds=60.0, on_progress=lambda *each: told.append(each[0]))
    assert found.outcome is DiffOutcome.UNEXPLAINED
    tile = SECONDS_OF_ALL * 32 / ROWS
    assert clock[0] <= 60.0 + 2 * tile
    assert told[0] == "elements"
    assert "causes" in told


def test_elements_that_differ_are_among_the_rows_that_are_judged(clock, operands, looped):
    """Two outputs that differ in the last rows alone, by noise, or because nobody wrote them."""
    noise, unwritten = looped.copy(), looped.copy()
    noise[-40:] *= np.random.default_rng(2).uniform(0.9, 1.1, (40, COLUMNS)).astype(np.float32)
    found = explain_diff(noise, looped, operands=operands, seconds=250.0)
    assert (found.outcome, found.differing > 0) == (DiffOutcome.UNEXPLAINED, True)
    unwritten[-40:] = 0
    found = explain_diff(unwritten, looped, operands=operands, seconds=60.0)
    assert [each.causes[0].family for each in found.named] == [Family.TAIL]


def test_a_swizzle_moves_the_bytes_of_an_output_as_its_addresses():
    """Of whole repeats, of a part of one, and of both."""
    for size in (2048, 512, 2048 + 256):
        codes = np.random.default_rng(size).integers(0, 256, (size // 128, 128)).astype(np.uint8)
        for row in (each for each in SWIZZLES if each.bits):
            [placing] = [each for each in placings() if each.name == f"where swizzle {row.name} puts them"]
            places = row(np.arange(size))
            if size % row.span_bytes or places.max() >= size:
                continue
            moved = np.empty(size, np.uint8)
            moved[places] = codes.reshape(-1)
            assert (placing.apply(codes).reshape(-1) == moved).all(), (size, row.name)
            assert (placing.back(placing.apply(codes)) == codes).all(), (size, row.name)


def test_a_search_without_seconds_does_not_look_at_the_clock(clock, monkeypatch):
    """The work is counted: a machine on which no time passes, and one on which years do, give one answer."""
    random = np.random.default_rng(1)
    a, b = (arithmetic.e4m3(random.normal(0, 1, (rows, 64))) for rows in (12, 16))
    given = ProductOperands(a=a, b=b, a_format="e4m3", b_format="e4m3")
    noise = random.normal(0, 1, (12, 16)).astype(np.float32)
    first = explain_diff(noise, operands=given)
    assert first.untried > 0
    ages = iter(range(0, 10**9, 10**4))
    monkeypatch.setattr(time, "process_time", lambda: float(next(ages)))
    second = explain_diff(noise, operands=given)
    assert (second.pairs, second.untried) == (first.pairs, first.untried)
