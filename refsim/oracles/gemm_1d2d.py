"""D = A B^T of FP8 codes with float32 scales for every 128 columns of K: by row (1x128) or by 128 rows (128x128).

The order of operations is the contract and follows Hopper's kernels. With T = ceil(K / 128) blocks of K, F from +0, for
each block in ascending order

    P = four chained wgmma of K = 32 from +0, in the tensor core's own arithmetic
    F = fma(fl(sa * sb), P, F)       "scale_product": DeepGEMM, and cuBLASLt as measured on an H200
    F = fma(fl(P * sa), sb, F)       "a_then_b": the reference of TransformerEngine
    F = fma(fl(P * sb), sa, F)       "b_then_a": a_then_b with A and B exchanged

and D = RNE_bf16(F). An output depends only on its row of A, its row of B and their scales; the kernel's tile and the
other rows change no bit. Columns beyond K are zeros, which add nothing. With splits = S, K has ranges of ceil(T / S)
blocks, each summed from +0. The sums are added in float32, rounded each time, in ascending order: ((F0 + F1) + F2). A
range without a block is not added.

A grouped GEMM is contiguous, the rows of all experts one after another, or masked, a matrix for each expert whose first
rows are used. Unused rows (-1) pad each expert's contiguous rows to whole blocks, since a kernel loads the weights of a
block's first row.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from refsim.computations.accumulating import PROMOTION_OF, Reduction, Sharing, adder_of
from refsim.computations.products import PlainProduct
from refsim.computations.scale_changes import BLOCK
from refsim.conversions import round_bits
from refsim.errors import RefsimError, check_named
from refsim.formats import BF16, E4M3, F32, Format, format_named
from refsim.integers import array_of, is_whole, whole
from refsim.numerics.multiply import warn_unverified
from refsim.numerics.profiles import profile
from refsim.scaling.quantizing import scale_values
from refsim.sources import DEEPGEMM
from refsim.typed_arrays import typed, with_format

Floats = NDArray[np.float32]
Picked = ArrayLike | None
Promotion = Literal["scale_product", "a_then_b", "b_then_a"]
WGMMA_K = 32  # K of one wgmma
OUT_FORMATS = (BF16, F32)
GROUP_ROWS = 128  # rows of one tile: DeepGEMM's alignment of the contiguous layout
NOBODY = -1
_MOST_ROWS = 1 << 31
RULE = "DeepGEMM: the first row of a block selects the expert for the whole block"


@dataclass(frozen=True)
class _Side:
    """The rows of an operand: codes (rows, K), and a scale for each row and block (rows, T)."""

    codes: NDArray[np.uint8]
    scales: Floats
    format: Format


@dataclass(frozen=True)
class _Order:
    """The order in which the products of blocks are summed."""

    promotion: str
    splits: int
    target: str


def fp8_gemm_1d2d(
    a: ArrayLike,
    b: ArrayLike,
    scale_a: ArrayLike,
    scale_b: ArrayLike,
    *,
    promotion: Promotion = "scale_product",
    splits: int = 1,
    groups: ArrayLike | None = None,
    group_rows: int = GROUP_ROWS,
    rows: Picked = None,
    cols: Picked = None,
    out: str | Format = BF16,
    a_format: str | Format | None = None,
    b_format: str | Format | None = None,
    target: str = "sm_90a",
    dtype: DTypeLike | None = None,
) -> NDArray[Any]:
    """Return D (M, N) of A (M, K) and B (N, K) with block scales: bf16 codes as uint16, or with out="f32" the float32
    F.

    dtype="ml_dtypes" returns bfloat16. `a`, `b`: FP8 codes, E4M3 unless the format or an ml_dtypes dtype gives another.
    `scale_a` (M, T), `scale_b` (ceil(N / 128), T), T = ceil(K / 128): float32, or E8M0 codes as uint8. Both may be by
    row or by 128 rows; the shape decides. A and B may therefore be exchanged: D is then transposed, bit for bit
    ("a_then_b" becomes "b_then_a"). `splits`: 1 to T or more. `rows`, `cols`: indices of D; only these outputs are
    computed, D[rows][:, cols].

    `groups` makes it the GEMM of a mixture of experts, B (E, N, K) and scale_b (E, ...). For A (M, K), `groups` holds
    the expert of each row, -1 for none; every block of `group_rows` rows belongs to one expert, its unused rows at the
    end. For A (E, M, K) and D (E, M, N), `groups` holds the number of rows that each expert uses. `open_rows` returns
    the unused rows: a kernel may write anything there, this function writes zeros.

    A NaN operand or scale affects only its row or column, as 0x7fff. F begins as +0, so D is -0 only if F underflows.
    fp8_gemm_1d2d(np.uint8([[0x38]]), np.uint8([[0x40]]), np.float32([[3]]), np.float32([[0.5]])) is [[0x4040]], 1 * 2 *
    1.5.

    Raises RefsimError for shapes that do not fit, for unknown promotions and for groups that a block of rows would mix.
    Source: DeepGEMM, sm90_fp8_gemm_1d2d; cuBLASLt measured on an H200; wgmma as `numerics.mma`; PTX ISA, fma.rn.f32.
    """
    order = _order(promotion, splits, target)
    written = format_named(out)
    if written not in OUT_FORMATS:
        what = f"out is {written.name}"
        raise RefsimError("unsupported-format", what, rule="bf16, or f32: the sum that is rounded to it")
    if groups is None:
        left = _side("a", a, scale_a, a_format, rows)
        right = _side("b", b, scale_b, b_format, cols)
        total = _gemm(left, right, order)
    else:
        total = _of_groups(a, b, scale_a, scale_b, groups, group_rows, (rows, cols), (a_format, b_format), order)
    return total if written is F32 else typed(round_bits(total, BF16).astype(BF16.code_dtype), BF16, dtype)


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


def _of_groups(
    a: ArrayLike,
    b: ArrayLike,
    scale_a: ArrayLike,
    scale_b: ArrayLike,
    groups: ArrayLike,
    group_rows: int,
    picked: tuple[Picked, Picked],
    formats: tuple[str | Format | None, str | Format | None],
    order: _Order,
) -> Floats:
    """Return F of a grouped GEMM: each expert's rows by its own B; unused rows stay +0."""
    named = (("a", a), ("b", b), ("scale_a", scale_a), ("scale_b", scale_b))
    codes, weights, scales, of_weights = (array_of(name, each) for name, each in named)
    codes, a_format = _with_own_format(codes, formats[0], "a")
    weights, b_format = _with_own_format(weights, formats[1], "b")
    if weights.ndim != 3 or of_weights.ndim != 3 or len(of_weights) != len(weights):
        what = f"b has shape {weights.shape}, scale_b {of_weights.shape}"
        raise RefsimError("bad-shape", what, rule="(experts, N, K) and scales of each")
    if codes.ndim not in (2, 3) or scales.ndim != codes.ndim or (codes.ndim == 3 and len(scales) != len(codes)):
        what = f"a has shape {codes.shape}, scale_a {scales.shape}"
        raise RefsimError("bad-shape", what, rule="(M, K) and (M, T), or (experts, M, K)")
    rows = picked_indices("row", picked[0], codes.shape[-2])
    cols = picked_indices("col", picked[1], weights.shape[1])
    total = np.zeros((*codes.shape[:-2], len(rows), len(cols)), np.float32)
    for part in parts_of(groups, codes.shape[:-1], len(weights), group_rows):
        mine = np.flatnonzero(part.rows[rows])
        if mine.size:
            left = _side("a", codes[part.matrix], scales[part.matrix], a_format, rows[mine])
            right = _side("b", weights[part.expert], of_weights[part.expert], b_format, cols)
            total[part.matrix][mine] = _gemm(left, right, order)
    return total


