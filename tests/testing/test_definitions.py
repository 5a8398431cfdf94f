"""The definitions that refsim supplies: each accepts right elements, refuses wrong ones, and is asked by itself."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

import refsim
from refsim.compare import within_bound
from refsim.conversions import decode, encode
from refsim.errors import RefsimError
from refsim.formats import FORMATS
from refsim.testing import Bounded, Kernel, KernelProduct, Promise, definitions, run_campaign

SOURCE = r"""
extern "C" __global__ void gemm(const float* a, const float* b, float* d, unsigned n, unsigned k) {
  float sum = 0;
  for (unsigned i = 0; i < k LESS; ++i) sum = fmaf(a[blockIdx.x * k + i], b[threadIdx.x * k + i], sum);
  d[blockIdx.x * n + threadIdx.x] = sum;
}
"""


@dataclass(frozen=True)
class Gemm:
    m: int = 2
    n: int = 8
    k: int = 16
    seed: int = 0

    def operands(self) -> tuple[np.ndarray, np.ndarray]:
        random = np.random.default_rng(self.seed)
        a, b = (random.standard_normal((rows, self.k)).astype(np.float32) for rows in (self.m, self.n))
        return a.view(np.uint32), b.view(np.uint32)


@dataclass(frozen=True)
class Given(Gemm):
    a: tuple[float, ...] = ()
    b: tuple[float, ...] = ()

    def operands(self) -> tuple[np.ndarray, np.ndarray]:
        if not self.a:
            return Gemm.operands(self)
        shapes = ((self.m, self.k), (self.n, self.k))
        a, b = (np.float32(each).reshape(shape) for each, shape in zip((self.a, self.b), shapes, strict=True))
        return a.view(np.uint32), b.view(np.uint32)


def of_codes(a: np.ndarray, b: np.ndarray) -> Given:
    values = (tuple(decode(each, "f32").reshape(-1).tolist()) for each in (a, b))
    return Given(len(a), len(b), a.shape[1], 0, *values)


def run(launcher: Any, case: Given) -> dict[str, np.ndarray]:
    a, b = (launcher.upload(each, name=name) for each, name in zip(case.operands(), "ab", strict=True))
    d = launcher.output(case.m * case.n, np.float32, name="d")
    launcher.launch("gemm", case.m, case.n, [a, b, d, np.uint32(case.n), np.uint32(case.k)])
    return {"d": launcher.read(d).view(np.uint32).reshape(case.m, case.n)}


def oracle(case: Given, less: int = 0) -> dict[str, Any]:
    a, b = (each.view(np.float32).astype(np.float64) for each in case.operands())
    value = a[:, : case.k - less] @ b[:, : case.k - less].T
    return {"d": Bounded(value, np.full(value.shape, 1e-3))}


PRODUCTS = {"d": KernelProduct(of_codes, "d", "f32", "f32", "f32", n=8, k=16, rows=(1, 2, 4))}


def kernel(less: int = 0, **fields: Any) -> Kernel:
    return Kernel(
        "gemm",
        lambda case: oracle(case, less),
        st.builds(Given, st.integers(1, 4), st.integers(1, 8), st.integers(2, 16), st.integers(0, 9)),
        run,
        {"d": "f32"},
        Given,
        corpus=(Given(),),
        promise=Promise.BOUNDED("a test"),
        source=SOURCE.replace("LESS", f"- {less}"),
        **fields,
    )


def verdict(made: Kernel) -> Any:
    return run_campaign(made, refsim.device.open("sim"), cases=3, suspect_seconds=0)


def test_declared_products_are_computed_again_without_a_definition():
    found = verdict(kernel(products=PRODUCTS))
    assert (found.status, found.recomputed.outputs, found.recomputed.differing) == ("pass", 16, 0)
    assert "outputs" in found.checks
    wrong = verdict(kernel(1, products=PRODUCTS))  # kernel and oracle both leave out the last product
    assert wrong.status == "fail"
    assert "[definition-differs] 16 outputs computed again by the slow definition" in wrong.finding
    silent = verdict(kernel(1))
    assert silent.status == "pass"
    assert "no second definition was asked: declare definition= or products=" in str(silent)


def test_a_definition_may_give_a_value_with_a_bound():
    of = definitions.product("d", lambda case: case.operands(), "f32", "f32")
    found = verdict(kernel(definition=of))
    assert (found.status, found.recomputed.outputs) == ("pass", 4)
    assert verdict(kernel(1, definition=of)).status == "fail"
    with pytest.raises(RefsimError, match="wrong-output"):
        verdict(kernel(definition=lambda *asked: 0.5))


X = np.random.default_rng(3).standard_normal((4, 50)).astype(np.float32)
W = np.linspace(0.5, 2, 50, dtype=np.float32)
EXP = np.exp(X - X.max(1, keepdims=True))
DEVIATION = np.sqrt(X.var(1, keepdims=True) + np.float32(1e-5))
ROWS = {
    "softmax": EXP / EXP.sum(1, keepdims=True),
    "rms_norm": X / np.sqrt((X * X).mean(1, keepdims=True) + np.float32(1e-5)) * W,
    "layer_norm": (X - X.mean(1, keepdims=True)) / DEVIATION * W,
    "sum": X.sum(1),
    "max": X.max(1),
}


@pytest.mark.parametrize("format", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("name", ROWS)
def test_row_functions_accept_right_elements_and_refuse_wrong_ones(name, format):
    right = ROWS[name]
    weights = {"weights": lambda case: W} if name.endswith("norm") else {}
    of = definitions.row_function(name, "y", lambda case: X, format, eps=1e-5, **weights)
    codes = encode(right, format)
    refused = 0
    off = encode(right * (1 + 2.0 ** (-12 if format == "f32" else -5)), format)
    for at in np.ndindex(right.shape):
        want = of(None, "y", at)
        assert isinstance(want, Bounded)
        near, far = (within_bound(np.array(each[at]), want.value, want.bound, format) for each in (codes, off))
        assert not near
        refused += bool(far)
    assert refused > right.size // 2  # where terms cancel, a mistake may look like rounding
    assert of(None, "other", (0, 0)) is None


def test_row_functions_leave_out_what_they_cannot_judge():
    holed = X.copy()
    holed[0, 3], holed[1, 4] = np.nan, np.inf
    of = definitions.row_function("softmax", "y", lambda case: holed)
    assert [of(None, "y", (row, 0)) is None for row in range(3)] == [True, True, False]
    assert definitions.row_function("layer_norm", "y", lambda case: np.ones((1, 4)))(None, "y", (0, 0)) is None
    assert definitions.row_function("sum", "y", lambda case: np.full((1, 4), 3e38))(None, "y", (0,)) is None
    with pytest.raises(RefsimError, match="row function"):
        definitions.row_function("softmin", "y", lambda case: X)


@pytest.mark.parametrize(("rule", "format"), [("floor", "mxfp8"), ("ceil", "mxfp4"), ("even", "mxfp6_e2m3")])
def test_block_quantizers_return_the_codes_of_the_model(rule, format):
    x = np.random.default_rng(4).standard_normal((3, 64)).astype(np.float32)
    made = refsim.quantize(x, format, recipe=rule)
    codes, scales = made.codes, made.scales
    of = definitions.block_quantizer(rule, format, lambda case: x)
    assert all(of(None, "q", at) == int(codes[at]) for at in np.ndindex(x.shape))
    assert all(of(None, "scale", at) == int(scales[at]) for at in np.ndindex(scales.shape))
    other = definitions.block_quantizer(rule, format, lambda case: np.roll(x, 1, 0))
    assert any(other(None, "q", at) != int(codes[at]) for at in np.ndindex(x.shape))


@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_products_are_exact_in_every_format(format):
    """By the definition of the fields; the fast decode is another function."""
    bits = 16 if format.code_dtype == np.uint32 else 0  # upper halves, which tf32 can hold too
    codes = np.arange(min(format.code_limit, 1 << 16), dtype=format.code_dtype)[:: 7 if bits or format.bits > 8 else 1]
    for code in codes.tolist():
        made = definitions.product_element(
            format.code_dtype.type(code << bits), np.uint32([0x3F800000]), format, "f32", "f32"
        )
        value = decode(format.code_dtype.type(code << bits), format)
        assert made is None or float(made.value) == value
        assert made is not None or not abs(value) < 3e38


def test_products_of_eight_bits_allow_the_short_sums_of_tensor_cores():
    a = encode(np.random.default_rng(5).standard_normal(64), "e4m3")
    made = definitions.product_element(a, a, "e4m3", "e4m3", "f32")
    assert made is not None
    exact = float((decode(a, "e4m3").astype(np.float64) ** 2).sum())
    assert float(made.value) == exact
    assert exact * 2.0**-13 < float(made.bound) < exact * 2.0**-6
