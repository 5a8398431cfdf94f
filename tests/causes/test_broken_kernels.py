"""The broken kernels of this project: each is called something, some are asked about in every run, all by the script."""

import pytest

from conformance.explained import broken

NO_ORACLE = ("proxy_fence", "accumulator_in_flight", "operands_refilled", "tensor_core_sm100")
SAMPLE = {
    "exhibits/swizzle_mismatch": broken.NAMED_RIGHT,
    "splits/scale-of-the-row-before": broken.NAMED_RIGHT,
    "tensors/tail-never-written": broken.NAMED_RIGHT,
    "exhibits/unswizzled": broken.NOT_ASKED,
    "rows/other-order-of-warps": broken.NAMED_RIGHT,
    "attention/last-tile-left-out": broken.NAMED_RIGHT,
}
SELDOM = ("exhibits/swizzle_mismatch", "splits/scale-of-the-row-before")
LATER = pytest.mark.ci("one that is named and one that is not asked about are in every run")


def test_every_broken_kernel_is_called_something_and_nothing_else_is():
    assert set(broken.called()) - set(broken.all_broken()) == {f"field-bugs/{name}" for name in NO_ORACLE}
    assert set(broken.all_broken()) <= set(broken.called())


@pytest.mark.parametrize("name", [pytest.param(each, marks=LATER) if each in SELDOM else each for each in SAMPLE])
def test_a_broken_kernel_is_asked_about(name):
    row = broken.asked(name)
    assert row["verdict"] == SAMPLE[name], row


@pytest.mark.parametrize(
    ("wanted", "named", "verdict"),
    [
        (broken.Called(("tail",)), ("tail", "format"), broken.NAMED_RIGHT),
        (broken.Called(("tail",)), ("tail+format",), broken.NAMED_WRONG),
        (broken.Called(("tail",)), (), broken.UNNAMED),
        (broken.Called(why="another mask"), ("tail",), broken.HELD_NAMED),
        (broken.Called(why="another mask"), (), broken.LEFT_ALONE),
    ],
)
def test_a_name_is_right_where_it_alone_reproduces_every_bit(wanted, named, verdict):
    assert broken.verdict_on(wanted, named) == verdict


def test_the_summary_counts_what_was_asked():
    rows = [
        {"name": "rows/cut-off", "called": ["rounding mode"], "verdict": broken.NAMED_RIGHT},
        {"name": "rows/squares-rounded", "called": ["contraction"], "verdict": broken.UNNAMED},
        {"name": "rows/half-a-warp", "called": [], "verdict": broken.HELD_NAMED},
        {"name": "rows/no-epsilon", "called": ["no epsilon"], "verdict": broken.NOT_ASKED},
    ]
    found = broken.summary(rows, "")
    assert (found["asked"], found["with_a_name"], found["named_right"], found["named_right_percent"]) == (3, 2, 1, 50.0)
    assert (found["held_out"], found["held_out_named"], found["unlike_the_table"]) == (1, 1, ["rows/no-epsilon"])
