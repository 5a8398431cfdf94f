"""The rows of a grouped GEMM that belong to each expert, and the unused rows.

Contiguous: the rows of all experts one after another. Unused rows (-1) pad each expert's rows to whole blocks, since a
kernel loads the weights of a block's first row. Masked: a matrix for each expert, whose first rows are used.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from refsim.errors import RefsimError
from refsim.integers import is_whole, whole

GROUP_ROWS = 128  # rows of one tile: DeepGEMM's alignment of the contiguous layout
NOBODY = -1
_MOST_ROWS = 1 << 31
RULE = "DeepGEMM: the first row of a block selects the expert for the whole block"


@dataclass(frozen=True)
class ExpertRows:
    """The rows of one matrix that an expert's weights multiply.

    `rows` is a mask (M,). `matrix` indexes the matrix of a three-dimensional A; it is () for two dimensions.
    """

    expert: int
    rows: NDArray[np.bool_]
    matrix: tuple[int, ...] = ()


def open_rows(groups: ArrayLike, rows_each: int | None = None) -> NDArray[np.bool_]:
    """Return a mask of the unused rows of a grouped D, shape (M,) or (experts, M), where a kernel may write anything.

    `groups` as for `fp8_gemm_1d2d`: the expert of each row, -1 for none; or with `rows_each` = M the number of rows
    that each expert uses. open_rows([0, 0, -1]) is [False, False, True], and open_rows([1, 0], 2) is [[False, True],
    [True, True]]. Raises RefsimError `group-layout` for groups that are no list of whole numbers, and for more rows
    than there are. Source: DeepGEMM, m_grouped_fp8_gemm_nt_contiguous and m_grouped_fp8_gemm_nt_masked.
    """
    if rows_each is None:
        return np.asarray(_list(groups, NOBODY, None) == NOBODY)
    if not is_whole(rows_each, most=_MOST_ROWS):
        raise _misfit(f"{rows_each!r} rows of each expert")
    return np.asarray(np.arange(rows_each) >= _list(groups, 0, rows_each + 1)[:, None])


def parts_of(groups: ArrayLike, rows: tuple[int, ...], experts: int, group_rows: int) -> tuple[ExpertRows, ...]:
    """Return the rows of every expert that has any, for `rows` (M,) or (experts, M)."""
    if not is_whole(group_rows, 1, _MOST_ROWS):
        raise _misfit(f"blocks of {group_rows!r} rows")
    if len(rows) == 2:
        counts = len(_list(groups, 0, None))
        if counts != experts or rows[0] != experts:
            raise _misfit(f"{counts} counts for {rows[0]} matrices and {experts} experts")
        counted = ~open_rows(groups, rows[1])
        return tuple(
            ExpertRows(expert, counted[expert], (expert,)) for expert in range(experts) if counted[expert].any()
        )
    owner = _list(groups, NOBODY, experts)
    if owner.shape != rows:
        raise _misfit(f"{owner.shape} experts for {rows[0]} rows")
    first = owner[np.arange(len(owner)) // group_rows * group_rows]
    mixed = np.flatnonzero((owner != first) & (owner != NOBODY))
    if mixed.size:
        row = int(mixed[0])
        raise _misfit(f"row {row} is of expert {owner[row]}, its block of {group_rows} rows begins with {first[row]}")
    return tuple(ExpertRows(expert, owner == expert) for expert in range(experts) if (owner == expert).any())


def _list(groups: ArrayLike, least: int, limit: int | None) -> NDArray[np.int64]:
    """Return `groups` as a list of whole numbers; raise `group-layout` for anything else."""
    try:
        found = whole("group", groups, least=least, limit=limit)
    except RefsimError as error:
        raise _misfit(error.what) from error
    if found.ndim != 1:
        raise _misfit(f"groups have shape {found.shape}")
    return found


def _misfit(what: str) -> RefsimError:
    help = "give one expert or -1 for each row, or the number of rows for each expert"
    return RefsimError("group-layout", what, rule=RULE, help=help)
