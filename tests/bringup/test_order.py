"""Orders that are known, found again: chains, splits, steps of tensor cores, and products that have none."""

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from refsim import numerics, oracles
from refsim.bringup.order import compared, computed, fingerprint, function_named, of_function, of_kernel
from refsim.bringup.order.asking import OrderSubject
from refsim.bringup.order.problems import telling
from refsim.bringup.order.trees import Node, leaves, nested, placed, same, size
from refsim.bundled import bundled
from refsim.conversions import decode, encode
from refsim.errors import RefsimError
from refsim.formats import format_named
from refsim.testing import find_kernels
from refsim.testing.kernel_files import load_kernel_file

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
    assert order.lines[0] == "4 sums added by pairs, neighbours first"
    assert "k 0, 4, .., 60" in order.lines[1]


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
    row = oracles.linear_layers.REDUCTIONS["mirage_2_warps"]
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
        "4 sums added by pairs, neighbours first",
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
    assert found.sizes[0].why == "the order found does not give every word"
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


def test_what_a_function_may_return_and_what_it_raises():
    with pytest.raises(RefsimError, match="float64"):
        of_function(lambda a, b: a.astype(float) @ b, "f32", "f32")
    with pytest.raises(RefsimError, match="ZeroDivisionError"):
        of_function(lambda a, b: 1 / 0, "f32", "f32")
    with pytest.raises(RefsimError, match="of shape"):
        fingerprint(of_function(lambda a, b: a @ b[:, :3], "f32", "f32"))
    with pytest.raises(RefsimError, match="no kernel and no function"):
        function_named("numpy.matmull")


class Standing:
    """A device on which every kernel is what its oracle says."""

    def launcher(self, code):
        return nullcontext(code)


FILES = ("linear_bindings.py", "linear_fp8_bindings.py", "gemm_1d2d.py", "gemm_1d2d_splits.py", "attention.py")
PRODUCTS = [
    (kernel, name)
    for file in FILES
    for kernel in find_kernels([bundled(f"gpu/{file}")])
    for name, row in kernel.products.items()
    if row.rows[0] < 4 and row.n <= 128 and row.k <= 512
]


@pytest.mark.parametrize(("kernel", "name"), PRODUCTS, ids=lambda each: getattr(each, "name", each))
def test_every_bundled_product_is_the_sum_that_it_says(kernel, name):
    """One product in each corner of D: operands are in their places, scales are one, nothing else is added."""
    standing = replace(kernel, run=lambda _, problem: kernel.expected(problem, "sm_90a"))
    asked = of_kernel(standing, Standing(), name, rows=(2,))
    a, b = (np.zeros((rows, asked.k), row.code_dtype) for rows, row in ((2, asked.a_format), (asked.n, asked.b_format)))
    one, two, four = (
        int(code_of(value, row)) for value, row in ((1, asked.a_format), (2, asked.b_format), (4, asked.b_format))
    )
    a[:] = one if not asked.a_is_free else 0
    a[1, -1] = a[0, 0] = one
    b[0, 0], b[-1, -1] = two, four
    d = asked.product(a, b)
    want = np.zeros((2, asked.n))
    for row, column, value in ((0, 0, 2), (1, asked.n - 1, 4)):
        want[row, column] = value
    if not asked.a_is_free:
        want[:] = want.max(0)
    assert np.array_equal(d, code_of(want, asked.d_format))


def code_of(value, row):
    return encode(np.asarray(value, float), row)


def test_the_page_of_the_h200_is_that_of_its_record():
    report = ROOT / "conformance/reports/h200/batch_invariance.json"
    page = load_kernel_file(ROOT / "conformance/batch_invariance.py").page
    record = json.loads(report.read_text("utf-8"))
    assert report.with_suffix(".md").read_text("utf-8") == page(record)
    assert all(each["explained"] == each["words"] > 0 for each in record["subjects"])
    assert {each["subject"].split(",")[0] for each in record["subjects"]} >= {"linear", "fp8_gemm_1d2d", "torch.matmul"}


def test_computing_in_an_order_needs_nothing_of_the_subject_but_its_types():
    made = of_numpy(SERVED.four_parts)
    order = only_order(fingerprint(made, seeds=(0,)))
    problem = telling(made, 99)[0]
    bare = replace(made, multiply=lambda a, b: None)
    given = computed(order.tree, order.arithmetic, bare, problem.pool, problem.b)
    assert np.array_equal(given, made.product(problem.pool, problem.b))
