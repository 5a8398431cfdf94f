"""Orders that are known, found again: chains, splits, steps of tensor cores, and products that have none."""

from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from refsim import numerics, oracles
from refsim.bringup.order import compared, computed, fingerprint, of_function
from refsim.bringup.order.arithmetic import FL_THEN_ADD, ONE_FMA, NodeArithmetic
from refsim.bringup.order.finding import telling
from refsim.bringup.order.revealing import Node, leaves, nested, placed, same, size
from refsim.bringup.order.subjects import OrderSubject
from refsim.conversions import decode
from refsim.errors import RefsimError
from refsim.formats import format_named
from refsim.numerics import ieee
from refsim.oracles.linear_layers import REDUCTIONS
from refsim.testing.kernel_files import load_kernel_file
from refsim.typed_arrays import format_held

ROOT = Path(__file__).parents[2]
SERVED = load_kernel_file(ROOT / "tests/cli/kernels/served.py")


def subject(multiply, a="bf16", b="bf16", d="bf16", *, n=16, k=64, rows=(1, 2)):
    return OrderSubject("subject", multiply, format_named(a), format_named(b), format_named(d), n, k, rows)


def of_numpy(function, *, n=8, k=32, rows=(1, 2)):
    return of_function(function, "f32", "f32", n=n, k=k, rows=rows)


def added(a, b, places, parts=None):
    """float32 sums in the order of `places`, from zero; `parts` chains of them, added by pairs."""
    x, y = a.view(np.float32), b.view(np.float32)
    chains = [np.zeros((len(a), len(b)), np.float32) for _ in parts or [places]]
    for number, mine in enumerate(parts or [places]):
        for k in mine:
            chains[number] += x[:, None, k] * y[None, :, k]
    while len(chains) > 1:
        chains = [chains[at] + chains[at + 1] for at in range(0, len(chains), 2)]
    return chains[0].view(np.uint32)


def by_thirds(a, b):
    thirds = [added(a, b, range(at, min(at + 8, a.shape[1]))).view(np.float32) for at in (0, 8, 16)]
    return ((thirds[0] + thirds[1]) + thirds[2]).view(np.uint32)


def one_by_one(a, b, places):
    """float32 values of A (M, K) and B (K, N), a product after the other."""
    d = np.zeros((len(a), b.shape[1]), np.float32)
    for k in places:
        d += a[:, k, None] * b[None, k]
    return d


def comb(places):
    tree = places[0]
    for place in places[1:]:
        tree = Node((tree, place))
    return tree


def only_order(found):
    assert found.explains, [each.why for each in found.sizes]
    (order,) = found.orders
    return order


@pytest.mark.parametrize("places", [list(range(40)), list(range(40))[::-1], [(7 * k) % 40 for k in range(40)]])
def test_a_chain_is_found_in_whatever_order_it_runs(places):
    order = only_order(fingerprint(subject(lambda a, b: added(a, b, places), "f32", "f32", "f32", k=40), seeds=(0,)))
    assert same(order.tree, comb(places))


def test_chains_that_take_turns_and_meet_by_pairs():
    parts = [list(range(at, 64, 4)) for at in range(4)]
    found = fingerprint(subject(lambda a, b: added(a, b, None, parts), "f32", "f32", "f32"), seeds=(0,))
    one, two, three, four = map(comb, parts)
    order = only_order(found)
    assert same(order.tree, Node((Node((one, two)), Node((three, four)))))
    assert not same(order.tree, Node((Node((one, three)), Node((two, four)))))
    assert order.lines[0] == "4 sums added by pairs, neighbors first"
    thirds = only_order(fingerprint(subject(by_thirds, "f32", "f32", "f32", k=24), seeds=(0,)))
    assert "each of 8 products (k 0..7; k 8..15; ...):" in thirds.lines[1]
    assert "k 0, 4, .., 60" in order.lines[1]
    short = only_order(fingerprint(subject(by_thirds, "f32", "f32", "f32", k=20), seeds=(0,)))
    assert len({line.index("a chain") for line in short.lines if line.lstrip().startswith("a chain")}) == 1


def test_steps_of_hopper_are_found_with_their_bits():
    wgmma = subject(lambda a, b: numerics.mma(a, b).view(np.uint32), "e4m3", "e4m3", "f32", k=64, rows=(16,))
    order = only_order(fingerprint(wgmma, seeds=(0,)))
    assert same(order.tree, Node((Node(tuple(range(32))), *range(32, 64))))
    row = order.arithmetic.step
    assert (row.fraction, row.rounding.name) == (13, "rz-e8m13")
    assert order.reversed_equal < order.words  # these bits tell the order from its mirror


