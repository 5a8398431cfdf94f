"""The declaration of a kernel's matrix products, which `refsim order` needs to find the order of the sums."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.errors import RefsimError
from refsim.formats import format_named
from refsim.integers import is_whole
from refsim.render.cards import FieldsCard

Codes = NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True, repr=False)
class KernelProduct(FieldsCard):
    """A product that a kernel computes: D (M, N) of A (M, K) and B (N, K), D[m, n] = the sum of A[m, k] B[n, k] over k.

    `problem(a, b)` turns codes (M, K) and (N, K) into a recipe of the kernel with scales of one and no other terms.
    `output` names the output that holds D: M*N codes of `d_format` in row-major order, or an array that `read(output,
    problem)` turns into such codes. `n`, `k` and `rows` (values of M) are the default shapes; the kernel must accept
    them. `a_is_free` is False where A can hold only ones, as the weights of attention do. KernelProduct(lambda a, b:
    MyGemm(a, b), "d", "bf16", "bf16", "bf16") computes 64 columns of 512 products. Raises RefsimError for unknown
    formats, and for sizes that are not positive whole numbers.
    """

    problem: Callable[[Codes, Codes], Any]
    output: str
    a_format: str
    b_format: str
    d_format: str
    n: int = 64
    k: int = 512
    rows: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128)
    a_is_free: bool = True
    read: Callable[[NDArray[Any], Any], NDArray[Any]] | None = None

    def __post_init__(self) -> None:
        for name in (self.a_format, self.b_format, self.d_format):
            format_named(name)
        if (
            not (is_whole(self.n, 1) and is_whole(self.k, 2))
            or not all(is_whole(m, 1) for m in self.rows)
            or not self.rows
        ):
            what = f"n = {self.n!r}, k = {self.k!r}, rows = {self.rows!r:.60}"
            raise RefsimError("bad-kernel", what, rule="n from 1, k from 2, at least one number of rows from 1")