def _with_own_format(codes: NDArray[Any], format: str | Format | None, name: str) -> tuple[NDArray[Any], Format]:
    """Return codes and their format, E4M3 where neither the caller nor the dtype gives one."""
    wanted = E4M3 if format is None and codes.dtype == E4M3.code_dtype else format
    found, row = with_format(codes, wanted, name)
    return np.asarray(found), row


def _order(promotion: str, splits: int, target: str) -> _Order:
    check_named("promotion", promotion, PROMOTION_OF)
    if not is_whole(splits, 1):
        raise RefsimError("out-of-range", f"splits is {splits!r}", rule="1 or more")
    return _Order(str(promotion), int(splits), target)


def _side(name: str, codes: ArrayLike, scales: ArrayLike, format: str | Format | None, picked: Picked) -> _Side:
    """Return the picked rows of an operand, checked, with a scale for each row and block."""
    array, row = _with_own_format(array_of(name, codes), format, name)
    if array.dtype != row.code_dtype or row.bits != 8:
        raise RefsimError("bad-dtype", f"{name} holds {array.dtype}, codes of {row}", rule="FP8: one uint8 a code")
    if array.ndim != 2 or array.shape[1] == 0:
        raise RefsimError("bad-shape", f"{name} has shape {array.shape}", rule="(rows, K), K at least 1")
    blocks = -(-array.shape[1] // BLOCK)
    factors = scale_values(scales)
    by_row, by_block = (len(array), blocks), (-(-len(array) // BLOCK), blocks)
    if factors.shape not in (by_row, by_block):
        what = f"scale_{name} has shape {factors.shape}"
        where = f"{name} of shape {array.shape}"
        raise RefsimError("bad-shape", what, where=where, rule=f"{by_row} by row, or {by_block} by {BLOCK} rows")
    wanted = picked_indices("row" if name == "a" else "col", picked, len(array))
    mine = factors[wanted if factors.shape == by_row else wanted // BLOCK]
    return _Side(array[wanted], mine, row)


def picked_indices(name: str, picked: Picked, extent: int) -> NDArray[np.int64]:
    """Return the picked indices, or all of them for None."""
    if picked is None:
        return np.arange(extent)
    indices = whole(name, picked, limit=extent)
    if indices.ndim != 1:
        raise RefsimError("bad-shape", f"{name}s have shape {indices.shape}", rule="a list of indices")
    return indices


def _gemm(a: _Side, b: _Side, order: _Order) -> Floats:
    """Return F of every output (rows of A, rows of B)."""
    columns = a.codes.shape[1]
    if b.codes.shape[1] != columns:
        raise RefsimError(
            "bad-shape", f"A has {columns} columns of K, B {b.codes.shape[1]}", rule="(M, K), (N, K): one K"
        )
    shared = in_ranges(columns, BLOCK, order.splits)
    return promoted(
        (a.codes, b.codes), (a.format, b.format), (a.scales, b.scales), shared, order.promotion, order.target
    )


Pair = tuple[Any, Any]


def promoted(
    codes: Pair,
    formats: tuple[Format, Format],
    scales: Pair,
    shared: Sharing,
    promotion: str = "scale_product",
    target: str = "sm_90a",
) -> Floats:
    """Return F of products whose blocks of K are promoted by their scales (rows, T)."""
    # The promotion of a single block adds to +0, which turns a product of -0 into +0.
    c = np.zeros((len(codes[0]), len(codes[1])), np.float32) if codes[0].shape[1] <= BLOCK else None
    product = replace(wgmma_product(codes, formats, scales, target), c=c, interval=BLOCK, shared=shared)
    return product.totals(product.usual.but(promotion=PROMOTION_OF[promotion]))


def wgmma_product(codes: Pair, formats: tuple[Format, Format], scales: Pair, target: str = "sm_90a") -> PlainProduct:
    """Return a product as one chain of wgmma; `scales` (rows, T) have a column for each block of K, or one."""
    row = profile(target, "wgmma", *formats, F32, WGMMA_K)
    warn_unverified(row)
    return PlainProduct(*codes, formats, None, *scales, BLOCK, F32, adder_of(row, formats, WGMMA_K))


def in_ranges(columns: int, tile: int, splits: int) -> Sharing:
    """Return K in up to `splits` ranges of whole tiles, as many as have a column."""
    tiles = -(-columns // tile)
    return Sharing(Reduction("ranges of K", -(-tiles // -(-tiles // splits)), tile, DEEPGEMM["sm90_fp8_gemm_1d2d"]))
