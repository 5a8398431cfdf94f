"""The recorded campaign of the block-scaled products: what its problems are, and what its page says."""

from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conformance import block_scaled_campaign as campaign

PAGE = (Path(__file__).parent / "reports/block_scaled.md").read_text("utf-8")
ROWS = campaign.rows_of(PAGE)
ENTRIES = [(kernel, entry) for kernel in campaign.KERNELS.values() for entry in kernel.entries]


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_problems_are_ragged_and_their_scales_differ(data):
    kernel, entry = data.draw(st.sampled_from(ENTRIES))
    problem = data.draw(campaign.problems(kernel.recipe, entry))
    assert campaign.traits_of(problem).ragged
    for scales in problem.operands[2:]:
        first = scales.reshape(-1)[:120]
        assert np.unique(first).size == first.size


def test_every_entry_has_two_hundred_problems_on_the_simulator_or_on_two_chips():
    for _, entry in ENTRIES:
        rows = [dict(zip(campaign.COLUMNS, cells, strict=True)) for (name, _), cells in ROWS.items() if name == entry]
        of_chips = [cells for cells in rows if cells["device"].startswith("NVIDIA")]
        simulated = [cells for cells in rows if cells["device"].startswith("sm_")]
        assert (len(simulated), len(of_chips)) == (1, 2 if "_sm90_" in entry else 0)
        for cells in rows:
            assert int(cells["problems"]) >= (50 if of_chips and cells in simulated else 200)
            assert min(int(cells[name]) for name in ("odd", "tiles", "all distinct")) >= 10


def test_no_bit_of_a_recorded_problem_differs():
    assert {int(cells[campaign.COLUMNS.index("differing")]) for cells in ROWS.values()} == {0}


def test_the_page_is_what_its_rows_make():
    assert "\n".join(campaign.page(ROWS)) == PAGE
