"""The product of a kernel that declares only `computes=`: a test case whose operands are replaced by the asked ones."""

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.computations.block_scaled import BlockScaledProduct
from refsim.computations.products import PlainProduct
from refsim.conversions import encode
from refsim.errors import RefsimError
from refsim.formats import E8M0
from refsim.kernels import Kernel, KernelProduct
from refsim.testing.kinds import KnownKind
from refsim.testing.steps import StepOperands
from refsim.testing.suspects.witnesses import cases_of
from refsim.typed_arrays import format_held

LONGEST = 512
"""More products in a sum show no other order."""
Codes = NDArray[Any]


def products_of(kernel: Kernel, target: str) -> Mapping[str, KernelProduct]:
    """Return the products of `products=`, otherwise that of a kind of `computes=`; {} where there is none.

    Its N, K and values of M are those of test cases. Raises RefsimError no-order where operands have no names.
    """
    kind = kernel.computes
    if kernel.products or not (isinstance(kind, KnownKind) and kind.is_product):
        return kernel.products
    cases: dict[tuple[int, int], dict[int, Any]] = {}
    found: PlainProduct | BlockScaledProduct | None = None
    for case in cases_of(kernel):
        name, own = next(iter(kind.of_kernel(kernel, case, target).items()))
        if isinstance(own, PlainProduct | BlockScaledProduct) and own.columns > 1:
            found = own
            cases.setdefault((own.columns, own.shape[1]), {}).setdefault(own.shape[0], case)
    if found is None:
        raise RefsimError("no-order", f"no test case of kernel {kernel.name} is one product of K from 2")

    def problem(a: Codes, b: Codes) -> Any:
        known = cases.get((a.shape[1], len(b)), {})
        if len(a) not in known:
            what = f"no test case of kernel {kernel.name} has M = {len(a)}, N = {len(b)}, K = {a.shape[1]}"
            rule = f"they have M = {', '.join(map(str, known))}" if known else f"(K, N): {', '.join(map(str, cases))}"
            raise RefsimError("no-order", what, rule=rule, help="corpus= adds a test case")
        return _with_operands(kernel.name, kind, known[len(a)], {"a": a, "b": b})

    k, n = max(cases, key=lambda each: (min(each[0], LONGEST), -each[1]))
    a, b = (str(each) for each in found.formats)
    return {name: KernelProduct(problem, name, a, b, str(found.format), n, k, tuple(sorted(cases[k, n])))}


def _with_operands(name: str, kind: KnownKind, case: Any, asked: Mapping[str, Codes]) -> Any:
    """Return a test case with other A and B, scales of one and no C; it stays an instance of its class."""
    members: dict[str, Any] = {"__slots__": ()}
    for operand in ("a", "b", "a_scale", "b_scale", "global_scale", "c"):
        given = kind.given.get(operand)
        held = None if given is None else StepOperands(case).given(given)
        if held is None:
            continue
        array = np.asarray(held)
        made = _neutral(operand, array, kind.given.get("scale_format")) if operand not in asked else asked[operand]
        made = made.view(array.dtype).reshape(array.shape)
        if isinstance(given, str):
            members[given] = _held(made) if callable(getattr(case, given)) else property(_held(made))
        elif operand in asked or (made != array).any():
            rule = "refsim order replaces operands: A and B, scales that are not one, a C that is not zero"
            help = f'computes=...({operand}="{operand}", ...) for an attribute or a method of the test case'
            raise RefsimError("no-order", f"{operand} of kernel {name} has no name", rule=rule, help=help)
    other, own = copy(case), {each.name for each in fields(case)}
    for cached in [each for each in getattr(other, "__dict__", {}) if each not in own]:
        del other.__dict__[cached]
    object.__setattr__(other, "__class__", type(type(case).__name__, (type(case),), members))
    return other


def _held(array: Codes) -> Callable[[Any], Codes]:
    """Return a method that returns an array."""
    return lambda self: array


def _neutral(operand: str, held: Codes, scale_format: Any) -> Codes:
    """Return scales of one, and zeros for C, of the dtype of an array."""
    if operand == "c" or held.dtype.kind == "f":
        return np.full_like(held, 0 if operand == "c" else 1)
    row = format_held(held.dtype) or scale_format or E8M0
    return np.full(held.shape, encode(1.0, row), held.dtype.str if held.dtype.kind == "u" else np.uint8)
