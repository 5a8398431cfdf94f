"""Where an error of refsim in a kernel's own Python code happened: what it names itself, and the user's line."""

import re
from dataclasses import replace

import numpy as np
import pytest

from refsim.device.arguments import check_buffer
from refsim.errors import RefsimError
from refsim.testing import run_campaign


def test_a_buffer_that_cannot_be_is_said_with_the_line_that_asks_for_it(halve_kernel, fake_device):
    def run(launcher, problem):
        check_buffer("y", (2, 3), np.dtype(np.uint16), 0)

    with pytest.raises(RefsimError) as caught:
        run_campaign(replace(halve_kernel, run=run), fake_device())
    assert (caught.value.code, caught.value.where.partition(", ")[0]) == ("bad-buffer", "buffer y")
    assert re.search(r"test_places_of_errors\.py:\d+ in run$", caught.value.where)
    assert "rows * columns" in caught.value.help