def test_fp8_of_mma_sync_takes_pairs_of_bytes_in_turn():
    core = subject(
        lambda a, b: numerics.mma(a, b, unit="mma.sync").view(np.uint32), "e4m3", "e4m3", "f32", k=64, rows=(16,)
    )
    order = only_order(fingerprint(core, seeds=(0,)))
    first = [k for k in range(32) if k % 4 < 2]
    half = Node((Node(tuple(first)), *[k + 2 for k in first]))
    assert same(order.tree, Node((half, placed(half, {k: k + 32 for k in range(32)}))))


def test_partial_sums_in_bf16_are_told_from_those_in_float32():
    row = REDUCTIONS["mirage_2_warps"]
    kept = replace(row, name="kept", partial_format="f32")
    partial = {}
    for reduction in (row, kept):
        made = subject(lambda a, b, by=reduction: oracles.linear(a, b, reduction=by), n=32, k=128)
        partial[reduction.name] = only_order(fingerprint(made, seeds=(0,))).arithmetic.partial
    assert partial == {"mirage_2_warps": format_named("bf16"), "kept": None}


def test_a_split_that_the_batch_chooses_is_told_with_its_first_word_and_both_trees():
    found = fingerprint(of_numpy(SERVED.by_rows, rows=(1, 2, 4, 8)))
    assert not found.is_batch_invariant
    assert found.difference.m == 4
    assert found.explains
    assert [order.lines[0].split(" of ")[0] for order in found.orders] == [
        "4 sums added by pairs, neighbors first",
        "a chain",
    ]
    assert found.order_at(2) is found.orders[0]
    assert found.order_at(8).is_like(found.orders[1])
    assert not found.orders[0].is_like(found.orders[1])


def test_columns_of_other_orders_are_classes_of_their_own():
    def edges(a, b):
        d = SERVED.four_parts(a, b)
        d[:, 6:] = SERVED.one_chain(a, b[:, 6:])
        return d

    (found,) = fingerprint(of_numpy(edges, rows=(3,))).sizes
    assert [count for _, count in found.classes] == [18, 6]
    assert found.explained == found.words


def test_a_row_whose_order_depends_on_its_place_is_not_batch_invariant():
    def last_row(a, b):
        d = SERVED.one_chain(a, b)
        d[2:] = SERVED.four_parts(a[2:], b)
        return d

    found = fingerprint(of_numpy(last_row, rows=(2, 3)))
    assert (found.difference.m, found.difference.row) == (3, 2)


def test_what_changes_from_run_to_run_is_said():
    runs = iter(range(1 << 20))

    def racing(a, b):
        return (SERVED.one_chain if next(runs) % 2 else SERVED.four_parts)(a, b)

    assert not fingerprint(of_numpy(racing), seeds=(0,)).repeats


def test_a_large_batch_that_changes_from_run_to_run_is_said():
    """The smallest batch repeats; the one that does not is asked again where it differs."""
    turns = iter(range(10**9))

    def multiply(a, b):
        return added(a, b, np.roll(range(32), next(turns) if len(a) > 2 else 0).tolist())

    found = fingerprint(subject(multiply, "f32", "f32", "f32", n=4, k=32, rows=(1, 3)))
    assert not found.repeats


def test_a_function_that_writes_over_its_operands_changes_no_later_question():
    def careless(a, b):
        d = one_by_one(a, b, range(32))
        a[...], b[...] = 0, 0
        return d.astype(">f4")  # and the other byte order is the same numbers

    found = fingerprint(of_numpy(careless))
    assert found.repeats
    assert found.is_batch_invariant
    assert only_order(found).lines[0].startswith("a chain of 32 products from zero, k ascending")


def test_a_function_whose_results_share_one_place_is_asked_as_any_other():
    """As a captured CUDA graph does: the next result lies where the last one lay."""
    places = {}

    def multiply(a, b):
        d = places.setdefault(len(a), np.zeros((len(a), b.shape[1]), np.float32))
        d[...] = one_by_one(a, b, range(32))
        return d

    found = fingerprint(of_numpy(multiply), seeds=(0,))
    assert found.is_batch_invariant
    assert only_order(found).lines[0] == "a chain of 32 products from zero, k ascending"


