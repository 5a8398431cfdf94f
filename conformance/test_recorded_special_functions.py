"""What an H200 returned for the special functions over all 2^32 inputs of a form, and for 2^34 pairs of div, replayed by their
model. An H100 returned the same.

A recorded word stands for 2^20 inputs, or for 2^22 pairs. Profile quick replays four of each form, ci twelve, night all 4,096.
"""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from conformance.special_functions_replay import DIVISIONS, DOUBLES, HALVES, SINGLES
from refsim.mufu import coefficients, unit
from refsim.silicon.special_functions import (
    GROUPS,
    STEM,
    folded,
    pairs,
    recorded,
    replayed,
    replayed_pairs,
    results,
)
from refsim.silicon.vectors import digest, sidecar

PROBES = Path(__file__).parent.parent / "gpu" / "probes"
GROUP_OF = {"one": 0x3F8, "minus": 0xBF8, "subnormals": 0, "nans": 0x7F8}


def groups(profile: str) -> list[int]:
    """The beginning of 1, -1, the subnormals and infinity; then as many more, drawn once."""
    if profile == "night":
        return list(range(GROUPS))
    more = 8 if profile == "ci" else 0
    return [*GROUP_OF.values(), *np.random.default_rng(9).integers(0, GROUPS, more).tolist()]


def upper_groups(profile: str) -> list[int]:
    """A group is one sign and exponent of float64: subnormals, from 1 on, NaNs; the smallest, 2, what rcp flushes."""
    if profile == "night":
        return list(range(GROUPS))
    return [0, 1023, 2047] if profile == "quick" else [0, 1, 1023, 1024, 2044, 2045, 2046, 2047, 2048 + 1023]


@pytest.mark.parametrize("form", SINGLES)
def test_the_model_gives_every_recorded_result(form: str, refsim_profile: str) -> None:
    words = recorded(form)
    wrong = [
        f"{group << 20:#010x}" for group in groups(refsim_profile) if replayed(SINGLES[form], group) != words[group]
    ]
    assert wrong == [], "beginnings of groups that differ"


@pytest.mark.parametrize("form", DOUBLES)
def test_the_model_gives_every_recorded_result_of_upper_words(form: str, refsim_profile: str) -> None:
    """The unit's forms do not read the lower word: the recordings with and without one are the same."""
    words = recorded(form)
    some = upper_groups(refsim_profile)
    wrong = [f"{group << 20:#010x}" for group in some if replayed(DOUBLES[form], group) != words[group]]
    assert wrong == [], "beginnings of groups that differ"


@pytest.mark.parametrize("form", HALVES)
def test_the_model_gives_every_recorded_result_of_16_bits(form: str) -> None:
    codes = np.arange(1 << 16, dtype=np.uint16)
    found = HALVES[form](codes)
    assert np.flatnonzero(found != results(form)).tolist() == []
    upper = found[codes ^ np.uint16(0x5A35)].astype(np.uint32) << np.uint32(16)
    assert np.array_equal(upper | found, results(f"{form}x2"))


@pytest.mark.parametrize("form", DIVISIONS)
def test_the_model_gives_every_recorded_quotient(form: str, refsim_profile: str) -> None:
    words = recorded(form)
    some = {"quick": [4095], "ci": [127 * 16 + 7, 4080], "night": range(GROUPS)}[refsim_profile]
    assert [group for group in some if replayed_pairs([DIVISIONS[form]], group) != [words[group]]] == []


def test_pairs_of_a_chunk() -> None:
    """Exponents 127 and 126, any mantissas; special ones and equal ones are among them."""
    a, b = (each[0] for each in pairs(range(127 << 10 | 126 << 2 | 3, 127 << 10 | 127 << 2)))
    assert set((a >> 23 & 0xFF).tolist()) == {127}
    assert set((b >> 23 & 0xFF).tolist()) == {126}
    assert 7500 < np.count_nonzero((a ^ b) & 0x7FFFFF == 0) < 8700  # kinds 1 and 3 of 16
    assert 3500 < np.count_nonzero(a & 0x7FFFFF == 0x400000) / 2 * 4 < 9000


@pytest.mark.parametrize("column", [0, 1, 2])
def test_a_coefficient_that_is_off_by_one_unit_shows(column: int, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = coefficients.RCP.coefficients.copy()
    changed[0, column] += 1 << 14 if column == 0 else 1
    monkeypatch.setattr(coefficients.RCP, "coefficients", changed)
    form = "rcp_approx_ftz_f32"
    assert replayed(unit.rcp, GROUP_OF["one"]) != recorded(form)[GROUP_OF["one"]]


def test_one_wrong_result_of_a_group_shows() -> None:
    def wrong(words: np.ndarray) -> np.ndarray:
        found = unit.rcp(words)
        found[words == 0x3F812345] ^= 1
        return found

    assert replayed(wrong, GROUP_OF["one"]) != recorded("rcp_approx_ftz_f32")[GROUP_OF["one"]]


def test_the_folding_of_ones() -> None:
    ones = np.full(1 << 16, digest(np.ones(1 << 16, np.uint32)))
    assert int(folded(ones)[0]) == 0x73044388B74387F8


def test_the_recorded_probe_is_the_one_in_the_tree() -> None:
    known = sidecar(STEM)["sha256"]
    for name in ("special_functions.cu", "record_special_functions.py"):
        assert hashlib.sha256((PROBES / name).read_bytes()).hexdigest() == known[name]
