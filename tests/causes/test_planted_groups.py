"""What is planted in batches, experts, integers and narrow weights by other arithmetic is named, and nothing else is."""

import pytest

from conformance.explained.group_pairs import of_groups
from conformance.explained.integer_pairs import of_integers
from conformance.explained.trials import asked
from conformance.explained.weight_pairs import of_weights

KINDS = {"groups": of_groups, "integers": of_integers, "weights": of_weights}
PAIRS = {f"{kind}, {pair.name}": pair for kind, made in KINDS.items() for pair in made(1)}
EVERY_RUN = (
    "groups, batches: B of two exchanged",
    "groups, batches: split 2",
    "groups, scaled batches: scales of the first batch",
    "groups, experts: the expert of a tile's first row",
    "groups, held out: batches, B of the batch after the next",
    "integers, integers: no K za zb",
    "integers, integers to s8: symmetric",
    "integers, equal: integers to s8",
    "integers, integers: the zero point three times",
    "weights, u4 weights in bf16: scales a group late",
    "weights, u4 weights in bf16: rounded otherwise first",
    "weights, u4 weights in f16: rounded otherwise first",
    "weights, u4 weights in f16: scaled behind",
    "weights, equal: u4 weights in f16",
    "weights, held out: u4 weights in bf16, larger scales",
)
LATER = pytest.mark.ci("others of the same kinds are named in every run")
NAMES = [pytest.param(name, marks=() if name in EVERY_RUN else LATER) for name in PAIRS]


@pytest.mark.parametrize("name", NAMES)
def test_what_was_planted_is_named(name):
    row = asked(PAIRS[name], seconds=6.0 if PAIRS[name].planted else 0.4)
    assert row["right"], row
