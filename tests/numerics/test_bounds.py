"""Exact sums, the float32 FMA chain and the error bound, on worked numbers."""

from inspect import signature
from typing import Any

import numpy as np
import pytest

import refsim
from refsim import numerics
from refsim.errors import RefsimError

FP8 = {"unit": "wgmma", "a_format": "e4m3", "b_format": "e4m3", "d_format": "f32"}
ONE = np.full((1, 1), 0x38, np.uint8)
KINDS = {"a_format": "bf16", "b_format": "bf16"}


def bf16(*values: float) -> Any:
    return refsim.encode(np.array([values]), "bf16")


def test_the_exact_product_rounds_once() -> None:
    a, b = bf16(2.0**23, 0.5, -(2.0**23)), bf16(1.0, 1.0, 1.0)
    assert numerics.exact_product(a, b, **KINDS).item() == 0.5
    halfway = bf16(2.0**24, 1.0, 2.0**-100)
    assert numerics.exact_product(halfway, b, **KINDS).item() == 2.0**24 + 2
    assert numerics.exact_product(halfway, b, d_format="f64", **KINDS).item() == 2.0**24 + 1
    assert numerics.exact_product(halfway, b, d_format="f16", **KINDS).item() == np.inf


def test_the_exact_product_takes_doubles() -> None:
    a, b = np.array([[2.0**-60, 1.0, -1.0]]), np.array([[1.0, 2.0**1000, 2.0**1000]])
    got = numerics.exact_product(a.view(np.uint64), b.view(np.uint64), a_format="f64", b_format="f64", d_format="f64")
    assert got.item() == 2.0**-60


def test_the_exact_product_multiplies_scales() -> None:
    a, b = np.full((1, 32), 0x2, np.uint8), np.full((1, 32), 0x3, np.uint8)
    scales = [np.array([[0x39, 0x40]], np.uint8), np.array([[0x01, 0x00]], np.uint8)]
    got = numerics.exact_product(
        a, b, a_format="e2m1", b_format="e2m1", a_scale=scales[0], b_scale=scales[1], scale_format="ue4m3"
    )
    assert got.item() == 16 * 1.0 * 1.5 * 1.125 * 2.0**-9


def test_the_fma_chain_rounds_at_every_k() -> None:
    a, c = bf16(1.0, 1.0), np.full((1, 1), 2.0**24, np.float32)
    assert numerics.fma_product(a, a, c, **KINDS).item() == 2.0**24
    assert numerics.exact_product(a, a, c, **KINDS).item() == 2.0**24 + 2


def test_the_bound_of_a_full_step_is_the_documented_one() -> None:
    ones = np.full((1, 32), 0x38, np.uint8)
    bound = numerics.error_bound(ones, ones, None, **FP8).item()
    assert bound == pytest.approx(33 * 2.0**-13 + 2.0**-8, rel=1e-6)


def test_a_bad_case_comes_within_a_quarter_of_the_bound() -> None:
    """One product of 1 and 31 that lie just below the window: each loses itself."""
    a, b = np.full((1, 32), 2.0**-7 * 1.75), np.full((1, 32), 2.0**-7)
    a[0, 0] = b[0, 0] = 1.0
    x, y = refsim.encode(a, "e5m2"), refsim.encode(b, "e5m2")
    kinds = {**FP8, "a_format": "e5m2", "b_format": "e5m2"}
    error = abs(numerics.mma(x, y, None, **kinds).astype(np.float64).item() - (a @ b.T).item())
    bound = numerics.error_bound(x, y, None, **kinds).item()
    assert 0.75 * bound < error <= bound


def test_no_finite_bound_where_the_result_may_overflow_or_is_not_finite() -> None:
    a = np.full((1, 32), 0x38, np.uint8)
    for c in (np.inf, np.nan):
        assert numerics.error_bound(a, a, np.full((1, 1), c, np.float32), **FP8).item() == np.inf
    half = {**FP8, "d_format": "f16"}
    largest = np.full((1, 32), 0x7E, np.uint8)
    assert numerics.error_bound(largest, largest, None, **half).item() == np.inf
    assert np.isfinite(numerics.error_bound(largest, largest, None, **FP8).item())


