"""The products of matrices that kernels of this folder can be asked for: operands as they are, scales of one, nothing added.

`refsim order` asks for them with operands that show in which order a kernel adds.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.conversions import decode, encode
from refsim.formats import BF16, Format, format_named
from refsim.kernels import KernelProduct
from refsim.testing.matrices import Given, Values

Codes = NDArray[Any]
MOST_ROWS = (1, 2, 4, 8, 16)  # of a linear layer: one fragment
KEYS = 256  # a power of two: dividing by the sum of so many ones loses no bit


Choice = Callable[[int, int, int], dict[str, Any]]


def operand(at: int) -> Callable[[Any], Any]:
    """The operand of a test case at a place of its `operands`."""
    return lambda problem: problem.operands[at]


def gemms(
    recipe: Callable[..., Any], choices: Mapping[str, Choice], entries: Iterable[str]
) -> dict[str, KernelProduct]:
    """Products of an FP8 GEMM: a choice says for M, N and K which entry, of how many parts; then each entry alone."""
    of = partial(KernelProduct, output="d", a_format="e4m3", b_format="e4m3", d_format="bf16", n=128)
    alone: dict[str, Choice] = {entry: lambda m, n, k, entry=entry: {"entry": entry} for entry in entries}  # type: ignore[misc]
    return {name: of(partial(_gemm, recipe, choice)) for name, choice in {**choices, **alone}.items()}


def _gemm(recipe: Callable[..., Any], choice: Choice, a: Codes, b: Codes) -> Any:
    (m, k), n = a.shape, len(b)
    return recipe(m, n, k, Given.of(a), Given.of(b), **choice(m, n, k))


def linears(
    recipe: Callable[..., Any], entries: Mapping[str, Any], w_format: str, **operands: Values
) -> dict[str, KernelProduct]:
    """Products of a linear layer without residual, one for each entry; those over blocks with three and with one."""
    found = {}
    for name, entry in entries.items():
        if entry.decode != "exact":  # a decoder whose zero is no zero adds products that nobody asked for
            continue
        for blocks in (3, 1) if entry.over_blocks else (1,):
            label = f"{name}_of_{blocks}" if entry.over_blocks else name
            rows, n, k = ((entry.shape[0],), *entry.shape[1:]) if entry.shape else (MOST_ROWS, 64, 512)
            make = partial(_linear, recipe, operands, name, blocks)
            found[label] = KernelProduct(make, "y", "bf16", w_format, "bf16", n, k, rows)
    return found


def _linear(
    recipe: Callable[..., Any], operands: Mapping[str, Values], entry: str, blocks: int, x: Codes, w: Codes
) -> Any:
    return recipe(len(x), len(w), x.shape[1], Given.of(x), Given.of(w), **operands, entry=entry, blocks=blocks)


def attention(recipe: Callable[..., Any], depth: int, type: str) -> KernelProduct:
    """Values weighted by ones: queries and keys are zeros, so that O is the sum of V over all keys, divided by their number."""
    make = partial(_attention, recipe, type)
    return KernelProduct(make, "o", type, type, "bf16", depth, KEYS, (1, 2, 8, 64, 65), False, _undivided)


def _attention(recipe: Callable[..., Any], type: str, weights: Codes, v: Codes) -> Any:
    return recipe(len(weights), v.shape[1], len(v), type, v=Given.of(np.ascontiguousarray(v.T)))


def experts(recipe: Callable[..., Any], entries: Mapping[str, Any]) -> dict[str, KernelProduct]:
    """Products of one expert that has all rows, one for each entry."""
    of = partial(KernelProduct, output="d", a_format="e4m3", b_format="e4m3", d_format="bf16", n=128)
    return {name: of(partial(_of_one_expert, recipe, name, max(128, row.rows))) for name, row in entries.items()}


def _of_one_expert(recipe: Callable[..., Any], entry: str, group_rows: int, a: Codes, b: Codes) -> Any:
    (m, k), n = a.shape, len(b)
    return recipe((m,), m, n, k, Given.of(a), Given.of(b), entry=entry, group_rows=group_rows)


@dataclass(frozen=True)
class OneScales:
    """Scales of one, of any format."""

    def codes(self, row: Format, rows: int, columns: int) -> Codes:
        return np.full((rows, columns), encode(np.array(1.0), row), np.uint8)


def block_scaled(recipe: Callable[..., Any], entries: Mapping[str, Any]) -> dict[str, KernelProduct]:
    """Products of block-scaled operands, one for each entry whose operands can hide one another: not of FP4 and FP6."""
    found = {}
    for name, row in entries.items():
        if all(format_named(each).bits == 8 for each in (row.a, row.b)):
            make = partial(_block_scaled, recipe, name)
            found[name] = KernelProduct(make, "d", row.a, row.b, "f32", 64, 256, (1, 2, 8, 64, 65))
    return found


def _block_scaled(recipe: Callable[..., Any], entry: str, a: Codes, b: Codes) -> Any:
    (m, k), n = a.shape, len(b)
    return recipe(m, n, k, entry, Given.of(a), Given.of(b), OneScales(), OneScales())


def _undivided(o: Codes, problem: Any) -> Codes:
    return encode(decode(o, BF16) * problem.kv_length, BF16)