def fours(first, second, *, rest):
    """Groups of four in float32, added to what came before: `first` rounded, `second` joined by one FMA, then `rest`."""

    def multiply(a, b):
        x, y = (each.astype(np.float32) for each in (a, b))
        total = np.zeros((len(a), b.shape[1]), np.float32)
        for at in range(0, a.shape[1], 4):
            pairs = [
                np.broadcast_arrays(x[:, at + place, None], y[None, at + place]) for place in (first, second, *rest)
            ]
            part = ieee.fma(*pairs[1], ieee.mul(*pairs[0]))
            for pair in pairs[2:]:
                part = ieee.fma(*pair, part)
            total = ieee.add(total, part)
        return total

    return multiply


@pytest.mark.parametrize(
    ("multiply", "rounded"),
    [
        (fours(0, 1, rest=(2, 3)), ()),
        (fours(1, 0, rest=(2, 3)), tuple(range(1, 32, 4))),
        (fours(3, 2, rest=(1, 0)), ()),
    ],
)
def test_of_two_products_that_meet_the_rounded_one_is_found(multiply, rounded):
    """Compilers fuse either; where it is not the first of its chain the answer names it."""
    order = only_order(fingerprint(of_numpy(multiply), seeds=(0, 1)))
    assert order.arithmetic.rounded == rounded
    assert ("those at k 1, 5, .., 29 are rounded first" in order.lines[-2]) is bool(rounded)
    assert order.reversed_equal < order.words


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_sums_in_the_type_of_the_operands_are_told(dtype):
    def multiply(a, b):
        d = np.zeros((len(a), b.shape[1]), dtype)
        for k in range(a.shape[1]):
            d += a[:, k, None] * b[None, k]
        return d

    row = format_held(np.dtype(dtype))
    order = only_order(fingerprint(of_function(multiply, row, row, n=8, k=32, rows=(2,)), seeds=(0,)))
    assert order.arithmetic == NodeArithmetic(None, FL_THEN_ADD, row)
    assert f"({np.dtype(dtype)}, nearest even)" in order.lines[1]


def test_fused_sums_in_f16_are_told():
    def multiply(a, b):
        d = np.zeros((len(a), b.shape[1]), np.float16)
        for k in range(a.shape[1]):
            d = ieee.fma(*np.broadcast_arrays(a[:, k, None], b[None, k]), d)
        return d

    order = only_order(fingerprint(of_function(multiply, "f16", "f16", n=8, k=32, rows=(2,)), seeds=(0,)))
    assert order.arithmetic == NodeArithmetic(None, ONE_FMA, format_named("f16"))


def test_steps_that_add_in_f16_are_told():
    core = subject(
        lambda a, b: numerics.mma(a, b, unit="mma.sync", a_format="f16", b_format="f16", d_format="f16").view(
            np.uint16
        ),
        "f16",
        "f16",
        "f16",
    )
    order = only_order(fingerprint(core, seeds=(0,)))
    assert (order.arithmetic.step.fraction, order.arithmetic.step.rounding.name) == (25, "rne-f16")


@pytest.mark.parametrize(
    ("places", "start", "why"),
    [
        (range(31), 0, "the product at k 31 is not in the sum (each product enters the sum once)"),
        ([*range(32), 3], 0, "the product at k 3 alone is 2 times itself in D"),
        (range(32), 1, "every product is zero and D is 1"),
        (range(32), np.nan, "every product is zero and D is not finite"),
    ],
)
def test_what_is_no_sum_of_each_product_once_is_said_so(places, start, why):
    found = fingerprint(of_numpy(lambda a, b: one_by_one(a, b, places) + np.float32(start), rows=(2,)), seeds=(0,))
    assert found.orders == ()
    assert found.sizes[0].why.startswith(why)


@pytest.mark.parametrize(("rows", "smallest"), [((1, 64), 23), ((1, 20, 24), 23), ((23, 24), None), ((1, 22), None)])
def test_the_smallest_batch_that_differs_is_looked_for_between_those_that_were_asked(rows, smallest):
    found = fingerprint(
        of_numpy(lambda a, b: (SERVED.one_chain if len(a) < 23 else SERVED.four_parts)(a, b), rows=rows)
    )
    if smallest is None:
        assert found.is_batch_invariant
    else:
        assert (found.difference.m, found.difference.agrees) == (smallest, smallest - 1)


def test_sizes_that_a_function_does_not_take_are_passed_over():
    def multiply(a, b):
        if len(a) % 8:
            raise ValueError("rows by eights")
        return (SERVED.one_chain if len(a) < 40 else SERVED.four_parts)(a, b)

    difference = fingerprint(of_numpy(multiply, rows=(8, 64)), seeds=(0,)).difference
    assert (difference.m, difference.agrees) == (40, 32)


