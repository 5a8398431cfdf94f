"""What an H200 returned for the special functions over all 2^32 inputs of a form, replayed by their model.

A recorded word stands for 2^20 inputs. Profile quick replays four of each form, ci 64, night all 4,096.
"""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from refsim.mufu import coefficients, unit
from refsim.silicon.special_functions import GROUPS, STEM, folded, recorded, replayed
from refsim.silicon.vectors import digest, sidecar

PROBES = Path(__file__).parent.parent / "gpu" / "probes"
FORMS = {f"{name}_approx_ftz_f32": function for name, function in unit.FUNCTIONS.items()}
GROUP_OF = {"one": 0x3F8, "minus": 0xBF8, "subnormals": 0, "nans": 0x7F8}


def groups(profile: str) -> list[int]:
    """The beginning of 1, -1, the subnormals and infinity; then as many more, drawn once."""
    if profile == "night":
        return list(range(GROUPS))
    more = 60 if profile == "ci" else 0
    return [*GROUP_OF.values(), *np.random.default_rng(9).integers(0, GROUPS, more).tolist()]


@pytest.mark.parametrize("form", FORMS)
def test_the_model_gives_every_recorded_result(form: str, refsim_profile: str) -> None:
    words = recorded(form)
    wrong = [f"{group << 20:#010x}" for group in groups(refsim_profile) if replayed(FORMS[form], group) != words[group]]
    assert wrong == [], "beginnings of groups that differ"


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
