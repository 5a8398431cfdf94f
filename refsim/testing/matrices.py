"""Recipes of matrices: their contents, rebuilt from a seed, and the extents at which tiled kernels break."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from refsim.conversions import encode
from refsim.errors import RefsimError
from refsim.formats import Format, format_named
from refsim.testing.recipes import FILLS, ROW_FILLS, Codes, Tensor, check_patches, in_range, one_of, spelled
from refsim.testing.strategies import bit_patterns

__all__ = ["DRAWN_FILLS", "MATRIX_FILLS", "Given", "Values", "extents", "values"]
__dir__ = partial(sorted, __all__)


MATRIX_FILLS = (*FILLS, *ROW_FILLS)
DRAWN_FILLS = tuple(
    name for name in MATRIX_FILLS if name not in ("ties", "near-overflow")
)  # these two test a conversion to `target`


@dataclass(frozen=True, repr=False)
class Values:
    """The contents of a matrix without its shape and format: a fill of MATRIX_FILLS made from its seed, then patches.

    `patches` are (index, code) of the flattened matrix; indices wrap around, so that patches survive when the shape
    shrinks. Raises RefsimError for unknown fills and for seeds beyond 64 bits.
    """

    fill: str = "zeros"
    seed: int = 0
    patches: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        one_of("fill", self.fill, MATRIX_FILLS)
        in_range("seed", self.seed, 0, (1 << 64) - 1)
        check_patches(self.patches)

    def __repr__(self) -> str:
        return spelled(self)

    def codes(self, format: str | Format, rows: int, columns: int) -> Codes:
        """Return the codes, shape (rows, columns), in the unsigned dtype of the format."""
        row = format_named(format)
        if self.fill in ROW_FILLS:
            generator = np.random.Generator(np.random.Philox(self.seed))
            codes = encode(ROW_FILLS[self.fill](generator, rows, columns), row, overflow="saturate")
        else:
            codes = Tensor(int(rows) * int(columns), row.name, self.fill, self.seed).codes().reshape(rows, columns)
        for index, code in self.patches:
            codes.flat[index % codes.size] = code % row.code_limit
        return codes


def values(format: str | Format, *, fills: Sequence[str] = DRAWN_FILLS, max_patches: int = 2) -> SearchStrategy[Values]:
    """Return a strategy of values of any fill with a few patches of special or random codes."""
    patch = st.tuples(st.integers(0, 1 << 16), bit_patterns(format))
    patches = st.lists(patch, max_size=max_patches).map(tuple)
    return st.builds(Values, st.sampled_from(list(fills)), st.integers(0, 2**16 - 1), patches)


def extents(tile: int, most: int) -> SearchStrategy[int]:
    """Return a strategy of 1 to `most`, often near multiples of `tile`, often multiples of 8 (16-byte vectors)."""
    if not 1 <= tile <= most or most < 8:
        raise RefsimError("out-of-range", f"extents up to {most} around tiles of {tile} do not exist")
    beside = st.builds(lambda count, off: max(1, count * tile + off), st.integers(1, most // tile), st.integers(-1, 1))
    return st.one_of(st.integers(1, most), beside, st.integers(1, most // 8).map(lambda count: 8 * count))


@dataclass(frozen=True, repr=False, eq=False)
class Given(Values):
    """A matrix of given codes, for a test case that is not saved: refsim probes a kernel with it."""

    array: Codes | None = None

    @classmethod
    def of(cls, codes: Codes) -> "Given":
        """Return the values that hold these codes, shape (rows, columns)."""
        return cls(array=codes)

    def codes(self, format: str | Format, rows: int, columns: int) -> Codes:
        """Return a copy of the codes; raise RefsimError if the test case has another shape or another code width."""
        row = format_named(format)
        array = self.array
        if array is None or array.size != rows * columns or array.dtype != row.code_dtype:
            what = "no codes" if array is None else f"{array.dtype} codes of shape {array.shape}"
            raise RefsimError("bad-recipe", f"{what} for {rows} x {columns} of {row}", rule="as many codes as elements")
        return array.reshape(rows, columns).copy()