@pytest.mark.parametrize(
    ("unit", "types", "one", "k", "cut"),
    [("tcgen05.mxf8f6f4", "e4m3", 0x38, 32, 33 * 2.0**-25), ("tcgen05.mxf4", "e2m1", 0x2, 64, 5 * 2.0**-35)],
)
def test_the_bound_aligns_to_scaled_products(unit: str, types: str, one: int, k: int, cut: float) -> None:
    """Products of 1 and scales of 2^-7 and 2^73: E = 66, and the sum has the exponent of k x 2^66."""
    a = np.full((1, k), one, np.uint8)
    scales = {"a_scale": np.full((1, k // 32), 120, np.uint8), "b_scale": np.full((1, k // 32), 200, np.uint8)}
    kinds = {"unit": unit, "a_format": types, "b_format": types, "d_format": "f32", "target": "sm_100a"}
    bound = numerics.error_bound(a, a, None, scale_format="e8m0", **scales, **kinds).item()
    assert bound == pytest.approx(2.0**66 * (cut + k * 2.0**-23), rel=1e-8)


def test_integers_have_no_error() -> None:
    a = np.full((3, 32), 0xFF, np.uint8)
    bound = numerics.error_bound(a, a, None, unit="wgmma", a_format="u8", b_format="u8", d_format="s32")
    assert bound.shape == (3, 3)
    assert not bound.any()


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"d_format": "e4m3"}, "unknown-format"),
        ({"a_format": "s8"}, "unsupported-format"),
        ({"a": np.zeros((1, 2), np.uint8)}, "bad-dtype"),
        ({"b": bf16(1.0, 2.0, 3.0)}, "bad-shape"),
        ({"a_scale": np.zeros((1, 1), np.uint8)}, "bad-scale"),
        ({"a": [[1, 2], [3]]}, "bad-shape"),
        ({"a_format": None}, "format-needed"),
        ({"a_scale": ONE, "b_scale": ONE, "scale_format": "e4m3"}, "bad-scale"),  # its sign has no place in a scale
        ({"a_scale": [[1], [1, 2]], "b_scale": ONE, "scale_format": "e8m0"}, "bad-shape"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(changes: dict[str, Any], code: str) -> None:
    with pytest.raises(RefsimError) as error:
        numerics.exact_product(**{"a": bf16(1.0, 2.0), "b": bf16(1.0, 2.0), **KINDS, **changes})
    assert error.value.code == code


def test_a_bound_is_asked_for_as_its_product_is() -> None:
    assert list(signature(numerics.error_bound).parameters.values()) == list(
        signature(numerics.mma).parameters.values()
    )


def test_a_slip_of_arguments_is_said_of_the_name_that_was_called() -> None:
    ones: Any = np.full((1, 32), 0x38, np.uint8)
    for called in (numerics.mma, numerics.error_bound):
        with pytest.raises(TypeError, match=rf"^{called.__name__}\(\) got an unexpected keyword argument 'a_fmt'"):
            called(ones, ones, a_fmt="e4m3")  # type: ignore[call-arg]
        assert "negate_b" in signature(called).parameters
    assert signature(numerics.error_bound).return_annotation != signature(numerics.mma).return_annotation


def test_what_is_left_out_is_hoppers_fp8_wgmma() -> None:
    ones = np.full((1, 32), 0x38, np.uint8)
    said = {"unit": "wgmma", "a_format": "e4m3", "b_format": "e4m3", "d_format": "f32", "target": "sm_90a", "k": 32}
    assert numerics.error_bound(ones, ones) == numerics.error_bound(ones, ones, None, **said)
    assert numerics.mma(ones, ones) == numerics.mma(ones, ones, None, **said)


def test_a_turned_sign_has_the_bound_of_the_other_and_is_refused_where_mma_refuses_it() -> None:
    random = np.random.default_rng(0)
    a, b = (refsim.encode(random.standard_normal((4, 32)), "e4m3") for _ in "ab")
    assert (numerics.error_bound(a, b, negate_a=True) == numerics.error_bound(a, b)).all()
    with pytest.raises(RefsimError, match="negate_b is not offered"):
        numerics.error_bound(a, b, unit="mma.sync", negate_b=True)
