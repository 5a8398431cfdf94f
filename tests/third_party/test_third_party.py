"""What somebody else's test suite looks like: it imports `refsim.testing` and the plugin's fixtures, nothing of the checkout.

CI runs this file from outside the checkout, against the installed wheel.
"""

import numpy as np
import pytest
from hypothesis import given, settings

import refsim
from refsim.testing import assert_bits_equal, find_kernels, laws
from refsim.testing import strategies as rst


def saturating_cast(codes: np.ndarray) -> np.ndarray:
    """Somebody's own float32 to E4M3 kernel, here in NumPy."""
    return refsim.encode(np.clip(codes.view(np.float32), -448, 448), "e4m3")


@settings(max_examples=50, derandomize=True, deadline=None, database=None)
@given(x=rst.tensors(["f32"]))
def test_a_cast_of_mine_is_the_instruction(x):
    codes = x.codes()
    packed = refsim.convert("cvt.rn.satfinite.e4m3x2.f32", codes, codes)
    assert_bits_equal(saturating_cast(codes), (packed & 0xFF).astype(np.uint8), "e4m3")


@pytest.mark.ci("ten seconds; conformance/ runs the same kernels in every run")
def test_the_bundled_kernels_run_here(device):
    for kernel in find_kernels():
        laws.agrees_with_oracle(kernel, kernel.corpus[7], device)
