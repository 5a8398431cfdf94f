"""Readings of a computation: what a description says, which stages are shared, which ways are offered."""

import numpy as np
import pytest

from refsim import encode
from refsim.causes import RowOperands, explain_diff
from refsim.computations.engine import Computation
from refsim.computations.row_sums import RowOrder
from refsim.formats import BF16, F32

X = encode(np.random.default_rng(0).normal(0, 1, (12, 300)).astype(np.float32), BF16)
W, GATE = np.linspace(0.5, 2, 300, dtype=np.float32), np.linspace(-2, 2, 3600, dtype=np.float32).reshape(12, 300)


def computation(function: str, format=BF16, **more) -> Computation:
    return RowOperands(function=function, x=X, x_format="bf16", **more).explained(X.shape, format)


COMPUTATIONS = {
    "softmax": computation("softmax", scale=0.5),
    "layer_norm": computation("layer_norm", weight=W, bias=W, gate=GATE),
    "silu": computation("silu", gate=GATE),
}


@pytest.mark.parametrize("name", COMPUTATIONS)
def test_every_changed_choice_is_in_the_description(name):
    own = COMPUTATIONS[name]
    told = {each.name for each in own.aspects if each.told}
    for cause in own.causes():
        said = own.described(cause.of(own.usual))
        is_said = (cause.value.name if cause.aspect in told else cause.says) in said
        assert is_said or cause.is_made(own.usual), cause
    words = [each.told.format(getattr(own.usual, each.name).name) for each in own.aspects if each.told]
    assert own.described(own.usual) == own.title + ", ".join(words)


def test_an_output_is_called_usual_only_if_it_is():
    """The sum of B leaves the last columns out; A adds the others in another order."""
    own = computation("softmax", F32)
    wrong = own.usual.but(tail=32)
    b, a = own.codes(wrong), own.codes(wrong.but(order=RowOrder(1)))
    assert (b != own.codes(own.usual)).mean() > 0.9
    given = RowOperands(function="softmax", x=X, x_format="bf16")
    found = explain_diff(a, b, "f32", operands=given)
    left_out = "the last 12 columns"
    assert left_out in found.a_is
    assert left_out in found.b_is
    assert "the columns are added one after the other" in found.a_is


def test_a_stage_is_made_again_for_another_choice_that_it_depends_on():
    own, rows = computation("softmax"), np.arange(4)
    sample = rows, np.arange(300)
    for plan in (own.usual, own.usual.but(tail=32), own.usual.but(order=RowOrder(1)), own.usual):
        assert (own.codes(plan, sample) == own.codes(plan)[rows]).all()
    assert 0 < len(own.made) < 8
    assert not computation("softmax").made
