"""A place in words."""

import numpy as np
import pytest

from refsim.layouts.families import fragment
from refsim.layouts.holders import bits_of, places, spoken


@pytest.mark.parametrize(
    ("name", "thread", "value", "words"),
    [
        ("wgmma.m64n128k32.e4m3.d", 37, 20, "warp 1, lane 5, value 20"),
        ("mfma.16x16x32.fp8.d", 37, 2, "lane 37, value 2"),
        ("tcgen05.m128n64.1sm.d", 100, 7, "TMEM lane 100, column 7"),
    ],
)
def test_spoken(name, thread, value, words):
    assert spoken(fragment(name), thread, value) == words


def test_any_layout_with_threads_is_spoken_of():
    assert spoken(object(), 33, 1) == "warp 1, lane 1, value 1"


def test_places_name_the_register_of_packed_values():
    found = places(fragment("mma.m16n8k16.bf16.a"), np.array([5]), np.array([3]))
    assert {name: int(each[0]) for name, each in found.items()} == {"warp": 0, "lane": 5, "value": 3, "register": 1}


def test_a_value_that_fills_its_register_is_not_named_by_it():
    assert list(places(fragment("mma.m16n8k16.bf16.d"), np.array([5]), np.array([3]))) == ["warp", "lane", "value"]


@pytest.mark.parametrize(
    ("name", "value", "bits"),
    [
        ("mma.m16n8k16.bf16.a", 3, (16, 31)),
        ("mma.m16n8k32.e2m1.a", 1, (10, 13)),
        ("wgmma.m64n8k16.bf16.d", 3, (0, 31)),
        ("mma.m8n8k128.b1.a", 5, (5, 5)),
    ],
)
def test_bits_of_a_value(name, value, bits):
    assert bits_of(fragment(name), value) == bits
