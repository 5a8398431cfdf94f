"""What the strategies draw and what they shrink to."""

import pytest
from hypothesis import find, settings

from refsim.errors import RefsimError
from refsim.testing import strategies as rst
from refsim.testing.recipes import FILLS, Tensor

QUIET = settings(database=None, derandomize=True, max_examples=2000, deadline=None)


def smallest(strategy, condition):
    return find(strategy, condition, settings=QUIET)


def test_tensors_shrink_to_nothing():
    assert smallest(rst.tensors(("f16", "bf16")), lambda tensor: True) == Tensor(0, "f16")


def test_size_leaves_the_edge_it_was_drawn_from():
    assert smallest(rst.tensors("bf16"), lambda tensor: tensor.n > 1500).n == 1501
    assert smallest(rst.sizes(multiple_of=128), lambda n: n > 1500) == 1536


@pytest.mark.ci("seconds; tensors are shrunk to nothing in every run")
def test_one_bad_value_shrinks_to_one_patch_in_zeros():
    found = smallest(rst.tensors("bf16"), lambda tensor: (tensor.codes() & 0x7FFF > 0x7F80).any())
    assert (found.n, found.misalign_elements) == (1, 0)
    assert found.fill in ("zeros", "bits", "specials")


def test_edges_are_drawn_often():
    seen = []
    settings(QUIET, max_examples=300)(_collector(rst.sizes(), seen))()
    assert {0, 1, 7, 8, 9, 255, 256, 257, 2047, 2048, 2049} <= set(seen)


@pytest.mark.parametrize(("strategy", "top"), [(rst.sizes(600), 600), (rst.sizes(6000, multiple_of=128), 5888)])
def test_a_campaign_of_25_cases_meets_the_largest_size(strategy, top):
    """What goes wrong in the last sixth of the range alone is met under the quick profile, and shrinks to its first size."""
    seen = []
    settings(QUIET, max_examples=25)(_collector(strategy, seen))()
    assert top in seen
    assert smallest(rst.sizes(600), lambda n: n > 500) == 501


def test_special_codes_are_drawn_often():
    seen = []
    settings(QUIET, max_examples=200)(_collector(rst.bit_patterns("bf16"), seen))()
    assert {0x7F80, 0xFF80, 0x7FFF, 0x0000, 0x8000} <= set(seen)
    assert len(set(seen)) > 60


def test_every_offset_is_drawn():
    seen = []
    settings(QUIET, max_examples=100)(_collector(rst.misalignments(), seen))()
    assert set(seen) == set(range(16))


def test_a_quarter_of_the_tensors_are_ordinary_numbers():
    drawn = []
    settings(QUIET, max_examples=200)(_collector(rst.tensors("bf16"), drawn))()
    assert sum(tensor.fill == "gaussian" and not tensor.patches for tensor in drawn) > len(drawn) / 5
    assert {tensor.fill for tensor in drawn} == set(FILLS)
    drawn.clear()
    settings(QUIET, max_examples=50)(_collector(rst.tensors("bf16", fills=("specials",)), drawn))()
    assert {tensor.fill for tensor in drawn} == {"specials"}


def test_bad_arguments_are_refused():
    for make in (lambda: rst.sizes(-1), lambda: rst.sizes(4, multiple_of=0), lambda: rst.misalignments(1000)):
        with pytest.raises(RefsimError):
            make()
    with pytest.raises(RefsimError, match="unknown-name"):
        smallest(rst.tensors("bf16", fills=("noise",)), lambda tensor: True)


def _collector(strategy, seen):
    from hypothesis import given

    @given(drawn=strategy)
    def collect(drawn):
        seen.append(drawn)

    return collect


@pytest.mark.parametrize(
    ("wrong", "code"), [(["fp8"], "ambiguous-name"), (["bf16", "bf17"], "unknown-format"), ("e4m4", "unknown-format")]
)
def test_an_unknown_format_is_refused_where_the_strategy_is_written(wrong, code):
    with pytest.raises(RefsimError, match=code):
        rst.tensors(wrong)
