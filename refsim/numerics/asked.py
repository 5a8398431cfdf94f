"""From the arguments of `mma` to the call of a chip's instruction, with a dense A or a sparse A."""

from numpy.typing import ArrayLike

from refsim.formats import E4M3, ElementType, Format, element_named
from refsim.numerics.calls import Arguments, Call, arguments_of, fitted
from refsim.numerics.profiles import profile
from refsim.numerics.rows import Unit
from refsim.numerics.sparse import SparseCall, sparse_call, sparse_profile


def call_of(
    arguments: Arguments,
    *,
    unit: Unit,
    d_format: str | ElementType = "f32",
    target: str = "sm_90a",
    k: int | None = None,
) -> Call:
    """Return the call of a chip's instruction; raise RefsimError if the chip lacks it or the arguments do not fit.

    `k` is the K of one instruction, None for the largest.
    """
    row = profile(target, unit, arguments.a_format, arguments.b_format, element_named(d_format), k)
    return fitted(arguments, row, max(row.k) if k is None else int(k))


def call_asked_for(
    a: ArrayLike,
    b: ArrayLike,
    c: ArrayLike | None = None,
    *,
    unit: Unit = "wgmma",
    a_format: str | ElementType | None = None,
    b_format: str | ElementType | None = None,
    d_format: str | ElementType = "f32",
    target: str = "sm_90a",
    a_scale: ArrayLike | None = None,
    b_scale: ArrayLike | None = None,
    scale_format: str | Format | None = None,
    k: int | None = None,
    negate_a: bool = False,
    negate_b: bool = False,
    metadata: ArrayLike | None = None,
) -> Call | SparseCall:
    """Return the call that the arguments of `mma` describe; an operand without a format is E4M3.

    With `metadata` the call is sparse, and its `k` counts stored products: half the instruction's K.
    """
    arguments = arguments_of(
        a,
        b,
        c,
        a_format=a_format,
        b_format=b_format,
        a_scale=a_scale,
        b_scale=b_scale,
        scale_format=scale_format,
        negate_a=negate_a,
        negate_b=negate_b,
        default=E4M3,
    )
    types = arguments.a_format, arguments.b_format, element_named(d_format)
    if metadata is not None:
        row = sparse_profile(target, unit, *types, k)
        return sparse_call(arguments, metadata, row, max(row.k) if k is None else int(k) // 2)
    return call_of(arguments, unit=unit, d_format=d_format, target=target, k=k)
