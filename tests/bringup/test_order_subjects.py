"""What can be asked for its order: products that bundled kernels declare, and kernels and functions that cannot be asked."""

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from refsim import device
from refsim.bringup.order import fingerprint, function_named, of_function, of_kernel, of_row_sums
from refsim.bringup.order.arithmetic import ONE_FMA, NodeArithmetic
from refsim.bringup.order.finding import telling
from refsim.bringup.order.subjects import OrderSubject
from refsim.bundled import bundled
from refsim.conversions import encode
from refsim.errors import Kind, RefsimError
from refsim.formats import F64, format_named
from refsim.numerics import mma
from refsim.testing import find_kernels
from refsim.testing.kernel_files import load_kernel_file

ROOT = Path(__file__).parents[2]


def test_what_a_function_may_return_and_what_it_raises():
    with pytest.raises(RefsimError, match="float64"):
        of_function(lambda a, b: a.astype(float) @ b, "f32", "f32")
    with pytest.raises(RefsimError, match="ZeroDivisionError"):
        of_function(lambda a, b: 1 / 0, "f32", "f32")
    with pytest.raises(RefsimError, match="returned shape"):
        fingerprint(of_function(lambda a, b: a @ b[:, :3], "f32", "f32"))
    with pytest.raises(RefsimError, match="neither a kernel nor a function"):
        function_named("numpy.matmull")


class Standing:
    """A device on which every kernel is what its oracle says."""

    is_simulated = False

    def probing(self):
        return self

    def launcher(self, code):
        return nullcontext(code)


WIDE_TARGETS = {"block_scaled_matmul_sm120": "sm_120a"}
FILES = (
    "linear_bindings.py",
    "linear_fp8_bindings.py",
    "gemm_1d2d.py",
    "gemm_1d2d_splits.py",
    "gemm_1d2d_experts.py",
    "block_scaled_matmul.py",
    "attention.py",
)
PRODUCTS = [
    (kernel, name)
    for file in FILES
    for kernel in find_kernels([bundled(f"gpu/{file}")])
    for name, row in kernel.products.items()
    if row.rows[0] < 4 and row.n <= 128 and row.k <= 512
]


def test_every_bundled_kernel_has_an_order_or_says_why_it_has_none():
    files = [path for path in bundled("gpu").glob("*.py") if "\nKERNELS = " in path.read_text("utf-8")]
    kernels = [kernel for file in files for kernel in find_kernels([file])]
    assert len(kernels) > 18
    assert [kernel.name for kernel in kernels if bool(kernel.products) is bool(kernel.orderless)] == []
    amax = next(kernel for kernel in kernels if kernel.name == "fp8_amax")
    with pytest.raises(
        RefsimError, match="fp8_amax has no order to be asked for\n  rule: it takes the largest magnitude"
    ):
        of_kernel(amax, Standing())


def test_sums_of_few_binades_show_in_steps_that_keep_few_bits():
    """Weights of one leave e4m3 17 binades, more than the 13 bits of a step: so it is in attention."""
    row, f32 = format_named("e4m3"), format_named("f32")
    asked = OrderSubject("wgmma", lambda a, b: mma(a, b).view(np.uint32), row, row, f32, 64, 64, (2,), a_is_free=False)
    found = fingerprint(asked, seeds=(0,))
    assert found.explains
    assert found.orders[0].lines[0].startswith("a chain of 2 steps from zero, each adds 32 products at once")


def test_a_random_order_of_threads_is_tried_on_a_simulated_gpu_alone():
    (kernel,) = find_kernels([bundled("gpu/linear_bindings.py")])
    assert of_kernel(kernel, device.open("sim")).scheduled is not None
    assert of_kernel(kernel, device.open("sim:lazy")).scheduled is None
    assert of_kernel(kernel, Standing()).scheduled is None
    standing = replace(kernel, run=lambda _, problem: kernel.expected(problem, "sm_90a"))
    asked = of_kernel(standing, Standing(), k=64, rows=(1, 2))
    other = replace(asked, scheduled=lambda a, b: asked.product(a, b) ^ 1)
    assert fingerprint(replace(asked, scheduled=asked.product), seeds=(0,)).repeats
    assert not fingerprint(other, seeds=(0,)).repeats
    small = replace(asked, scheduled=lambda a, b: asked.product(a, b) ^ (len(a) == 1))  # as where few rows split K
    assert not fingerprint(small, seeds=(0,)).repeats


def in_turn(x):
    return np.add.accumulate(x, axis=1)[:, -1]