def test_a_chain_from_the_end_is_called_so():
    """Its first two products commute: they are named in the direction of the others."""
    found = only_order(fingerprint(of_numpy(lambda a, b: one_by_one(a, b, range(31, -1, -1)))))
    assert found.lines[0] == "a chain of 32 products from zero, k descending"


def test_an_exact_sum_has_no_order_and_none_is_claimed():
    def exact(a, b):
        x, y = (decode(each, "e4m3") for each in (a, b))
        return (x @ y.T).astype(np.float32).view(np.uint32)

    found = fingerprint(subject(exact, "e4m3", "e4m3", "f32", rows=(8,)), seeds=(0,))
    assert not found.explains
    assert found.orders == ()
    assert "which no tree does" in found.sizes[0].why


def test_an_order_that_does_not_give_every_word_is_no_explanation():
    def off_by_one(a, b):
        d = SERVED.one_chain(a, b).view(np.uint32)
        return (d + (d % 8 == 5)).view(np.float32)

    found = fingerprint(of_numpy(off_by_one, rows=(8,)), seeds=(0,))
    assert 0 < found.explained < found.words
    assert found.sizes[0].why == "the order found does not give every element"
    assert not found.orders[0].explains


def test_two_subjects_are_compared_on_the_same_operands():
    one, other = (fingerprint(of_numpy(each), seeds=(0,)) for each in (SERVED.one_chain, SERVED.four_parts))
    assert compared(one, one) is None
    assert compared(one, other).m == 1
    with pytest.raises(RefsimError, match="the same operands"):
        compared(one, fingerprint(of_numpy(SERVED.one_chain, k=16), seeds=(0,)))


def test_groups_that_answer_alike_are_asked_one_by_one_where_that_is_wanted():
    quick, thorough = (
        fingerprint(subject(oracles.linear, k=192, rows=(2,)), seeds=(0,), thorough=each) for each in (False, True)
    )
    assert same(only_order(quick).tree, only_order(thorough).tree)
    assert quick.calls < thorough.calls


def test_groups_that_answer_alike_at_first_are_asked_one_by_one_where_bits_do_not_bear_it_out():
    last = [27, 26, 25, 24, 28, 29, 30, 31]  # from the middle of each chain the sizes are the same
    parts = [*(list(range(at, at + 8)) for at in (0, 8, 16)), last]
    found = fingerprint(subject(lambda a, b: added(a, b, None, parts), "f32", "f32", "f32", k=32), seeds=(0,))
    one, two, three, four = map(comb, parts)
    assert same(only_order(found).tree, Node((Node((one, two)), Node((three, four)))))


def test_problems_cancel_where_their_second_halves_say_so():
    plain, cancelling = telling(of_numpy(SERVED.one_chain), 3)
    for each, small in ((plain, False), (cancelling, True)):
        exact = each.pool.view(np.float32).astype(float) @ each.b.view(np.float32).astype(float).T
        size_of = np.abs(each.pool.view(np.float32)).astype(float) @ np.abs(each.b.view(np.float32)).astype(float).T
        assert bool(np.abs(exact).max() <= 1e-12 * size_of.max()) is small


def test_trees_are_as_deep_as_chains_are_long():
    tree = comb(list(range(5000)))
    assert size(tree) == 5000
    assert leaves(tree) == tuple(range(5000))
    assert same(tree, placed(tree, tuple(range(5000))))
    assert nested(comb([0, 2, 1])) == [[0, 2], 1]
    assert len(nested(tree)["steps"]) == 4999


def test_pairs_of_sums_are_no_comb_of_them():
    """The same products by the same chains; of the last two only how many sums enter a node tells which is which."""
    one, two, three, four = (comb([at, at + 1]) for at in (0, 2, 4, 6))
    pairs, turns = Node((Node((one, two)), Node((three, four)))), Node((Node((Node((one, two)), three)), four))
    assert same(pairs, Node((Node((four, three)), Node((two, one)))))
    assert not same(pairs, turns)
    assert not same(Node((one, *range(2, 4))), Node((comb([0, 1, 2]), 3)))
    assert not same(Node((one, Node((two, 4)), 5)), Node((Node((one, two, 4)), 5)))


def test_computing_in_an_order_needs_nothing_of_the_subject_but_its_types():
    made = of_numpy(SERVED.four_parts)
    order = only_order(fingerprint(made, seeds=(0,)))
    problem = telling(made, 99)[0]
    bare = replace(made, multiply=lambda a, b: None)
    given = computed(order.tree, order.arithmetic, bare, problem.pool, problem.b)
    assert np.array_equal(given, made.product(problem.pool, problem.b))
