"""What can be asked for its order: products that bundled kernels declare, and kernels and functions that cannot be asked."""

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from refsim.bringup.order import fingerprint, function_named, of_function, of_kernel
from refsim.bundled import bundled
from refsim.conversions import encode
from refsim.errors import Kind, RefsimError
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


@pytest.mark.parametrize(
    ("change", "code", "kind"),
    [
        ({"run": lambda launcher, problem: 1 / 0}, "kernel-code-fails", Kind.USAGE),
        ({"run": lambda launcher, problem: {}}, "unknown-output", Kind.USAGE),
        ({"run": lambda launcher, problem: {"y": np.zeros(3, np.uint16)}}, "order-result", Kind.USAGE),
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
