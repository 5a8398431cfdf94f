"""Split the user's operands of batches and experts into the operands of each group."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from refsim.causes.grouped import GroupedPlan, GroupedProduct
from refsim.causes.products import ProductOfPlans
from refsim.errors import RefsimError
from refsim.formats import Format
from refsim.integers import array_of

Operands = Any
"""A `ProductOperands`; its module imports this one."""
NOBODY = -1
"""The index of a row without an expert, as DeepGEMM pads its groups."""


def grouped_product(given: Operands, format: Format) -> GroupedProduct:
    """Return the product of batches, or of rows with experts. Raises RefsimError for shapes that do not match."""
    if given.scale_format is not None:
        raise RefsimError("usage", "batches or experts with codes of scales", help="one of them at a time")
    a, b = array_of("a", given.a), array_of("b", given.b)
    if given.m_indices is not None:
        return _of_experts(given, a, b, format)
    batches, rows = a.shape[:2]
    if b.ndim == 3 and len(b) != batches:
        raise RefsimError("bad-shape", f"a has {batches} batches, b has {len(b)}", rule="(B, M, K), (B, N, K)")
    left = replace(
        given,
        a=a.reshape(-1, a.shape[2]),
        a_scale=_behind_each_other("a_scale", given.a_scale, batches, rows),
        c=None if given.c is None else _rows_of_c(given.c, batches),
    )
    products = _products(left, b, format)
    groups = np.repeat(np.arange(batches), rows)
    usual = GroupedPlan(**_fields(products[0]))
    return GroupedProduct(products, groups, (batches, rows, products[0].shape[1]), usual, batches)


def _of_experts(given: Operands, a: NDArray[Any], b: NDArray[Any], format: Format) -> GroupedProduct:
    """Return the product of rows whose experts `m_indices` selects; rows without an expert are dropped."""
    index = array_of("m_indices", given.m_indices)
    if index.dtype.kind not in "iu" or index.shape != a.shape[:1] or a.ndim != 2 or b.ndim != 3:
        what = f"m_indices is {index.dtype} of shape {index.shape}, a has shape {a.shape}, b has shape {b.shape}"
        raise RefsimError("bad-shape", what, rule="integers (M,), (M, K), (G, N, K)")
    kept = index != NOBODY
    if not kept.any() or index[kept].min() < 0 or index[kept].max() >= len(b):
        raise RefsimError("out-of-range", f"m_indices has {index.min()}..{index.max()}", rule=f"-1, 0..{len(b) - 1}")
    scale = given.a_scale
    if scale is not None and np.ndim(scale) and np.shape(scale)[0] == len(a):
        scale = array_of("a_scale", scale)[kept]
    c = None if given.c is None else array_of("c", given.c)[kept]
    products = _products(replace(given, a=a[kept], a_scale=scale, c=c, m_indices=None), b, format)
    usual = GroupedPlan(**_fields(products[0]))
    groups = index[kept].astype(np.int64)
    return GroupedProduct(products, groups, (len(a), products[0].shape[1]), usual, kept=kept)


def _products(left: Operands, b: NDArray[Any], format: Format) -> tuple[ProductOfPlans, ...]:
    """Return the product of all rows of A with each matrix of B."""
    matrices = b if b.ndim == 3 else b[None]
    found = []
    for at, matrix in enumerate(matrices):
        scale = None if left.b_scale is None else _of_group("b_scale", left.b_scale, at, b)
        product = replace(left, b=matrix, b_scale=scale).product(format)
        assert isinstance(product, ProductOfPlans)
        found.append(product)
    return tuple(found)


def _of_group(name: str, scales: ArrayLike, at: int, b: NDArray[Any]) -> Any:
    """Return the scales of one group; a single scale applies to every group."""
    held = array_of(name, scales)
    if held.ndim == 0 or held.size == 1 or b.ndim == 2:
        return held
    if len(held) != len(b):
        raise RefsimError("bad-shape", f"{name} has shape {held.shape}", rule=f"{len(b)} groups before their shapes")
    return held[at]


def _behind_each_other(name: str, scales: ArrayLike | None, batches: int, rows: int) -> Any:
    """Return scales (B, M, T), (B, M) or (B,) as those of B M rows."""
    if scales is None or np.size(scales) == 1:
        return scales
    held = array_of(name, scales)
    if len(held) != batches:
        rule = f"{batches} batches before their shapes"
        raise RefsimError("bad-shape", f"{name} has shape {held.shape}", rule=rule)
    if held.ndim == 1:
        return np.repeat(held, rows)
    if held.shape[1] == 1 != rows:
        held = np.repeat(held, rows, axis=1)
    return held.reshape(batches * held.shape[1], *held.shape[2:])


def _rows_of_c(c: ArrayLike, batches: int) -> Any:
    """Return C (B, M, N) as (B M, N)."""
    held = array_of("c", c)
    if held.ndim != 3 or len(held) != batches:
        raise RefsimError("bad-shape", f"c has shape {held.shape}", rule=f"({batches}, M, N)")
    return held.reshape(-1, held.shape[2])


def _fields(product: ProductOfPlans) -> dict[str, Any]:
    usual = product.usual
    return {name: getattr(usual, name) for name in usual.__dataclass_fields__}