def by_halves(x):
    return in_turn(x[:, : x.shape[1] // 2]) + in_turn(x[:, x.shape[1] // 2 :])


@pytest.mark.parametrize("format", ["f32", "bf16"])
def test_rows_are_added_in_an_order_too(format):
    def by_batch(x):
        return (by_halves if len(x) < 3 else in_turn)(x.astype(np.float32))[:, None]

    found = fingerprint(of_row_sums(by_batch, format, k=24, rows=(2, 5)), seeds=(0, 1))
    assert found.explains
    assert (found.difference.m, found.difference.agrees) == (3, 2)
    assert {order.lines[0] for order in found.orders} == {
        "2 sums added",
        "a chain of 24 products from zero, k ascending",
    }


def test_a_row_that_is_added_otherwise_is_a_class_of_its_own():
    def last(x):
        return np.concatenate([in_turn(x[:-1]), by_halves(x[-1:])])

    (size,) = fingerprint(of_row_sums(last, "f32", k=24, rows=(4,)), seeds=(0,)).sizes
    assert [count for _, count in size.classes] == [3, 1]
    assert size.explained == size.words


def test_sums_in_float64_are_told():
    def multiply(a, b):
        return np.add.accumulate(a[:, :, None].astype(np.float64) * b[None], axis=1)[:, -1].astype(np.float32)

    found = fingerprint(of_function(multiply, "f32", "f32", n=8, k=32, rows=(2,)), seeds=(0,))
    assert found.explains
    assert found.orders[0].arithmetic == NodeArithmetic(None, ONE_FMA, F64)


def test_sums_of_rows_cancel_in_their_second_problem():
    asked = of_row_sums(in_turn, "f32", k=16, rows=(1,))
    plain, cancelling = ((each.pool.view(np.float32).astype(float)).sum(1) for each in telling(asked, 3))
    assert np.abs(plain).min() > 1e-3
    assert np.abs(cancelling).max() < 1e-9
    assert all((each.b.view(np.float32) == 1).all() for each in telling(asked, 3))


def test_what_cannot_be_asked_of_rows_is_refused():
    with pytest.raises(RefsimError, match="e8m0 has no sign"):
        of_row_sums(in_turn, "e8m0")
    with pytest.raises(RefsimError, match="bf16 and B"):
        of_function(lambda a, b: 1 / 0, "bf16", "f32")
    with pytest.raises(RefsimError, match="e8m0 has no sign"):
        of_function(lambda a, b: a @ b, "bf16", "e8m0")
    with pytest.raises(RefsimError, match=r"returned shape \(1, 512\)"):
        of_row_sums(lambda x: x, "f32")
    with pytest.raises(RefsimError, match=r"called as f\(x\) with X \(M, K\) of f32"):
        of_row_sums(lambda x, y: x, "f32")


@pytest.mark.parametrize(("kernel", "name"), PRODUCTS, ids=lambda each: getattr(each, "name", each))
def test_every_bundled_product_is_the_sum_that_it_says(kernel, name):
    """One product in each corner of D: operands are in their places, scales are one, nothing else is added."""
    target = WIDE_TARGETS.get(kernel.name, "sm_90a")
    standing = replace(kernel, run=lambda _, problem: kernel.expected(problem, target))
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


@pytest.mark.parametrize(
    ("change", "code", "kind"),
    [
        ({"run": lambda launcher, problem: 1 / 0}, "user-code-raised", Kind.USAGE),
        ({"run": lambda launcher, problem: {}}, "unknown-name", Kind.USAGE),
        ({"run": lambda launcher, problem: {"y": np.zeros(3, np.uint16)}}, "wrong-output", Kind.USAGE),
        (
            {"run": lambda launcher, problem: raised(RefsimError("race", "a race", kind=Kind.FAULT))},
            "race",
            Kind.INCONCLUSIVE,
        ),
    ],
)
def test_a_kernel_that_cannot_be_asked_compares_nothing(change, code, kind):
    (kernel,) = find_kernels([bundled("gpu/linear_bindings.py")])
    with pytest.raises(RefsimError) as error:
        fingerprint(of_kernel(replace(kernel, **change), Standing(), k=64, rows=(1,)), seeds=(0,))
    assert (error.value.code, error.value.kind) == (code, kind)


def raised(error):
    raise error


def code_of(value, row):
    return encode(np.asarray(value, float), row)


def test_the_page_of_the_h200_is_that_of_its_record():
    report = ROOT / "conformance/reports/h200/batch_invariance.json"
    page = load_kernel_file(ROOT / "conformance/batch_invariance.py").page
    record = json.loads(report.read_text("utf-8"))
    assert report.with_suffix(".md").read_text("utf-8") == page(record)
    assert all(each["explained"] == each["words"] > 0 for each in record["subjects"])
    assert {each["subject"].split(",")[0] for each in record["subjects"]} >= {"linear", "fp8_gemm_1d2d", "torch.matmul"}
