"""The probe of cuBLASLt: operands that a GPU makes again, places that lie inside, specials that are what they say."""

import numpy as np
import pytest

from refsim.formats import F32
from refsim.silicon import cublaslt_probe as probe
from refsim.silicon.cublaslt_probe import CublasltMode, CublasltSpecial

WIDE_MODES = [mode for mode in probe.MODES if mode.out is F32]


def test_places_are_mixed_alike_in_signed_and_unsigned_words() -> None:
    """PyTorch has no unsigned 64-bit arithmetic: nothing on the way may reach bit 63."""
    row, column = np.array([[0], [1], [16383]]), np.array([0, 1, 16383])
    signed = probe.mixed(row, column, 4)
    unsigned = probe.mixed(row.astype(np.uint64), column.astype(np.uint64), 4)
    np.testing.assert_array_equal(signed, unsigned.astype(np.int64))
    assert len(np.unique(signed)) == 9
    assert int(probe.mixed(np.int64(0), np.int64(0), 1)) == 0xED345605


def test_codes_are_all_but_the_nan_and_scales_from_an_eighth_to_two() -> None:
    codes = probe.codes(np.arange(8), 4096, "a")
    assert len(np.unique(codes)) == 254
    assert not ((codes & 0x7F) == 0x7F).any()
    np.testing.assert_array_equal(codes[[5]], probe.codes(np.array([5]), 4096, "a"))
    scales = probe.block_scales(np.arange(64), 16384, "scale_a")
    assert scales.shape == (64, 128)
    assert 0.125 <= scales.min() < scales.max() < 2
    assert len(np.unique(scales)) > 8000


def test_cases_lie_inside_and_keep_places_of_their_own() -> None:
    cases = probe.cases()
    assert [case.number for case in cases] == list(range(660))
    assert len({(case.m, case.n, case.k) for case in cases}) == 660
    for case in cases:
        assert all(0 < size <= most for size, most in zip((case.m, case.n, case.k), probe.MOST, strict=True))
        assert case.n % 16 == case.k % 16 == 0
        assert (case.rows.shape, case.columns.shape) == ((2,), (4,))
        assert case.rows.max() < case.m
        assert case.columns.max() < case.n
    assert {0, 7} <= {int(case.rows[0]) * 7 // max(1, case.m - 1) for case in cases if case.m > 100}


@pytest.mark.parametrize("mode", WIDE_MODES, ids=lambda mode: mode.name)
@pytest.mark.parametrize("special", probe.SPECIALS, ids=lambda special: special.name)
def test_a_special_is_what_its_name_says(special: CublasltSpecial, mode: CublasltMode) -> None:
    with np.errstate(all="ignore"):
        found = special.modelled(mode)
    assert found.shape == (8, 16)
    if "infinite" not in special.name:  # there the signs of the products decide
        assert np.isnan(found).any() == ("NaN" in special.name)
    assert np.isinf(found).any() == ("infinite" in special.name or "beyond" in special.name)
    if special.name == "subnormal outputs":
        assert ((abs(found) < 2.0**-126) & (found != 0)).any()
    if special.name.startswith("a scale of"):
        assert not found.any()
