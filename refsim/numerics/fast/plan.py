"""The division of a matrix product: blocks of columns, tiles of rows, threads, compiled loops. It changes no bit."""

import math
from dataclasses import dataclass

from refsim.numerics.fast import compiled
from refsim.numerics.fast.threads import threads_for
from refsim.numerics.rows import Profile

OUTPUTS = 1 << 16  # of one tile: a core's own cache holds them
COLUMNS = 1 << 10  # of one block
DECODED_AT_ONCE = 1 << 22  # elements of B decoded at once
FEW = 128  # columns; with fewer columns than this and than rows, the two are exchanged: loops run over columns


@dataclass(frozen=True)
class Plan:
    """Describe how a profile with the K of one instruction is computed: threads, and compiled loops or NumPy alone.

    `may_compile`: loops that are not compiled yet are compiled first.
    """

    profile: Profile
    k: int
    threads: int
    compiled: bool
    may_compile: bool

    @property
    def length(self) -> int:
        """Return the products of one step."""
        return len(self.profile.steps(self.k)[0])

    def exchanges(self, shape: tuple[int, ...], length: int) -> bool:
        """Return whether rows and columns are exchanged: few columns would leave the loops over them short."""
        _, m, n = shape
        return n < min(m, FEW) and not self.batch_innermost(self._extent(shape, length)[0], n)

    def batch_innermost(self, batch: int, columns: int) -> bool:
        """Return whether loops run over the batch: if it is larger than the columns, and never for FP4."""
        return not self.profile.method.groups and batch > columns

    def blocks(self, shape: tuple[int, ...], length: int) -> list[tuple[slice, slice]]:
        """Return the batches and columns that are computed together, for (batch, M, N) and K; each decodes B once."""
        batches, columns = self._extent(shape, length)
        return [
            (slice(start, start + batches), slice(first, first + columns))
            for start in range(0, shape[0], batches)
            for first in range(0, shape[2], columns)
        ]

    def _extent(self, shape: tuple[int, ...], length: int) -> tuple[int, int]:
        """Return how many batches and columns a block has; the compiled loops take one batch at a time."""
        batch, m, n = shape
        columns = max(1, min(n, COLUMNS, DECODED_AT_ONCE // length))
        most = 1 if self.compiled else OUTPUTS // max(m * columns, 1)
        return max(1, min(batch, most, DECODED_AT_ONCE // (length * max(columns, m, 1)))), columns

    def row_tiles(self, shape: tuple[int, ...], length: int) -> list[slice]:
        """Return the rows of A that are computed together, in a block of this (batch, M, N) and K."""
        batch, m, n = shape
        rows = max(1, min(-(-m // self.threads), OUTPUTS // (batch * n), DECODED_AT_ONCE // (batch * length)))
        return [slice(row, row + rows) for row in range(0, m, rows)]

    def outputs_at_once(self, length: int) -> int:
        """Return how many outputs, each with a row of A and of B of its own, are computed at once."""
        return max(1, DECODED_AT_ONCE // length)


def plan_for(shape: tuple[int, ...], length: int, profile: Profile, k: int) -> Plan:
    """Return the plan for a product of this (batch, M, N) and K: threads and compiled loops where they pay."""
    with_kernels = compiled.takes(profile, len(profile.steps(k)[0])) and compiled.wins(shape, length, profile)
    threads = threads_for(math.prod(shape) * length, compiled=with_kernels)
    return Plan(profile, k, threads, with_kernels, compiled.worth_compiling(shape, length))
