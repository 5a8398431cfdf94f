"""Notes of a verdict on the first NaN: which test case runs again, and what the notes say."""

import re
from dataclasses import replace

from refsim.device.sim import SimDevice
from refsim.testing import Verdict, kernel_named
from refsim.testing.runs import with_first_nan


def test_a_verdict_notes_where_a_nan_comes_from() -> None:
    kernel = kernel_named("fp8_dequantize")
    verdict = with_first_nan(kernel, Verdict(kernel.name, "pass", {}, "quick"), SimDevice())
    assert verdict.notes[0].startswith("first NaN: output | y | ")
    assert re.match(r"first NaN: input \| q\[\d+\] \| is nan as e4m3 before the launch", verdict.notes[1])
    kernel = replace(kernel, corpus=())
    assert with_first_nan(kernel, verdict, SimDevice()).notes[-1] == "first NaN: no output holds NaN or an infinity"
