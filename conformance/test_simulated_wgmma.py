"""The simulated Hopper's wgmma against an H200: the words that were recorded, from the probe's own kernels on the simulator.

A and D lie in registers, B in shared memory behind a descriptor; K is chained and every operand class and C is one that was
recorded. Row and column 8 and on are zeros: the sample holds the first eight.
"""

from functools import cache
from itertools import groupby

import numpy as np
import pytest

from refsim.bringup.tensor_cores import KERNEL_FILE, instruction_named, products
from refsim.device.sim import SimDevice
from refsim.numerics.multiply import ProductSpec
from refsim.silicon.tensor_probe import SAMPLE, cell_c, cell_operands, cells, shape_of
from refsim.silicon.vectors import recordings

RECORDED = recordings("numerics")
WGMMA = sorted(name for name in RECORDED if name.startswith("wgmma"))
FEW, MANY = ([name for name in WGMMA if (".m64n8k" in name) is small] for small in (True, False))
pytestmark = pytest.mark.filterwarnings("error")


def padded(matrix, rows, columns):
    """(1, 8, 8) as (1, rows, columns), zeros around it."""
    found = np.zeros((1, rows, columns), matrix.dtype)
    found[:, : matrix.shape[1], : matrix.shape[2]] = matrix
    return found


def given(shape: ProductSpec, cell):
    """A, B and C of one cell, as the recorder gave them."""
    a, b = cell_operands(shape, cell[0], 0, batch=1, rows=SAMPLE, columns=SAMPLE)
    c = cell_c(shape, *cell, 0, a, b)
    c = np.zeros((1, SAMPLE, SAMPLE), shape.d_format.code_dtype) if c is None else c
    return padded(a, shape.m, a.shape[-1]), padded(b, shape.n, b.shape[-1]), padded(c, shape.m, shape.n)


@cache
def hopper(policy, arithmetic="silicon"):
    """A simulated device, which keeps what it compiled."""
    return SimDevice("sm_90a", schedules=1, policy=policy, arithmetic=arithmetic)


def simulated(name, policy):
    """The simulator's words for every cell of a recording."""
    shape, instruction = shape_of(RECORDED[name]), instruction_named(name)
    asked = sorted(enumerate(given(shape, cell) for cell in cells(shape)), key=lambda pair: pair[1][0].shape[-1])
    found = np.zeros((len(asked), SAMPLE * SAMPLE), shape.d_format.code_dtype)
    with hopper(policy).launcher(KERNEL_FILE) as launcher:
        for _, alike in groupby(asked, key=lambda pair: pair[1][0].shape[-1]):
            numbers, operands = zip(*alike, strict=True)
            a, b, c = (np.concatenate(each) for each in zip(*operands, strict=True))
            d = products(launcher, instruction, a, b, c.view(shape.d_format.code_dtype))
            found[[*numbers]] = d[:, :SAMPLE, :SAMPLE].reshape(len(numbers), -1)
    return found


@pytest.mark.parametrize("name", FEW)
def test_the_simulator_returns_the_words_of_an_h200(name):
    assert np.array_equal(simulated(name, "eager"), RECORDED[name].arrays["sample"])


@pytest.mark.sampled(12, "the same words in products of other widths")
@pytest.mark.ci("the same words in wider products")
@pytest.mark.parametrize("name", MANY)
def test_the_simulator_returns_them_from_wider_products(name):
    assert np.array_equal(simulated(name, "lazy"), RECORDED[name].arrays["sample"])


def test_other_arithmetic_returns_other_words():
    """The exact sums are not what the chip returns."""
    name = next(name for name in FEW if name.endswith("f32.e4m3.e4m3"))
    shape, instruction = shape_of(RECORDED[name]), instruction_named(name)
    cell = cells(shape)[0]
    a, b, c = given(shape, cell)
    with hopper("eager", "exact").launcher(KERNEL_FILE) as launcher:
        d = products(launcher, instruction, a, b, c.view(shape.d_format.code_dtype))
    assert not np.array_equal(d[0, :SAMPLE, :SAMPLE].ravel(), RECORDED[name].arrays["sample"][0])
